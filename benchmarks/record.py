# SPDX-License-Identifier: Apache-2.0
"""What is written down with every result: where, when, with which versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path

import jax

import jax_convbatch

RESULTS = Path(__file__).parent / "results"


def environment() -> dict[str, str]:
    """Date, commit, device and versions."""
    device = jax.devices()[0]
    name = device.device_kind if device.platform != "cpu" else _cpu_name()
    found = {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "platform": device.platform,
        "device": name,
        "jax_convbatch": jax_convbatch.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    for package in ("torch", "nvidia-cudnn-cu13", "nvidia-cublas"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """The commit measured; JAX_CONVBATCH_COMMIT names it where git is not there."""
    named = os.environ.get("JAX_CONVBATCH_COMMIT")
    if named:
        return named
    git = ["git", "-C", str(RESULTS.parent)]
    try:
        head = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"])
        changed = subprocess.check_output(
            [*git, "status", "--porcelain", "--untracked-files=no"]
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.decode().strip() + (" with changes" if changed.strip() else "")


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            text = file.read()
    except OSError:
        return platform.processor()
    names = [line for line in text.splitlines() if line.startswith("model name")]
    features = ", AVX-512" if "avx512f" in text else ""
    cores = len(os.sched_getaffinity(0))
    return f"{names[0].split(':')[1].strip() if names else ''}, {cores} cores{features}"


def slug(environment: dict[str, str]) -> str:
    """The device as a part of a file's name: "nvidia-h200", "cpu"."""
    if environment["platform"] == "cpu":
        return "cpu"
    return environment["device"].split(",")[0].lower().replace(" ", "-")


def save(result: dict, stem: Path) -> Path:
    """Writes `result` as JSON beside where its picture goes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = json_path(stem)
    # Whole or not at all, whenever the process is ended.
    written = path.with_name(path.name + ".part")
    written.write_text(json.dumps(result, indent=1) + "\n")
    return written.replace(path)


def json_path(stem: Path) -> Path:
    return stem.with_name(stem.name + ".json")
