# SPDX-License-Identifier: Apache-2.0
"""What a build asks pip for, and the machines that it refuses."""

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
    for name in ("CUDAToolkit_ROOT", "CUDA_PATH", "JAX_CONVBATCH_PURE"):
        monkeypatch.delenv(name, raising=False)
    return module


@pytest.mark.parametrize("settings", [None, {}, {CHOICE: "OFF"}, {CHOICE: "AUTO"}])
def test_a_build_for_the_cpu_asks_for_nothing_more(backend, settings):
    needed = ["ninja", backend.NANOBIND, backend.JAXLIB]
    assert backend.get_requires_for_build_wheel(settings) == needed
    assert backend.get_requires_for_build_editable(settings) == needed


@pytest.mark.parametrize("choice", ["ON", "on", "AUTO"])
def test_a_build_for_cuda_asks_for_headers(backend, monkeypatch, choice):
    monkeypatch.setattr(backend, "_gpu_visible", lambda: True)
    monkeypatch.setattr(backend, "_toolkit_has_cudnn", lambda: False)
    found = backend.get_requires_for_build_wheel({CHOICE: choice})
    assert found[-2:] == [backend.FRONTEND, backend.CUDNN]


def test_a_toolkit_with_cudnn_saves_the_larger_package(backend, tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cudnn.h").touch()
    found = backend.get_requires_for_build_editable({CHOICE: "ON"})
    assert found[-1] == backend.FRONTEND


def test_signs_of_a_gpu_are_those_of_cmake(backend, monkeypatch):
    seen = []
    spec = importlib.util.spec_from_file_location("build_backend", PATH)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    monkeypatch.setattr(fresh.glob, "glob", lambda sign: seen.append(sign) or [])
    assert not fresh._gpu_visible()
    assert "/dev/nvidia[0-9]*" in seen and len(seen) == 3


@pytest.mark.parametrize("word", ["1", "ON", "true", "yes"])
def test_a_wheel_of_pure_python_needs_nothing_more(backend, monkeypatch, word):
    monkeypatch.setenv("JAX_CONVBATCH_PURE", word)
    assert backend.get_requires_for_build_wheel({CHOICE: "ON"}) == ["ninja"]


@pytest.mark.parametrize("word", ["", "0", "00", "off", "No", "FALSE", "n"])
def test_other_words_ask_for_native_code(backend, monkeypatch, word):
    monkeypatch.setenv("JAX_CONVBATCH_PURE", word)
    assert backend.JAXLIB in backend.get_requires_for_build_wheel()


def refused(backend):
    messages = []
    for hook in ("get_requires_for_build_wheel", "get_requires_for_build_editable"):
        with pytest.raises(SystemExit) as error:
            getattr(backend, hook)()
        messages.append(str(error.value))
    assert messages[0] == messages[1] and backend.SERVED in messages[0]
    return messages[0]


@pytest.mark.parametrize("pure", ["", "1"])
def test_an_old_python_or_32_bits_are_refused(backend, monkeypatch, pure):
    monkeypatch.setenv("JAX_CONVBATCH_PURE", pure)
    with monkeypatch.context() as patched:
        patched.setattr(backend.sys, "maxsize", 2**31 - 1)
        assert "has 32 bits" in refused(backend)
    with monkeypatch.context() as patched:
        patched.setattr(backend.sys, "version_info", (3, 10, 13))
        assert "is too old" in refused(backend)


@pytest.mark.parametrize(
    ("system", "glibc", "problem"),
    [
        ("win32", True, "there is no native code for Windows"),
        ("linux", False, "the C library is not glibc"),
    ],
)
def test_where_native_code_is_refused_pure_python_is_not(
    backend, monkeypatch, system, glibc, problem
):
    monkeypatch.setattr(backend, "_has_glibc", lambda: glibc)
    with monkeypatch.context() as patched:
        patched.setattr(backend.sys, "platform", system)
        assert problem in refused(backend)
        patched.setenv("JAX_CONVBATCH_PURE", "1")
        assert backend.get_requires_for_build_wheel() == ["ninja"]
