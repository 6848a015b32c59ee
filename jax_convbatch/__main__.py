# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_convbatch`: what is installed, what was built, what runs where."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence

import jax

from jax_convbatch._native import built, targets
from jax_convbatch._select import choices, plan
from jax_convbatch._version import __version__

VARIABLES = {
    "JAX_CONVBATCH": "off: install() does nothing",
    "JAX_CONVBATCH_LOG": "1: a line to stderr for each convolution that is planned",
    choices.FOLDER: "the folder of the file that tune writes",
    "JAX_CONVBATCH_THREADS": "threads of the CPU's engines (default: all processors)",
    "JAX_CONVBATCH_ISA": "the CPU's kernels: avx512, avx2 or portable",
}


def main(arguments: Sequence[str] = ()) -> None:
    """Prints versions, devices, native modules, engines and settings."""
    _parser().parse_args(arguments)
    print("versions")
    for package in ("jax_convbatch", "jax", "jaxlib", "numpy"):
        _row(package, _version(package))
    _row("python", platform.python_version())

    print("devices")
    try:
        for device in jax.devices():
            _row(str(device), device.device_kind)
    except RuntimeError as error:
        _row("none", str(error))

    print("native modules")
    info = targets.build_info()
    for name in ("cpu", "cuda"):
        facts = ", ".join(f"{key} {value}" for key, value in info.get(name, {}).items())
        _row(name, targets.problem(name) or facts)
    if built.is_pure():
        _row("elsewhere", built.SERVED)

    print("engines")
    for engine, platforms in plan.ENGINES.items():
        usable = [name for name in platforms if targets.available(name)]
        problem = targets.cudnn_problem() if engine == "cudnn" else None
        _row(engine, problem or ", ".join(usable) or "no platform")
    _row("xla", "every platform (jax.lax)")

    print("settings")
    for name in VARIABLES:
        if name in os.environ:
            _row(name, os.environ[name])
    _row("tuned files", str(choices.tuned_folder()))


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {name:<24} {effect}" for name, effect in VARIABLES.items()]
    parser = argparse.ArgumentParser(
        prog="python -m jax_convbatch",
        description="Prints what is installed and what runs where: versions, devices, "
        "native modules and why one is missing, engines by platform, settings.",
        epilog="\n".join(["environment variables:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"jax_convbatch {__version__}"
    )
    return parser


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _row(name: str, value: str) -> None:
    print(f"  {name:<14} {value}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # its reader has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
