# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute's command line: what it counts of a kernel, and what it writes."""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path

_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
# What is kept of a kernel: the metric, in base units, and what to multiply it by.
# Single counters, not the sections of Nsight Compute: every few of them replay the
# kernel once more.
METRICS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "sm_ghz": ("sm__cycles_elapsed.avg.per_second", 1e-9),
    "tensor_pct": (f"sm__pipe_tensor_cycles_active.{_ELAPSED}", 1),
    "issue_pct": (f"sm__inst_issued.{_ELAPSED}", 1),
    "shared_pct": (f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{_ELAPSED}", 1),
    "l2_pct": (f"lts__t_sectors.{_ELAPSED}", 1),
    "dram_pct": (f"dram__throughput.{_ELAPSED}", 1),
    "l2_to_sm_mb": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1e-6),
    "read_mb": ("dram__bytes_read.sum", 1e-6),
    "written_mb": ("dram__bytes_write.sum", 1e-6),
    "registers": ("launch__registers_per_thread", 1),
    "shared_kb": ("launch__shared_mem_per_block", 1 / 1024),
    "waves": ("launch__waves_per_multiprocessor", 1),
}
NOT_PERMITTED = "ERR_NVGPUCTRPERM"


class NoProfile(Exception):
    """Nothing was profiled; the message says why."""


def find() -> str:
    """The program's path.

    Raises:
      NoProfile: it is not installed.
    """
    beside = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "ncu")
    for name in ("ncu", str(beside)):
        if found := shutil.which(name):
            return found
    raise NoProfile(
        "Nsight Compute is not installed: there is no `ncu` on the PATH nor in "
        f"{beside.parent} (CUDA_HOME names another place)"
    )


def run(program: list[str], log: Path, env: dict[str, str]) -> list[dict]:
    """The kernels that `program` runs between cuProfilerStart and cuProfilerStop.

    Args:
      program: arguments that start it.
      log: where Nsight Compute writes.
      env: its environment.

    Returns:
      See `parse`.

    Raises:
      NoProfile: no kernel was profiled, or the program failed.
    """
    command = [
        find(),
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", str(log)),
        *("--profile-from-start", "off", "--target-processes", "application-only"),
        # The clock that the GPU takes by itself; the L2 is emptied before a kernel.
        *("--clock-control", "none", "--cache-control", "all"),
        *("--metrics", ",".join(metric for metric, _ in METRICS.values())),
    ]
    code = subprocess.run([*command, *program], env=env, check=False).returncode
    text = log.read_text() if log.exists() else ""
    if NOT_PERMITTED in text:
        raise NoProfile(
            "this user may not read the GPU's counters "
            f"({NOT_PERMITTED}): https://developer.nvidia.com/{NOT_PERMITTED}"
        )
    found = parse(text)
    if code or not found:
        said = [line for line in text.splitlines() if line.startswith("==")]
        why = f"it ended with {code}" if code else "no kernel was profiled"
        raise NoProfile("\n".join([f"Nsight Compute: {why}", *said[-5:]]))
    return found


def parse(text: str) -> list[dict]:
    """Kernels in the order in which they ran, from `--csv --page raw`.

    Returns:
      For each its `name`, `grid`, `block`, and those of METRICS that there are.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if not starts:
        return []
    table = [line for line in lines[starts[0] :] if line.startswith('"')]
    _, *rows = csv.DictReader(table)  # without the line of units
    return [_kernel(row) for row in rows]


def _kernel(row: dict[str, str]) -> dict:
    found: dict = {
        "name": short(row["Kernel Name"]),
        "grid": _product(row["Grid Size"]),
        "block": _product(row["Block Size"]),
    }
    for key, (metric, scale) in METRICS.items():
        try:
            value = float(row.get(metric, "").replace(",", ""))
        except ValueError:  # not there, or n/a on this GPU
            continue
        found[key] = float(f"{value * scale:.4g}")
    return found


def _product(size: str) -> int:
    """Of "(132, 1, 1)"."""
    return math.prod(map(int, re.findall(r"\d+", size)))


def short(name: str) -> str:
    """A kernel's name without its result, namespaces and parameters."""
    name = re.sub(r"\w+::|\(anonymous namespace\)::|<unnamed>::", "", name)
    name = re.sub(r"\((bool|int|unsigned int|long)\)", "", name)  # before a number
    depth = 0
    for i, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            name = name[:i]
            break
    return name.removeprefix("void ").strip()


def medians(runs: Iterable[list[dict]]) -> list[dict]:
    """Of every kernel's figures, the medians over runs of the same kernels.

    Raises:
      NoProfile: the runs have different kernels.
    """
    first, *others = runs
    names = [kernel["name"] for kernel in first]
    for other in others:
        if [kernel["name"] for kernel in other] != names:
            raise NoProfile("a program ran other kernels the second time")
    found = []
    for same in zip(first, *others, strict=True):
        kernel = dict(same[0])
        for key in METRICS.keys() & kernel.keys():
            kernel[key] = statistics.median(each[key] for each in same)
        found.append(kernel)
    return found
