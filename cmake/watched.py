# SPDX-License-Identifier: Apache-2.0
"""Runs a build that takes minutes, and shows how far it is.

    python watched.py LOG COMMAND [ARGUMENT ...]

What the command prints goes to the file LOG. Ninja numbers its steps, as in "[12/163]
Building ...": a terminal shows a bar of them on stderr, elsewhere there is a line a
minute. If the command fails, the end of LOG is printed. The exit status is that of the
command.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

STEP = re.compile(r"\s*\[(\d+)/(\d+)\] (.*)")  # pip indents it
BAR = 24  # characters
EVERY = 60  # seconds between two lines where there is no terminal
TAIL = 200  # lines of a command that failed


class Progress:
    """The step at which a build is, on a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._last = time.monotonic()

    def step(self, done: int, total: int, what: str) -> None:
        bar = ("=" * (BAR * done // max(total, 1))).ljust(BAR)
        line = f"[{bar}] {done}/{total}  {what}"
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{line[:width]}")
        elif time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            self._write(f"{line}\n")

    def end(self) -> None:
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def run(log: Path, command: list[str]) -> int:
    """The exit status of the command."""
    log.parent.mkdir(parents=True, exist_ok=True)
    progress = Progress(sys.stderr)
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            file.flush()  # for who looks at it meanwhile
            if found := STEP.match(line):
                progress.step(int(found[1]), int(found[2]), found[3])
    progress.end()
    if process.returncode:
        lines = log.read_text().splitlines()
        print("\n".join(lines[-TAIL:]))
        if len(lines) > TAIL:
            print(f"error: {command[0]} failed; {log} has all that it said")
    return process.returncode


if __name__ == "__main__":
    try:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
