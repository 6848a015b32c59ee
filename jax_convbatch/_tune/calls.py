# SPDX-License-Identifier: Apache-2.0
"""Many calls of one operation as one program, to time calls that are short.

To start a program costs JAX about 30 us, more than many convolutions take. So a
round is one program of many calls, with operands of their own, whose results stay
alive to its end. XLA captures ours into a CUDA graph, as in any program of several
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convbatch._native import targets
from jax_convbatch._tune import timing

L2_BYTES = 64 << 20  # a little more than an H200's
PROGRAM_BYTES = 8 << 30  # of results alive in one program


def pairs_of(
    least_bytes: int, result_bytes: int, platform: str, most: int = 64
) -> list[tuple[int, int]]:
    """Which operands the calls of one round take, by number of set.

    No two calls take the same pair, so that XLA can merge none, and between
    two uses of a set lies more than an L2 where the arrays are that large. On a
    GPU there are enough calls to hide what it costs to start a program: 13 us
    on an H200, where a small convolution takes 5 and a large one 40.

    Args:
      least_bytes: what one call has to move.
      result_bytes: what it writes.
      platform: "cpu", or a GPU.
      most: calls.
    """
    sets = int(np.clip(-(-3 * L2_BYTES // max(least_bytes, 1)), 3, 8))
    if platform == "cpu":
        return [(i, i) for i in range(sets)]
    sets = max(sets, 6)
    calls = most if least_bytes < 40 << 20 else min(most, 32)
    calls = int(np.clip(PROGRAM_BYTES // max(result_bytes, 1), sets, calls))
    calls = min(calls, sets * sets)
    return [(k % sets, (k + k // sets) % sets) for k in range(calls)]


def sets_of(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """How many sets of each of the two operands `pairs` names."""
    return [1 + max(numbers) for numbers in zip(*pairs, strict=True)]


class Calls(timing.Side):
    """A side of a measurement: a program of a call for each of `pairs`.

    Compiled when it is made, so that many can be made in threads; `take` gives it
    operands. On the CPU, where XLA would run calls at once that do not depend on each
    other, a program is one call.

    Args:
      name: of the side.
      one: a function of two arrays.
      pairs: numbers of the operands' sets.
      shapes: of the two operands, `jax.ShapeDtypeStruct`s.
    """

    def __init__(
        self,
        name: str,
        one: Callable[..., Any],
        pairs: Sequence[tuple[int, int]],
        shapes: Sequence[jax.ShapeDtypeStruct],
    ) -> None:
        self.name = name
        self._pairs = pairs
        self._alone = targets.default_platform() == "cpu"
        self.calls = 1 if self._alone else len(pairs)
        self._out, self._turn = None, 0
        self._rounds: list[Any] = []
        one = jax.jit(one)
        operands: Sequence[Any]
        if self._alone:
            program, operands = one, shapes
        else:
            program = jax.jit(partial(_many, one, pairs))
            operands = [[s] * n for s, n in zip(shapes, sets_of(pairs), strict=True)]
        self.program = program.lower(*operands).compile()

    def take(self, first: list[Any], second: list[Any]) -> None:
        """The sets of operands of the rounds that follow."""
        if self._alone:
            self._rounds = [(first[i], second[j]) for i, j in self._pairs]
        else:
            self._rounds = [(first, second)]

    def release(self) -> None:
        """Lets go of operands and results."""
        self._out, self._rounds = None, []

    def queue(self) -> None:
        # Dropped first: the next results then lie where these did, and a CUDA
        # graph need not be updated, which takes longer than small convolutions.
        self._out = None
        self._out = self.program(*self._rounds[self._turn])
        self._turn = (self._turn + 1) % len(self._rounds)

    def wait(self) -> None:
        timing.wait_for(self._out)

    def once(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """The result for these operands, by the program that is timed."""
        if self._alone:
            return self.program(first, second)
        firsts, seconds = sets_of(self._pairs)
        return self.program([first] * firsts, [second] * seconds)[0]


def _many(
    one: Callable[..., Any],
    pairs: Sequence[tuple[int, int]],
    first: list[jax.Array],
    second: list[jax.Array],
) -> Any:
    """All of one round: the first result, and a number of each other."""
    # Behind barriers: XLA would make one kernel of the calls that share an operand,
    # where a convolution is a sum to it.
    barrier = jax.lax.optimization_barrier
    results = [one(*barrier((first[i], second[j]))) for i, j in pairs]
    return first_and_numbers(results)


def first_and_numbers(results: list[Any]) -> Any:
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
