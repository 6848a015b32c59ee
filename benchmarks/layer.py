# SPDX-License-Identifier: Apache-2.0
"""A whole layer, forward and backward: conv + bias + activation, ours beside stock.

    python -m benchmarks layer [--table resnet50_v1] [--batch 8,256] [--dtype bf16]
                               [--activation relu] [--engine auto] [--peers torch]
                               [--parts] [--limit SECONDS]

A call is y and the gradients of x, w and bias, jitted. Stock is
`jax.lax.conv_general_dilated` and jax.numpy; on a GPU PyTorch stands beside it,
replayed from a CUDA graph, where it is installed (--peers none leaves it out). All are
compared with ours before they are timed, in turns. --parts times what ours is made of
besides: the convolution alone, the layer's forward pass, dgrad, wgrad and the bias
gradient. --limit begins no row after so many seconds. Prints tables and writes
STEM.json.
"""

from __future__ import annotations

import argparse
import math
import time
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch as jcb
from benchmarks import ceilings, record, torch_side, workloads
from benchmarks.cases import DTYPES, Case, Pool, cases
from benchmarks.jax_side import compiled, convolution
from benchmarks.torch_layer import TorchLayerSide
from benchmarks.window import Window
from jax_convbatch._layers import activations
from jax_convbatch._primitives.bias import bias_grad
from jax_convbatch._select import plan
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import L2_BYTES, first_and_numbers

MOST_SETS = 8  # of operands

# Largest relative difference of a result; TF32 rounds f32 operands on a GPU.
TOLERANCE = {"float32": 2e-3, "bfloat16": 2e-2, "float16": 4e-3}
# Where rounding moves z across a kink, the whole of dy passes on one side alone: in
# bf16 1 number of 1000, and so a thirtieth of a gradient's norm; where one side rounds
# to TF32 and the other does not, 1 of 10000.
KINKED = ("relu", "relu6", "leaky_relu")
AT_KINKS = {"float32": 15, "bfloat16": 4, "float16": 4}  # times TOLERANCE


def layer(side: str, row, activation: str):
    """y of (x, w, bias): stock, or ours by the engine that `side` names."""
    if side != "stock":
        kwargs = workloads.arguments(row)
        return partial(
            jcb.conv_bias_act, activation=activation, algorithm=side, **kwargs
        )
    conv = convolution("xla", Window.of_row(row), "default")
    chosen = activations.ACTIVATIONS[activation].fn
    return lambda x, w, bias: chosen(conv(x, w) + bias)


def step(side: str, row, activation: str, x, w, bias, dy):
    """(y, dx, dw, db)."""
    y, pullback = jax.vjp(layer(side, row, activation), x, w, bias)
    return y, *pullback(dy)


def parts(engine: str, row, activation: str) -> dict:
    """What our layer does, as functions of (x, w, bias, dy), each a tuple."""
    conv = convolution(engine, Window.of_row(row), "default")
    forward = layer(engine, row, activation)
    return {
        "fprop": lambda x, w, bias, dy: (conv(x, w),),
        "forward": lambda x, w, bias, dy: (forward(x, w, bias),),
        "dgrad": lambda x, w, bias, dy: jax.linear_transpose(lambda x: conv(x, w), x)(
            dy
        ),
        "wgrad": lambda x, w, bias, dy: jax.linear_transpose(lambda w: conv(x, w), w)(
            dy
        ),
        "bgrad": lambda x, w, bias, dy: (bias_grad(dy, -1),),
    }


class LayerSide(timing.Side):
    """A side of a measurement: a program of `calls` calls of one(x, w, bias, dy).

    Compiled when it is made; `take` gives it sets of operands. On the CPU, where XLA
    would run the calls at once, a program is one call, and so it is where `calls` is 1.
    """

    def __init__(self, name: str, one, shapes, calls: int):
        self.name = name
        self._alone = calls == 1 or jax.default_backend() == "cpu"
        self.calls = 1 if self._alone else calls
        self._out, self._turn = None, 0
        program = jax.jit(partial(_many, jax.jit(one)))
        self._program = program.lower([tuple(shapes)] * self.calls).compile()

    def take(self, sets) -> None:
        self._rounds = [[operands] for operands in sets] if self._alone else [sets]

    def queue(self) -> None:
        self._out = None
        self._out = self._program(self._rounds[self._turn])
        self._turn = (self._turn + 1) % len(self._rounds)

    def wait(self) -> None:
        timing.wait_for(self._out)

    def once(self):
        """The results for the first set, by the program that is timed."""
        return self._program(self._rounds[0])[0]


def _many(one, sets):
    return first_and_numbers([one(*operands) for operands in sets])


def combinations(sets) -> list[tuple]:
    """The sets, and others made of their arrays: enough calls to hide what it costs
    to start a program, no two of them with equal operands."""
    n = len(sets)
    return [
        tuple(sets[(i + j * k) % n][j] for j in range(4))
        for k in range(min(n, 4))
        for i in range(n)
    ]


def shapes_of(case: Case) -> list[jax.ShapeDtypeStruct]:
    """Of x, w, bias and dy."""
    x, w, y = case.shape["x"], case.shape["w"], case.shape["y"]
    return [jax.ShapeDtypeStruct(shape, case.dtype) for shape in (x, w, y[-1:], y)]


def count_of(case: Case) -> int:
    """Of sets of operands: more than a GPU's L2 between two uses of one, and four
    for the 16 calls (`combinations`) that hide what it costs to start a program."""
    bytes_of = sum(math.prod(s.shape) * s.dtype.itemsize for s in shapes_of(case))
    least = 2 if jax.default_backend() == "cpu" else 4
    return int(np.clip(-(-3 * L2_BYTES // bytes_of), least, MOST_SETS))


def operands(case: Case, pool: Pool) -> list[tuple]:
    """Sets of x, w, bias and dy."""
    scales = (1, math.prod(case.shape["w"][:3]) ** -0.5, 1, 1)
    arrays = [
        pool.arrays("normal", case.dtype, s.shape, count_of(case), scale, shift)
        for shift, (s, scale) in enumerate(zip(shapes_of(case), scales, strict=True))
    ]
    return list(zip(*arrays, strict=True))


class Prepared:
    """A case whose programs are compiled: ours, stock's, and the parts of ours."""

    def __init__(
        self,
        case: Case,
        activation: str,
        engine: str,
        with_parts: bool,
        pool: Pool,
        stock: Executor,
    ):
        """`stock` compiles XLA's own program: it times algorithms meanwhile."""
        self.case, self.activation, self._pool = case, activation, pool
        shapes = shapes_of(case)
        calls = len(combinations([shapes] * count_of(case)))
        for shape in shapes:
            pool.ready(case.dtype, shape.shape)

        def side(name: str, one) -> LayerSide:
            return LayerSide(name, one, shapes, calls)

        def whole(name: str):
            return partial(step, name, case.row, activation)

        self._stock = stock.submit(side, "stock", whole("stock"))
        self._ours = side(engine, whole(engine))
        pieces = parts(engine, case.row, activation) if with_parts else {}
        self.parts = [side(name, one) for name, one in pieces.items()]
        x, w, bias, dy = shapes
        results = (dy, x, w, bias)
        self._differences = jax.jit(differences).lower(results, results).compile()

    def differences(self, a, b) -> np.ndarray:
        return np.array(self._differences(tuple(a), tuple(b)))

    def sides(self, torch: bool) -> list:
        """Ours, stock and PyTorch, with operands."""
        sets = combinations(operands(self.case, self._pool))
        sides = [self._ours, self._stock.result()]
        for side in (*sides, *self.parts):
            side.take(sets)
        if torch:
            row, activation = self.case.row, self.activation
            sides.append(TorchLayerSide(row, activation, sets))
        return sides


def measure(prepared: Prepared, torch: bool = False, copy: float = 0) -> dict:
    """One row of the result; the parts of ours beside the copy rate.

    Raises:
      SystemExit: the sides' results differ.
    """
    case = prepared.case
    sides = prepared.sides(torch)
    check(prepared, sides)
    times = timing.microseconds(sides)
    # fprop and the forward pass each after the other, so that what ran before, and
    # with it the clock, is alike.
    for group in (prepared.parts[:2], prepared.parts[2:]):
        times |= timing.microseconds(group)
    us: dict = {
        "ours" if side is sides[0] else side.name: timing.summary(times[side.name])
        for side in (*sides, *prepared.parts)
    }
    found = {name: figures["median_us"] for name, figures in us.items()}
    ours = found["ours"]
    peers = [found[side.name] for side in sides[1:]]
    if prepared.parts:
        backward = ours - found["forward"]
        rest = backward - found["dgrad"] - found["wgrad"]
        read = math.prod(case.shape["y"]) * jnp.dtype(case.dtype).itemsize
        us |= {
            "forward_over_fprop": round(found["forward"] / found["fprop"], 3),
            "rest_of_backward": round(rest / backward, 3),
            "bgrad_of_copy": round(read / found["bgrad"] * 1e6 / copy, 3),
        }
    return {
        "name": case.name,
        "row": case.row,
        "batch": case.batch,
        "dtype": case.dtype,
        **us,
        "over_stock": round(found["stock"] / ours, 3),
        "over_best": round(min(peers) / ours, 3),
    }


def check(prepared: Prepared, sides: list) -> None:
    """Raises SystemExit where a side's results are not those of ours."""
    case = prepared.case
    first, *others = [side.once() for side in sides]
    kinks = AT_KINKS[case.dtype] if prepared.activation in KINKED else 1
    bound = TOLERANCE[case.dtype] * np.array([1, kinks, kinks, kinks])
    for side, result in zip(sides[1:], others, strict=True):
        found = prepared.differences(first, result)
        if not (found < bound).all():
            raise SystemExit(
                f"{case.name}, batch {case.batch}: y, dx, dw and db differ from "
                f"{side.name}'s by {found}"
            )


@jax.jit
def difference(a, b):
    """Relative, in norm."""
    a, b = a.astype("float32"), b.astype("float32")
    return jnp.linalg.norm((a - b).ravel()) / jnp.linalg.norm(b.ravel())


def differences(a, b) -> list:
    """Of each array of `a` from that of `b`."""
    return list(map(difference, a, b))


def mean(rows, ratio: str = "over_stock") -> float:
    """The geometric mean of a peer's time over ours."""
    return math.exp(sum(math.log(row[ratio]) for row in rows) / len(rows))


def table(rows, title: str) -> Table:
    view = Table(title=title)
    view.add_column("layer")
    peers = ["stock", "torch"] if "torch" in rows[0] else ["stock"]
    ratios = ["over_stock", "over_best"][: len(peers)]
    sides = ["ours", *peers]
    for heading in (*(f"{side}, µs" for side in sides), "stock / ours", "best / ours"):
        if heading != "best / ours" or "torch" in peers:
            view.add_column(heading, justify="right")
    for row in rows:
        times = [f"{row[side]['median_us']:.1f}" for side in sides]
        view.add_row(row["name"], *times, *(f"{row[ratio]:.2f}" for ratio in ratios))
    means = [f"{mean(rows, ratio):.2f}" for ratio in ratios]
    view.add_row("geometric mean", *[""] * len(sides), *means)
    return view


PARTS_HEADINGS = {
    "forward_over_fprop": "forward / fprop",
    "rest_of_backward": "rest of backward",
    "bgrad_of_copy": "bgrad / copy rate",
}


def parts_table(rows, title: str) -> Table:
    view = Table(title=title)
    view.add_column("layer")
    names = ("fprop", "forward", "dgrad", "wgrad", "bgrad")
    for heading in (*(f"{name}, µs" for name in names), *PARTS_HEADINGS.values()):
        view.add_column(heading, justify="right")
    for row in rows:
        times = [f"{row[name]['median_us']:.1f}" for name in names]
        view.add_row(row["name"], *times, *(f"{row[r]:.2f}" for r in PARTS_HEADINGS))
    return view


def _options(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks layer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--table", default="resnet50_v1", choices=workloads.TABLES)
    add("--rows", help="some rows of the table, by name")
    add("--batch", default="8")
    add("--dtype", default="f32", choices=[d for d in DTYPES if d != "f64"])
    add("--activation", default="relu", choices=activations.ACTIVATIONS)
    add("--engine", default="auto", choices=plan.ALGORITHMS)
    add("--peers", default="torch", choices=("torch", "none"))
    add("--parts", action="store_true")
    add("--limit", type=float, default=math.inf, metavar="SECONDS")
    add("--out", type=Path)
    return parser.parse_args(arguments)


def main(arguments=None) -> None:
    options = _options(arguments)
    dtype = DTYPES[options.dtype]
    console = Console(width=None if Console().is_terminal else 100, soft_wrap=True)
    torch = options.peers == "torch" and jax.default_backend() == "gpu"
    if torch and (problem := torch_side.problem("gpu")):
        console.print(f"without PyTorch: {problem}")
        torch = False
    found = []
    batches = [int(n) for n in options.batch.split(",")]
    names = options.rows.split(",") if options.rows else None
    todo = cases(options.table, ["fprop"], batches, [dtype], names)
    copy = ceilings.copy_rate() if options.parts else 0
    pool = Pool(todo)
    start = time.monotonic()
    with Progress(console=console, transient=True) as progress:

        def prepare(case: Case, stock: Executor) -> Prepared:
            which = options.activation, options.engine, options.parts
            return Prepared(case, *which, pool, stock)

        ready = compiled(prepare, todo, progress)
        task = progress.add_task("timing", total=len(todo))
        # Let go of one by one, as each holds operands.
        while ready and time.monotonic() - start <= options.limit:
            found.append(measure(ready.pop(0), torch, copy))
            progress.advance(task)
    environment = record.environment()
    console.print(", ".join(f"{k} {v}" for k, v in environment.items()))
    for batch in batches:
        same = [row for row in found if row["batch"] == batch]
        if not same:
            continue
        title = f"conv + bias + {options.activation}, forward and backward, {dtype}"
        console.print(table(same, f"{title}, batch {batch}"))
        if options.parts:
            rate = f"copy rate {copy / 1e9:.0f} GB/s"
            console.print(
                parts_table(same, f"the parts of ours, batch {batch}, {rate}")
            )
    stem = options.out or record.RESULTS / (
        f"layer-{options.table}-{options.dtype}-{record.slug(environment)}"
    )
    result = {"environment": environment, "copy_gb_per_s": copy / 1e9, "rows": found}
    path = record.save(result, stem)
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
