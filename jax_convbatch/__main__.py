"""`python -m jax_convbatch`: what is installed, what was built, what runs where."""

from __future__ import annotations

import importlib.metadata
import platform

import jax

from jax_convbatch import plan, targets


def main() -> None:
    """Prints versions, devices, native modules and engines."""
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
        built = ", ".join(f"{key} {value}" for key, value in info.get(name, {}).items())
        _row(name, targets.problem(name) or built)

    print("engines")
    for engine, platforms in plan.ENGINES.items():
        usable = [name for name in platforms if targets.available(name)]
        problem = targets.cudnn_problem() if engine == "cudnn" else None
        _row(engine, problem or ", ".join(usable) or "no platform")
    _row("xla", "every platform (jax.lax)")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _row(name: str, value: str) -> None:
    print(f"  {name:<14} {value}")


if __name__ == "__main__":
    main()
