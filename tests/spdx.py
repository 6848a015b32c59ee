# SPDX-License-Identifier: Apache-2.0
"""The license in one line at the top of each file of Python and C++.

    python tests/spdx.py check    # fails, and names the files that lack it
    python tests/spdx.py add      # writes it there

`make lint` runs the check on what git knows, or on all files where there is no git.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LICENSE = f"SPDX-License-Identifier: {PROJECT['license']}"
COMMENTS = {".py": "#"} | dict.fromkeys((".h", ".cc", ".cu", ".cuh"), "//")
FOLDERS = ("benchmarks", "cmake", "docs", "examples", "ffi", "jax_convbatch", "tests")


def files() -> list[Path]:
    """What the check is about."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        found = [path for name in FOLDERS for path in (ROOT / name).rglob("*")]
        found = [path for path in found if path.name != "_build.py"]
    return sorted(path for path in found if path.suffix in COMMENTS and path.is_file())


def line_of(path: Path) -> str:
    """The license as a comment of the file's language."""
    return f"{COMMENTS[path.suffix]} {LICENSE}"


def has_license(text: str, line: str) -> bool:
    """In the first line, or in the second if the first is for the system."""
    lines = text.splitlines()[:2]
    return line in (lines if lines and lines[0].startswith("#!") else lines[:1])


def with_license(text: str, line: str) -> str:
    """The text with the line, where it belongs."""
    if has_license(text, line):
        return text
    first, _, rest = text.partition("\n")
    if first.startswith("#!"):
        return f"{first}\n{line}\n{rest}"
    return f"{line}\n{text}"


def lacking_files() -> list[Path]:
    """Those without the line."""
    return [p for p in files() if not has_license(p.read_text(), line_of(p))]


def main(command: str) -> int:
    lacking = lacking_files()
    for path in lacking:
        if command == "add":
            path.write_text(with_license(path.read_text(), line_of(path)))
        else:
            print(f"{path.relative_to(ROOT)}: the first line is not {line_of(path)!r}")
    if lacking and command == "check":
        print("`python tests/spdx.py add` writes it")
    return 1 if lacking and command == "check" else 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["check"], ["add"]):
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1]))
