# SPDX-License-Identifier: Apache-2.0
"""One row of `range`: an operation of a draw, on every side that can run it.

What goes wrong on one side is written down as that side's, and the others are
measured; what goes wrong besides, as the row's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import torch_side
from benchmarks.ceilings import Ceilings
from benchmarks.drawn import DrawnCase
from benchmarks.jax_side import JaxSide, operation
from benchmarks.layers import chosen
from benchmarks.numbers import Maker
from benchmarks.report import best_peer, timed
from benchmarks.sampled import SEEDS, Sampled
from benchmarks.torch_conv import Inexpressible
from benchmarks.torch_side import SLOW, TorchSide
from jax_convbatch._select import choices
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import sets_of

# Engines that are other libraries, whose algorithms need not be exact.
LIBRARIES = ("cudnn", "xla")
LONGEST = 400  # of an error's text


def described(case: DrawnCase, engine: str) -> dict:
    """How a row begins."""
    return {**case.draw.describe(), "op": case.op, "asked": engine}


def key_of(row: dict) -> tuple:
    """What no two rows of a table share."""
    return tuple(row[key] for key in ("name", "dtype", "op", "asked"))


def told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:LONGEST]}"


def alive() -> bool:
    """Whether the device still computes: an error may have ended that."""
    try:
        return bool(jnp.arange(3).sum() == 3)
    except Exception:
        return False


class Program:
    """A side in JAX: its program of one call, and the one that is timed."""

    def __init__(self, name: str, engine: str, case: DrawnCase):
        operands = [jax.ShapeDtypeStruct(s, case.dtype) for s in case.operands]
        start = time.perf_counter()
        with choices.left_out(engine == "rule"):
            self._one = jax.jit(operation(engine, case)).lower(*operands).compile()
        self.figures: dict[str, Any] = {"compile_s": time.perf_counter() - start}
        memory = self._one.memory_analysis()
        self.figures["temp_bytes"] = getattr(memory, "temp_size_in_bytes", None)
        self.side = JaxSide(engine, case, counted=False)
        self.side.name = name

    def begin(self, operands) -> None:
        """The first calls of its program, alone."""
        first, again = (self._seconds(operands) for _ in range(2))
        seconds = self.figures["compile_s"]
        self.figures["first_s"] = round(seconds + first, 4)
        self.figures["compile_s"] = round(seconds, 4)
        if again > SLOW:
            self.side.shorten(self._one)

    def _seconds(self, operands) -> float:
        start = time.perf_counter()
        jax.block_until_ready(self._one(*operands))
        return time.perf_counter() - start


class Prepared:
    """An operation whose programs are compiled, in a thread if wanted."""

    def __init__(self, case: DrawnCase, engine: str, peers, stock: Executor, beside=()):
        """`stock` compiles `jax.lax`'s program: XLA times algorithms meanwhile;
        `beside`: engines of ours that are timed, too, where `engine` is another."""
        self.case = case
        self.torch = "torch" in peers
        self.row: dict[str, Any] = {**described(case, engine), "sides": {}}
        compiling = (
            stock.submit(Program, "xla", "xla", case) if "xla" in peers else None
        )
        self._made: dict[str, Callable[[], Program]] = {}
        self._add("ours", engine)
        self.beside = [e for e in beside if e != self._engine("ours")]
        for name in self.beside:
            self._add(name, name)
        if compiling:
            self._made["xla"] = compiling.result
        self.makers: list[Maker] = []
        self.check: Sampled | None = None
        with self.on(None):
            self.makers = [Maker(shape, case.dtype) for shape in case.operands]
            self.check = Sampled(case)

    def _engine(self, name: str) -> str:
        """What runs a side of ours."""
        return self.row["sides"].get(name, {}).get("engine", "")

    def _add(self, name: str, engine: str) -> None:
        """A side of ours."""
        with self.on(name):
            try:
                self.row["sides"][name] = chosen(engine, self.case)
            except ValueError as error:  # asked for by name, and it cannot
                self.row["sides"][name] = {"left_out": str(error)}
            else:
                made = Program(name, engine, self.case)
                self._made[name] = lambda: made

    @property
    def ours(self) -> tuple[str, ...]:
        """Names of our sides."""
        return ("ours", *self.beside)

    @contextlib.contextmanager
    def on(self, name: str | None) -> Iterator[None]:
        """An error within ends that side's part; None: it is the row's."""
        try:
            yield
        except Exception as error:
            at = self.row if name is None else self.row["sides"].setdefault(name, {})
            at["failed"] = told(error)

    def programs(self) -> dict[str, Program]:
        """Those that were made."""
        found = {}
        for name, result in self._made.items():
            with self.on(name):
                found[name] = result()
        self._made = {}
        return found


def measure(
    prepared: Prepared, ceilings: Ceilings, seconds: float, repeats: int
) -> dict:
    """The row, as far as it could be measured."""
    row, case = prepared.row, prepared.case
    with prepared.on(None):
        row["flops"], row["least_bytes"] = case.flops, case.least_bytes
        row["roof_us"] = round(ceilings.roof_us(case), 3)
        if prepared.check:
            _measure(prepared, ceilings, seconds, repeats)
    for name, side in row["sides"].items():
        if name not in prepared.ours:
            side["peer"] = True
    _compare(row)
    return row


def _measure(
    prepared: Prepared, ceilings: Ceilings, seconds: float, repeats: int
) -> None:
    case, figures = prepared.case, prepared.row["sides"]
    programs = prepared.programs()
    sides = _checked(prepared, programs)
    times = timing.microseconds(list(sides.values()), seconds, repeats)
    for name in sides:
        found = figures.setdefault(name, {})
        found |= timing.summary(times[name])
        us = found["median_us"]
        found["tflops"] = round(case.flops / us / 1e6, 3)
        found["gb_per_s"] = round(case.least_bytes / us / 1e3, 1)
        found["share_of_roof"] = round(prepared.row["roof_us"] / us, 4)


def _checked(prepared: Prepared, programs: dict[str, Program]) -> dict:
    """The sides whose results are right, ready to be timed."""
    case, figures = prepared.case, prepared.row["sides"]
    counts = sets_of(case.pairs(jax.default_backend()))
    whole = [
        make("whole", seed) for make, seed in zip(prepared.makers, SEEDS, strict=True)
    ]
    sets = [
        [make("uniform", 16 * (1 + role) + i) for i in range(count)]
        for role, (make, count) in enumerate(zip(prepared.makers, counts, strict=True))
    ]
    jax.block_until_ready((whole, sets))
    right: dict[str, Any] = {}
    results: dict[str, jax.Array] = {}
    for name, program in programs.items():
        with prepared.on(name):
            program.begin(whole)
            figures.setdefault(name, {}).update(program.figures)
            program.side.take(*sets)
            results[name] = program.side.once(*whole)
            exact = name in prepared.ours and figures[name]["engine"] not in LIBRARIES
            figures[name]["error"] = prepared.check(name, results[name], exact)
            right[name] = program.side
    if right.keys() >= {"ours", "xla"}:
        with prepared.on("ours"):
            figures["ours"]["compared"] = "samples"
            error = figures["xla"]["error"]
            prepared.check.same(results["ours"], results["xla"], error)
            figures["ours"]["compared"] = "samples and all of jax.lax's"
        if "failed" in figures["ours"]:
            del right["ours"]
    results.clear()
    if prepared.torch:
        name = torch_side.name(jax.default_backend())
        with prepared.on(name):
            try:
                torch = TorchSide(case, *sets)
            except Inexpressible as reason:
                figures[name] = {"left_out": str(reason)}
            else:
                result = torch.once(*whole)
                error = prepared.check(name, result, exact=False)
                figures.setdefault(name, {})["error"] = error
                right[name] = torch
    return right


def _compare(row: dict) -> None:
    """Adds the ratios: each peer's time over ours, and the least of them."""
    ran = timed(row)
    if "ours" not in ran:
        row["ratios"], row["ratio"] = {}, None
        return
    ours = ran["ours"]["median_us"]
    row["ratios"] = {
        name: round(side["median_us"] / ours, 4)
        for name, side in ran.items()
        if side.get("peer")
    }
    best = best_peer(row)
    row["ratio"] = round(best / ours, 4) if best else None
