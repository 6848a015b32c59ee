# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution: ours by engine, beside torchvision.

    python -m benchmarks deform [--rows paddle_19x34_512_256,...] [--engine auto,xla]

checks every side on whole numbers at quarters of pixels, then times them in turns on
JAX's default device: the forward pass, and forward and backward with the gradients of
x, offset, w, bias and mask. An engine with ":loop" after it is called once for each
sample, in one program. Prints each row when it is done, and writes STEM.json.

torchvision is a peer where it is installed, called as its users do, NCHW; its input
gradient adds with atomics on a GPU. In float32 there are two of it: "torchvision"
multiplies as TF32, as JAX does by default, and "torchvision f32" has PyTorch's own
default. It has no bfloat16.
"""

from __future__ import annotations

import argparse
import importlib.util
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress

import jax_convbatch as jcb
from benchmarks import record
from benchmarks.cases import names
from benchmarks.check import LOOSE, WrongResult
from benchmarks.torch_side import lead
from benchmarks.workloads import DEFORM, arguments, shapes
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import first_and_numbers

PASSES = ("forward", "forward+backward")
GPU_CALLS = 4  # in one program: with what follows, enough that XLA makes a graph


@partial(jax.jit, static_argnames=("batch", "row", "offset_groups", "dtype", "exact"))
def operands(batch: int, row, offset_groups: int, dtype: str, seed: int, exact=False):
    """x, offset, w, bias, mask and dy; whole numbers and quarters where `exact`."""
    x, w, y = shapes(batch, row)
    taps = offset_groups * w[0] * w[1]
    keys = jax.random.split(jax.random.key(seed, impl="rbg"), 6)

    def draw(key, shape):
        if exact:
            return jax.random.randint(key, shape, -2, 3).astype(dtype)
        return jax.random.normal(key, shape, "float32").astype(dtype)

    pixels = y[:3]
    offset = jax.random.normal(keys[1], (*pixels, 2 * taps), "float32")
    if exact:
        offset = jnp.round(4 * offset) / 4
    mask = draw(keys[4], (*pixels, taps))
    if not exact:
        mask = jax.nn.sigmoid(mask)
    return (
        draw(keys[0], x),
        offset.astype(dtype),
        draw(keys[2], w),
        draw(keys[3], w[-1:]),
        mask,
        draw(keys[5], y),
    )


# Of operands and results: those that every sample has of its own.
PER_SAMPLE = (True, True, False, False, True, True)
RESULT_PER_SAMPLE = (True, True, True, False, False, True)


def split(operands) -> list[tuple]:
    """The operands of each sample alone."""
    pairs = list(zip(operands, PER_SAMPLE, strict=True))
    count = range(len(operands[0]))
    return [tuple(a[i : i + 1] if own else a for a, own in pairs) for i in count]


def joined(results) -> list:
    """The results of a batch from those of its samples."""
    out = []
    for arrays, own in zip(zip(*results, strict=True), RESULT_PER_SAMPLE, strict=False):
        out.append(np.concatenate(arrays) if own else sum(arrays))
    return out


class OurSide(timing.Side):
    """deform_conv by `engine` on sets of operands, ":loop": a sample at a time.

    Without sets there is nothing to time, and `once` alone can be called.
    """

    def __init__(self, engine: str, row, offset_groups: int, backward: bool, sets):
        self.name = engine
        engine, *loop = engine.split(":")
        self._loop = bool(loop)

        def forward(x, offset, w, bias, mask):
            return jcb.deform_conv(
                x,
                offset,
                w,
                bias,
                mask,
                offset_groups=offset_groups,
                algorithm=engine,
                **arguments(row),
            )

        def one(x, offset, w, bias, mask, dy):
            if not backward:
                return [forward(x, offset, w, bias, mask)]
            y, pull = jax.vjp(forward, x, offset, w, bias, mask)
            return [y, *pull(dy)]

        self.calls = len(sets) if jax.default_backend() == "gpu" else 1
        if self._loop:
            sets = [split(s) for s in sets]
        self._rounds = [sets] if self.calls > 1 else [[s] for s in sets]
        self._turn, self._out = 0, None
        self._one = jax.jit(one)

        def many(sets):
            if self._loop:
                out = [[self._one(*sample) for sample in samples] for samples in sets]
            else:
                out = [self._one(*operands) for operands in sets]
            return first_and_numbers(out)

        if sets:
            self._program = jax.jit(many).lower(self._rounds[0]).compile()

    def queue(self) -> None:
        self._out = None
        self._out = self._program(self._rounds[self._turn])
        self._turn = (self._turn + 1) % len(self._rounds)

    def wait(self) -> None:
        timing.wait_for(self._out)

    def once(self, operands) -> list:
        if self._loop:
            return joined([self._results(sample) for sample in split(operands)])
        return self._results(operands)

    def _results(self, operands) -> list:
        return [np.asarray(a, np.float64) for a in self._one(*operands)]


def torch_problem() -> str | None:
    for name in ("torch", "torchvision"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    import torch

    if jax.default_backend() == "gpu" and not torch.cuda.is_available():
        return "this PyTorch has no CUDA"
    return None


class TorchSide(timing.Side):
    """torchvision.ops.deform_conv2d on the same sets, NCHW as it wants them."""

    def __init__(self, row, backward: bool, sets, tf32: bool):
        import torch

        self.name = "torchvision" if tf32 else "torchvision f32"
        self._torch, self._backward, self._tf32 = torch, backward, tf32
        *_, self._stride, self._pad, self._dilation, _ = row
        self._gpu = jax.default_backend() == "gpu"
        jax.block_until_ready(sets)
        self._sets = [self._tensors(operands) for operands in sets]
        self.calls = len(sets) if self._gpu else 1
        self._turn = 0

    def _tensors(self, operands):
        def tensor(a):
            order = {4: (0, 3, 1, 2), 1: (0,)}[a.ndim]
            t = self._torch.from_dlpack(a).permute(order)
            return t.contiguous()

        x, offset, w, bias, mask, dy = operands
        w = jnp.transpose(w, (3, 0, 1, 2))  # then as the images are permuted
        tensors = [tensor(a) for a in (x, offset, w, bias, mask)]
        for t in tensors:
            t.requires_grad_(self._backward)
        return tensors, tensor(dy)

    def _one(self, tensors, dy):
        from torchvision.ops import deform_conv2d

        self._torch.backends.cuda.matmul.allow_tf32 = self._tf32
        x, offset, w, bias, mask = tensors
        y = deform_conv2d(
            x, offset, w, bias, self._stride, self._pad, self._dilation, mask
        )
        if not self._backward:
            return [y]
        return [y, *self._torch.autograd.grad(y, tensors, dy)]

    def queue(self) -> None:
        for i in range(self.calls):
            self._out = self._one(*self._sets[(self._turn + i) % len(self._sets)])
        self._turn = (self._turn + 1) % len(self._sets)

    def wait(self) -> None:
        if self._gpu:
            self._torch.cuda.synchronize()

    def lead(self):
        return lead() if self._gpu else None

    def once(self, operands) -> list:
        out = self._one(*self._tensors(operands))
        orders = {4: (0, 2, 3, 1), 1: (0,)}
        arrays = [
            t.detach().permute(orders[t.ndim]).double().cpu().numpy() for t in out
        ]
        if len(arrays) > 1:
            arrays[3] = arrays[3].transpose(1, 2, 3, 0)  # [K, R, S, C] as [R, S, C, K]
        return arrays


NAMES = ("y", "dx", "doffset", "dw", "dbias", "dmask")


def check(side, operands, expected, dtype: str) -> None:
    """Raises WrongResult where a result is not close to `expected`."""
    for name, got, want in zip(NAMES, side.once(operands), expected, strict=False):
        error = np.linalg.norm(got - want)
        if not error <= LOOSE[dtype] * np.linalg.norm(want):
            raise WrongResult(f"{side.name}: {name} is wrong")


def expected_of(row, offset_groups: int, backward: bool, operands) -> list:
    """What must come out, in f32 by `jax.lax` gathers, of one sample's worth."""
    wide = [a.astype("float32") for a in operands]
    return OurSide("xla", row, offset_groups, backward, []).once(wide)


def sides_of(row, offset_groups: int, dtype: str, engines, torch: bool, which, sets):
    backward = which != "forward"
    sides: list = []
    for engine in engines:
        try:
            sides.append(OurSide(engine, row, offset_groups, backward, sets))
        except ValueError as refusal:  # an engine asked for by name, in its words
            print(f"without {engine} in {which}: {refusal}")
    if torch and dtype != "bfloat16":
        for tf32 in (True, False) if dtype == "float32" else (True,):
            sides.append(TorchSide(row, backward, sets, tf32))
    return sides


def measure(case, engines, with_torch: bool, passes, seconds: float, repeats: int):
    """The rows of one (name, batch, dtype), one for each pass, as they are done."""
    name, batch, dtype = case
    own, row, offset_groups, own_dtype = DEFORM[name]
    batch, dtype = batch or own, dtype or own_dtype
    count = GPU_CALLS if jax.default_backend() == "gpu" else 3
    sets = [operands(batch, row, offset_groups, dtype, i) for i in range(count)]
    exact = operands(min(batch, 2), row, offset_groups, dtype, 0, exact=True)
    backward = any(which != "forward" for which in passes)
    expected = expected_of(row, offset_groups, backward, exact)
    for which in passes:
        sides = sides_of(row, offset_groups, dtype, engines, with_torch, which, sets)
        for side in sides:
            check(side, exact, expected, dtype)
        times = timing.microseconds(sides, seconds, repeats)
        yield {
            "name": name,
            "row": row,
            "batch": batch,
            "offset_groups": offset_groups,
            "dtype": dtype,
            "pass": which,
            "sides": {n: timing.summary(t) for n, t in times.items()},
        }


def line(row) -> str:
    """Times of one call, and in brackets how many times the first side's."""
    base = next(iter(row["sides"].values()))["median_us"]
    cells = []
    for name, side in row["sides"].items():
        ratio = side["median_us"] / base
        cells.append(f"{name} {side['median_us']:.0f} us ({ratio:.2f})")
    case = f"{row['name']} N={row['batch']} {row['dtype']} {row['pass']}"
    return f"{case}: {', '.join(cells)}"


def options_of(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks deform",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=names(DEFORM), default=list(DEFORM), help=", ".join(DEFORM))
    add("--op", type=names(PASSES), default=list(PASSES), help=", ".join(PASSES))
    parser.add_argument("--dtype", help="instead of the row's own; several with commas")
    parser.add_argument("--engine", default="auto,xla")
    parser.add_argument("--peers", default="torch", choices=("torch", "none"))
    parser.add_argument("--batch", type=int, help="instead of the row's own")
    parser.add_argument("--seconds", type=float, default=0.01, help="of one timing")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--out", type=Path, help="path without suffix (default: benchmarks/results/...)"
    )
    return parser.parse_args(arguments)


def main(arguments=None) -> None:
    options = options_of(arguments)
    console = Console(width=None if Console().is_terminal else 150, soft_wrap=True)
    environment = record.environment()
    problem = "left out" if options.peers == "none" else torch_problem()
    if problem:
        console.print(f"without torchvision: {problem}")
    dtypes = options.dtype.split(",") if options.dtype else [None]
    cases = [(name, options.batch, dtype) for name in options.rows for dtype in dtypes]
    stem = options.out or record.RESULTS / f"deform-{record.slug(environment)}"
    rows: list = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(cases) * len(options.op))
        for case in cases:
            progress.update(task, description=case[0])
            for row in measure(
                case,
                options.engine.split(","),
                not problem,
                options.op,
                options.seconds,
                options.repeats,
            ):
                rows.append(row)
                console.print(line(row), highlight=False)
                progress.advance(task)
    written = record.save({"environment": environment, "rows": rows}, stem)
    console.print(f"wrote {written}")


if __name__ == "__main__":
    main()
