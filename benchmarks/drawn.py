# SPDX-License-Identifier: Apache-2.0
"""A convolution drawn at random from a family, and its operations."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np

from benchmarks.cases import OPS, Operation
from benchmarks.window import Window

# The gradient of an input with so few channels, which are data, is not asked for.
DATA_CHANNELS = 4
# A round of a GPU's program takes about so long at the roof that is guessed here:
# JAX needs 50 to 100 us to start one of 24 calls, 100 to 190 of 96 (H200).
ROUND_S, BYTES_PER_S, FLOPS_PER_S = 150e-6, 3e12, 5e14
L2_BYTES = 64 << 20
RESULT_BYTES = 4 << 30  # alive in one program
MOST_CALLS = 96


@dataclass(frozen=True)
class Draw:
    """A layer of a network: sizes of the input, C and K channels, the filter's taps.

    Attributes:
      train: its gradients are wanted as well.
    """

    family: str
    seed: int
    name: str
    batch: int
    inputs: tuple[int, ...]
    c: int
    k: int
    taps: tuple[int, ...]
    window: Window
    dtype: str
    train: bool

    @property
    def outputs(self) -> tuple[int, ...]:
        return self.window.outputs(self.inputs, self.taps)

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """Of x, w and y."""
        return {
            "x": (self.batch, *self.inputs, self.c),
            "w": (*self.taps, self.c // self.window.groups, self.k),
            "y": (self.batch, *self.outputs, self.k),
        }

    @property
    def bytes(self) -> int:
        """Of x and y."""
        values = math.prod(self.shape["x"]) + math.prod(self.shape["y"])
        return values * jnp.dtype(self.dtype).itemsize

    def ops(self, wanted=OPS) -> list[str]:
        """The operations that a user of this layer runs."""
        own = ["fprop"]
        if self.train:
            own += ["dgrad"] if self.c > DATA_CHANNELS else []
            own.append("wgrad")
        return [op for op in own if op in wanted]

    def describe(self) -> dict:
        """As JSON has it."""
        found = asdict(self)
        return found | found.pop("window")


@dataclass(frozen=True)
class DrawnCase(Operation):
    """One operation of a draw."""

    draw: Draw
    op: str
    precision: str = "default"

    @property
    def name(self) -> str:
        return self.draw.name

    @property
    def dtype(self) -> str:
        return self.draw.dtype

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        return self.draw.shape

    @property
    def window(self) -> Window:
        return self.draw.window

    @cached_property
    def flops(self) -> int:
        """Two for each product, the same in all three operations."""
        draw = self.draw
        products = draw.window.products(draw.inputs, draw.taps)
        return 2 * draw.batch * products * draw.k * (draw.c // draw.window.groups)

    @property
    def least_bytes(self) -> int:
        """What has to move: each array once, but inputs that no tap meets."""
        draw, window = self.draw, self.draw.window
        met = [
            min(size, count * tap) if stride > 1 and self.op != "dgrad" else size
            for size, count, tap, stride in zip(
                draw.inputs, draw.outputs, draw.taps, window.strides, strict=True
            )
        ]
        values = draw.batch * math.prod(met) * draw.c
        values += math.prod(self.shape["w"]) + math.prod(self.shape["y"])
        return values * jnp.dtype(self.dtype).itemsize

    def pairs(self, platform: str) -> list[tuple[int, int]]:
        """As `calls.pairs_of`, with no more sets and calls than times need; of short
        calls, as many sets as make all pairs different.

        A draw may take gigabytes, and a table of hundreds a minute for each side
        if every round were as long as that of a small convolution.
        """
        if platform == "cpu":
            return [(0, 0), (1, 1)]
        seconds = max(self.least_bytes / BYTES_PER_S, self.flops / FLOPS_PER_S)
        result = math.prod(self.result) * jnp.dtype(self.dtype).itemsize
        most = min(MOST_CALLS, max(1, RESULT_BYTES // result))
        calls = min(math.ceil(ROUND_S / seconds), most)
        sets = int(np.clip(-(-3 * L2_BYTES // self.least_bytes), 3, 5))
        sets = max(sets, math.isqrt(calls - 1) + 1)
        calls = max(calls, sets)
        return [(i % sets, (i + i // sets) % sets) for i in range(calls)]
