# SPDX-License-Identifier: Apache-2.0
"""What `causal` times: ours, the same with shifts, `jax.lax`'s, and plain passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jax_convbatch as jcb
from benchmarks.causal_cases import Case, Update
from benchmarks.layer import LayerSide
from benchmarks.window import Window
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import first_and_numbers

# Positions from which the time of jax.lax is foretold: on a GPU enough that its start
# is a small part.
PIECE = {"cpu": 64, "gpu": 256}


class LeftOut(Exception):
    """A side is not measured."""


# --- layers: y of (x, w, bias[, ids]) --------------------------------------------


def ours(case: Case, x, w, bias, ids=None):
    return jcb.causal_conv1d(
        x, w, bias, activation="silu", segment_ids=ids, dilation=case.dilation
    )


def shifts(case: Case, x, w, bias, ids=None):
    """In jax.numpy, summed in f32."""
    length, z = x.shape[1], bias
    before = jnp.pad(x, ((0, 0), (case.reach, 0), (0, 0)))
    if ids is not None:
        ids_before = jnp.pad(ids, ((0, 0), (case.reach, 0)), mode="edge")
    for t in range(case.taps):
        read = slice(t * case.dilation, t * case.dilation + length)
        row = before[:, read].astype("float32")
        if ids is not None:
            row = jnp.where((ids_before[:, read] == ids)[..., None], row, 0)
        z = z + w[t] * row
    return jax.nn.silu(z).astype(x.dtype)


def depthwise(case: Case, x, w, bias):
    """`jax.lax`'s convolution, of x's dtype."""
    window = Window((1,), ((case.reach, 0),), (1,), (case.dilation,), case.c)
    w = w[:, None].astype(x.dtype)
    z = jax.lax.conv_general_dilated(x, w, **window.arguments())
    return jax.nn.silu(z.astype("float32") + bias).astype(x.dtype)


def both(layer: Callable, x, w, bias, dy, *ids):
    """(y, dx, dw, db)."""
    y, pullback = jax.vjp(lambda *three: layer(*three, *ids), x, w, bias)
    return y, *pullback(dy)


def forward(layer: Callable, x, w, bias, dy, *ids):
    return (layer(x, w, bias, *ids),)


def backward(layer: Callable, *operands):
    """(dx, dw, db); y is not computed, as no gradient needs it."""
    return both(layer, *operands)[1:]


def calls(case: Case) -> dict[str, Callable]:
    """What each side calls; the results are part of (y, dx, dw, db) but for passes."""
    own = partial(ours, case)
    return {
        "copy": lambda x, w, bias, dy, *ids: (-x,),
        "forward": partial(forward, own),
        "add": lambda x, w, bias, dy, *ids: (x + dy,),
        "backward": partial(backward, own),
        "ours": partial(both, own),
        "jnp": partial(both, partial(shifts, case)),
    }


def lax_side(case: Case, slow: float) -> LayerSide:
    """That of `jax.lax`, forward and backward, one call in a program.

    Raises:
      LeftOut: it has no such convolution, or a call would take over `slow` seconds.
    """
    if case.segments:
        raise LeftOut("jax.lax knows no segments")
    one = partial(both, partial(depthwise, case))
    length = min(PIECE[jax.default_backend()], case.length)
    piece = [
        jnp.ones((1, length, case.c) if len(s.shape) == 3 else s.shape, s.dtype)
        for s in case.shapes()
    ]
    program = jax.jit(one).lower(*piece).compile()
    jax.block_until_ready(program(*piece))
    start = time.perf_counter()
    jax.block_until_ready(program(*piece))
    seconds = (time.perf_counter() - start) * case.n * case.length / length
    if seconds > slow:
        raise LeftOut(f"a call would take about {seconds:.1f} s")
    return LayerSide("lax", one, case.shapes(), 1)


# --- updates: (y, state) of (state, x, w, bias) ----------------------------------


def our_update(state, x, w, bias):
    return jcb.causal_conv1d_update(state, x, w, bias, activation="silu")


def shifted_update(state, x, w, bias):
    rows = jnp.concatenate([state, x[:, None]], axis=1)
    z = bias + (w * rows.astype("float32")).sum(1)
    return jax.nn.silu(z).astype(x.dtype), rows[:, 1:]


def copied_update(state, x, w, bias):
    """Reads and writes `state`, which has the rows of x and y as well."""
    return None, -state


class UpdateSide(timing.Side):
    """A program of `case.steps` steps of decoding, which updates donated states."""

    def __init__(self, name: str, step: Callable, case: Update, operands: tuple):
        self.name, self.calls = name, case.layers * case.steps
        states, *rest = operands
        if step is copied_update:
            states = [jnp.concatenate([s, s[:, :1]], axis=1) for s in states]
        self._start, self._rest = states, rest
        program = jax.jit(partial(_decode, step), donate_argnums=0)
        self.program = program.lower(states, *rest).compile()
        self._states, self._out = self._fresh(), None

    def _fresh(self) -> list[jax.Array]:
        return [jnp.copy(state) for state in self._start]

    def queue(self) -> None:
        self._out = None
        self._states, self._out = self.program(self._states, *self._rest)

    def wait(self) -> None:
        timing.wait_for((self._states, self._out))

    def once(self) -> list[jax.Array]:
        """The last layer's last y, and all states."""
        states, (y, _) = self.program(self._fresh(), *self._rest)
        return [y, *states]


def _decode(step: Callable, states, xs, w, bias) -> tuple[list[jax.Array], Any]:
    ys: list[jax.Array] = []
    for inputs in xs:
        done = [step(s, x, w, bias) for s, x in zip(states, inputs, strict=True)]
        # A step ends before the next one begins, and nothing is fused over both.
        done = jax.lax.optimization_barrier(done)
        ys += [y for y, _ in done if y is not None]
        states = [state for _, state in done]
    return states, first_and_numbers(ys[::-1]) if ys else None


UPDATES: dict[str, Callable] = {
    "copy": copied_update,
    "update": our_update,
    "jnp": shifted_update,
}
