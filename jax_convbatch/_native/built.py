# SPDX-License-Identifier: Apache-2.0
"""How the native modules were built, and why one is not there.

`_build.py` is written by CMake, or by the build of a wheel of pure Python.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from types import ModuleType

import jax

_build: ModuleType | None
try:
    _build = importlib.import_module("jax_convbatch._build")
except ImportError:  # Imported from sources that were never built.
    _build = None

PURE = (
    "this is the wheel of pure Python, without native code: everything runs in jax.lax"
)
SERVED = (
    "wheels with native code are for Linux on x86-64 with glibc 2.28 or newer; on "
    "AArch64 and macOS, `pip install --no-binary jax_convbatch jax_convbatch` compiles "
    "it, with a C++ compiler"
)


def is_pure() -> bool:
    """Whether the installed package is the wheel of pure Python."""
    return _build is not None and getattr(_build, "PURE_PYTHON", False)


def headers() -> dict[str, str]:
    """Whose FFI headers the native modules were built with."""
    return {"headers": f"jaxlib {_build.JAXLIB_VERSION}"} if _build else {}


def why_not(platform: str) -> str:
    """Why there is no native module for a platform ("cpu" or "cuda")."""
    if is_pure():
        return PURE
    if _build is None:
        at, file = os.path.dirname(os.path.dirname(__file__)), "jax_convbatch/_build.py"
        hidden = any(os.path.exists(os.path.join(path, file)) for path in sys.path)
        advice = "run Python in another folder" if hidden else "install: `pip install`"
        return f"the {platform} module is not built: {at} holds sources only; {advice}"
    reason = f" ({_build.CUDA_REASON})" if platform == "cuda" else ""
    return f"the {platform} module is not built{reason}"


def ffi_mismatch() -> str | None:
    """Why JAX would refuse our handlers, or None.

    A handler built against newer headers than the running jaxlib's keeps every
    backend of JAX from starting, so it must not be registered at all.
    """
    header = os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    if _build is None or not os.path.exists(header):
        return None
    with open(header, encoding="utf-8") as file:
        found = re.findall(r"#define XLA_FFI_API_M(?:AJ|IN)OR (\d+)", file.read())
    built, running = _build.FFI_API_VERSION, tuple(map(int, found))
    if len(running) != 2 or (built[0] == running[0] and built[1] <= running[1]):
        return None
    return (
        f"it was built against FFI API {built} of jaxlib {_build.JAXLIB_VERSION}, "
        f"and the installed jaxlib has {running}; reinstall jax_convbatch"
    )
