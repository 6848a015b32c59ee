# SPDX-License-Identifier: Apache-2.0
"""The license in one line at the top of each Python file.

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
LINE = f"# SPDX-License-Identifier: {PROJECT['license']}"
FOLDERS = ("benchmarks", "cmake", "docs", "examples", "jax_convbatch", "tests")


def files() -> list[Path]:
    """What the check is about."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        found = [path for name in FOLDERS for path in (ROOT / name).rglob("*.py")]
        found = [path for path in found if path.name != "_build.py"]
    return sorted(path for path in found if path.is_file())


def has_license(text: str) -> bool:
    """In the first line, or in the second if the first is for the system."""
    lines = text.splitlines()[:2]
    return LINE in (lines if lines and lines[0].startswith("#!") else lines[:1])


def with_license(text: str) -> str:
    """The text with the line, where it belongs."""
    if has_license(text):
        return text
    first, _, rest = text.partition("\n")
    if first.startswith("#!"):
        return f"{first}\n{LINE}\n{rest}"
    return f"{LINE}\n{text}"


def lacking_files() -> list[Path]:
    """Those without the line."""
    return [path for path in files() if not has_license(path.read_text())]


def main(command: str) -> int:
    lacking = lacking_files()
    for path in lacking:
        if command == "add":
            path.write_text(with_license(path.read_text()))
        else:
            print(f"{path.relative_to(ROOT)}: the first line is not {LINE!r}")
    if lacking and command == "check":
        print("`python tests/spdx.py add` writes it")
    return 1 if lacking and command == "check" else 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["check"], ["add"]):
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1]))
