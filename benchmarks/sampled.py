# SPDX-License-Identifier: Apache-2.0
"""Is a large result right? Some of its elements, compared with their exact sums.

The operands are whole numbers and functions of their index (`numbers.py`), so an
element's sum is taken in integers, without the arrays and without a convolution:
for each of its terms the two indices are worked out from the definition. It runs on
the device, as the gradient of a filter has up to 10^8 terms an element.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import ROLES, Operation
from benchmarks.check import LOOSE, WrongResult
from benchmarks.numbers import whole

SAMPLES = 64  # and the first element and the last, which padding reaches
CHUNK = 1 << 16  # terms of each that are taken at once
SEEDS = (1, 2)  # of the two operands
# Of two whole results: norm of the difference over the norm.
APART = {"float32": 2e-3, "bfloat16": 1e-2, "float16": 5e-3}


class Sampled:
    """Compiled for one case, in a thread if wanted."""

    def __init__(self, case: Operation, samples: int = SAMPLES):
        self._case = case
        size = math.prod(case.result)
        drawn = np.random.default_rng(0).integers(0, size, samples)
        self._at = jnp.asarray(np.concatenate([[0, size - 1], drawn]), "int32")
        at = jax.ShapeDtypeStruct(self._at.shape, "int32")
        result = jax.ShapeDtypeStruct(case.result, case.dtype)
        self._sums = jax.jit(lambda at: sums(case, at)).lower(at).compile()
        self._taken = jax.jit(_taken).lower(result, at).compile()
        self._apart = jax.jit(_apart).lower(result, result).compile()
        self._want: np.ndarray | None = None

    def __call__(self, name: str, result: jax.Array, exact: bool) -> float:
        """The error: norm of the difference over the norm.

        Args:
          name: of the side, for the message.
          result: for operands of `whole` numbers of `SEEDS`.
          exact: every bit, or close.

        Raises:
          WrongResult: `result` is not what it must be.
        """
        if self._want is None:
            self._want = np.asarray(self._sums(self._at))
        want = self._want.astype(np.float64)
        if exact:
            want = self._want.astype(self._case.dtype).astype(np.float64)
        got = np.asarray(self._taken(result, self._at)).astype(np.float64)
        error = float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))
        # Not the other way round: nan is no good.
        if not error <= (0 if exact else LOOSE[self._case.dtype]):
            worst = int(np.argmax(np.abs(got - want)))
            where = _unravel(int(self._at[worst]), self._case.result)
            raise WrongResult(
                f"{name}: {got[worst]:g} in the place of {want[worst]:g} at {where}, "
                f"error {error:.2g}"
            )
        return error

    def same(self, result: jax.Array, other: jax.Array, error: float = 0) -> None:
        """Raises WrongResult where two whole results are apart.

        `error` is the other's own, which is no fault of `result`'s.
        """
        apart = float(self._apart(result, other))
        if not apart <= APART[self._case.dtype] + 2 * error:
            raise WrongResult(
                f"the whole result is apart from jax.lax's by {apart:.2g}"
            )


def _taken(result, at):
    return result.ravel()[at]


def _apart(result, other):
    """Norm of the difference over the norm."""
    a, b = result.astype("float32"), other.astype("float32")
    return jnp.sqrt(jnp.sum((a - b) ** 2) / jnp.maximum(jnp.sum(b**2), 1e-30))


def sums(case: Operation, at):
    """The exact elements at these flat indices of the result, as int32."""
    terms = math.prod(_terms(case))
    chunk = min(terms, CHUNK)
    first, second, _ = ROLES[case.op]

    def add(i, total):
        term = i * chunk + jnp.arange(chunk, dtype="int32")
        index, there = _indices(case, at[:, None], term[None])
        a, b = (
            whole(index[role].astype("uint32"), seed)
            for role, seed in zip((first, second), SEEDS, strict=True)
        )
        return total + jnp.where(there & (term < terms), a * b, 0).sum(1)

    start = jnp.zeros(at.shape, "int32")
    return jax.lax.fori_loop(0, -(-terms // chunk), add, start)


def _terms(case: Operation) -> tuple[int, ...]:
    """Sizes of what an element of the result is summed over."""
    *taps, c, k = case.shape["w"]
    batch, *outputs, _ = case.shape["y"]
    if case.op == "wgrad":
        return batch, *outputs
    return *taps, c if case.op == "fprop" else k // case.window.groups


def _indices(case: Operation, at, term):
    """Flat indices of x, w and y where they meet, and whether they do."""
    window = case.window
    _, *inputs, c = case.shape["x"]
    _, *outputs, k = case.shape["y"]
    c_of, k_of = c // window.groups, k // window.groups
    here = _unravel(at, case.result)
    there = _unravel(term, _terms(case))
    if case.op == "fprop":
        (n, *p, out), (*tap, part) = here, there
        group = out // k_of
    elif case.op == "dgrad":
        (n, *h, channel), (*tap, k_part) = here, there
        group, part = channel // c_of, channel % c_of
        out = group * k_of + k_part
    else:
        (*tap, part, out), (n, *p) = here, there
        group = out // k_of
    axes = list(zip(tap, *_spans(window), strict=True))
    if case.op == "dgrad":
        found = [
            _divided(at * spread + low - t * dilation, stride)
            for at, (t, stride, low, spread, dilation) in zip(h, axes, strict=True)
        ]
        p, sizes = [at for at, _ in found], outputs
    else:
        found = [
            _divided(at * stride - low + t * dilation, spread)
            for at, (t, stride, low, spread, dilation) in zip(p, axes, strict=True)
        ]
        h, sizes = [at for at, _ in found], inputs
    meet = jnp.bool_(True)
    for (at, divides), size in zip(found, sizes, strict=True):
        meet = meet & divides & (at >= 0) & (at < size)
    index = {
        "x": _ravel((n, *h, group * c_of + part), case.shape["x"]),
        "w": _ravel((*tap, part, out), case.shape["w"]),
        "y": _ravel((n, *p, out), case.shape["y"]),
    }
    return index, meet


def _spans(window):
    lows = [low for low, _ in window.padding]
    return window.strides, lows, window.lhs_dilation, window.rhs_dilation


def _divided(numerator, by: int):
    """The quotient, and whether nothing is left over."""
    return numerator // by, numerator % by == 0


def _unravel(flat, shape):
    found = []
    for size in reversed(shape):
        found.append(flat % size)
        flat = flat // size
    return found[::-1]


def _ravel(index, shape):
    flat = 0
    for at, size in zip(index, shape, strict=True):
        flat = flat * size + at
    return flat
