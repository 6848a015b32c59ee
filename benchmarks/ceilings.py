# SPDX-License-Identifier: Apache-2.0
"""What the device can do at most, measured in the same run as the layers."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jax_convbatch._tune import timing


class _Calls(timing.Side):
    """A jitted call as a side of a measurement."""

    def __init__(self, name: str, call, *arguments):
        self.name, self.calls = name, 1
        self._call, self._arguments, self._out = jax.jit(call), arguments, None

    def queue(self) -> None:
        self._out = None
        self._out = self._call(*self._arguments)

    def wait(self) -> None:
        timing.wait_for(self._out)


def _least(side: _Calls, repeats: int = 7) -> float:
    """The shortest time, in microseconds: a ceiling is what was once reached.

    With the start, a fiftieth at most: a clock that starts when other work ends starts
    too late where the host is busy, and the least of several times would be that one.
    """
    rounds = timing.rounds_for(side, 0.04)
    return min(timing.plainly(side, rounds) for _ in range(repeats)) / rounds * 1e6


def copy_rate() -> float:
    """Bytes read and written a second by a copy much larger than any cache."""
    size = (64 if jax.default_backend() == "cpu" else 1024) << 20
    x = jnp.ones(size // 4, "float32")
    best = min(_least(_Calls("copy", call, x)) for call in (jnp.copy, jnp.negative))
    return 2 * size / best * 1e6


def _product_size() -> int:
    return 1536 if jax.default_backend() == "cpu" else 8192


def product(dtype: str, precision: str = "default") -> _Calls:
    """A large matrix product of random numbers."""
    n = _product_size()
    keys = jax.random.split(jax.random.key(0, impl="rbg"))
    a, b = (jax.random.normal(key, (n, n), "float32").astype(dtype) for key in keys)
    return _Calls("gemm", partial(jnp.matmul, precision=precision), a, b)


def product_rate(microseconds: float) -> float:
    """Operations a second of a `product` that takes so long."""
    return 2 * _product_size() ** 3 / microseconds * 1e6


def gemm_rate(dtype: str, precision: str = "default") -> float:
    """Operations a second of a large matrix product of random numbers."""
    return product_rate(_least(product(dtype, precision)))


def fma_rate(dtype: str) -> float | None:
    """Operations a second of a CPU's cores that do nothing but multiply and add.

    By our instruction set, in registers alone; 16-bit types are multiplied in f32.
    None on another device.
    """
    if jax.default_backend() != "cpu":
        return None
    from jax_convbatch import _cpu

    computed = dtype if dtype == "float64" else "float32"
    return max(_cpu.peak(computed) for _ in range(5))


class Ceilings:
    """The rates; those of a dtype are measured when first asked for."""

    def __init__(self):
        self.copy = copy_rate()
        self._gemm: dict[tuple[str, str], float] = {}
        self._fma: dict[str, float | None] = {}
        self._products: dict[tuple[str, str], _Calls] = {}

    def gemm(self, dtype: str, precision: str) -> float:
        key = (dtype, precision)
        if key not in self._gemm:
            self._gemm[key] = gemm_rate(*key)
        return self._gemm[key]

    def share_of_peak(self, case, microseconds: float) -> float | None:
        """Operations a second over `fma_rate`, where there is one."""
        if case.dtype not in self._fma:
            self._fma[case.dtype] = fma_rate(case.dtype)
        peak = self._fma[case.dtype]
        return case.flops / microseconds * 1e6 / peak if peak else None

    def roof_us(self, case) -> float:
        """The least time that a case can take: bytes or operations."""
        gemm = self.gemm(case.dtype, case.precision)
        return max(case.least_bytes / self.copy, case.flops / gemm) * 1e6

    def product(self, case) -> _Calls | None:
        """The large matrix product, to be timed beside a case.

        None where bytes are what bounds the case, and on a CPU. A GPU's clock gives way
        to its power limit, so `gemm`, the best of a few short timings, is more than a
        product reaches in turns with others.
        """
        key = (case.dtype, case.precision)
        bytes_bound = case.least_bytes / self.copy >= case.flops / self.gemm(*key)
        if jax.default_backend() == "cpu" or bytes_bound:
            return None
        if key not in self._products:
            self._products = {key: product(*key)}  # one pair of arrays is enough
        return self._products[key]

    def record(self) -> dict[str, float]:
        gemms = {
            f"gemm_{dtype}_{precision}_tflops": round(rate / 1e12, 2)
            for (dtype, precision), rate in self._gemm.items()
        }
        fmas = {
            f"fma_{dtype}_tflops": round(rate / 1e12, 3)
            for dtype, rate in self._fma.items()
            if rate
        }
        return {"copy_gb_per_s": round(self.copy / 1e9, 1), **gemms, **fmas}
