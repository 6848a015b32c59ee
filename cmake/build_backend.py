"""scikit-build-core, and what only a build of the CUDA module needs.

The headers of cuDNN and of its frontend are in packages of 366 and 12 MB, which a build
for the CPU must not wait for; pyproject.toml cannot say so, and a backend can.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
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

FRONTEND = "nvidia-cudnn-frontend==1.32.*"
CUDNN = "nvidia-cudnn-cu13>=9.10,<10"
_CHOICE = "cmake.define.JAX_CONVBATCH_CUDA"


def get_requires_for_build_wheel(config_settings=None) -> list[str]:
    """scikit-build-core's requirements, and ours."""
    found = _scikit.get_requires_for_build_wheel(config_settings)
    return [*found, *_headers(config_settings or {})]


def get_requires_for_build_editable(config_settings=None) -> list[str]:
    """The same for an editable installation."""
    found = _scikit.get_requires_for_build_editable(config_settings)
    return [*found, *_headers(config_settings or {})]


def _headers(settings) -> list[str]:
    choice = str(settings.get(_CHOICE, "AUTO")).upper()
    if choice == "OFF" or (choice == "AUTO" and not _gpu_visible()):
        return []
    return [FRONTEND] if _toolkit_has_cudnn() else [FRONTEND, CUDNN]


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
