# SPDX-License-Identifier: Apache-2.0
"""One side of `compare`, a process of its own: rows by one build of the native code.

    python -m benchmarks.compare_side BUILD PLATFORM OPTIONS

Reads a request a line, a list in JSON, and writes an answer a line:

    ["rows"]              {"environment": ..., "rows": [[table, name], ...]}
    ["prepare", [i, ...]] compiles these; {"plans": {i: words}}
    ["ready", i]          makes the operands of one; {}
    ["time"]              {"us": of one call of that one}
    ["drop", i]           lets go of it; {}
    ["leave_out", names]  plans do without these families of kernels; {}
    ["takers", [i, ...], names]  {"takers": which of these families rows take}

What fails answers {"failed": words}; in `prepare`, a row's answer does.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PACKAGE = "jax_convbatch"
MODULES = {"cpu": "_cpu", "cuda": "_cuda"}


class Finder:
    """Finds one build of the native module, or a folder's package with its module."""

    def __init__(self, build: Path, platform: str):
        self.name = f"{PACKAGE}.{MODULES[platform]}"
        self.package = build / PACKAGE if build.is_dir() else None
        self.module = build
        if self.package:
            self.module = self.package / f"{MODULES[platform]}.abi3.so"

    def find_spec(self, name: str, path=None, target=None):
        if name == self.name:
            loader = importlib.machinery.ExtensionFileLoader(name, str(self.module))
            return importlib.util.spec_from_file_location(
                name, self.module, loader=loader
            )
        if name == PACKAGE and self.package:
            return importlib.util.spec_from_file_location(
                name,
                self.package / "__init__.py",
                submodule_search_locations=[str(self.package)],
            )
        return None


class Rows:
    """Answers requests."""

    def __init__(self, options: Namespace):
        from benchmarks import compare_rows

        self.options, self.rows = options, compare_rows.rows(options)
        self.prepared: dict[int, Any] = {}
        self.side: Any = None
        self.rounds = 0

    def answer(self, request: list) -> dict:
        what, *arguments = request
        try:
            return getattr(self, f"do_{what}")(*arguments)
        except Exception as error:
            return {"failed": told(error)}

    def do_rows(self) -> dict:
        from benchmarks import record

        names = [[row.table, row.name] for row in self.rows]
        return {"environment": record.environment(), "rows": names}

    def do_prepare(self, numbers: list[int]) -> dict:
        def prepare(i: int):
            try:
                return self.rows[i].prepare(), self.rows[i].plan()
            except Exception as error:
                return None, told(error)

        with ThreadPoolExecutor() as threads:
            found = dict(zip(numbers, threads.map(prepare, numbers), strict=True))
        self.prepared |= {i: ready for i, (ready, _) in found.items()}
        return {"plans": {str(i): plan for i, (_, plan) in found.items()}}

    def do_ready(self, i: int) -> dict:
        from jax_convbatch._tune import timing

        if self.prepared[i] is None:
            return {"failed": "not compiled"}
        self.side = self.prepared[i]()
        self.rounds = timing.rounds_for(self.side, self.options.seconds)
        return {}

    def do_time(self) -> dict:
        from jax_convbatch._tune import timing

        taken = timing.elapsed(self.side, self.rounds)
        return {"us": taken / self.rounds / self.side.calls * 1e6}

    def do_leave_out(self, families: list[str]) -> dict:
        from jax_convbatch._native import targets

        targets.leave_out(families)
        return {}

    def do_takers(self, numbers: list[int], families: list[str]) -> dict:
        """A row takes a family without which it is planned otherwise."""

        def plan(i: int, *left_out: str) -> str:
            self.do_leave_out(list(left_out))
            return self.rows[i].plan()

        found = {}
        for i in numbers:
            whole = plan(i)
            found[str(i)] = [f for f in families if plan(i, f) != whole]
        self.do_leave_out([])
        return {"takers": found}

    def do_drop(self, i: int) -> dict:
        self.side = None
        self.prepared.pop(i, None)
        return {}


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def main(arguments: list[str]) -> None:
    build, platform, options = arguments
    finder = Finder(Path(build).resolve(), platform)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    # What others print goes where errors do.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import jax_convbatch  # noqa: F401

    used = sys.modules.get(finder.name)
    if used is None:
        from jax_convbatch._native import targets

        raise SystemExit(f"error: {build} is not used: {targets.problem(platform)}")
    rows = Rows(Namespace(**json.loads(options)))
    for line in sys.stdin:
        answers.write(json.dumps(rows.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
