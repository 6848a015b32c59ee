# SPDX-License-Identifier: Apache-2.0
"""Timing of calls in flight, by a clock of the test."""

import itertools

import pytest

from jax_convbatch._tune import calls, timing


class Clock:
    now = 0.0


class Queue(timing.Side):
    """A device that takes `start` to begin, and `seconds` a round; other work that
    goes before takes it `ahead`."""

    calls = 2

    def __init__(self, clock, name, seconds, start=0.0, ahead=0.0):
        self.clock, self.name, self.seconds = clock, name, seconds
        self.start, self.ahead, self.busy = start, ahead, 0.0

    def lead(self):
        self.busy = end = max(self.busy, self.clock.now) + self.ahead

        def ended():
            late = self.clock.now >= end
            self.clock.now = max(self.clock.now, end)
            return late

        return ended if self.ahead else None

    def queue(self):
        self.busy = max(self.busy, self.clock.now + self.start) + self.seconds

    def wait(self):
        self.clock.now = max(self.clock.now, self.busy)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(timing.time, "perf_counter", lambda: Clock.now)
    monkeypatch.setattr(timing._Lead, "least", float("inf"))
    return Clock


def test_times_are_those_of_one_call(clock):
    sides = [Queue(clock, "slow", 4.0), Queue(clock, "fast", 1.0)]
    times = timing.microseconds(sides, 20, 3)
    assert times == {"slow": [2e6] * 3, "fast": [0.5e6] * 3}
    assert timing.summary([3.0, 1.0, 2.0]) == {"median_us": 2.0, "spread_us": 2.0}


def test_times_are_without_the_start(clock):
    far = Queue(clock, "far", 0.5, start=0.5, ahead=2.0)
    late = Queue(clock, "late", 8.0, start=1.0, ahead=2.0)

    def queue():
        clock.now += 3.0
        Queue.queue(late)

    late.queue = queue
    times = timing.microseconds([far, late], 8, 2)
    assert times["far"] == [0.25e6] * 2
    assert min(times["late"]) >= 4e6  # with the start, and never less than it took


def test_a_side_held_up_once_is_timed_as_long(clock):
    side = Queue(clock, "held", 0.125)
    rounds = iter([0.0, 100.0])

    def wait():
        clock.now += next(rounds, 0.0)
        Queue.wait(side)

    side.wait = wait
    assert timing.rounds_for(side, 8) == 64
    before, long = clock.now, Queue(clock, "long", 1.0)
    assert timing.rounds_for(long, 8) == 1
    assert clock.now == before + 1.0


def test_a_host_that_starts_its_clock_late_measures_again(clock):
    side = Queue(clock, "held", 1.0, ahead=2.0)
    lead, delays = side.lead, iter([0.0, 3.0])

    def held():
        ended = lead()

        def late():
            found = ended()
            clock.now += next(delays, 0.0)
            return found

        return late

    side.lead = held
    assert [timing.elapsed(side, 4) for _ in range(3)] == [4.0] * 3
    assert next(delays, None) is None


def test_a_host_that_is_always_late_measures_all_the_same(clock):
    side = Queue(clock, "slow", 1.0, ahead=2.0)
    assert timing.elapsed(side, 4) == 4.0
    side.ahead = 9.0
    assert timing.elapsed(side, 4) == 4.0


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("least_bytes", [1 << 10, 8 << 20, 32 << 20, 1 << 30])
@pytest.mark.parametrize("result_bytes", [1 << 10, 1 << 34])
def test_no_call_of_a_round_takes_what_another_takes(
    platform, least_bytes, result_bytes
):
    """Or XLA would merge them, or the second find it in the L2."""
    pairs = calls.pairs_of(least_bytes, result_bytes, platform)
    assert len({*pairs}) == len(pairs) >= (6 if platform == "cuda" else 3)
    for before, after in itertools.pairwise(pairs):
        assert before[0] != after[0] and before[1] != after[1]
