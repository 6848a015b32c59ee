# SPDX-License-Identifier: Apache-2.0
"""A convolution in JAX as a side of a measurement: ours by engine, or jax.lax."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
from rich.progress import Progress

import jax_convbatch as jcb
from benchmarks.cases import Operation
from benchmarks.window import Window
from jax_convbatch._native import targets
from jax_convbatch._select import choices
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import Calls

# What a convolution is in a compiled program.
_OURS = re.compile(r'custom_call_target="jax_convbatch_\w+"')
_STOCK = re.compile(r"__cudnn\$|__cublas\$|__triton|__onednn|\bconvolution\(|\bdot\(")


def convolution(engine: str, window: Window, precision: str):
    """f(x, w): jax.lax's own for "xla", otherwise ours by that engine."""
    kwargs = window.arguments() | {"precision": precision}
    if engine == "xla":
        return partial(jax.lax.conv_general_dilated, **kwargs)
    engine = "auto" if engine == "rule" else engine
    return partial(jcb.conv_general_dilated, algorithm=engine, **kwargs)


def operation(engine: str, case: Operation):
    """fprop, dgrad or wgrad as a function of the two operands."""
    conv = convolution(engine, case.window, case.precision)
    if case.op == "fprop":
        return conv
    wanted = jax.ShapeDtypeStruct(case.result, case.dtype)
    if case.op == "dgrad":

        def dgrad(dy, w):
            return jax.linear_transpose(lambda x: conv(x, w), wanted)(dy)[0]

        return dgrad

    def wgrad(x, dy):
        return jax.linear_transpose(lambda w: conv(x, w), wanted)(dy)[0]

    return wgrad


def compiled(prepare: Callable, todo: list, progress: Progress) -> list:
    """prepare(each, stock) of every one of `todo`, in threads, before any is timed.

    Compiling meanwhile would hold up the launches of small convolutions. `stock` is
    an executor for what is not ours: XLA times algorithms while it compiles that, so
    one is compiled at a time.
    """
    with ThreadPoolExecutor() as threads, ThreadPoolExecutor(1) as stock:
        try:
            made = threads.map(lambda each: prepare(each, stock=stock), todo)
            made = progress.track(made, total=len(todo), description="compiling")
            return list(made)
        except BaseException:  # what waits is not begun
            stock.shutdown(wait=False, cancel_futures=True)
            threads.shutdown(wait=False, cancel_futures=True)
            raise


class ProgramSide(timing.Side):
    """A program of one call for each of `sets` of operands, compiled."""

    def __init__(self, name: str, call: Callable, sets):
        self.name, self.calls, self._sets = name, len(sets), sets
        jitted = jax.jit(lambda sets: [call(*each) for each in sets])
        self._program = jitted.lower(sets).compile()
        self.out = self._program(sets)

    def queue(self) -> None:
        self.out = None  # a result and the next one are not there at once
        self.out = self._program(self._sets)

    def wait(self) -> None:
        timing.wait_for(self.out)


class JaxSide(Calls):
    """`engine` on `case`, compiled; "rule" is what "auto" is without a table.

    Args:
      engine, case: what to run.
      *operands: two lists of sets, where they are there already.
      counted: the convolutions in the program are counted. XLA may turn one that is
        not from a table into something else: a sum, where there is one output.
    """

    def __init__(self, engine: str, case: Operation, *operands, counted: bool = True):
        one = operation(engine, case)
        shapes = [jax.ShapeDtypeStruct(s, case.dtype) for s in case.operands]
        pairs = case.pairs(jax.default_backend())
        with choices.left_out(engine == "rule"):
            super().__init__(engine, one, pairs, shapes)
        if counted:
            self._check_program()
        if operands:
            self.take(*operands)

    def shorten(self, program) -> None:
        """A round is one call from now on: `program`, of one call, compiled.

        For calls that take much longer than it takes to start a program. What it had
        of operands is gone.
        """
        self.program, self.calls, self._alone = program, 1, True
        self.release()

    def _check_program(self) -> None:
        pattern = _STOCK if self.name == "xla" else _OURS
        found = len(pattern.findall(self.program.as_text()))
        if found < self.calls:
            built = targets.problem(targets.default_platform())
            raise RuntimeError(
                f"{self.name}: {found} convolutions in a program of {self.calls}"
                + (f": {built} (pip install -e . builds it here)" if built else "")
            )
