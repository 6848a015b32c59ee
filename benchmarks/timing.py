"""Honest times: many calls in flight, one wait, sides in turns.

JAX and CUDA return before the work is done, so a loop that waits for each call
times the waiting. Here a measurement queues as many calls as fill some time and
waits once. Compilation and everything that is made lazily happen before.

Until an idle GPU has the first kernel of a JAX program 0.4 to 0.9 ms pass, of a CUDA
graph under 0.1: of timings of 12 ms it would be 3 to 7% that no call takes. So each
time is that of some rounds and one more, less that of one round alone.
"""

from __future__ import annotations

import statistics
import time
from typing import Protocol

# Seconds of a round that is not repeated to learn how long it takes.
LONG = 0.2


class Side(Protocol):
    """Something to time.

    Attributes:
      name: of the side, as tables show it.
      calls: convolutions (or steps) in one `queue()`.
    """

    name: str
    calls: int

    def queue(self) -> None:
        """Starts one round of `calls` calls; need not wait for them."""

    def wait(self) -> None:
        """Returns when everything queued is done."""


def elapsed(side: Side, rounds: int) -> float:
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
    sides: list, seconds: float = 0.02, repeats: int = 5
) -> dict[str, list[float]]:
    """Times of one call of each side, `repeats` of each, the sides taking turns.

    In turns, because a GPU's clock moves: each side sees the same of it. A round that
    takes `seconds` itself is timed with its start.
    """
    counts = {side.name: rounds_for(side, seconds) for side in sides}
    alone: dict[str, list[float]] = {side.name: [] for side in sides}
    taken: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(repeats):
        for side in sides:
            rounds = counts[side.name]
            if rounds > 1:
                alone[side.name].append(elapsed(side, 1))
                rounds += 1
            taken[side.name].append(elapsed(side, rounds))
    times = {}
    for side in sides:
        of_one = min(alone[side.name], default=0.0)  # too little, rather
        calls = counts[side.name] * side.calls
        times[side.name] = [(t - of_one) / calls * 1e6 for t in taken[side.name]]
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and spread (largest less smallest) in microseconds."""
    return {
        "median_us": round(statistics.median(times), 3),
        "spread_us": round(max(times) - min(times), 3),
    }
