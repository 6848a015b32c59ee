# SPDX-License-Identifier: Apache-2.0
"""What `compare` times: rows of tables, each as a side of a measurement.

A row says first what it can compile without operands, so that rows are compiled in
threads, and then gives the side with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax

from benchmarks import deform, families, layer, workloads
from benchmarks.cases import OPS, Case, Operation, cases
from benchmarks.jax_side import JaxSide
from benchmarks.layers import chosen
from benchmarks.numbers import Maker
from jax_convbatch._select import choices
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import sets_of

ACTIVATION = "relu"
LAYERS = (("resnet50_v1", "bfloat16"), ("flux", "float32"))
Ready = Callable[[], timing.Side]


class Row(NamedTuple):
    """
    Attributes:
      table: its name.
      name: of the row, with batch, dtype and operation.
      plan: in words what runs it; may take as long as planning.
      prepare: compiles it; what it returns makes operands and gives the side.
    """

    table: str
    name: str
    plan: Callable[[], str]
    prepare: Callable[[], Ready]


def rows(options) -> list[Row]:
    """Those of `options.tables`, of which `options.rows` leaves those with a word."""
    found = [row for table in options.tables for row in _of_table(table, options)]
    words = options.rows
    return [r for r in found if not words or any(w in r.name for w in words)]


def _of_table(table: str, options) -> Iterator[Row]:
    if table == "range":
        for name in families.FAMILIES:
            drawn = families.draws(name, options.seed, options.count, options.largest)
            for case in families.cases(drawn, OPS):
                name = f"{case.name} {case.dtype} {case.op}"
                yield _convolution(table, name, options.engine, case)
    elif table == "layer":
        for content, dtype in LAYERS:
            for case in cases(content, ["fprop"], dtypes=[dtype]):
                name = f"{case.name} {case.batch} {dtype}"
                prepare = partial(_prepare_layer, options.engine, case)
                yield Row(table, name, lambda: "", prepare)
    elif table == "deform":
        for name, (batch, row, groups, dtype) in workloads.DEFORM.items():
            for which in deform.PASSES:
                of = options.engine, batch, row, groups, dtype, which != "forward"
                prepare = partial(_prepare_deform, *of)
                yield Row(table, f"{name} {batch} {dtype} {which}", lambda: "", prepare)
    else:
        for case in cases(table, OPS, dtypes=options.dtypes):
            name = f"{case.name} {case.batch} {case.dtype} {case.op}"
            yield _convolution(table, name, options.engine, case)


def _convolution(table: str, name: str, engine: str, case: Operation) -> Row:
    prepare = partial(_prepare_conv, engine, case)
    return Row(table, name, partial(_plan, engine, case), prepare)


def _plan(engine: str, case: Operation) -> str:
    found = chosen(engine, case)
    return f"{found['engine']}: {found['reason']}"


def _prepare_conv(engine: str, case: Operation) -> Ready:
    side = JaxSide(engine, case, counted=False)
    makers = [Maker(shape, case.dtype) for shape in case.operands]
    counts = sets_of(case.pairs(jax.default_backend()))

    def ready() -> timing.Side:
        sets = [
            [make("uniform", 16 * (1 + role) + i) for i in range(count)]
            for role, (make, count) in enumerate(zip(makers, counts, strict=True))
        ]
        side.take(*sets)
        return side

    return ready


def _prepare_layer(engine: str, case: Case) -> Ready:
    shapes, count = layer.shapes_of(case), layer.count_of(case)
    calls = len(layer.combinations([tuple(shapes)] * count))
    algorithm = "auto" if engine == "rule" else engine
    one = partial(layer.step, algorithm, case.row, ACTIVATION)
    with choices.left_out(engine == "rule"):
        side = layer.LayerSide(algorithm, one, shapes, calls)
    makers = [Maker(s.shape, case.dtype) for s in shapes]

    def ready() -> timing.Side:
        arrays = [
            [make("uniform", 16 * (1 + role) + i) for i in range(count)]
            for role, make in enumerate(makers)
        ]
        side.take(layer.combinations(list(zip(*arrays, strict=True))))
        return side

    return ready


def _prepare_deform(engine, batch, row, groups, dtype, backward: bool) -> Ready:
    count = deform.GPU_CALLS if jax.default_backend() == "gpu" else 3

    def ready() -> timing.Side:
        make = partial(deform.operands, batch, row, groups, dtype)
        sets = [make(i) for i in range(count)]
        return deform.OurSide(engine, row, groups, backward, sets)

    return ready
