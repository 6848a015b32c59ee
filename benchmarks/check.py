# SPDX-License-Identifier: Apache-2.0
"""Is the result right? Whole numbers, compared with an exact sum on the host.

Products and partial sums of small whole numbers are exact in f32, so ours has to be
the exact sum, rounded once. From others a small error is taken, as algorithms with
transforms (Winograd) are not exact. Of a large result a part is compared: of
the first and the last group some channels; in fprop and dgrad the first and the
last sample; in wgrad the sum over all of them.
"""

from __future__ import annotations

import math

import jax
import numpy as np

from benchmarks.cases import Case, Pool

# Of another's algorithm: norm of the difference over the norm.
LOOSE = {"float64": 1e-12, "float32": 1e-3, "float16": 5e-3, "bfloat16": 2e-2}


class WrongResult(Exception):
    """A side's result is not the convolution."""


class Check:
    """Operands of whole numbers for one case, and what must come out.

    Made on the host alone, in threads if wanted: it keeps nothing on the device.
    """

    def __init__(self, case: Case, pool: Pool):
        self._case, self._pool = case, pool
        first, second = case.operands
        operands = pool.on_host(first, 2)[0], pool.on_host(second, 2)[1]
        last = case.row[-1] - 1
        self._parts = [_Part(case, group) for group in sorted({0, last})]
        self._expected = [part.expected(*operands) for part in self._parts]
        samples = slice(None) if case.op == "wgrad" else _samples(case)
        result = jax.ShapeDtypeStruct(case.result, case.dtype)
        self._compared = jax.jit(lambda array: array[samples]).lower(result).compile()

    @property
    def operands(self) -> tuple[jax.Array, jax.Array]:
        first, second = self._case.operands
        return (
            self._pool.arrays("whole", self._case.dtype, first, 2)[0],
            self._pool.arrays("whole", self._case.dtype, second, 2)[1],
        )

    def __call__(self, name: str, result: jax.Array, exact: bool) -> None:
        """Raises WrongResult where `result` is not what it must be.

        Args:
          name: of the side, for the message.
          result: for `self.operands`.
          exact: every bit, or close.
        """
        compared = np.asarray(self._compared(result)).astype(np.float64)
        for part, want in zip(self._parts, self._expected, strict=True):
            got = part.of_result(compared)
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
        terms = {"fprop": c, "dgrad": k}.get(case.op, 1) * math.prod(
            case.shape["w"][:2]
        )
        if case.op == "wgrad":
            terms = math.prod(case.shape["y"][:3])
        # Exact, and half the time where that is so.
        self._wide = np.float32 if 4 * terms < 1 << 24 else np.float64

    def of_result(self, array: np.ndarray) -> np.ndarray:
        """What is compared of those samples of the result that are."""
        if self._case.op == "wgrad":
            return self._of_w(array)
        channels = self._y_channels if self._case.op == "fprop" else self._x_channels
        return array[..., channels]

    def _of_w(self, array: np.ndarray) -> np.ndarray:
        return array[:, :, self._w_channels][..., self._y_channels]

    def _of(self, role: str, array: np.ndarray) -> np.ndarray:
        if role == "w":
            return self._of_w(array).astype(self._wide)
        channels = self._x_channels if role == "x" else self._y_channels
        if self._case.op != "wgrad":
            array = array[_samples(self._case)]
        return array[..., channels].astype(self._wide)

    def expected(self, first, second) -> np.ndarray:
        """The exact sum, tap by tap."""
        height, width, *_, r_taps, s_taps, stride, pad, dilation, _ = self._case.row
        _, p, q, _ = self._case.shape["y"]
        op = self._case.op
        if op == "dgrad":
            dy, w = self._of("y", first), self._of("w", second)
            shape = (len(dy), height + 2 * pad, width + 2 * pad, w.shape[2])
            x = np.zeros(shape, self._wide)
        else:
            x = self._of("x", first)
            x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        if op == "fprop":
            w = self._of("w", second)
            y = np.zeros((len(x), p, q, w.shape[-1]), self._wide)
        if op == "wgrad":
            dy = self._of("y", second)
            dw = np.zeros((r_taps, s_taps, x.shape[-1], dy.shape[-1]), self._wide)
            # Channels first, so that a tap's pixels are long runs.
            x, dy = (np.ascontiguousarray(np.moveaxis(a, -1, 0)) for a in (x, dy))
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


def _samples(case: Case) -> np.ndarray:
    """Those that are compared in fprop and dgrad."""
    return np.unique([0, case.batch - 1])
