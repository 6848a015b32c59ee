"""What every benchmark here shares: honest timing, checks, tables, files."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

import jax
import numpy as np

import jax_convbatch
from benchmarks import workloads

RESULTS = Path(__file__).parent / "results"


def microseconds(call, *args, seconds: float = 0.2, repeats: int = 7) -> list[float]:
    """Time of one call, `repeats` times over, with many calls in flight.

    JAX returns before the work is done, so a loop that waits for each call times
    the waiting. Here each repeat queues as many calls as fill `seconds` and waits
    once. Compilation and everything created lazily happen before.
    """
    jax.block_until_ready(call(*args))
    count, elapsed = 1, 0.0
    while elapsed < seconds / 4:
        count *= 2
        elapsed = _elapsed(call, args, count)
    count = max(1, round(count * seconds / elapsed))
    return [_elapsed(call, args, count) / count * 1e6 for _ in range(repeats)]


def _elapsed(call, args, count: int) -> float:
    start = time.perf_counter()
    out = None
    for _ in range(count):
        out = call(*args)
    jax.block_until_ready(out)
    return time.perf_counter() - start


def summary(times: list[float]) -> dict[str, float]:
    """Median and spread (largest less smallest) in microseconds."""
    return {
        "median_us": round(statistics.median(times), 3),
        "spread_us": round(max(times) - min(times), 3),
    }


def integers(rng, shape, dtype=np.float32):
    """Whole numbers from -2 to 2: every product and sum here is exact."""
    return rng.integers(-2, 3, shape).astype(dtype)


def exact_fprop(x, w, row) -> np.ndarray:
    """The convolution of whole numbers in int64, tap by tap (one group)."""
    *_, stride, pad, dilation, groups = row
    assert groups == 1
    _, _, (n, p, q, k) = workloads.shapes(x.shape[0], row)
    x = np.pad(x.astype(np.int64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    y = np.zeros((n, p, q, k), np.int64)
    for r in range(w.shape[0]):
        for s in range(w.shape[1]):
            rows = slice(r * dilation, r * dilation + (p - 1) * stride + 1, stride)
            columns = slice(s * dilation, s * dilation + (q - 1) * stride + 1, stride)
            y += x[:, rows, columns, :] @ w[r, s].astype(np.int64)
    return y


def environment() -> dict[str, str]:
    """Date, commit, device and versions, for the record."""
    device = jax.devices()[0]
    name = device.device_kind if device.platform != "cpu" else _cpu_name()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "platform": device.platform,
        "device": name,
        "jax_convbatch": jax_convbatch.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


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
    features = ""
    try:
        with open("/proc/cpuinfo") as file:
            text = file.read()
    except OSError:
        return platform.processor()
    names = [line for line in text.splitlines() if line.startswith("model name")]
    if "avx512f" in text:
        features = ", AVX-512"
    cores = len(os.sched_getaffinity(0))
    return f"{names[0].split(':')[1].strip() if names else ''}, {cores} cores{features}"


def slug(environment: dict[str, str]) -> str:
    """The device as a part of a file's name."""
    return environment["device"].split(",")[0].lower().replace(" ", "-")


def save(result: dict, stem: Path) -> Path:
    """Writes `result` as JSON beside where its picture goes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.with_suffix(".json")
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
