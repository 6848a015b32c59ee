# SPDX-License-Identifier: Apache-2.0
"""What the build decides, says and refuses."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jax_convbatch

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def cmake():
    """The cmake of this environment, or the machine's."""
    found = shutil.which("cmake", path=str(Path(sys.executable).parent))
    return found or shutil.which("cmake")


@pytest.fixture
def choose(cmake, tmp_path):
    """Runs the CUDA decision alone, on a machine with or without a GPU."""

    def run(choice=None, gpu=False, env=None, **settings):
        (tmp_path / "gpu").touch()
        sign = tmp_path / ("gpu" if gpu else "absent")
        settings["JAX_CONVBATCH_GPU_SIGNS"] = str(sign)
        if choice is not None:
            settings["JAX_CONVBATCH_CUDA"] = choice
        named = ("CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH")
        inherited = {k: v for k, v in os.environ.items() if k not in named}
        return subprocess.run(
            [
                cmake,
                *(f"-D{name}={value}" for name, value in settings.items()),
                "-P",
                str(ROOT / "cmake" / "cuda_choice.cmake"),
            ],
            capture_output=True,
            text=True,
            env=inherited | (env or {}),
        )

    return run


def make_toolkit(root, version="13.0", header=True, library="13"):
    (root / "bin").mkdir(parents=True)
    (root / "include").mkdir()
    (root / "lib64").mkdir()
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda tools, release {version}, V{version}.1'\n")
    nvcc.chmod(0o755)
    if header:
        (root / "include" / "cublasLt.h").touch()
    (root / "lib64" / f"libcublasLt.so.{library}").touch()
    return root


def said(result):
    return " ".join(result.stderr.split())


def test_auto_builds_cuda_with_a_toolkit_and_a_gpu(choose, tmp_path):
    toolkit = make_toolkit(tmp_path / "toolkit")
    result = choose(gpu=True, CUDAToolkit_ROOT=toolkit)
    assert result.returncode == 0
    assert said(result) == f"TRUE: an NVIDIA GPU is visible; CUDA 13.0 in {toolkit}"


def test_auto_without_a_gpu_says_how_to_build_it(choose, tmp_path):
    toolkit = make_toolkit(tmp_path / "toolkit")
    result = choose("AUTO", gpu=False, CUDAToolkit_ROOT=toolkit)
    assert result.returncode == 0
    assert said(result).startswith("FALSE: no NVIDIA GPU is visible")
    assert "JAX_CONVBATCH_CUDA=ON" in said(result)


def test_auto_with_a_gpu_and_no_toolkit_names_what_is_missing(choose, tmp_path):
    result = choose("AUTO", gpu=True, CUDAToolkit_ROOT=tmp_path / "absent")
    assert result.returncode == 0
    assert said(result).startswith("FALSE: an NVIDIA GPU is visible, but")
    assert f"{tmp_path / 'absent'} has no bin/nvcc" in said(result)


def test_on_builds_without_a_gpu(choose, tmp_path):
    toolkit = make_toolkit(tmp_path / "toolkit", version="14.2")
    result = choose("ON", gpu=False, CUDAToolkit_ROOT=toolkit)
    assert result.returncode == 0
    assert said(result).startswith("TRUE: JAX_CONVBATCH_CUDA=ON; CUDA 14.2")


@pytest.mark.parametrize("name", ["CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH"])
def test_a_folder_named_in_the_environment_is_used(choose, tmp_path, name):
    toolkit = make_toolkit(tmp_path / "toolkit")
    result = choose("ON", env={name: str(toolkit)})
    assert f"CUDA 13.0 in {toolkit}" in said(result)


@pytest.mark.parametrize(
    ("toolkit", "problem"),
    [
        (None, "has no bin/nvcc"),
        ({"version": "12.9"}, "is CUDA 12.9, older than 13"),
        ({"header": False}, "has no header cublasLt.h"),
        ({"library": "12"}, "has no library libcublasLt.so.13"),
    ],
)
def test_on_without_a_usable_toolkit_is_an_error(choose, tmp_path, toolkit, problem):
    root = tmp_path / "toolkit"
    if toolkit is not None:
        make_toolkit(root, **toolkit)
    result = choose("ON", CUDAToolkit_ROOT=root)
    assert result.returncode != 0
    assert "JAX_CONVBATCH_CUDA=ON needs a CUDA toolkit of version 13" in said(result)
    assert str(root) in said(result)
    assert problem in said(result)
    assert "CUDA_HOME" in said(result)


def test_off_never_builds_it(choose, tmp_path):
    toolkit = make_toolkit(tmp_path / "toolkit")
    result = choose("OFF", gpu=True, CUDAToolkit_ROOT=toolkit)
    assert said(result) == "FALSE: JAX_CONVBATCH_CUDA=OFF"


def test_an_unknown_choice_is_an_error(choose):
    result = choose("maybe")
    assert result.returncode != 0
    assert "the choices are AUTO, ON and OFF" in said(result)


def test_a_missing_compiler_says_what_to_install(cmake, tmp_path):
    result = subprocess.run(
        [cmake, "-S", str(ROOT), "-B", str(tmp_path / "build")],
        capture_output=True,
        text=True,
        env=os.environ | {"CXX": str(tmp_path / "no-compiler")},
    )
    assert result.returncode != 0
    assert "needs a C++17 compiler" in said(result)
    assert "apt install g++" in said(result)


def test_versions_agree():
    with open(ROOT / "pyproject.toml", "rb") as file:
        settings = tomllib.load(file)
    project = settings["project"]
    assert jax_convbatch.__version__ == project["version"]
    # Built against the oldest jaxlib that is supported.
    (jax,) = (d for d in project["dependencies"] if re.match(r"jax\b", d))
    backend = (ROOT / "cmake" / "build_backend.py").read_text()
    jaxlib = re.search(r'^JAXLIB = "(jaxlib==\S+)"$', backend, re.M)[1]
    assert jax.startswith("jax>=" + jaxlib.removeprefix("jaxlib=="))


def test_the_native_sources_are_all_compiled():
    cmake_lists = (ROOT / "CMakeLists.txt").read_text()
    listed = set(re.findall(r"ffi/\S+\.(?:cc|cu)\b", cmake_lists))
    present = {
        str(path.relative_to(ROOT))
        for pattern in ("*.cc", "*.cu")
        for path in (ROOT / "ffi").rglob(pattern)
    }
    assert listed == present
