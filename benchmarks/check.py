"""Is the result right? Whole numbers, compared with an exact sum on the host.

Products and partial sums of small whole numbers are exact in f32, so ours has to be
the exact sum, rounded once. From others a small error is taken, as algorithms with
transforms (Winograd) are not exact. Of a large result a part is compared: of
the first and the last group some channels; in fprop and dgrad the first and the
last sample; in wgrad the sum over all of them.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

from benchmarks.cases import Case, Pool

# Of another's algorithm: norm of the difference over the norm.
LOOSE = {"float64": 1e-12, "float32": 1e-3, "float16": 5e-3, "bfloat16": 2e-2}


class WrongResult(Exception):
    """A side's result is not the convolution."""


class Check:
    """Operands of whole numbers for one case, and what must come out."""

    def __init__(self, case: Case, pool: Pool):
        self._case = case
        first, second = case.operands
        self.operands = (
            pool.arrays("whole", case.dtype, first, 2)[0],
            pool.arrays("whole", case.dtype, second, 2)[1],
        )
        last = case.row[-1] - 1
        self._parts = [_Part(case, group) for group in sorted({0, last})]
        self._expected = [part.expected(*self.operands) for part in self._parts]

    def __call__(self, name: str, result: jax.Array, exact: bool) -> None:
        """Raises WrongResult where `result` is not what it must be.

        Args:
          name: of the side, for the message.
          result: for `self.operands`.
          exact: every bit, or close.
        """
        for part, want in zip(self._parts, self._expected, strict=True):
            got = part.of_result(result)
            if exact:
                want = want.astype(result.dtype).astype(np.float64)
                good = np.array_equal(got, want)
            else:
                error = np.linalg.norm(got - want)
                good = error <= LOOSE[self._case.dtype] * np.linalg.norm(want)
            if not good:
                raise WrongResult(f"{name} is wrong in {self._case}")


class _Part:
    """Some channels of one group: C of x, K of y, and C as w counts them."""

    def __init__(self, case: Case, group: int):
        self._case = case
        _, _, c, k, *_, groups = case.row
        c, k = c // groups, k // groups
        few = {"fprop": (c, 16), "dgrad": (16, k), "wgrad": (8, 8)}[case.op]
        self._w_channels = np.arange(c)[-few[0] :]
        self._x_channels = group * c + self._w_channels
        self._y_channels = group * k + np.arange(k)[-few[1] :]
        self._samples = np.unique([0, case.batch - 1])

    def of(self, role: str, array) -> np.ndarray:
        if role == "w":
            return _float64(array)[:, :, self._w_channels][..., self._y_channels]
        channels = self._x_channels if role == "x" else self._y_channels
        if self._case.op == "wgrad":
            return _float64(_take(array, channels, -1))
        return _float64(_take(array, self._samples, 0))[..., channels]

    def of_result(self, array) -> np.ndarray:
        return self.of({"fprop": "y", "dgrad": "x", "wgrad": "w"}[self._case.op], array)

    def expected(self, first, second) -> np.ndarray:
        """The exact sum, tap by tap."""
        height, width, *_, r_taps, s_taps, stride, pad, dilation, _ = self._case.row
        _, p, q, _ = self._case.shape["y"]
        op = self._case.op
        if op == "dgrad":
            dy, w = self.of("y", first), self.of("w", second)
            shape = (len(dy), height + 2 * pad, width + 2 * pad, w.shape[2])
            x = np.zeros(shape)
        else:
            x = self.of("x", first)
            x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        if op == "fprop":
            w = self.of("w", second)
            y = np.zeros((len(x), p, q, w.shape[-1]))
        if op == "wgrad":
            dy = self.of("y", second)
            dw = np.zeros((r_taps, s_taps, x.shape[-1], dy.shape[-1]))
            # Channels first, so that a tap's pixels are long runs; in f32 where
            # it has room for any sum of products of whole numbers up to 2.
            room = "float32" if 4 * len(x) * p * q < 1 << 24 else "float64"
            x, dy = (np.moveaxis(a, -1, 0).astype(room, "C") for a in (x, dy))
            dy = dy.reshape(len(dy), -1).T
        for r in range(r_taps):
            for s in range(s_taps):
                rows = slice(r * dilation, r * dilation + (p - 1) * stride + 1, stride)
                cols = slice(s * dilation, s * dilation + (q - 1) * stride + 1, stride)
                if op == "fprop":
                    y += x[:, rows, cols] @ w[r, s]
                elif op == "dgrad":
                    x[:, rows, cols] += dy @ w[r, s].T
                else:
                    dw[r, s] = x[:, :, rows, cols].reshape(len(x), -1) @ dy
        if op == "dgrad":
            return x[:, pad : pad + height, pad : pad + width]
        return y if op == "fprop" else dw


def _float64(array) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


@partial(jax.jit, static_argnums=2)
def _take(array, indices, axis):
    return array.take(indices, axis)
