# SPDX-License-Identifier: Apache-2.0
"""Honest times: many calls in flight, sides in turns, the start of a round left out.

JAX and CUDA return before the work is done, so a loop that waits for each call
times the waiting. Here a measurement queues as many calls as fill some time and
waits once. On a GPU they stand behind other work, and the clock starts when that is
done: from the first call to its kernel pass 0.4 to 0.9 ms, as long as a hundred
small convolutions take. Compilation and everything that is made lazily happen
before.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_convbatch._native import targets

# Rounds that are queued before the clock starts. More would hide what it takes the
# host to queue the others.
_AHEAD = 2
# Seconds of a round that is not repeated to learn how long it takes.
LONG = 0.2
# Times the least that what goes before has taken: the host was held up.
_HELD_UP, _TRIES = 1.25, 3


class Side:
    """Something to time.

    Attributes:
      name: of the side, as tables show it.
      calls: convolutions (or steps) in one `queue()`.
    """

    name: str
    calls: int = 1

    def queue(self) -> None:
        """Starts one round of `calls` calls; need not wait for them."""
        raise NotImplementedError

    def wait(self) -> None:
        """Returns when everything queued is done."""
        raise NotImplementedError

    def lead(self) -> Callable[[], bool] | None:
        """Queues work that takes the device two milliseconds.

        Returns:
          A function that waits for its end and says whether it had come before; or
          None where calls start at once.
        """
        if targets.default_platform() != "cuda":
            return None
        program, x = _copies()
        out = program(x)

        def ended() -> bool:
            late = out.is_ready()
            wait_for(out)
            return late

        return ended


def wait_for(arrays: Any) -> None:
    """Returns at once when they are there: a thread that sleeps may wake up late."""
    if targets.default_platform() == "cuda":
        while not all(a.is_ready() for a in jax.tree.leaves(arrays)):
            pass
    jax.block_until_ready(arrays)


@functools.cache
def _copies() -> Any:
    """A program of copies that take two milliseconds, and its operand."""

    def copies(x: jax.Array) -> jax.Array:
        for _ in range(16):
            x = jax.lax.optimization_barrier(-x)
        return x[0]

    x = jnp.ones(64 << 20, "float32")
    return jax.jit(copies).lower(x).compile(), x


class _Lead:
    """How long what goes before took at the least, in this process."""

    least = math.inf

    @classmethod
    def held_up(cls, seconds: float) -> bool:
        """Whether it took so long that the host must have seen its end late."""
        cls.least = min(cls.least, seconds)
        return seconds > _HELD_UP * cls.least


def elapsed(side: Side, rounds: int, ahead: int = _AHEAD) -> float:
    """Seconds that so many rounds take, of which `ahead` are queued before.

    A host that sees the end of what goes before late starts its clock late, and
    measures too little. Then it is done again, a few times.
    """
    for _ in range(_TRIES):
        taken, held_up = _elapsed(side, rounds, ahead)
        if not held_up:
            break
    return taken


def _elapsed(side: Side, rounds: int, ahead: int) -> tuple[float, bool]:
    """The seconds, and whether they are too few."""
    begin, held_up = time.perf_counter(), False
    lead = side.lead()
    start = time.perf_counter()
    for _ in range(min(rounds, ahead)):
        side.queue()
    # Where the host was slower than what goes before, the start is in the time.
    if lead is not None and not lead():
        start = time.perf_counter()
        held_up = _Lead.held_up(start - begin)
    for _ in range(rounds - ahead):
        side.queue()
    side.wait()
    return time.perf_counter() - start, held_up


def plainly(side: Side, rounds: int) -> float:
    """The same with their start."""
    start = time.perf_counter()
    for _ in range(rounds):
        side.queue()
    side.wait()
    return time.perf_counter() - start


def rounds_for(side: Side, seconds: float) -> int:
    """How many rounds take about so long."""
    if elapsed(side, 1) > LONG:
        return 1
    count = 1
    # Twice: where something else held it up once, it would be too few.
    while (taken := min(elapsed(side, count), elapsed(side, count))) < seconds / 4:
        count *= 2
    return max(1, round(count * seconds / taken))


def microseconds(
    sides: Sequence[Side], seconds: float = 0.02, repeats: int = 5
) -> dict[str, list[float]]:
    """Times of one call of each side, `repeats` of each, the sides taking turns.

    In turns, because a GPU's clock moves: each side sees the same of it.
    """
    counts = {side.name: rounds_for(side, seconds) for side in sides}
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(repeats):
        for side in sides:
            rounds = counts[side.name]
            taken = elapsed(side, rounds)
            times[side.name].append(taken / rounds / side.calls * 1e6)
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and spread (largest less smallest) in microseconds."""
    return {
        "median_us": round(statistics.median(times), 3),
        "spread_us": round(max(times) - min(times), 3),
    }
