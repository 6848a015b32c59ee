# SPDX-License-Identifier: Apache-2.0
"""One case of a table: a convolution, its operation, its arrays."""

from __future__ import annotations

import argparse
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import workloads
from benchmarks.window import Window
from jax_convbatch._tune.calls import pairs_of

OPS = ("fprop", "dgrad", "wgrad")
# Roles of each operation's operands and result.
ROLES = {"fprop": "xwy", "dgrad": "ywx", "wgrad": "xyw"}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}


class Operation:
    """fprop, dgrad or wgrad of a convolution: what sides of a measurement run.

    Attributes:
      name, dtype, op, precision: the last as `jax.lax` takes it.
      shape: of x, w and y, channels last.
      window: how the filter moves.
      flops, least_bytes: what has to be computed, and moved.
    """

    name: str
    dtype: str
    op: str
    precision: str
    shape: dict[str, tuple[int, ...]]
    window: Window
    flops: int
    least_bytes: int

    @property
    def operands(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        first, second, _ = ROLES[self.op]
        return self.shape[first], self.shape[second]

    @property
    def result(self) -> tuple[int, ...]:
        return self.shape[ROLES[self.op][2]]

    def pairs(self, platform: str) -> list[tuple[int, int]]:
        """Which operands the calls of one round take, see `calls.pairs_of`."""
        itemsize = jnp.dtype(self.dtype).itemsize
        result = int(np.prod(self.result)) * itemsize
        return pairs_of(self.least_bytes, result, platform)


@dataclass(frozen=True)
class Case(Operation):
    """One operation of one row of a table."""

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
    def window(self) -> Window:
        return Window.of_row(self.row)

    @property
    def flops(self) -> int:
        return workloads.flops(self.batch, self.row)

    @property
    def least_bytes(self) -> int:
        itemsize = jnp.dtype(self.dtype).itemsize
        return workloads.least_bytes(self.batch, self.row, itemsize, self.op)


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
        sizes = [np.prod(shape) for case in cases for shape in case.shape.values()]
        largest = max(sizes, default=1)
        self._size = int(largest) + (1 << 20)
        self._cuts: dict[tuple, Future] = {}
        self._whole, self._lock = None, threading.Lock()
        dtypes = dict.fromkeys(case.dtype for case in cases)
        self._pools = {
            (kind, dtype): _fill(kind, dtype, self._size)
            for dtype in dtypes
            for kind in ("normal", "whole")
        }

    def ready(self, dtype: str, shape) -> None:
        """Compiles what `arrays` runs. Safe to call from several threads."""
        with self._lock:
            found = (dtype, shape) in self._cuts
            cut = self._cuts.setdefault((dtype, shape), Future())
        if found:
            return
        pool = jax.ShapeDtypeStruct((self._size,), dtype)
        program = jax.jit(partial(_cut, shape=shape))
        try:
            cut.set_result(program.lower(pool, np.int64(0), np.float32(1)).compile())
        except BaseException as error:
            cut.set_exception(error)  # others may wait for it
            raise

    def arrays(
        self, kind: str, dtype: str, shape, count: int, scale: float = 1, shift: int = 0
    ) -> list[jax.Array]:
        """`count` different arrays: "normal", or "whole" numbers from -2 to 2.

        Times `scale`; another `shift` gives other arrays of the same shape.
        """
        self.ready(dtype, shape)
        cut, pool = self._cuts[dtype, shape].result(), self._pools[kind, dtype]
        starts, scale = self._starts(shape, count), np.float32(scale)
        return [cut(pool, np.int64(start + shift), scale) for start in starts]

    def operands(self, case: Case, counts) -> list[list[jax.Array]]:
        """So many different ones of each of a case's two."""
        return [
            self.arrays("normal", case.dtype, shape, count)
            for shape, count in zip(case.operands, counts, strict=True)
        ]

    def on_host(self, shape, count: int) -> list[np.ndarray]:
        """The same whole numbers as `arrays` gives, as int8."""
        with self._lock:
            if self._whole is None:
                pools = self._pools.items()
                pool = next(a for (kind, _), a in pools if kind == "whole")
                self._whole = np.asarray(pool.astype("int8"))
        size = int(np.prod(shape))
        starts = self._starts(shape, count)
        return [self._whole[start : start + size].reshape(shape) for start in starts]

    def _starts(self, shape, count: int) -> list[int]:
        room = self._size - int(np.prod(shape))
        step = max(1, room // max(count, 1) - 1)
        return [1 + i * step for i in range(count)]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _fill(kind: str, dtype: str, size: int):
    if kind == "normal":
        return jax.random.normal(
            jax.random.key(0, impl="rbg"), (size,), "float32"
        ).astype(dtype)
    # int8, as a random integer of 32 bits each would take four times the memory.
    bits = jax.random.bits(jax.random.key(1, impl="rbg"), (size,), "uint8")
    return (bits % 5).astype("int8").astype(dtype) - jnp.asarray(2, dtype)


def _cut(pool, start, scale, shape):
    numbers = jax.lax.dynamic_slice(pool, (start,), (int(np.prod(shape)),))
    return (numbers * scale.astype(pool.dtype)).reshape(shape)


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


def add_options(add) -> None:
    """Options of a command that say which cases it takes; `add` of its parser."""
    add("--table", default="resnet50", choices=workloads.TABLES)
    add("--rows", type=names(), help="some rows of the table")
    add(
        "--batch",
        type=lambda text: [int(n) for n in text.split(",")],
        help="batch sizes (default: the table's own)",
    )
    add("--dtype", type=names([*DTYPES, *DTYPES.values()]))
    add("--op", type=names(OPS), default=list(OPS))
    add("--precision", default="default", choices=("default", "high", "highest"))


def cases_of(options: argparse.Namespace) -> list[Case]:
    """Those that these options say."""
    dtypes = options.dtype and [DTYPES.get(name, name) for name in options.dtype]
    which = options.batch, dtypes, options.rows, options.precision
    return cases(options.table, options.op, *which)
