"""A convolution in JAX as a side of a measurement: ours by engine, or jax.lax.

To start a program costs JAX about 30 us, more than many convolutions take. So a
round is one program of many calls, with operands of their own, whose results stay
alive to its end. XLA captures ours into a CUDA graph, as in any program of several
layers.
"""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp

import jax_convbatch as jcb
from benchmarks import workloads
from benchmarks.cases import Case

NHWC = ("NHWC", "HWIO", "NHWC")
# What a convolution is in a compiled program.
_OURS = re.compile(r'custom_call_target="jax_convbatch_\w+"')
_STOCK = re.compile(r"__cudnn\$|__cublas\$|__triton|__onednn|\bconvolution\(|\bdot\(")


def convolution(engine: str, row, precision: str):
    """f(x, w): jax.lax's own for "xla", otherwise ours by that engine."""
    kwargs = workloads.arguments(row)
    if engine != "xla":
        return partial(jcb.conv, algorithm=engine, precision=precision, **kwargs)
    return partial(
        jax.lax.conv_general_dilated,
        window_strides=(kwargs["strides"],) * 2,
        padding=((kwargs["padding"],) * 2,) * 2,
        rhs_dilation=(kwargs["dilation"],) * 2,
        feature_group_count=kwargs["groups"],
        dimension_numbers=NHWC,
        precision=precision,
    )


def operation(engine: str, case: Case):
    """fprop, dgrad or wgrad as a function of the two operands."""
    conv = convolution(engine, case.row, case.precision)
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


class JaxSide:
    """Times `engine` on `case` with the given sets of operands."""

    def __init__(self, engine: str, case: Case, first, second):
        self.name = engine
        one = jax.jit(operation(engine, case))
        pairs = case.pairs(jax.default_backend())
        self._out = None
        self._turn = 0
        # XLA's CPU code runs calls at once that do not depend on each other.
        self._alone = jax.default_backend() == "cpu"
        if self._alone:
            self.calls = 1
            self._rounds = [(first[i], second[j]) for i, j in pairs]
            program = one
        else:
            self.calls = len(pairs)
            self._rounds = [(first, second)]
            program = jax.jit(partial(_many, one, pairs))
        self._program = program.lower(*self._rounds[0]).compile()
        self._check_program()

    def queue(self) -> None:
        # Dropped first: the next results then lie where these did, and a CUDA
        # graph need not be updated.
        self._out = None
        self._out = self._program(*self._rounds[self._turn])
        self._turn = (self._turn + 1) % len(self._rounds)

    def wait(self) -> None:
        jax.block_until_ready(self._out)

    def once(self, first, second) -> jax.Array:
        """The result for these operands, by the program that is timed."""
        if self._alone:
            return self._program(first, second)
        sets = [len(operands) for operands in self._rounds[0]]
        return self._program([first] * sets[0], [second] * sets[1])[0]

    def _check_program(self) -> None:
        pattern = _STOCK if self.name == "xla" else _OURS
        found = len(pattern.findall(self._program.as_text()))
        if found < self.calls:
            raise RuntimeError(
                f"{self.name}: {found} convolutions in a program of {self.calls}"
            )


def _many(one, pairs, first, second):
    """All of one round: the first result, and a number of each other."""
    results = [one(first[i], second[j]) for i, j in pairs]
    return first_and_numbers(results)


def first_and_numbers(results: list):
    """The first result, whole, and a number of every array of them all.

    Results in many buffers would lie elsewhere in every round, and a CUDA graph
    would be updated.
    """
    # Nothing may be computed of a result but the whole.
    results = jax.lax.optimization_barrier(results)
    numbers = [
        jax.lax.slice(a, (0,) * a.ndim, (1,) * a.ndim).reshape(1)
        for a in jax.tree.leaves(results)
    ]
    return results[0], jnp.concatenate([a.astype("float32") for a in numbers])
