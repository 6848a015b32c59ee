# SPDX-License-Identifier: Apache-2.0
"""Whether the tests notice mistakes: one at a time is made, and some test has to fail.

    python tests/mutants.py [--only NAME,...] [--list] [--folder build/mutants]

`data/mutants/*.toml` have the mistakes: a file, what it says, what it would say with
the mistake, and the tests that should notice. Each is made in a copy of the tree, with
a CPU module of its own, of which only what changed is compiled again. Before, those
tests have to pass in the copy as it is. A mistake that no test notices is a test that
is missing; one that changes nothing is replaced by another.

Needs CMake, nanobind and Ninja beside what the tests need; `make mutants` installs
them. Writes FOLDER/result.json. Fails if less than 95% are noticed, or if one cannot be
made: its text is not there once, does not compile, or its tests cannot be collected.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).parent / "data" / "mutants"
LEAST = 0.95
LIMIT = 600  # seconds; who takes longer is noticed
MODULE = "_cpu.abi3.so"
# Exit statuses of pytest.
PASSED, FAILED = 0, 1


class Mutant(NamedTuple):
    """
    Attributes:
      name: of the mistake.
      file: the path of a source.
      old, new: its text, which is there once, and the text with the mistake.
      tests: arguments of pytest that name tests.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def native(self) -> bool:
        return self.file.startswith("ffi/")


class Broken(Exception):
    """A mistake that cannot be made, in words."""


def load() -> list[Mutant]:
    files = [tomllib.loads(p.read_text()) for p in sorted(DATA.glob("*.toml"))]
    entries = [entry for file in files for entry in file["mutant"]]
    return [Mutant(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]


def mutated(mutant: Mutant, text: str) -> str:
    """
    Raises:
      Broken: what is to be replaced is not there once.
    """
    found = text.count(mutant.old)
    if found != 1:
        raise Broken(f"{mutant.file} has its text {found} times")
    return text.replace(mutant.old, mutant.new)


class Copy:
    """A copy of the tree, its native module and an environment that imports it."""

    def __init__(self, folder: Path, root: Path = ROOT):
        self.root = root
        self.tree, self.native = folder / "tree", folder / "native"
        self.environment = folder / "environment"
        self.clean = folder / MODULE

    def prepare(self) -> None:
        """Brings it up to date; of sources that are the same the time stays, too."""
        names = self._run(["git", "ls-files", "-co", "--exclude-standard"], self.root)
        wanted = {name for name in names.splitlines() if (self.root / name).is_file()}
        for name in wanted:
            self._update(name)
        self.tree.mkdir(parents=True, exist_ok=True)
        for path in [p for p in self.tree.rglob("*") if p.is_file()]:
            if str(path.relative_to(self.tree)) not in wanted:
                path.unlink()
        self._make_environment()
        cmake = self._tool("cmake")
        configure = [cmake, "-S", str(self.tree), "-B", str(self.native), "-G", "Ninja"]
        settings = {
            "CMAKE_MAKE_PROGRAM": self._tool("ninja"),
            "JAX_CONVBATCH_CUDA": "OFF",
            "Python_EXECUTABLE": sys.executable,
        }
        self._run([*configure, *(f"-D{k}={v}" for k, v in settings.items())])
        self.build()
        shutil.copy2(self.native / MODULE, self.clean)
        package = self.tree / "jax_convbatch"
        shutil.copy2(self.native / "_build.py", package / "_build.py")
        shutil.copy2(self.clean, package / MODULE)

    def _update(self, name: str) -> None:
        old, new = self.tree / name, self.root / name
        if not old.exists() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new, old)

    def _make_environment(self) -> None:
        """Imports of the copy come first; a package that was installed so that it is
        imported from its sources is not: Python reads .pth files of one folder alone.
        """
        if not self.environment.exists():
            venv.create(self.environment, symlinks=True)
        paths = {"base": str(self.environment), "platbase": str(self.environment)}
        site = Path(sysconfig.get_path("purelib", "venv", paths))
        there = {sysconfig.get_path(which) for which in ("purelib", "platlib")}
        lines = [str(self.tree), *sorted(there)]
        (site / "mutants.pth").write_text("\n".join(lines) + "\n")

    @staticmethod
    def _tool(name: str) -> str:
        found = shutil.which(name, path=Path(sys.executable).parent)
        found = found or shutil.which(name)
        if not found:
            raise SystemExit(f"error: {name} is not installed")
        return found

    @staticmethod
    def _run(command: list[str], folder: Path | None = None) -> str:
        """
        Raises:
          Broken: it fails.
        """
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-2000:]
            raise Broken(f"{' '.join(command[:3])} fails: {said}")
        return done.stdout

    def build(self) -> None:
        self._run([self._tool("cmake"), "--build", str(self.native)])

    def test(self, tests: Iterable[str], limit: float | None = LIMIT) -> tuple:
        """pytest's exit status, None after the limit; and the first that fails."""
        python = self.environment / "bin" / "python"
        command = [str(python), "-B", "-m", "pytest", "-xq", "--tb=line"]
        command += ["-p", "no:cacheprovider", *tests]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {
            "HYPOTHESIS_PROFILE": "unshrunk",
            "JAX_PLATFORMS": "cpu",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        try:
            done = subprocess.run(
                command,
                cwd=self.tree,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return None, ""
        lines = [
            line.removeprefix("FAILED ").split(" - ")[0]
            for line in done.stdout.splitlines()
            if line.startswith(("FAILED ", "ERROR "))
        ]
        said = "".join(lines[:1]) or (done.stdout + done.stderr).strip()[-300:]
        return done.returncode, said if done.returncode else ""

    def with_mistake(self, mutant: Mutant) -> dict:
        """What came of it: "killed", "survived" or "broken"."""
        path = self.tree / mutant.file
        text = path.read_text()
        module = self.tree / "jax_convbatch" / MODULE
        start = time.monotonic()
        try:
            path.write_text(mutated(mutant, text))
            if mutant.native:
                self.build()
                shutil.copyfile(self.native / MODULE, module)
            status, by = self.test(mutant.tests)
            outcome, by = outcome_of(status, by)
        except Broken as broken:
            outcome, by = "broken", str(broken)
        finally:
            path.write_text(text)
            if mutant.native:
                shutil.copyfile(self.clean, module)
        seconds = round(time.monotonic() - start, 1)
        return {"name": mutant.name, "outcome": outcome, "by": by, "seconds": seconds}


def outcome_of(status: int | None, said: str) -> tuple[str, str]:
    """What a run of the tests says of a mistake, and which test or why."""
    if status is None:
        return "killed", "did not end"
    if status == PASSED:
        return "survived", ""
    if status == FAILED or status < 0 or status >= 128:  # or a signal ended it
        return "killed", said
    return "broken", said


def summary(results: list[dict]) -> dict:
    counts = {
        outcome: [r["name"] for r in results if r["outcome"] == outcome]
        for outcome in ("killed", "survived", "broken")
    }
    share = len(counts["killed"]) / max(len(results), 1)
    return {
        "mutants": len(results),
        "killed": len(counts["killed"]),
        "share": round(share, 4),
        "survived": counts["survived"],
        "broken": counts["broken"],
        "passes": share >= LEAST and not counts["broken"],
    }


def run(mutants: list[Mutant], folder: Path) -> bool:
    """Whether enough of them are noticed; says which are not."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(width=None if Console().is_terminal else 150, soft_wrap=True)
    copy, results = Copy(folder), []
    # Those of one source one after the other: it is compiled once in between.
    mutants = sorted(mutants, key=lambda m: (not m.native, m.file))
    with Progress(console=console) as progress:
        task = progress.add_task("compiling", total=len(mutants) + 1)
        copy.prepare()
        progress.update(task, description="tests of the copy as it is")
        every = dict.fromkeys(test for m in mutants for test in m.tests)
        status, by = copy.test(every, limit=None)
        if status != PASSED:
            raise SystemExit(f"error: the tests fail without a mistake: {by}")
        progress.advance(task)
        for mutant in mutants:
            progress.update(task, description=mutant.name)
            results.append(result := copy.with_mistake(mutant))
            progress.advance(task)
            by = f" by {result['by']}" if result["by"] else ""
            said = f"{result['outcome']:<9}{result['seconds']:6.1f} s  {mutant.name}"
            console.print(said + by, highlight=False)
    found = summary(results)
    (folder / "result.json").write_text(
        json.dumps(found | {"results": results}, indent=1) + "\n"
    )
    console.print(
        f"{found['killed']} of {found['mutants']} killed ({found['share']:.1%}); "
        f"survived: {', '.join(found['survived']) or 'none'}; "
        f"broken: {', '.join(found['broken']) or 'none'}"
    )
    return found["passes"]


def chosen(mutants: list[Mutant], only: str | None) -> list[Mutant]:
    """Those with one of the words, with commas between, in their name or file.

    Raises:
      SystemExit: a word that is in none.
    """
    if not only:
        return mutants
    words = only.split(",")
    for word in words:
        if not any(word in m.name or word in m.file for m in mutants):
            raise SystemExit(f"error: no mutant has {word!r} in its name or file")
    return [m for m in mutants if any(w in m.name or w in m.file for w in words)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="names and files alone")
    parser.add_argument("--only", metavar="WORD,...", help="in their name or file")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    options = parser.parse_args(arguments)
    mutants = chosen(load(), options.only)
    if options.list:
        for m in mutants:
            print(f"{m.name:<44} {m.file}")
        return 0
    return 0 if run(mutants, options.folder.resolve()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
