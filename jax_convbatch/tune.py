"""tune: measures a function's convolutions and keeps the fastest way to run each."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convbatch import choices, fused, plan, primitives, targets
from jax_convbatch.explain import traced
from jax_convbatch.primitives import ConvParams

SETS = 4  # of operands, so that calls of one program differ
MARGIN = 0.98  # of the default's time: what is not faster than that is noise
_PROGRAM_BYTES = 1 << 30  # of results alive in one program


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
        for engine, platforms in plan.ENGINES.items():
            if engine == "per_sample" or platform not in platforms:
                continue
            for config in plan.configs(
                engine, self.op, p.geometry, self.dtype, platform, p.precision_level
            ):
                with contextlib.suppress(ValueError):
                    forced = dataclasses.replace(p, algorithm=engine, config=config)
                    chosen = forced.plan(self.op, self.dtype, self.out_dtype, platform)
                    to = later if chosen.by_name_only else found
                    to.append((chosen.engine, config))
        return found + later


@dataclass(frozen=True)
class Row:
    """What was found for one convolution.

    Attributes:
      op, geometry, dtype: as in `explain`.
      engine, config: the fastest.
      microseconds: its time.
      default_microseconds: of what would run if nothing had been measured.
    """

    op: str
    geometry: str
    dtype: str
    engine: str
    config: str
    microseconds: float
    default_microseconds: float


class Tuned(tuple[Row, ...]):
    """A tuple of rows that prints as a table; `path` is the file they are kept in."""

    path: Any = None

    def __str__(self) -> str:
        if not self:
            return "no convolutions that could be tuned"
        lines = [
            f"{row.op}  {row.geometry}  {row.dtype}  {row.engine}"
            f"{' ' + row.config if row.config else ''}  {row.microseconds:.1f} us, by "
            f"the rule {row.default_microseconds:.1f} us"
            for row in self
        ]
        return "\n".join([*lines, f"kept in {self.path}"])

    __repr__ = __str__


def tune(fn, *args, **kwargs) -> Tuned:
    """Measures every convolution of `fn(*args, **kwargs)`; keeps what is fastest.

    The function is traced, not run; its convolutions run on random numbers, on
    JAX's default device. From then on, `algorithm="auto"` takes what was fastest for
    these shapes, in this process and in later ones on this device: it is kept in
    `$XDG_CACHE_HOME/jax_convbatch/DEVICE.json` (by default in `~/.cache`). What was
    compiled before keeps its choices (`jax.clear_caches()`).

    The engine of fprop and dgrad is kept for every batch size together, so that a
    sample's bits do not depend on its batch; tuning another batch size may change it
    for all. Another choice may have other bits: results are the same in every
    run until `tune` is called again or the file is removed.

    Sizes are those of the whole batch: for a sharded function, tune one of a
    device's part. Convolutions whose engine is asked for by name are left out.

    Args:
      fn: a function of arrays that can be traced; gradients show when they are
        asked for, `tune(jax.grad(loss), params, batch)`.
      *args, **kwargs: arrays or `jax.ShapeDtypeStruct`s.

    Returns:
      A tuple of rows that prints as a table, with the file as `path`.

    Raises:
      OSError: the file cannot be written.
    """
    platform = targets.default_platform()
    problems = list(dict.fromkeys(problems_of(fn, *args, **kwargs)))
    problems = [p for p in problems if p.candidates(platform)]
    times = {problem: measure(problem, platform) for problem in problems}
    found = fastest(times)
    rows = Tuned(_row(p, found[p.key], times[p]) for p in problems)
    if rows:
        rows.path = choices.keep(targets.device_name(platform), found)
    return rows


def problems_of(fn, *args, **kwargs) -> Iterator[Problem]:
    """Every convolution of `fn` whose engine "auto" chooses, empty ones left out."""
    names = {primitive: name for name, primitive in primitives.PRIMITIVES.items()}
    names[fused.layer_p] = "fprop"  # with what follows it
    for eqn in traced(fn, *args, **kwargs):
        name = names.get(eqn.primitive)
        if name is None or eqn.params["params"].algorithm != "auto":
            continue
        arrays = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        if all(a.size for a in arrays):
            yield Problem(
                name,
                eqn.params["params"],
                np.dtype(arrays[0].dtype).name,
                np.dtype(eqn.params["out_dtype"]).name,
            )


Times = dict[tuple[str, str], float]


def fastest(times: dict[Problem, Times]) -> dict[str, dict]:
    """Entries for `choices.keep`: one engine a key, a configuration a batch size."""
    by_key: dict[str, list[Problem]] = {}
    for problem in times:
        by_key.setdefault(problem.key, []).append(problem)
    found = {}
    for key, problems in by_key.items():
        engine = _least(
            {
                engine: sum(_best(times[p], engine)[1] for p in problems)
                for engine in dict.fromkeys(e for p in problems for e, _ in times[p])
            }
        )
        configs = {
            str(p.params.geometry.N): _best(times[p], engine)[0] for p in problems
        }
        found[key] = {
            "engine": engine,
            "configs": {n: config for n, config in configs.items() if config},
        }
    return found


def _best(times: Times, engine: str) -> tuple[str, float]:
    """Configuration and time of an engine; infinite where it does not run."""
    own = {config: t for (name, config), t in times.items() if name == engine}
    if not own:
        return "", math.inf
    config = _least(own)
    return config, own[config]


def _least(times: dict[str, float]) -> str:
    """The first, unless another is faster by more than noise."""
    first = next(iter(times))
    best = min(times, key=lambda name: times[name])
    return best if times[best] < MARGIN * times[first] else first


def _row(problem: Problem, entry: dict, times: Times) -> Row:
    p = problem.params
    config = entry["configs"].get(str(p.geometry.N), "")
    return Row(
        problem.op,
        p.geometry.describe(p.dimension_numbers),
        problem.dtype,
        entry["engine"],
        config,
        times[entry["engine"], config],
        next(iter(times.values())),
    )


class Programs:
    """A problem's candidates, compiled at once: one program of many calls each."""

    def __init__(self, problem: Problem, platform: str):
        self.op, self.params = primitives.OPS[problem.op], problem.params
        self.dtype = problem.dtype
        result = math.prod(self.params.shape(self.op.result))
        result *= np.dtype(problem.out_dtype).itemsize
        # As many calls as make a program that is long beside its start. On the CPU
        # one: XLA would run them side by side.
        calls = int(np.clip(_PROGRAM_BYTES // max(result, 1), SETS, SETS * SETS))
        pairs = [(k % SETS, (k + k // SETS) % SETS) for k in range(calls)]
        self.pairs = pairs[:1] if platform == "cpu" else pairs
        shapes = [
            [jax.ShapeDtypeStruct(self.params.shape(role), self.dtype)] * SETS
            for role in self.op.operands
        ]

        def compiled(candidate: tuple[str, str]):
            engine, config = candidate
            forced = dataclasses.replace(self.params, algorithm=engine, config=config)
            one = partial(
                primitives.bind,
                self.op.name,
                params=forced,
                out_dtype=problem.out_dtype,
            )
            program = jax.jit(partial(_many, one, self.pairs))
            return program.lower(*shapes).compile()

        candidates = problem.candidates(platform)
        with ThreadPoolExecutor() as pool:
            compiling = pool.map(compiled, candidates)
            self.of = dict(zip(candidates, compiling, strict=True))

    def operands(self) -> list[list[jax.Array]]:
        keys = jax.random.split(jax.random.key(0, impl="rbg"), SETS)
        return [
            [_normal(key, self.params.shape(role), self.dtype) for key in keys]
            for role in self.op.operands
        ]


def measure(
    problem: Problem, platform: str, seconds: float = 0.01, repeats: int = 5
) -> Times:
    """Microseconds of one call of every candidate, the rule's first."""
    return timed(Programs(problem, platform), seconds, repeats)


def timed(programs: Programs, seconds: float, repeats: int) -> Times:
    """The same of programs that are compiled."""
    operands = programs.operands()
    counts = {}
    for candidate, program in programs.of.items():
        _elapsed(program, operands, 1)
        once = _elapsed(program, operands, 2) / 2
        counts[candidate] = max(1, round(seconds / max(once, 1e-6)))
    times: dict[tuple[str, str], list[float]] = {c: [] for c in programs.of}
    for _ in range(repeats):  # in turns: a GPU's clock moves
        for candidate, program in programs.of.items():
            count = counts[candidate]
            taken = _elapsed(program, operands, count)
            times[candidate].append(taken / count / len(programs.pairs) * 1e6)
    return {candidate: statistics.median(each) for candidate, each in times.items()}


def _many(one, pairs, first, second):
    results = [one(first[i], second[j]) for i, j in pairs]
    results = jax.lax.optimization_barrier(results)
    corners = [jax.lax.slice(y, (0,) * y.ndim, (1,) * y.ndim) for y in results]
    return jnp.stack(corners)


def _elapsed(program, operands, count: int) -> float:
    start = time.perf_counter()
    out = None
    for _ in range(count):
        # Dropped first: the next results then lie where these did, and a CUDA
        # graph need not be updated, which takes longer than small convolutions.
        out = None
        out = program(*operands)
    jax.block_until_ready(out)
    return time.perf_counter() - start


@partial(jax.jit, static_argnums=(1, 2))
def _normal(key, shape, dtype):
    return jax.random.normal(key, shape, "float32").astype(dtype)
