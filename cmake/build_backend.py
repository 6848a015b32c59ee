# SPDX-License-Identifier: Apache-2.0
"""scikit-build-core, and what a build needs that pyproject.toml cannot say.

A wheel of pure Python needs nothing more, native code nanobind and jaxlib, and the CUDA
module the headers of cuDNN and of its frontend, which are in packages of 366 and 12 MB
that a build for the CPU must not wait for. Where native code cannot be built, the error
says where it can be, before pip looks for packages that are not there.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import sys
from pathlib import Path

from scikit_build_core import build as _scikit
from scikit_build_core.build import (  # noqa: F401
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

NANOBIND = "nanobind>=3,<4"
# The FFI headers come with jaxlib. Handlers built against newer headers are refused by
# an older jaxlib, so this is the oldest version we support.
JAXLIB = "jaxlib==0.10.2"
FRONTEND = "nvidia-cudnn-frontend==1.32.*"
CUDNN = "nvidia-cudnn-cu13>=9.10,<10"
_CHOICE = "cmake.define.JAX_CONVBATCH_CUDA"
SERVED = (
    "jax_convbatch needs 64 bits, Python 3.11 or newer, and jaxlib. Its native code is "
    "for Linux with glibc (x86-64 and AArch64; WSL 2 is Linux) and for macOS. On other "
    "platforms that jaxlib serves, set JAX_CONVBATCH_PURE=1 in the environment: "
    "everything then runs in jax.lax."
)


def get_requires_for_build_wheel(config_settings=None) -> list[str]:
    """scikit-build-core's requirements, and ours."""
    _refuse_what_is_not_served()
    found = _scikit.get_requires_for_build_wheel(config_settings)
    return [*found, *_needed(config_settings or {})]


def get_requires_for_build_editable(config_settings=None) -> list[str]:
    """The same for an editable installation."""
    _refuse_what_is_not_served()
    found = _scikit.get_requires_for_build_editable(config_settings)
    return [*found, *_needed(config_settings or {})]


def _pure() -> bool:
    """As scikit-build-core takes the word, for pyproject.toml."""
    value = os.environ.get("JAX_CONVBATCH_PURE", "").lower()
    return value.strip("0") not in ("", "n", "no", "off", "false", "f")


def _refuse_what_is_not_served() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 (whoever ignores requires-python)
        problem = f"Python {platform.python_version()} is too old"
    elif sys.maxsize < 2**32:
        problem = f"this Python, on {platform.machine()}, has 32 bits"
    elif _pure():
        return
    elif sys.platform == "win32":
        problem = "there is no native code for Windows"
    elif sys.platform == "linux" and not _has_glibc():
        problem = "the C library is not glibc, which jaxlib needs"
    else:
        return
    raise SystemExit(f"error: {problem}. {SERVED}")


def _has_glibc() -> bool:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (ValueError, OSError):
        return False


def _needed(settings) -> list[str]:
    if _pure():
        return []
    native = [NANOBIND, JAXLIB]
    choice = str(settings.get(_CHOICE, "AUTO")).upper()
    if choice == "OFF" or (choice == "AUTO" and not _gpu_visible()):
        return native
    return [*native, FRONTEND] + ([] if _toolkit_has_cudnn() else [CUDNN])


def _gpu_visible() -> bool:
    """By the signs that cmake/cuda_choice.cmake looks for."""
    text = Path(__file__).with_name("cuda_choice.cmake").read_text(encoding="utf-8")
    signs = re.search(r'JAX_CONVBATCH_GPU_SIGNS\s+"([^"]+)"', text)
    return any(glob.glob(sign) for sign in signs[1].split(";")) if signs else False


def _toolkit_has_cudnn() -> bool:
    """Whether cudnn.h lies where cmake/cudnn_headers.cmake finds it first."""
    named = [os.environ.get(name) for name in ("CUDAToolkit_ROOT", "CUDA_HOME")]
    named.append(os.environ.get("CUDA_PATH"))
    roots = [Path(root) for root in named if root]
    if not roots:
        nvcc = shutil.which("nvcc")
        roots = [Path(nvcc).resolve().parents[1]] if nvcc else []
        roots += [Path("/usr/local/cuda"), Path("/opt/cuda")]
    folders = [f for root in roots for f in (root, *root.glob("targets/*"))]
    headers = [folder / "include/cudnn.h" for folder in (*folders, Path("/usr"))]
    headers.append(Path("/usr/include/x86_64-linux-gnu/cudnn.h"))
    return any(header.exists() for header in headers)
