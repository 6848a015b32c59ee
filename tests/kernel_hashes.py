# SPDX-License-Identifier: Apache-2.0
"""Each kernel's instructions, registers and stack, to compare before and after.

    python tests/kernel_hashes.py write LIBRARY FILE
    python tests/kernel_hashes.py compare OLD NEW

LIBRARY is the CUDA module (`_cuda.abi3.so`). On PATH there have to be the CUDA
toolkit's `cuobjdump` and `nvdisasm` (or those of the packages nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm), and `c++filt`. FILE has a line for each kernel and architecture:
a hash of its instructions without their addresses, their number, its registers, bytes
of stack (0 unless registers spill) and name as C++ writes it. Moving or renaming a
source changes no line but names; `compare` counts kernels by instructions, and fails
where one's are not in the other. It also shows kernels that spill and did not.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import shown

SHOWN = 20
# /*0010*/                   MOV R1, c[0x0][0x28] ;        /* 0x00000a0000017a02 */
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_USAGE = re.compile(r"\s+REG:(\d+) STACK:(\d+) ")


class Kernel(NamedTuple):
    digest: str
    instructions: int
    registers: int
    stack: int
    architecture: str
    name: str


def parts(text: Iterable[str], title: str) -> Iterator[tuple[str, str, list[str]]]:
    """(architecture, kernel, lines) of what cuobjdump prints under such titles."""
    architecture, name, lines = "", "", []
    for line in text:
        words = line.strip()
        if words.startswith(("arch = ", title)) and lines:
            yield architecture, name, lines
            lines = []
        if words.startswith("arch = "):
            architecture, name = words.removeprefix("arch = "), ""
        elif words.startswith(title):
            name = words.removeprefix(title).rstrip(":")
        elif name:
            lines.append(line)
    if lines:
        yield architecture, name, lines


def kernels(sass: Iterable[str], usage: Iterable[str]) -> Iterator[Kernel]:
    """Of `cuobjdump -sass` and `-res-usage`, with names as the linker has them."""
    used = {}
    for architecture, name, lines in parts(usage, "Function "):
        found = filter(None, map(_USAGE.match, lines))
        used[architecture, name] = next(tuple(map(int, m.groups())) for m in found)
    for architecture, name, lines in parts(sass, "Function : "):
        code = [found[1] for line in lines if (found := _INSTRUCTION.match(line))]
        digest = hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]
        registers, stack = used[architecture, name]
        yield Kernel(digest, len(code), registers, stack, architecture, name)


def of_library(path: Path) -> list[Kernel]:
    """
    Raises:
      FileNotFoundError: the toolkit's programs are not on PATH.
      subprocess.CalledProcessError: the library has no kernels, or is none.
    """

    def output(option: str, **more) -> subprocess.Popen:
        command = ["cuobjdump", option, str(path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)

    with output("-sass") as code, output("-res-usage") as usage:
        each = kernels(code.stdout or (), usage.stdout or ())
        found = list(shown.bar(each, "kernels"))
    for process in (code, usage):
        if process.returncode or not found:
            raise subprocess.CalledProcessError(process.returncode or 1, process.args)
    names = subprocess.run(
        ["c++filt"],
        input="\n".join(kernel.name for kernel in found),
        capture_output=True,
        check=True,
        text=True,
    ).stdout.splitlines()
    named = zip(found, names, strict=True)
    return sorted(kernel._replace(name=name) for kernel, name in named)


def write(library: Path, path: Path) -> int:
    """How many kernels."""
    found = of_library(library)
    path.write_text("".join("\t".join(map(str, kernel)) + "\n" for kernel in found))
    return len(found)


def load(path: Path) -> list[Kernel]:
    rows = (line.split("\t") for line in path.read_text().splitlines())
    return [Kernel(row[0], *map(int, row[1:4]), *row[4:]) for row in rows]


def changes(old: list[Kernel], new: list[Kernel]) -> dict[str, list[Kernel]]:
    """What is "gone" from the old ones, "new", and only "renamed", by instructions.

    And "spilling": new ones with a stack that none of that name had.
    """

    def code(kernel: Kernel) -> tuple[str, str]:
        return kernel.architecture, kernel.digest

    had, has = Counter(map(code, old)), Counter(map(code, new))
    names = {(code(kernel), kernel.name) for kernel in old}
    spilled = {kernel.name for kernel in old if kernel.stack}
    return {
        "gone": [k for k in old if has[code(k)] < had[code(k)]],
        "new": [k for k in new if had[code(k)] < has[code(k)]],
        "renamed": [k for k in new if had[code(k)] and (code(k), k.name) not in names],
        "spilling": [k for k in new if k.stack and k.name not in spilled],
    }


def compare(old: Path, new: Path) -> bool:
    """Whether all instructions are the same; says which are not."""
    before, after = load(old), load(new)
    found = changes(before, after)
    print(f"{len(before)} kernels before, {len(after)} after")
    for what, some in found.items():
        print(f"{len(some)} {what}")
        for kernel in some[:SHOWN]:
            size = f"{kernel.instructions} instructions, {kernel.registers} registers"
            print(f"  {kernel.architecture} {size} {kernel.name[:150]}")
    return not found["gone"] and not found["new"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("library", type=Path)
    writing.add_argument("file", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "compare":
        return 0 if compare(options.old, options.new) else 1
    number = write(options.library, options.file)
    print(f"wrote the hashes of {number} kernels to {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
