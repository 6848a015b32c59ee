# SPDX-License-Identifier: Apache-2.0
"""Rows of `causal`: layers of networks, random ones, and steps of decoding."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.drawn import BYTES_PER_S, L2_BYTES, ROUND_S
from benchmarks.numbers import Maker

MOST_BYTES = 512e6  # of the x of a draw
MOST_SETS = 16  # of operands

# N, L, C: sizes of Mamba-2 (arXiv:2405.21060; 1.3B has 4352 channels, 2.7B 5376) and
# powers of two.
ROWS = {
    "1x2048x2048": (1, 2048, 2048),
    "8x2048x2048": (8, 2048, 2048),
    "8x2048x4352": (8, 2048, 4352),
    "4x4096x4096": (4, 4096, 4096),
    "2x8192x5376": (2, 8192, 5376),
    "1x8192x8192": (1, 8192, 8192),
    "8x4096x8192": (8, 4096, 8192),
}
TAPS = 4
# N, C: one token for each sample.
UPDATES = {"128x8192": (128, 8192)}
# What draws take: N from these, L and C from the first to the second.
DRAWN_N, DRAWN_L, DRAWN_C = (1, 2, 4, 8, 16), (2048, 8192), (2048, 8192)


@dataclass(frozen=True)
class Case:
    """A sequence; `segments` is how many each sample has, 0 without ids."""

    name: str
    group: str
    n: int
    length: int
    c: int
    taps: int
    dilation: int
    segments: int
    dtype: str

    @property
    def x(self) -> tuple[int, int, int]:
        return self.n, self.length, self.c

    @property
    def reach(self) -> int:
        return (self.taps - 1) * self.dilation

    @property
    def bytes(self) -> int:
        """Of x."""
        return math.prod(self.x) * jnp.dtype(self.dtype).itemsize

    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Of x, w, bias, dy and, with segments, ids. Parameters are kept in f32."""
        wide = ((self.taps, self.c), (self.c,))
        w, bias = (jax.ShapeDtypeStruct(shape, "float32") for shape in wide)
        x = jax.ShapeDtypeStruct(self.x, self.dtype)
        ids = jax.ShapeDtypeStruct((self.n, self.length), "int32")
        return [x, w, bias, x, *([ids] if self.segments else [])]

    def sets(self) -> int:
        """How many sets of operands a round takes: more than an L2 between two uses
        of one, and on a GPU enough to hide what it costs to start a program."""
        if jax.default_backend() == "cpu":
            return 2
        least = max(3 * L2_BYTES, ROUND_S * BYTES_PER_S)
        return int(np.clip(math.ceil(least / (2 * self.bytes)), 3, MOST_SETS))

    def operands(self) -> list[tuple]:
        """The sets."""
        x, w, bias, *_ = shapes = self.shapes()
        makers = [Maker(s.shape, str(s.dtype)) for s in (x, w, bias)]
        found = []
        for i in range(self.sets()):
            seeds = range(4 * i, 4 * i + 4)
            arrays = [
                make("uniform", seed)
                for make, seed in zip((*makers, makers[0]), seeds, strict=True)
            ]
            ids = [self._ids(i)] if len(shapes) > 4 else []
            found.append((*arrays, *ids))
        return found

    def _ids(self, seed: int) -> jax.Array:
        rng = np.random.default_rng(seed)
        size = self.n, min(self.segments, self.length) - 1
        starts = rng.integers(1, max(self.length, 2), size)
        at = np.arange(self.length)[None, :, None]
        return jnp.asarray((at >= starts[:, None]).sum(-1), "int32")

    def describe(self) -> dict:
        """How its row begins."""
        return asdict(self)


def listed(rows: list[str], dtype: str) -> list[Case]:
    return [Case(name, "rows", *ROWS[name], TAPS, 1, 0, dtype) for name in rows]


def draws(seed: int, count: int, dtype: str, largest: float = MOST_BYTES) -> list[Case]:
    """Random layers; each depends on `seed`, its number and `largest` alone."""
    return [_draw(seed, i, dtype, min(largest, MOST_BYTES)) for i in range(count)]


def _draw(seed: int, number: int, dtype: str, largest: float) -> Case:
    rng = random.Random(f"causal {seed} {number}")
    for _ in range(1000):
        channels = rng.randint(*DRAWN_C)
        if rng.random() < 0.75:  # as most networks have them
            channels = -(-channels // 64) * 64
        case = Case(
            f"draw_{seed}_{number}",
            "draws",
            rng.choice(DRAWN_N),
            rng.randint(*DRAWN_L),
            channels,
            rng.randint(2, 8),
            rng.choice((1, 1, 1, 2, 4, 16)),
            rng.choice((0, 0, rng.randint(2, 32))),
            dtype,
        )
        if case.bytes <= largest:
            return case
    raise SystemExit(f"no draw has an x of at most {largest:.0f} bytes")


@dataclass(frozen=True)
class Update:
    """One more input of each sample, in `layers` layers in turn, `steps` times."""

    name: str
    group: str
    n: int
    c: int
    taps: int
    dtype: str

    dilation = 1
    steps = 4

    @property
    def layers(self) -> int:
        """Enough that states do not stay in the L2; one on a CPU, where XLA would run
        several at once."""
        if jax.default_backend() == "cpu":
            return 1
        one = self.n * self.taps * self.c * jnp.dtype(self.dtype).itemsize
        return int(np.clip(math.ceil(3 * L2_BYTES / one), 2, MOST_SETS))

    def operands(self) -> tuple:
        """States of the layers, x of each step's layers, w and bias."""
        state = Maker((self.n, self.taps - 1, self.c), self.dtype)
        x = Maker((self.n, self.c), self.dtype)
        states = [state("uniform", i) for i in range(self.layers)]
        xs = [
            [x("uniform", 100 + t * self.layers + i) for i in range(self.layers)]
            for t in range(self.steps)
        ]
        w = Maker((self.taps, self.c), "float32")("uniform", 1000)
        return states, xs, w, Maker((self.c,), "float32")("uniform", 1001)

    def describe(self) -> dict:
        return {**asdict(self), "layers": self.layers, "steps": self.steps}


def updates(dtype: str) -> list[Update]:
    return [
        Update(name, "updates", *sizes, TAPS, dtype) for name, sizes in UPDATES.items()
    ]
