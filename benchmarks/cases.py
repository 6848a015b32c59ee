"""One case of a table: a convolution, its operation, its arrays."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import workloads

OPS = ("fprop", "dgrad", "wgrad")
# Roles of each operation's operands and result.
ROLES = {"fprop": "xwy", "dgrad": "ywx", "wgrad": "xyw"}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}

L2_BYTES = 64 << 20  # a little more than an H200's
PROGRAM_BYTES = 8 << 30  # of results alive in one program


@dataclass(frozen=True)
class Case:
    """One operation of one row: `precision` is a name that `jax.lax` takes."""

    name: str
    row: tuple[int, ...]
    batch: int
    dtype: str
    op: str
    precision: str = "default"

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        return dict(zip("xwy", workloads.shapes(self.batch, self.row), strict=True))

    @property
    def operands(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        first, second, _ = ROLES[self.op]
        return self.shape[first], self.shape[second]

    @property
    def result(self) -> tuple[int, ...]:
        return self.shape[ROLES[self.op][2]]

    @property
    def flops(self) -> int:
        return workloads.flops(self.batch, self.row)

    @property
    def least_bytes(self) -> int:
        itemsize = jnp.dtype(self.dtype).itemsize
        return workloads.least_bytes(self.batch, self.row, itemsize, self.op)

    def pairs(self, platform: str) -> list[tuple[int, int]]:
        """Which operands the calls of one round take, by number of set.

        No two calls take the same pair, so that XLA can merge none, and between
        two uses of a set lies more than an L2 where the arrays are that large. On a
        GPU there are enough calls to hide what it costs to start a program: 13 us
        on an H200, where a small convolution takes 5 and a large one 40.
        """
        sets = int(np.clip(-(-3 * L2_BYTES // self.least_bytes), 3, 8))
        if platform == "cpu":
            return [(i, i) for i in range(sets)]
        sets = max(sets, 6)
        itemsize = jnp.dtype(self.dtype).itemsize
        result = int(np.prod(self.result)) * itemsize
        calls = 64 if self.least_bytes < 40 << 20 else 32
        calls = int(np.clip(PROGRAM_BYTES // max(result, 1), sets, calls))
        calls = min(calls, sets * sets)
        return [(k % sets, (k + k // sets) % sets) for k in range(calls)]


def cases(
    table: str, ops, batches=None, dtypes=None, rows=None, precision: str = "default"
) -> list[Case]:
    """Every case of a table, grouped by batch and dtype.

    Raises:
      ValueError: the table, or one of `rows`, is not there.
    """
    if table not in workloads.TABLES:
        raise ValueError(f"no table {table!r}; there are {', '.join(workloads.TABLES)}")
    content, dtype = workloads.TABLES[table]
    unknown = set(rows or ()) - set(content)
    if unknown:
        raise ValueError(f"table {table} has no rows {', '.join(sorted(unknown))}")
    found = [
        Case(name, row, batch, wanted, op, precision)
        for name, (own, row) in content.items()
        if not rows or name in rows
        for batch in (batches or own)
        for wanted in (dtypes or (dtype,))
        for op in ops
    ]
    return sorted(found, key=lambda case: (case.batch, case.dtype))


class Pool:
    """Random arrays of any shape, cut from one long array a kind and dtype.

    To fill hundreds of megabytes anew for each case would take longer than the
    timing.
    """

    def __init__(self, cases: list[Case]):
        largest = max((max(map(np.prod, case.operands)) for case in cases), default=1)
        self._size = int(largest) + (1 << 20)
        self._pools: dict[tuple[str, str], jax.Array] = {}

    def arrays(self, kind: str, dtype: str, shape, count: int) -> list[jax.Array]:
        """`count` different arrays: "normal", or "whole" numbers from -2 to 2."""
        if (kind, dtype) not in self._pools:
            self._pools = {k: v for k, v in self._pools.items() if k[1] == dtype}
            self._pools[kind, dtype] = _fill(kind, dtype, self._size)
        room = self._size - int(np.prod(shape))
        step = max(1, room // max(count, 1) - 1)
        pool = self._pools[kind, dtype]
        return [_cut(pool, np.int64(1 + i * step), shape) for i in range(count)]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _fill(kind: str, dtype: str, size: int):
    if kind == "normal":
        return jax.random.normal(
            jax.random.key(0, impl="rbg"), (size,), "float32"
        ).astype(dtype)
    # int8, as a random integer of 32 bits each would take four times the memory.
    bits = jax.random.bits(jax.random.key(1, impl="rbg"), (size,), "uint8")
    return (bits % 5).astype("int8").astype(dtype) - jnp.asarray(2, dtype)


@partial(jax.jit, static_argnums=2)
def _cut(pool, start, shape):
    return jax.lax.dynamic_slice(pool, (start,), (int(np.prod(shape)),)).reshape(shape)


def names(choices=None):
    """A type for argparse: some of `choices`, or any names, with commas between."""

    def parse(text: str) -> list[str]:
        found = text.split(",")
        if choices and (unknown := set(found) - set(choices)):
            raise argparse.ArgumentTypeError(
                f"no {', '.join(sorted(unknown))}; choose from {', '.join(choices)}"
            )
        return found

    return parse
