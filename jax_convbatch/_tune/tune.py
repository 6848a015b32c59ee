# SPDX-License-Identifier: Apache-2.0
"""tune: measures a function's convolutions and keeps the fastest way to run each."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._explain.explain import opened, traced
from jax_convbatch._layers import fused, norm_act_grad
from jax_convbatch._native import targets
from jax_convbatch._plans import planners
from jax_convbatch._plans.params import OPS, ConvParams
from jax_convbatch._primitives import primitives
from jax_convbatch._select import choices, plan, rules
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import Calls, pairs_of, sets_of
from jax_convbatch._tune.report import Progress, Row, Tuned

MARGIN = 0.98  # of the default's time: what is not faster than that is noise
MOST_CALLS = 32  # of one program: more take longer to compile
MOST_ROUNDS = 8  # what the host can queue in two milliseconds
FAR = 1.4  # times the fastest: what is not worth a second look
SECOND_LOOK = 2  # candidates that are timed again beside the rule's choice


@dataclass(frozen=True)
class Problem:
    """One operation to measure."""

    op: str
    params: ConvParams
    dtype: str
    out_dtype: str

    @property
    def key(self) -> str:
        p = self.params
        return choices.key(
            self.op, p.geometry, self.dtype, self.out_dtype, p.precision_level
        )

    def candidates(self, platform: str) -> list[tuple[str, str]]:
        """(engine, configuration) of every way to run it, the rule's first.

        Without `per_sample`, which is there to compare with.
        """
        p = self.params
        found: list[tuple[str, str]] = []
        later: list[tuple[str, str]] = []  # what the rule would not take
        dtypes = np.dtype(self.dtype), np.dtype(self.out_dtype)
        problem = planners.Problem(
            *(self.op, p.geometry, *dtypes, platform), precision=p.precision_level
        )
        for engine in dict.fromkeys((*rules.engines(problem), *plan.ENGINES)):
            if engine == "per_sample" or platform not in plan.ENGINES[engine]:
                continue
            for config in plan.configs(
                engine, self.op, p.geometry, self.dtype, platform, p.precision_level
            ):
                with contextlib.suppress(ValueError):
                    forced = dataclasses.replace(p, algorithm=engine, config=config)
                    chosen = plan.plan_of(
                        forced, self.op, self.dtype, self.out_dtype, platform
                    )
                    to = later if chosen.by_name_only else found
                    to.append((chosen.engine, config))
        return found + later


def tune(
    fn: Callable[..., Any], *args: Any, progress: bool = True, **kwargs: Any
) -> Tuned:
    """Times every convolution of `fn(*args, **kwargs)` and keeps the fastest engines.

    The function is traced, not run. Its convolutions run on random numbers, on JAX's
    default device. From then on, `algorithm="auto"` takes the fastest engine for these
    shapes, in this process and in later ones on this device. Functions that are
    compiled already keep their engines until `jax.clear_caches()`.

    The choices are in `DEVICE.json` in the folder `$JAX_CONVBATCH_TUNE_DIR`, by default
    `$XDG_CACHE_HOME/jax_convbatch` or `~/.cache/jax_convbatch`. Each choice is saved
    when it is made, so an interrupted call keeps what it has measured. Delete the file
    to undo tuning.

    The engine of fprop and dgrad is kept for all batch sizes together, so that a
    sample's bits do not depend on its batch. Tuning another batch size may change it
    for all of them. A new choice may change the bits of results. They are then the same
    in every run, until `tune` is called again or the file is deleted.

    Sizes are those of the whole batch. For a sharded function, tune a function of one
    device's part. Convolutions whose engine is named are left out.

    Args:
      fn: a function of arrays that can be traced. To tune gradients, pass a function
        that computes them: `tune(jax.grad(loss), params, batch)`.
      *args, **kwargs: as in `explain`.
      progress: whether to show progress on stderr: a bar on terminals, a line for each
        convolution elsewhere.

    Returns:
      A tuple of rows that prints as a table. Its `path` is the file.

    Raises:
      OSError: the file cannot be written. This is checked before the first measurement.
      TypeError: `fn` is not a function.
    """
    platform = targets.default_platform()
    device = targets.device_name(platform)
    problems = dict.fromkeys(problems_of(fn, *args, **kwargs))
    ways = {p: found for p in problems if (found := p.candidates(platform))}
    if not ways:
        return Tuned()
    path = choices.writable_file(device)  # asked before anything is measured
    times: dict[Problem, Times] = {}
    entries: dict[str, dict[str, Any]] = {}
    with Progress(progress) as shown:
        with ThreadPoolExecutor() as threads:
            try:
                ready = {p: Candidates(p, ways[p], platform, threads) for p in ways}
                shown.compiling([f for made in ready.values() for f in made.programs])
            except BaseException:  # what waits is not begun
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        for group in _by_key(ways).values():
            for p in group:
                made = ready.pop(p)
                times[p] = measure(made, made.random())
                alone = fastest({p: times[p]}).get(p.key)
                shown.measured(_row(p, alone, times[p]), len(times), len(ways))
            new = fastest({p: times[p] for p in group})
            if new:
                choices.keep(device, new)
            entries |= new
    rows = Tuned(_row(p, entries.get(p.key), times[p]) for p in ways)
    rows.path = path
    return rows


def problems_of(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Problem]:
    """Every convolution of `fn` whose engine "auto" chooses, empty ones left out."""
    names = {primitive: name for name, primitive in primitives.PRIMITIVES.items()}
    names[fused.layer_p] = "fprop"  # with what follows it
    platform = targets.default_platform()
    equations = (opened(eqn, platform) for eqn in traced(fn, *args, **kwargs))
    for eqn in itertools.chain.from_iterable(equations):
        name, params = names.get(eqn.primitive), eqn.params.get("params")
        if eqn.primitive is norm_act_grad.cotangent_p:  # of one kernel and wgrad
            name, params = "wgrad", eqn.params["static"].params
        if name is None or params.algorithm != "auto":
            continue
        arrays = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        if all(a.size for a in arrays):
            dtype = arrays[0].dtype
            out_dtype = eqn.params.get("out_dtype", dtype)
            yield Problem(name, params, np.dtype(dtype).name, np.dtype(out_dtype).name)


class Time(NamedTuple):
    """Microseconds of one call, of several timings."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, times: Iterable[float]) -> Time:
        ordered = sorted(times)
        return cls(ordered[0], statistics.median(ordered), ordered[-1])

    def __add__(self, other: Any) -> Time:
        return Time(*(a + b for a, b in zip(self, other, strict=True)))

    def beats(self, other: Time) -> bool:
        """Whether this is faster by more than the other varies, and than noise.

        One timing that something else disturbed decides nothing: it is longer.
        """
        return self.median < other.least and self.median < MARGIN * other.median


Times = dict[tuple[str, str], Time]


def fastest(times: dict[Problem, Times]) -> dict[str, dict[str, Any]]:
    """Entries for `choices.keep`: one engine a key, a configuration a batch size.

    Configurations that are the rule's are not named: a better rule then counts. Of
    problems of one key that no engine runs all of (their `workspace_limit`s may
    differ) nothing is kept.
    """
    found = {}
    for key, problems in _by_key(times).items():
        nothing = Time(0, 0, 0)
        sums = {
            engine: sum((_best(times[p], engine)[1] for p in problems), nothing)
            for engine in dict.fromkeys(e for p in problems for e, _ in times[p])
        }
        engine = _least(sums)
        if sums[engine].median == math.inf:
            continue
        configs = {
            str(p.params.geometry.N): _best(times[p], engine)[0] for p in problems
        }
        found[key] = {
            "engine": engine,
            "configs": {n: config for n, config in configs.items() if config},
        }
    return found


def _by_key(problems: Iterable[Problem]) -> dict[str, list[Problem]]:
    found: dict[str, list[Problem]] = {}
    for problem in problems:
        found.setdefault(problem.key, []).append(problem)
    return found


def _best(times: Times, engine: str) -> tuple[str, Time]:
    """Configuration ("" for the rule's) and time; infinite where it does not run."""
    own = {config: t for (name, config), t in times.items() if name == engine}
    if not own:
        return "", Time(math.inf, math.inf, math.inf)
    config = _least(own)
    return "" if config == next(iter(own)) else config, own[config]


def _least(times: dict[str, Time]) -> str:
    """The first, unless another is faster by more than noise."""
    first = next(iter(times))
    best = min(times, key=lambda name: times[name].median)
    return best if times[best].beats(times[first]) else first


def _row(problem: Problem, entry: dict[str, Any] | None, times: Times) -> Row:
    p = problem.params
    engine, config = next(iter(times))
    if entry is not None:
        engine = entry["engine"]
        config = entry["configs"].get(str(p.geometry.N))
        config = config or next(c for name, c in times if name == engine)
    return Row(
        problem.op,
        p.geometry.describe(p.dimension_numbers),
        problem.dtype,
        engine,
        config,
        times[engine, config].median,
        next(iter(times.values())).median,
    )


class Candidates:
    """Some ways to run a problem, the rule's first, which `threads` compile at once.

    `pairs`: the sets of operands of each call of a round (default: as many calls as a
    time needs).

    Attributes:
      problem: which.
      shapes: of the two operands.
      counts: of sets of each.
    """

    def __init__(
        self,
        problem: Problem,
        ways: Sequence[tuple[str, str]],
        platform: str,
        threads: Executor,
        pairs: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.problem = problem
        op, params = OPS[problem.op], problem.params
        self.shapes = [
            jax.ShapeDtypeStruct(params.shape(role), problem.dtype)
            for role in op.operands
        ]
        result = math.prod(params.shape(op.result))
        result *= np.dtype(problem.out_dtype).itemsize
        least = sum(math.prod(s.shape) * s.dtype.itemsize for s in self.shapes)
        pairs = pairs or pairs_of(least + result, result, platform, MOST_CALLS)
        self.counts = sets_of(pairs)

        # A thread does not know what its maker runs under.
        config: Any = jax.config
        x64, device = config.jax_enable_x64, config.jax_default_device

        def compiled(way: tuple[str, str]) -> Calls:
            with jax.enable_x64(x64), jax.default_device(device):
                return calls_of(*way)

        def calls_of(engine: str, config: str) -> Calls:
            forced = dataclasses.replace(params, algorithm=engine, config=config)
            one = partial(
                primitives.bind, problem.op, params=forced, out_dtype=problem.out_dtype
            )
            name = f"{engine} {config}".strip()
            return Calls(name, one, pairs, self.shapes)

        self._made = {way: threads.submit(compiled, way) for way in ways}

    @property
    def programs(self) -> list[Future[Any]]:
        return [*self._made.values()]

    def random(self) -> list[list[jax.Array]]:
        """Sets of operands."""
        keys = iter(jax.random.split(jax.random.key(0, impl="rbg"), sum(self.counts)))
        return [
            [_normal(next(keys), s.shape, s.dtype) for _ in range(count)]
            for s, count in zip(self.shapes, self.counts, strict=True)
        ]

    def sides(self) -> dict[tuple[str, str], Calls]:
        """Every candidate, the rule's first, when all are compiled."""
        return {candidate: made.result() for candidate, made in self._made.items()}


def measure(
    candidates: Candidates, operands: Any, seconds: float = 0.01, repeats: int = 5
) -> Times:
    """Times of the rule's choice, and of every candidate that is not far from it.

    All are timed shortly; those that are not far from the fastest, in turns; and what
    then looks faster than the rule's choice once more, beside it.
    """
    sides = candidates.sides()
    for side in sides.values():
        side.take(*operands)
    roughly = {c: _roughly(side) for c, side in sides.items()}
    first, least = next(iter(sides)), min(roughly.values())
    near = [c for c in sides if c == first or roughly[c] < FAR * least]
    found: dict[tuple[str, str], list[float]] = {c: [] for c in near}

    def look(some: list[Any]) -> None:
        for _ in range(repeats):
            for c in some:
                # All queued ahead: the device's time tells candidates apart.
                rounds = min(max(1, round(seconds / roughly[c])), MOST_ROUNDS)
                taken = timing.elapsed(sides[c], rounds, ahead=rounds)
                found[c].append(taken / rounds / sides[c].calls * 1e6)

    def median(candidate: Any) -> float:
        return statistics.median(found[candidate])

    look(near)
    better = sorted((c for c in near if median(c) < MARGIN * median(first)), key=median)
    if better:
        look([first, *better[:SECOND_LOOK]])
    for side in sides.values():
        side.release()
    return {c: Time.of(times) for c, times in found.items()}


def _roughly(side: Calls) -> float:
    """Seconds of a round, with a part of its start."""
    for _ in range(2):  # in which it is captured
        side.queue()
    side.wait()
    once = timing.plainly(side, 1)
    rounds = 1 + int(1e-3 / once)
    return min(timing.plainly(side, rounds) for _ in range(2)) / rounds


@partial(jax.jit, static_argnums=(1, 2))
def _normal(key: Any, shape: Sequence[int], dtype: DTypeLike) -> Any:
    return jax.random.normal(key, shape, "float32").astype(dtype)
