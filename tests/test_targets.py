# SPDX-License-Identifier: Apache-2.0
"""Native modules: registered once, and missing ones are said so, once."""

import os
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import jax
import pytest

import jax_convbatch
from jax_convbatch._native import targets
from jax_convbatch._select import plan

PACKAGE = Path(jax_convbatch.__file__).parent

# Prints the warnings that the import raises, then a convolution's error against
# jax.lax, which must work whatever is wrong with the native modules.
REPORT = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import jax_convbatch
for warning in caught:
    if "jax_convbatch" in str(warning.message):
        print("warning:", warning.category.__name__, warning.message)
import jax
from jax_convbatch._native import targets
for platform in ("cpu", "cuda"):
    print(platform, targets.available(platform))
x, w = jax.numpy.ones((1, 2, 5, 5)), jax.numpy.ones((3, 2, 3, 3))
args = x, w, (1, 1), "SAME"
print("error:", abs(jax.lax.conv_general_dilated(*args)
                    - jax_convbatch.conv_general_dilated(*args)).max())
"""


def run_python(code, *flags):
    result = subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def warnings_in(output):
    lines = [line for line in output.splitlines() if line.startswith("warning:")]
    assert all("RuntimeWarning" in line for line in lines)
    return lines


def test_the_cpu_module_is_in_use():
    assert targets.available("cpu")
    assert targets.problem("cpu") is None
    assert "jaxlib" in targets.build_info()["cpu"]["headers"]


def test_a_platform_without_native_code_is_named():
    assert not targets.available("rocm")
    assert "'rocm'" in targets.problem("rocm")


def test_import_starts_no_backend_and_is_silent():
    output = run_python(
        "import warnings; warnings.simplefilter('error')\n"
        "import jax_convbatch\n"
        "from jax._src import xla_bridge\n"
        "print('started:', xla_bridge.backends_are_initialized())"
    )
    assert output.strip() == "started: False"


def test_a_broken_cuda_module_is_one_warning_with_its_cause(tmp_path):
    broken = tmp_path / "_cuda.abi3.so"
    broken.write_bytes(b"no shared library")
    output = run_python(
        f"""
import importlib.util, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "jax_convbatch._cuda":
            return importlib.util.spec_from_file_location(name, {str(broken)!r})
sys.meta_path.insert(0, Finder)
{REPORT}"""
    )
    (warning,) = warnings_in(output)
    assert "CUDA convolutions run on jax.lax" in warning
    assert str(broken) in warning
    assert "cpu True\ncuda False\nerror: 0.0" in output


def test_handlers_newer_than_jaxlib_are_not_registered():
    output = run_python(
        f"""
import sys, types
build = types.ModuleType("jax_convbatch._build")
build.FFI_API_VERSION, build.JAXLIB_VERSION = (0, 99), "9.9.9"
build.CUDA_REASON = "a test"
sys.modules["jax_convbatch._build"] = build
{REPORT}"""
    )
    (warning,) = warnings_in(output)
    assert "FFI API (0, 99) of jaxlib 9.9.9" in warning
    assert "cpu False\ncuda False\nerror: 0.0" in output


@pytest.mark.parametrize("hidden", [False, True], ids=["alone", "before another"])
def test_sources_that_were_never_built_run_on_jax_lax(tmp_path, hidden):
    for source in PACKAGE.rglob("*.py"):
        copy = tmp_path / "jax_convbatch" / source.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if copy.name != "_build.py":
            copy.write_text(source.read_text())
    folders = [str(tmp_path), *{sysconfig.get_path(k) for k in ("purelib", "platlib")}]
    if hidden:  # as where Python runs in the folder that was installed from
        build = tmp_path / "site" / "jax_convbatch" / "_build.py"
        build.parent.mkdir(parents=True)
        build.write_text("")
        folders.append(str(tmp_path / "site"))
    # -S keeps out the import hook of an editable installation.
    output = run_python(f"import sys; sys.path[:0] = {folders!r}\n{REPORT}", "-S")
    (warning,) = warnings_in(output)
    assert "the cpu module is not built" in warning
    built = any(Path(f, "jax_convbatch", "_build.py").exists() for f in folders)
    assert built or not hidden
    assert ("run Python in another folder" if built else "`pip install`") in warning
    assert "cpu False\ncuda False\nerror: 0.0" in output


LOADED = targets._Native()
NOT_BUILT = targets._Native(problem="it is not built (a reason)", built=False)
BROKEN = targets._Native(problem="it does not load: a cause")


@pytest.mark.parametrize(
    ("cpu", "cuda", "gpu", "plugin", "platforms", "said"),
    [
        (LOADED, NOT_BUILT, False, False, None, None),
        (LOADED, NOT_BUILT, False, True, None, None),
        (LOADED, NOT_BUILT, True, False, None, None),
        (LOADED, NOT_BUILT, True, True, "cpu", None),
        (LOADED, NOT_BUILT, True, True, None, "JAX_CONVBATCH_CUDA=ON"),
        (LOADED, NOT_BUILT, True, True, "cuda,cpu", "a reason"),
        (LOADED, BROKEN, False, False, "cpu", "a cause"),
        (LOADED, LOADED, True, True, None, None),
        (LOADED, LOADED, False, False, "cpu", None),
        (LOADED, LOADED, False, False, None, "no NVIDIA GPU is visible"),
        (BROKEN, NOT_BUILT, False, False, None, "CPU convolutions run on jax.lax"),
    ],
)
def test_what_the_warning_says(monkeypatch, cpu, cuda, gpu, plugin, platforms, said):
    monkeypatch.setattr(targets, "_natives", {"cpu": cpu, "cuda": cuda})
    monkeypatch.setattr(targets, "gpu_visible", lambda: gpu)
    monkeypatch.setattr(targets, "_has_cuda_plugin", lambda: plugin)
    monkeypatch.setattr(targets, "_cuda_allowed", lambda: platforms != "cpu")
    warning = targets._warning()
    if said is None:
        assert warning is None
    else:
        assert said in warning


@pytest.mark.parametrize(
    ("platforms", "allowed"),
    [(None, True), ("", True), ("cpu", False), ("cuda,cpu", True), ("gpu", True)],
)
def test_jax_platforms_can_rule_cuda_out(monkeypatch, platforms, allowed):
    class Config:
        jax_platforms = platforms

    monkeypatch.setattr(jax, "config", Config)
    assert targets._cuda_allowed() == allowed


def test_the_command_line_shows_what_is_there():
    output = subprocess.run(
        [sys.executable, "-m", "jax_convbatch"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        timeout=120,
    ).stdout
    for heading in ("versions", "devices", "native modules", "engines"):
        assert f"{heading}\n" in output
    for row in (f"jax            {jax.__version__}", "cpu:0", *plan.ENGINES):
        assert row in output


@pytest.mark.parametrize("text", ["all", "0", "-1", "", "2.5"])
def test_threads_that_are_no_number_are_warned_of(monkeypatch, text):
    monkeypatch.setenv("JAX_CONVBATCH_THREADS", text)
    monkeypatch.setattr(targets, "_warning", lambda: None)
    with pytest.warns(RuntimeWarning, match=f"JAX_CONVBATCH_THREADS is {text!r}, not"):
        targets.warn(2)


@pytest.mark.parametrize("text", [None, "1", "16"])
def test_threads_are_numbers(monkeypatch, text):
    monkeypatch.delenv("JAX_CONVBATCH_THREADS", raising=False)
    if text:
        monkeypatch.setenv("JAX_CONVBATCH_THREADS", text)
    monkeypatch.setattr(targets, "_warning", lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        targets.warn(2)
