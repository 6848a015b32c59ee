# SPDX-License-Identifier: Apache-2.0
"""What is planned for many convolutions, to compare before and after a change.

    python tests/plan_dump.py write FILE [--seed 0] [--count 20000]
    python tests/plan_dump.py compare OLD NEW

Needs the CUDA module and no GPU. FILE (text, gzipped) has a line for each operation in
bf16 and f32 of every geometry of the benchmarks' tables and families, and of COUNT
random ones, on an A100 and on an H200: the plan, and a digest of all candidates that
implicit_gemm has. cuDNN stands in both for one that covers everything. A refactoring
changes no line; `compare` shows what differs, by what was planned before and after,
and fails if anything does.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fake_gpus
import numpy as np
import shown

from jax_convbatch._native import targets
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select import choices, implicit_cuda, plan
from jax_convbatch._shapes.geometry import ConvGeometry

CAPABILITIES = ("8.0", "9.0")
DTYPES = ("bfloat16", "float32")
CUDNN = {"config": "", "workspace": 0, "compiled": False, "depends_on_batch": False}
MOST_PIXELS, SHOWN = 1 << 24, 12


def geometry_of(rng: random.Random) -> ConvGeometry:
    """Any that a user may ask for, small ones as often as large ones."""
    while True:
        rank = rng.choice([1, 2, 2, 2, 3])
        axes = [
            _axis(rng) if i >= 3 - rank else (1, 1, 1, 1, 0, 1, 1) for i in range(3)
        ]
        inputs, taps, outputs, stride, pad, spread, dilation = zip(*axes, strict=True)
        c, k, groups = _channels(rng)
        n = rng.choice([1, 2, 3, 8, 16, 32, 128, 256])
        pixels = n * max(np.prod(inputs), np.prod(outputs))
        if min(outputs) > 0 and pixels <= MOST_PIXELS:
            sizes = (n, *inputs, c, k, *taps, *outputs, groups)
            return ConvGeometry(*sizes, stride, pad, spread, dilation)


def _axis(rng: random.Random) -> tuple[int, ...]:
    size = int(2 ** rng.uniform(0, 9))
    taps = rng.choice([1, 1, 2, 3, 3, 3, 4, 5, 7, 11, 16])
    stride = rng.choice([1, 1, 1, 1, 2, 2, 3, 4])
    spread = rng.choice([1] * 9 + [2]) if stride == 1 else 1
    dilation = rng.choice([1] * 6 + [2, 3])
    low, high = (rng.choice([0, taps // 2, taps // 2, taps - 1, -1]) for _ in range(2))
    reach = (size - 1) * spread + 1 + low + high - (taps - 1) * dilation - 1
    return size, taps, reach // stride + 1, stride, low, spread, dilation


def _channels(rng: random.Random) -> tuple[int, int, int]:
    """C, K and groups."""
    usual = [1, 3, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 512, 768, 1280]
    c, k = (
        rng.choice(usual) if rng.random() < 0.8 else rng.randint(1, 700)
        for _ in range(2)
    )
    kind = rng.random()
    if kind < 0.6:
        return c, k, 1
    if kind < 0.8:
        return c, c * rng.choice([1, 1, 1, 2]), c
    groups, own = rng.choice([2, 3, 4, 8, 32, 64]), rng.choice([1, 2, 4, 8, 16, 32, 64])
    return groups * own, groups * rng.choice([own, own, 2 * own, 3]), groups


def geometries(seed: int, count: int) -> Iterator[tuple[str, ConvGeometry]]:
    yield from fake_gpus.geometries().items()
    rng = random.Random(seed)
    for i in range(count):
        yield f"random {seed} {i}", geometry_of(rng)


def stand_in(capability: str) -> None:
    """JAX's first GPU is one of these, with a cuDNN that covers everything."""
    name, count = fake_gpus.GPUS[capability]
    gpu = targets.Gpu(name, capability, count)
    changes = {
        "_gpu": lambda: gpu,
        "cudnn_problem": lambda: None,
        "cudnn_version": lambda: "",
        "cudnn_plans": lambda *args: [CUDNN],
    }
    for attribute, value in changes.items():
        setattr(targets, attribute, value)
    choices.measured = lambda *args: ()


def lines(seed: int, count: int) -> Iterator[str]:
    for capability in CAPABILITIES:
        stand_in(capability)
        for name, g in geometries(seed, count):
            for op in fake_gpus.OPS:
                for dtype in map(np.dtype, DTYPES):
                    chosen = plan.make_plan(op, g, dtype, dtype, "cuda", "auto")
                    problem = Problem(op, g, dtype, dtype, "cuda")
                    every = repr(implicit_cuda.native_plans(problem)).encode()
                    digest = hashlib.sha256(every).hexdigest()[:12]
                    key = f"{capability} {op} {dtype} {name}"
                    yield f"{key}\t{chosen}\t{digest}\n"


def write(path: Path, seed: int, count: int) -> int:
    """How many lines."""
    each = len(CAPABILITIES) * len(fake_gpus.OPS) * len(DTYPES)
    total = each * sum(1 for _ in geometries(seed, count))
    with gzip.open(path, "wt", encoding="utf-8", newline="\n") as file:
        plans = shown.bar(lines(seed, count), "planning", total)
        return sum(file.write(line) > 0 for line in plans)


def load(path: Path) -> dict[str, list[str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = (line.rstrip("\n").split("\t") for line in file)
        return {key: what for key, *what in rows}


def differences(old: dict, new: dict) -> list[tuple[str, str, str]]:
    """(key, before, after), where a plan or the candidates differ."""
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = (side.get(key, ["nothing", ""]) for side in (old, new))
        if before[0] != after[0]:
            found.append((key, before[0], after[0]))
        elif before != after:
            found.append((key, "candidates", "other candidates"))
    return found


def compare(old: Path, new: Path) -> bool:
    """Whether all is the same; says what is not."""
    before, after = load(old), load(new)
    found = differences(before, after)
    print(f"{len(found)} of {len(before)} plans differ")
    kinds = Counter((a, b) for _, a, b in found)
    for (a, b), times in kinds.most_common(SHOWN):
        example = next(key for key, *both in found if both == [a, b])
        print(f"\n{times} times, such as {example}\n  before {a}\n  after  {b}")
    return not found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("file", type=Path)
    writing.add_argument("--seed", type=int, default=0)
    writing.add_argument("--count", type=int, default=20_000)
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "compare":
        return 0 if compare(options.old, options.new) else 1
    number = write(options.file, options.seed, options.count)
    print(f"wrote {number} plans to {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
