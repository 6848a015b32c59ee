# SPDX-License-Identifier: Apache-2.0
"""What wheels are linked with, what they hold, and the one without native code."""

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "cmake" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


audit = load("audit_wheel")
old = load("old_libraries")

TABLE = """
/lib/libc.so.6:     file format elf64-x86-64

DYNAMIC SYMBOL TABLE:
0000000000089380 g    DF .text\t0000000000000eed (GLIBC_2.2.5) pthread_create
0000000000089380 g    DF .text\t0000000000000eed  GLIBC_2.34  pthread_create
000000000009f5f0 g    DF .text\t0000000000000005 (GLIBC_2.2.5) memcpy
000000000009f600 g   iD  .text\t0000000000000108  GLIBC_2.14  memcpy
00000000001d6aa8 g    DO .data\t0000000000000001  GLIBC_2.32  __libc_single_threaded
00000000001db320  w   DO .bss\t0000000000000008  GLIBC_2.2.5 environ
0000000000000010 g    D  .tbss\t0000000000000004  GLIBC_PRIVATE errno
0000000000000020 g    D  .tbss\t0000000000000008  GLIBC_2.3  by_thread
0000000000000000 g    DO *ABS*\t0000000000000000  GLIBC_2.28  GLIBC_2.28
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.3)  __tls_get_addr
"""


def test_a_symbol_has_the_newest_version_that_is_old_enough():
    assert {s.name: s for s in old.symbols(TABLE)} == {
        "pthread_create": ("pthread_create", "GLIBC_2.2.5", "function", 0xEED),
        "memcpy": ("memcpy", "GLIBC_2.14", "function", 0x108),
        "environ": ("environ", "GLIBC_2.2.5", "object", 8),
        "by_thread": ("by_thread", "GLIBC_2.3", "tls_object", 8),
    }


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("GLIBC_2.28", (2, 28)),
        ("GLIBCXX_3.4.24", (3, 4, 24)),
        ("CXXABI_1.3", (1, 3)),
        ("GLIBC_PRIVATE", None),
        ("CXXABI_TM_1", None),
    ],
)
def test_versions_are_compared_as_numbers(version, number):
    assert old.number(version) == number


PROGRAM = r"""
#include <dlfcn.h>
#include <cmath>
#include <condition_variable>
#include <sstream>
#include <thread>
extern "C" int answer(double x) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread other([&] {
    std::lock_guard<std::mutex> lock(mutex);
    done = dlopen(nullptr, RTLD_LAZY) != nullptr;
    changed.notify_one();
  });
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done; });
  lock.unlock();
  other.join();
  std::stringstream text;
  text << std::lround(std::exp(x));
  try {
    throw std::runtime_error(text.str());
  } catch (const std::exception& error) {
    return std::stoi(error.what());
  }
}
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not Path("/lib64/ld-linux-x86-64.so.2").exists(),
    reason="manylinux_2_28 is made on Linux with glibc, on x86-64",
)
def test_what_is_linked_asks_for_old_versions_and_runs(tmp_path):
    """By the symbols that differ: threads, exp, what GCC 12 has in its C++ library."""
    old.make(tmp_path / "old", ["g++"])
    (tmp_path / "module.cc").write_text(PROGRAM)
    module = tmp_path / "module.so"
    libraries = ["-Wl,--no-as-needed", "-lpthread", "-ldl", "-Wl,--exclude-libs,ALL"]
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", tmp_path / "module.cc"]
    command += ["-L", tmp_path / "old", *libraries, "-o", module]
    subprocess.run(command, check=True)
    table = subprocess.run(
        ["objdump", "-T", module], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    asked = set(re.findall(r"\*UND\*.*?\(?([A-Z]+_[\d.]+)\)?", table))
    newest = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
    assert "GLIBC_2.2.5" in asked
    for version in asked:
        number = old.number(version)
        assert number is None or number <= newest[version.split("_")[0]], version
    call = f"ctypes.CDLL({str(module)!r}).answer(ctypes.c_double(3))"
    # A process of its own: whatever it loads, another test does not share.
    result = subprocess.run(
        [sys.executable, "-c", f"import ctypes; print({call})"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout == "20\n"


def write(folder, names, tag=audit.TAG):
    wheel = folder / f"jax_convbatch-0.1.0-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name in names:
            file.writestr(name, name)
    return wheel


def test_a_wheel_with_both_modules_is_in_order(tmp_path):
    wheel = write(tmp_path, ["jax_convbatch/_api/conv.py", *audit.MODULES])
    assert audit.problems(wheel) == []


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (audit.MODULES[:1], "jax_convbatch/_cuda.abi3.so is not in it"),
        (
            [*audit.MODULES, "jax_convbatch.libs/libcublasLt-1.so.13"],
            "jax_convbatch.libs/libcublasLt-1.so.13 is in it",
        ),
    ],
)
def test_a_wheel_that_lacks_a_module_or_has_a_library_is_refused(
    tmp_path, names, problem
):
    assert audit.problems(write(tmp_path, names)) == [problem]


def test_a_wheel_for_newer_machines_is_refused(tmp_path):
    wheel = write(tmp_path, audit.MODULES, "cp311-abi3-manylinux_2_34_x86_64")
    assert audit.problems(wheel) == [f"it is not for {audit.TAG}"]


def test_a_wheel_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "LARGEST", 100)
    (problem,) = audit.problems(write(tmp_path, audit.MODULES))
    assert re.match(r"it has [\d.]+ MB of at most 0", problem)


def test_aarch64_says_which_tools_are_missing(tmp_path):
    rule = re.search(r"^aarch64:.*\n\t@(for tool(?:.*\\\n)*.*)", MAKEFILE, re.M)[1]
    line = rule.replace("$(CROSS)", "none-").replace("$(QEMU)", "no-qemu")
    line = line.replace("\\\n", " ").replace("$$", "$")
    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert result.returncode == 1
    assert "there is no none-g++" in result.stderr
    assert "apt install g++-aarch64-linux-gnu qemu-user" in result.stderr


def test_the_python_for_aarch64_is_debians_and_says_so_elsewhere(tmp_path):
    result = subprocess.run(
        [sys.executable, ROOT / "tests" / "aarch64_python.py", tmp_path / "folder"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: there is no apt-get")
    assert not (tmp_path / "folder").exists()
