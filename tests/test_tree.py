# SPDX-License-Identifier: Apache-2.0
"""ffi/cuda and jax_convbatch are layers, as docs/contributing/tree.md has them."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent  # also where files are linked to
PAGE = (ROOT / "docs" / "contributing" / "tree.md").read_text()
CUDA_PAGE, PYTHON_PAGE = PAGE.split("## The tree of jax_convbatch")
# Layers by folder. A row: | 7 | `sm90/kernels/conv` | what it has |
ROW = re.compile(r"^\| (\d+) \| `([\w/]+)` \| \S.* \|$", re.MULTILINE)
ROWS = ROW.findall(CUDA_PAGE)
LAYERS = {folder: int(layer) for layer, folder in ROWS}
PACKAGES = {name: int(layer) for layer, name in ROW.findall(PYTHON_PAGE)}
# What breaks the order: (file, what it includes), and why. Only ever removed from.
EXCEPTIONS: dict[tuple[str, str], str] = {}
MOST_FILES, MOST_LINES = 40, 400
SOURCES = {
    str(path.relative_to(ROOT / "ffi")): path.read_text()
    for path in sorted((ROOT / "ffi").rglob("*"))
    if path.is_file()
}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def folder(path: str) -> str:
    """Within ffi/cuda."""
    return str(Path(path).parent.relative_to("cuda"))


def included(path: str) -> list[str]:
    return [name for name in INCLUDE.findall(SOURCES[path]) if name in SOURCES]


CUDA = [path for path in SOURCES if path.startswith("cuda/")]


def test_every_folder_has_a_layer():
    assert {folder(path) for path in CUDA} == set(LAYERS)
    assert len(ROWS) == len(LAYERS)


def test_the_files_that_the_page_names_are_there():
    named = re.findall(r"`((?:sm80|sm90|select|handlers)/[\w/]+\.\w+)`", PAGE)
    assert named and {name for name in named if f"cuda/{name}" not in SOURCES} == set()


def test_folders_include_what_is_below_them():
    found = {
        (path, name)
        for path in CUDA
        for name in included(path)
        if name.startswith("cuda/")
        and folder(path) != folder(name)
        and LAYERS[folder(path)] <= LAYERS[folder(name)]
    }
    assert found == set(EXCEPTIONS)


def test_what_both_platforms_share_includes_neither():
    shared = [path for path in SOURCES if "/" not in path]
    assert [n for path in shared for n in included(path) if "/" in n] == []
    assert [n for path in CUDA for n in included(path) if n.startswith("cpu/")] == []


def test_includes_name_the_whole_path():
    """From ffi/ on: what is beside a file is not found by its name alone."""
    names = {name for path in CUDA for name in INCLUDE.findall(SOURCES[path])}
    assert {n for n in names - set(SOURCES) if not n.startswith("xla/")} == set()


def test_folders_are_small():
    files = Counter(str(Path(path).parent) for path in SOURCES)
    assert {name: n for name, n in files.items() if n > MOST_FILES} == {}


def test_files_are_short():
    lines = {path: text.count("\n") for path, text in SOURCES.items()}
    assert {path: n for path, n in lines.items() if n > MOST_LINES} == {}


# --- jax_convbatch ------------------------------------------------------------

PACKAGE = ROOT / "jax_convbatch"
# Written by the build, and native.
BUILT = {"_build", "_cpu", "_cuda"}
MODULES = {
    path.relative_to(PACKAGE): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.stem not in BUILT
}
in_checkout = pytest.mark.skipif(not MODULES, reason="the sources are not here")


def package(path: Path) -> str:
    """The package or the module that has a layer."""
    return path.parts[0].removesuffix(".py")


def imported(tree: ast.Module) -> Iterator[str]:
    """Packages and modules of ours that are imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            first, _, rest = (node.module or "").partition(".")
            if first == "jax_convbatch":
                yield from (
                    [rest.split(".")[0]] if rest else [n.name for n in node.names]
                )
        elif isinstance(node, ast.Import):
            names = [n.name.split(".") for n in node.names]
            yield from [
                n[1] if n[1:] else "__init__" for n in names if n[0] == PACKAGE.name
            ]


@in_checkout
def test_every_package_has_a_layer():
    assert {package(path) for path in MODULES} == set(PACKAGES)


@in_checkout
def test_packages_import_what_is_below_them():
    found = {
        (str(path), name)
        for path, tree in MODULES.items()
        for name in imported(tree)
        if name not in {package(path), *BUILT}
        and PACKAGES[package(path)] <= PACKAGES.get(name, 0)
    }
    assert found == set()


@in_checkout
def test_what_packages_import_is_there():
    names = {name for tree in MODULES.values() for name in imported(tree)}
    assert names <= {*PACKAGES, *BUILT}


@in_checkout
def test_modules_are_short():
    lines = {
        str(path): len((PACKAGE / path).read_text().splitlines()) for path in MODULES
    }
    assert {path: n for path, n in lines.items() if n > MOST_LINES} == {}
