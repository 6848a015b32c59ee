"""What a build asks pip for: cuDNN's headers where the CUDA module is built."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "cmake" / "build_backend.py"
CHOICE = "cmake.define.JAX_CONVBATCH_CUDA"
HOOKS = (
    *("build_editable", "build_sdist", "build_wheel", "get_requires_for_build_sdist"),
    *("prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel"),
    *("get_requires_for_build_wheel", "get_requires_for_build_editable"),
)


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """The backend over one that asks for ninja alone, with no GPU and no toolkit."""
    build = types.ModuleType("scikit_build_core.build")
    for name in HOOKS:
        setattr(build, name, lambda settings=None: ["ninja"])
    package = types.ModuleType("scikit_build_core")
    package.build = build
    monkeypatch.setitem(sys.modules, "scikit_build_core", package)
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", build)
    spec = importlib.util.spec_from_file_location("build_backend", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_gpu_visible", lambda: False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for name in ("CUDAToolkit_ROOT", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    return module


@pytest.mark.parametrize("settings", [None, {}, {CHOICE: "OFF"}, {CHOICE: "AUTO"}])
def test_a_build_for_the_cpu_asks_for_nothing_more(backend, settings):
    assert backend.get_requires_for_build_wheel(settings) == ["ninja"]
    assert backend.get_requires_for_build_editable(settings) == ["ninja"]


@pytest.mark.parametrize("choice", ["ON", "on", "AUTO"])
def test_a_build_for_cuda_asks_for_headers(backend, monkeypatch, choice):
    monkeypatch.setattr(backend, "_gpu_visible", lambda: True)
    monkeypatch.setattr(backend, "_toolkit_has_cudnn", lambda: False)
    found = backend.get_requires_for_build_wheel({CHOICE: choice})
    assert found == ["ninja", backend.FRONTEND, backend.CUDNN]


def test_a_toolkit_with_cudnn_saves_the_larger_package(backend, tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cudnn.h").touch()
    found = backend.get_requires_for_build_editable({CHOICE: "ON"})
    assert found == ["ninja", backend.FRONTEND]


def test_signs_of_a_gpu_are_those_of_cmake(backend, monkeypatch):
    seen = []
    spec = importlib.util.spec_from_file_location("build_backend", PATH)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    monkeypatch.setattr(fresh.glob, "glob", lambda sign: seen.append(sign) or [])
    assert not fresh._gpu_visible()
    assert "/dev/nvidia[0-9]*" in seen and len(seen) == 3
