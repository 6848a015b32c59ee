# SPDX-License-Identifier: Apache-2.0
"""Fits what implicit_gemm reckons tiles of fprop and dgrad to take.

    python -m benchmarks rule --configs --seed 30 --out STEM    # on the GPU, some seeds
    python -m benchmarks fit STEM.json ... [--against STEM.json ...] [--write]

reads times of all tiles, fits the constants of `tile_model.py` and prints what the
choice by them loses beside the fastest tile, and what the choice by those that are
compiled lost: of the operations that were fitted, and of those of --against, which were
not. --write puts the constants into ffi/cuda/select/tile_constants.cc. Needs the CUDA
module and, but for the times, no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks import tile_model
from benchmarks.drawn import Draw, DrawnCase
from benchmarks.plans import problem_of
from benchmarks.tile_model import Samples, Tile
from benchmarks.window import Window
from jax_convbatch._native import targets

FILE = Path(__file__).parents[1] / "ffi/cuda/select/tile_constants.cc"
MULTIPROCESSORS = 132  # of the H100 and the H200
WORK = (
    *("kernel", "products", "boxes", "tiles", "stages", "longest", "bytes"),
    *("transposed", "later"),
)
# Constants of their own: 16 bits, fprop and dgrad together, as their filters both
# come from shared memory; f32's fprop and dgrad.
MODELS = {
    "kHalf": ("16 bits", ("bfloat16", "float16"), ("fprop", "dgrad")),
    "kTf32Fprop": ("f32, fprop", ("float32",), ("fprop",)),
    "kTf32Dgrad": ("f32, dgrad", ("float32",), ("dgrad",)),
}


class Timed(NamedTuple):
    """An operation: each tile's name, work and microseconds."""

    op: str
    dtype: str
    tiles: list[dict]
    us: list[float]
    rule: int  # which of them is taken now


def case_of(row: dict) -> DrawnCase:
    """The operation of a row of `rule`."""

    def tuples(value):
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    window = Window(
        *(tuples(row[k]) for k in ("strides", "padding", "lhs_dilation")),
        tuples(row["rhs_dilation"]),
        row["groups"],
    )
    sizes = (tuples(row["inputs"]), row["c"], row["k"], tuples(row["taps"]))
    draw = Draw(
        *(row["family"], row["seed"], row["name"], row["batch"], *sizes),
        *(window, row["dtype"], row["train"]),
    )
    return DrawnCase(draw, row["op"])


def timed(row: dict) -> Timed | None:
    """What was timed, or None where nothing is to choose."""
    if row["op"] == "wgrad" or row["groups"] > 1 or max(row["lhs_dilation"]) > 1:
        return None
    case = case_of(row)
    geometry = problem_of(case).params.geometry
    tiles = targets.implicit_gemm_tiles(case.op, geometry, case.dtype, MULTIPROCESSORS)
    us = {
        name.split()[1]: value
        for name, value in row.get("us", {}).items()
        if name.startswith("implicit_gemm ")
    }
    there = [each for each in tiles if each["config"] in us]
    if len(there) < 3:
        return None
    least = int(np.argmin([each["us"] for each in there]))
    return Timed(
        case.op, case.dtype, there, [us[each["config"]] for each in there], least
    )


def tile_of(op: str, each: dict) -> Tile:
    return each["m"], each["n"], tile_model.KERNELS[each["kernel"]], op == "dgrad"


def samples_of(rows: list[Timed], tiles: list[Tile]) -> Samples:
    work, us, operations = [], [], []
    for i, row in enumerate(rows):
        for each, value in zip(row.tiles, row.us, strict=True):
            place = tiles.index(tile_of(row.op, each))
            work.append([*(each[name] for name in WORK), place])
            us.append(value)
            operations.append(i)
    return Samples(np.array(work, float).T, np.log(us), np.array(operations))


def summary(excess: np.ndarray) -> str:
    mean = np.exp(excess.mean())
    more = [int((excess > np.log(limit)).sum()) for limit in (1.05, 1.2)]
    return f"{mean:.4f} ({more[0]} over 1.05, {more[1]} over 1.2, of {len(excess)})"


def text_of(name: str, theta: np.ndarray, tiles: list[Tile]) -> str:
    """The constants as C++ has them."""
    constants, factors = tile_model.constants_of(theta)
    per = len(tile_model.PER_KERNEL)

    def numbers(values) -> str:
        return ", ".join(f"{value:.4g}" for value in values)

    kernels = ",\n     ".join(
        "{" + numbers(constants[i * per : (i + 1) * per]) + "}"
        for i in range(len(tile_model.KERNELS))
    )
    shared = ",\n    ".join(
        f"{value:.4g}" for value in constants[tile_model.OF_KERNELS :]
    )
    own = ",\n     ".join(
        f"{{{m}, {n}, {kernel}, {str(dgrad).lower()}, {factor:.3f}}}"
        for (m, n, kernel, dgrad), factor in zip(tiles, factors, strict=True)
    )
    return (
        f"const TileConstants {name} = {{\n    {{{kernels}}},\n    {shared},\n"
        f"    {{{own}}},\n}};\n"
    )


def read(name: str) -> tuple[np.ndarray, list[Tile]]:
    """The constants that are in the file."""
    body = FILE.read_text().split(f"TileConstants {name} =")[1].split(";")[0]
    four = r"\{(\d+), (\d+), (k\w+), (true|false), ([\d.]+)\}"
    factors = re.findall(four, body)
    constants = re.findall(r"[\d.]+(?:e[+-]?\d+)?", re.sub(four, "", body))
    tiles = [(int(m), int(n), kernel, d == "true") for m, n, kernel, d, _ in factors]
    values = [float(each[4]) for each in factors]
    return tile_model.packed([float(each) for each in constants], values), tiles


def write(found: dict[str, str]) -> None:
    """Puts the constants between the file's marks."""
    text = FILE.read_text()
    begin, rest = text.split("// Fitted.\n")
    _, end = rest.split("// Up to here.\n")
    body = "\n".join(found.values())
    FILE.write_text(f"{begin}// Fitted.\n{body}// Up to here.\n{end}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", nargs="+", type=Path, help="of `rule --configs`")
    parser.add_argument("--against", nargs="*", type=Path, default=[])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    console = Console()

    def rows_of(paths: list[Path]) -> list[Timed]:
        rows = [row for path in paths for row in json.loads(path.read_text())["rows"]]
        return [found for found in map(timed, rows) if found]

    fitted, against = rows_of(options.results), rows_of(options.against)
    texts = {}
    models = track(MODELS.items(), "fitting", len(MODELS), console=console)
    for name, (words, dtypes, ops) in models:

        def mine(rows: list[Timed], dtypes=dtypes, ops=ops) -> list[Timed]:
            return [row for row in rows if row.dtype in dtypes and row.op in ops]

        own, other = mine(fitted), mine(against)
        if not own:
            raise SystemExit(f"no operations of {words}")
        tiles = sorted({tile_of(r.op, each) for r in own + other for each in r.tiles})
        samples = samples_of(own, tiles)
        theta = tile_model.fit(samples, len(tiles), MULTIPROCESSORS)
        for title, rows in (("fitted", own), ("not fitted", other)):
            if not rows:
                continue
            of_rows = samples_of(rows, tiles)
            excess = of_rows.excess()
            ours = excess[tile_model.chosen(theta, of_rows, MULTIPROCESSORS)]
            starts = np.searchsorted(of_rows.operations, np.arange(len(rows)))
            compiled = excess[starts + [row.rule for row in rows]]
            console.print(f"{words}, {title}: {summary(ours)}; compiled now", end=" ")
            console.print(summary(compiled))
        texts[name] = text_of(name, theta, tiles)
    if options.write:
        write(texts)
        console.print(f"wrote {FILE}; run clang-format, and compile")
