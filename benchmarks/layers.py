# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: ours by engine, beside jax.lax and PyTorch.

    python -m benchmarks layers --table resnet50 --batch 8,256 --dtype bf16 \\
        --op fprop,dgrad,wgrad --engine auto

checks every side on whole numbers, times them in turns on JAX's default device, and
prints a table for each batch and dtype. Writes STEM.json and STEM.png. `roof` is the
larger of bytes over the copy rate and operations over the rate of a large matrix
product, both measured in the same run. Where it is operations, `of GEMM` is ours over
that product's rate in turns with the sides. Interrupted, it keeps the rows that are
done; --limit begins no more blocks of them after so many seconds. On a CPU there is
also the share of the peak: operations a second over those of a loop of multiply-adds,
in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from concurrent.futures import Executor
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import Progress

import jax_convbatch as jcb
from benchmarks import record, report, torch_side
from benchmarks.cases import Case, Pool, add_options, cases_of, names
from benchmarks.ceilings import Ceilings, product_rate
from benchmarks.check import Check
from benchmarks.jax_side import JaxSide, compiled, operation
from benchmarks.torch_side import TorchSide
from jax_convbatch._select import choices, plan
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import sets_of

PEERS = ("xla", "torch")
BLOCK = 32  # cases that are compiled, in threads, before the first of them is timed
ENGINES = (*plan.ALGORITHMS, "rule")  # what "auto" is without a table


def handler_times() -> dict[str, float]:
    """Seconds so far in the CPU's handlers; zeros on another device."""
    if jax.default_backend() != "cpu":
        return {"products": 0.0, "handlers": 0.0}
    from jax_convbatch import _cpu

    return dict(_cpu.times())


def chosen(engine: str, case: Case) -> dict:
    """What `explain` says of our side."""
    operands = [jax.ShapeDtypeStruct(s, case.dtype) for s in case.operands]
    with choices.left_out(engine == "rule"):
        (row,) = jcb.explain(operation(engine, case), *operands)
    return {
        "engine": row.engine,
        "source": row.source,
        "reason": row.reason,
        "workspace_bytes": row.workspace_bytes,
    }


class Prepared:
    """A case whose programs are compiled, and what must come out of them."""

    def __init__(self, case: Case, engines, peers, pool: Pool, stock: Executor):
        """`stock` compiles `jax.lax`'s program: XLA times algorithms meanwhile."""
        self.case, self.pool = case, pool
        self.peer = stock.submit(JaxSide, "xla", case) if "xla" in peers else None
        self.torch = "torch" in peers
        self.figures: dict[str, dict] = {}
        self.ours = []
        for engine in engines:
            try:
                self.figures[engine] = chosen(engine, case)
            except ValueError as error:  # asked for by name, and it cannot
                self.figures[engine] = {"refused": str(error)}
                continue
            self.ours.append(JaxSide(engine, case))
        for shape in case.operands:
            pool.ready(case.dtype, shape)
        self.check = Check(case, pool)

    def sides(self) -> list:
        """All of them, with operands, checked.

        Raises:
          WrongResult: a side's result is not the convolution.
        """
        case = self.case
        counts = sets_of(case.pairs(jax.default_backend()))
        operands = self.pool.operands(case, counts)
        sides: list = [*self.ours, *([self.peer.result()] if self.peer else [])]
        for side in sides:
            side.take(*operands)
        if self.torch:
            sides.append(TorchSide(case, *operands))
        whole = self.check.operands
        for side in sides:
            self.check(side.name, side.once(*whole), exact=side in self.ours)
        return sides


def measure(
    prepared: Prepared, ceilings: Ceilings, seconds: float = 0.012, repeats: int = 5
) -> dict:
    """One row of the result: every side checked, then timed.

    Raises:
      WrongResult: a side's result is not the convolution.
    """
    case = prepared.case
    sides = prepared.sides()
    product = ceilings.product(case)
    before = handler_times()
    times = timing.microseconds(
        [*sides, product] if product else sides, seconds, repeats
    )
    spent = {key: value - before[key] for key, value in handler_times().items()}
    result: dict = {
        "name": case.name,
        "row": case.row,
        "batch": case.batch,
        "dtype": case.dtype,
        "precision": case.precision,
        "op": case.op,
        "roof_us": round(ceilings.roof_us(case), 3),
        "sides": prepared.figures,
    }
    if spent["handlers"] > 0 and len(prepared.ours) == 1:
        result["blas_share"] = round(spent["products"] / spent["handlers"], 3)
    if product:
        rate = product_rate(statistics.median(times[product.name]))
        result["gemm_tflops"] = round(rate / 1e12, 2)
    for side in sides:
        figures = result["sides"].setdefault(side.name, {"peer": True})
        figures |= timing.summary(times[side.name])
        figures["tflops"] = round(case.flops / figures["median_us"] / 1e6, 3)
        figures["gb_per_s"] = round(case.least_bytes / figures["median_us"] / 1e3, 1)
        if product:
            share = figures["tflops"] / result["gemm_tflops"]
            figures["share_of_gemm"] = round(share, 3)
        share = ceilings.share_of_peak(case, figures["median_us"])
        if share is not None:
            figures["share_of_peak"] = round(share, 3)
    return result


def options_of(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks layers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser.add_argument)
    parser.add_argument("--engine", type=names(ENGINES), default=["auto"])
    parser.add_argument("--peers", type=names([*PEERS, "none"]), default=list(PEERS))
    parser.add_argument("--seconds", type=float, default=0.012, help="of one timing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument(
        "--out", type=Path, help="path without suffix (default: benchmarks/results/...)"
    )
    return parser.parse_args(arguments)


@contextlib.contextmanager
def stopped_by(failure: list[Exception]):
    """Ctrl-C and an error end what is within, no more; the error goes to `failure`."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except Exception as error:
        failure.append(error)


def main(arguments=None) -> None:
    options = options_of(arguments)
    start = time.perf_counter()
    console = Console(width=None if Console().is_terminal else 150, soft_wrap=True)
    environment = record.environment()
    peers = list(options.peers)
    problem = torch_side.problem(jax.default_backend())
    if "torch" in peers and problem:
        console.print(f"without PyTorch: {problem}")
        peers.remove("torch")
    todo = cases_of(options)
    if any(case.dtype == "float64" for case in todo):
        jax.config.update("jax_enable_x64", True)
    pool, rows = Pool(todo), []
    compiling = 0.0
    progress = Progress(console=console, transient=True)
    ceilings = Ceilings()
    failure: list[Exception] = []  # in the middle of the table, which is kept
    with progress, stopped_by(failure):

        def prepare(case: Case, stock: Executor) -> Prepared:
            return Prepared(case, options.engine, peers, pool, stock)

        task = progress.add_task("timing", total=len(todo))
        for first in range(0, len(todo), BLOCK):
            begin = time.perf_counter()
            if begin - start > options.limit:
                break
            ready = compiled(prepare, todo[first : first + BLOCK], progress)
            compiling += time.perf_counter() - begin
            while ready:  # and let go of, one by one: each holds operands
                each = ready.pop(0)
                case = each.case
                progress.update(
                    task, description=f"{case.batch} {case.dtype} {case.op} {case.name}"
                )
                rows.append(measure(each, ceilings, options.seconds, options.repeats))
                progress.advance(task)
    if len(rows) < len(todo):
        console.print(f"stopped: {len(rows)} of {len(todo)} rows")
    if not rows:
        if failure:
            raise failure[0]
        return
    result = {
        "environment": environment,
        "table": options.table,
        "ceilings": ceilings.record(),
        "seconds_taken": round(time.perf_counter() - start, 1),
        "seconds_compiling": round(compiling, 1),
        "rows": rows,
    }
    report.show(console, result)
    dtype = "-".join(dict.fromkeys(case.dtype for case in todo))
    if options.precision != "default":
        dtype += f"-{options.precision}"
    name = f"{options.table}-{dtype}-{record.slug(environment)}"
    stem = options.out or record.RESULTS / name
    written = [record.save(result, stem), report.draw(result, stem)]
    console.print("wrote " + " and ".join(map(str, written)))
    if failure:
        raise failure[0]
