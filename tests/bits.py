# SPDX-License-Identifier: Apache-2.0
"""The bits of y, dx, dw and db of 300 layers, to see where a change changes them.

    python tests/bits.py write [FILE] [--platform cuda] [--only N]
    python tests/bits.py compare [FILE] [--platform cuda] [--only N]
    python tests/bits.py choose [--count 300]

FILE is by default that of this device and cuDNN in `data/bits` (of a CPU, that of its
instructions, which nobody keeps: compilers differ). `write` records a hash of each
result; `compare` computes them again, says which differ, and fails if any does, as the
test in test_bits.py. Bits that change are a decision: it stands in CHANGELOG.md, and
what `write` writes is committed with it.

The layers are in `data/bits.json`. `choose` makes that list, and needs the CUDA module
and no GPU: of the benchmarks' tables and families and of drawn geometries, with fewer
samples where they are large, those that show most of our kernels on a Hopper GPU.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import shown

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._plans.kinds import Plan
from jax_convbatch._select import choices
from jax_convbatch._shapes.geometry import ConvGeometry

DATA = Path(__file__).parent / "data"
CASES, FOLDER = DATA / "bits.json", DATA / "bits"
RESULTS = ("y", "dx", "dw", "db", "doffset", "dmask")
MOST_VALUES = 1 << 22  # of x and of y
DTYPES = ("bfloat16", "float32", "float16")
ACTIVATIONS = (None, "relu", "gelu")
NUMBERS = ("NDHWC", "DHWIO", "NDHWC")
BLOCK = 32  # layers that are compiled, in threads, before the first of them runs


class Case(NamedTuple):
    """
    Attributes:
      geometry: of the convolution.
      dtype, activation, precision, algorithm: of the layer.
      offset_groups: of a deformable convolution, of two axes; otherwise 0.
    """

    geometry: ConvGeometry
    dtype: str
    activation: str | None = None
    precision: str | None = None
    algorithm: str = "auto"
    offset_groups: int = 0

    @property
    def name(self) -> str:
        numbers = jax.lax.ConvDimensionNumbers(*[tuple(range(5))] * 3)
        words = [self.geometry.describe(numbers), *map(str, self[1:-1])]
        if self.offset_groups:
            words.append(f"deformable, offset groups {self.offset_groups}")
        return " ".join(word for word in words if word != "None")

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Of dy, x, w and bias; of a deformable one offset and mask behind them."""
        g, own = self.geometry, slice(self._first, None)
        of = [
            (g.N, *g.outputs[own], g.K),
            (g.N, *g.inputs[own], g.C),
            (*g.taps[own], g.C // g.groups, g.K),
            (g.K,),
        ]
        if self.offset_groups:
            positions = self.offset_groups * g.R * g.S
            of += [(g.N, g.P, g.Q, each * positions) for each in (2, 1)]
        return [jax.ShapeDtypeStruct(shape, self.dtype) for shape in of]

    @property
    def _first(self) -> int:
        """Of its three axes."""
        return 1 if self.offset_groups else 0

    def layer(self, x, w, bias, *sampled) -> jax.Array:
        g, own = self.geometry, slice(self._first, None)
        options: dict[str, Any] = dict(
            strides=g.stride[own],
            padding=tuple(zip(g.pad, g.pad_high, strict=True))[own],
            dilation=g.filter_dilation[own],
            groups=g.groups,
            precision=self.precision,
            algorithm=self.algorithm,
        )
        if sampled:
            offset, mask = sampled
            options["offset_groups"] = self.offset_groups
            return jc.deform_conv(x, offset, w, bias, mask, **options)
        return jc.conv_bias_act(
            *(x, w, bias),
            activation=self.activation,
            input_dilation=g.input_dilation,
            dimension_numbers=NUMBERS,
            **options,
        )

    def step(self, dy, *arrays) -> tuple[jax.Array, ...]:
        """y and the gradients."""
        y, pullback = jax.vjp(self.layer, *arrays)
        return y, *pullback(dy)


def load_cases(path: Path = CASES) -> list[Case]:
    """
    Raises:
      TypeError, ValueError: the file has something else.
    """
    found = []
    for sizes, *rest in json.loads(path.read_text()):
        *scalars, stride, pad, spread, dilation = sizes
        axes = map(tuple, (stride, pad, spread, dilation))
        found.append(Case(ConvGeometry(*scalars, *axes), *rest))
    return found


@functools.cache
def _pool() -> np.ndarray:
    """Numbers between -1 and 1, the same everywhere."""
    index = np.arange(MOST_VALUES + (1 << 20), dtype=np.uint32)
    bits = index + np.uint32(0x9E3779B9)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ (bits >> shift)) * np.uint32(factor)
    bits ^= bits >> 16
    return (bits >> 8).astype(np.float32) * np.float32(2.0**-23) - 1


def operands(case: Case) -> list[np.ndarray]:
    found = []
    for role, shape in enumerate(case.shapes):
        size = int(np.prod(shape.shape))
        flat = np.resize(_pool()[1 + 4099 * role :], size)
        found.append(flat.astype(shape.dtype).reshape(shape.shape))
    return found


def digest(a: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(a).view(np.uint8)).hexdigest()[:12]


def digests(cases: list[Case], device: jax.Device) -> dict[str, str]:
    """Of each layer by name: of all results, with spaces between; or why there are
    none."""
    found: dict[str, str] = {}
    with ThreadPoolExecutor() as threads, jax.default_device(device):
        for first in shown.bar(range(0, len(cases), BLOCK), "layers"):
            block = cases[first : first + BLOCK]
            programs = list(threads.map(functools.partial(_compiled, device), block))
            for case, program in zip(block, programs, strict=True):
                if isinstance(program, str):
                    found[case.name] = program
                    continue
                arrays = [jax.device_put(a, device) for a in operands(case)]
                results = map(np.asarray, program(*arrays))
                found[case.name] = " ".join(threads.map(digest, results))
    return found


def _compiled(device: jax.Device, case: Case) -> Callable | str:
    with jax.default_device(device), choices.left_out():
        try:
            return jax.jit(case.step).lower(*case.shapes).compile()
        except ValueError as error:  # an engine asked for by name, in its words
            return f"refused: {str(error)[:200]}"


def changes(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """A line for each layer of `new` whose bits are others than in `old`."""
    found = []
    for name, digests in new.items():
        before = old.get(name, "not recorded").split()
        after = digests.split()
        if before == after:
            continue
        both = len(before) == len(after)
        which = [
            r
            for r, a, b in zip(RESULTS, before, after, strict=False)
            if both and a != b
        ]
        found.append(f"{' '.join(which) or ' '.join(before)}: {name}")
    return found


def key(platform: str) -> str:
    """What bits depend on besides the code: the name of the file."""
    if platform == "cpu":
        return f"cpu-{targets.instruction_set()}"
    version = targets.cudnn_version()
    device = choices.slug(targets.device_name("cuda"))
    return f"{device}-cudnn-{version or 'none'}"


def path_of(platform: str) -> Path:
    return FOLDER / f"{key(platform)}.json"


def write(path: Path, found: dict[str, str], platform: str) -> None:
    content = {"key": key(platform), "jax": jax.__version__, "digests": found}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def load(path: Path) -> dict[str, str]:
    return json.loads(path.read_text())["digests"]


# --- which layers -----------------------------------------------------------------


def smaller(g: ConvGeometry) -> ConvGeometry | None:
    """With as few samples as `MOST_VALUES` allows; None where one is too large."""
    per_sample = max(np.prod(g.inputs) * g.C, np.prod(g.outputs) * g.K, 1)
    n = min(g.N, MOST_VALUES // int(per_sample))
    return g._replace(N=n) if n and g.w_size <= MOST_VALUES else None


def candidates(seed: int = 0) -> Iterator[Case]:
    import plan_dump

    rng = random.Random(seed)
    for _, g in plan_dump.geometries(seed, 20_000):
        if (less := smaller(g)) is None:
            continue
        dtype, activation = rng.choice(DTYPES), rng.choice(ACTIVATIONS)
        level = rng.choice([None, None, "high", "highest"])
        precision = level if dtype == "float32" else None
        case = Case(less, dtype, activation, precision, "implicit_gemm")
        yield case if _covered(case) else case._replace(algorithm="auto")


def _plans(case: Case) -> Iterator[Plan]:
    from jax_convbatch._select import plan

    dtype = np.dtype(jnp.dtype(case.dtype))
    level = {None: 0, "high": 1, "highest": 2}[case.precision]
    for op in ("fprop", "dgrad", "wgrad"):
        of = dtype, dtype, "cuda", case.algorithm, None, level
        yield plan.make_plan(op, case.geometry, *of)


def _covered(case: Case) -> bool:
    """Whether the engine that it names runs all three operations."""
    try:
        return bool(list(_plans(case)))
    except ValueError:
        return False


def ways(case: Case) -> set[tuple]:
    """What tells kernels apart, of all that it runs: engines and tiles, and in words
    what else is done."""
    found: set[tuple] = set()
    for op, plan in zip(("fprop", "dgrad", "wgrad"), _plans(case), strict=True):
        words = plan.reason.removeprefix("asked for by name; ").split(";")[0]
        if plan.engine == "implicit_gemm" and not re.search(
            "direct|planes|sequence", words
        ):
            # The tile, whatever is done with it, and not how many share a sum: each
            # has code of its own, which those of groups have not.
            tile = re.search(r"(\w+) of (\d+x\d+)", words)
            found |= {(op, case.dtype, *tile.groups())} if tile else set()
        kind = op, plan.engine, re.sub(r"\d+", "#", words)
        found |= {kind, (case.dtype, *kind)}
    return found


def deformable() -> list[Case]:
    """Those of the benchmark, with fewer samples, and some of two offset groups."""
    import fake_gpus

    from benchmarks import workloads
    from benchmarks.window import Window

    found = []
    for n, row, groups, dtype in workloads.DEFORM.values():
        shape = dict(zip("xwy", workloads.shapes(min(n, 4), row), strict=True))
        g = fake_gpus._geometry(shape, Window.of_row(row))
        found.append(Case(g, dtype, offset_groups=groups))
        for other in DTYPES:
            found.append(Case(g._replace(N=2), other, offset_groups=2))
    return found


def choose(cases: Iterator[Case], count: int) -> list[Case]:
    """COUNT of them, no two alike: each the one that shows most new ways, or the next
    where none shows any."""
    left = {case: ways(case) for case in dict.fromkeys(cases)}
    every = set().union(*left.values())
    seen: set[tuple] = set()
    chosen: list[Case] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda case: len(left[case]))
        new = left.pop(best)
        seen |= new
        chosen.append(best)
        if new:
            left = {case: of - new for case, of in left.items()}
    print(f"{len(chosen)} layers show {len(seen)} of {len(every)} ways")
    return chosen


def save_cases(chosen: list[Case], path: Path = CASES) -> None:
    lines = ",\n".join(json.dumps([list(c.geometry), *c[1:]]) for c in chosen)
    path.write_text(f"[\n{lines}\n]\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("write", "compare"):
        command = commands.add_parser(name)
        command.add_argument("file", type=Path, nargs="?")
        command.add_argument("--platform", choices=("cpu", "cuda"), default="cuda")
        command.add_argument("--only", type=int, help="the first so many layers")
    choosing = commands.add_parser("choose")
    choosing.add_argument("--count", type=int, default=300)
    options = parser.parse_args(arguments)
    if options.command == "choose":
        sys.path.insert(0, str(DATA.parent.parent))  # for `benchmarks`
        import plan_dump

        plan_dump.stand_in("9.0")
        special = deformable()
        chosen = choose(candidates(), options.count - len(special))
        save_cases([*special, *chosen])
        return 0
    path = options.file or path_of(options.platform)
    cases = list(itertools.islice(load_cases(), options.only))
    found = digests(cases, jax.devices(options.platform)[0])
    if options.command == "write":
        write(path, found, options.platform)
        print(f"wrote the bits of {len(found)} layers to {path}")
        return 0
    changed = changes(load(path), found)
    print("\n".join([*changed, f"{len(changed)} of {len(found)} layers differ"]))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
