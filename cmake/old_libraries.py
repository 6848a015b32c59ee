# SPDX-License-Identifier: Apache-2.0
"""Libraries to link against, as they were in glibc 2.28 and GCC 7.

A module that is linked on a newer machine asks for the newest version of each symbol,
and does not load on an older one. glibc and libstdc++ keep the old versions of what
they changed; a linker cannot be asked for those, but takes what the library that it is
given has. So this makes libraries without content that have, of each symbol of this
machine's libraries, the newest version that is old enough. A symbol that is newer
altogether is not in them:

- of the C++ library, it is taken from libstdc++.a, as Red Hat's compilers do;
- of the C library, the few that libstdc++.a uses are in old_glibc.c;
- any other is an error of the linker.

    python old_libraries.py FOLDER COMPILER    # then link with -L FOLDER
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# What manylinux_2_28 allows, by the word before the number.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}

# By the name that is linked with: the library as programs ask for it, and whether its
# symbols are listed. glibc 2.34 moved all of the last two into libc.so.6.
LIBRARIES = {
    "c": ("libc.so.6", True),
    "m": ("libm.so.6", True),
    "stdc++": ("libstdc++.so.6", True),
    "pthread": ("libpthread.so.0", False),
    "dl": ("libdl.so.2", False),
}


class Symbol(NamedTuple):
    name: str
    version: str
    kind: str  # function, object or tls_object
    size: int


def number(version: str) -> tuple[int, ...] | None:
    """(2, 28) of "GLIBC_2.28"; None of versions that are never asked for."""
    match = re.fullmatch(r"([A-Z]+)_(\d+(?:\.\d+)*)", version)
    if match is None or match[1] not in NEWEST:
        return None
    return tuple(map(int, match[2].split(".")))


def symbols(table: str) -> Iterator[Symbol]:
    """What a library defines, by the output of `objdump -T`, each in its old version.

    Args:
      table: lines "address flags section size version name"; the version is in
        parentheses where it is not the one that linkers take.
    """
    found: dict[str, tuple[tuple[int, ...], Symbol]] = {}
    for line in table.splitlines():
        match = re.fullmatch(
            r"[0-9a-f]+ (.{7}) (\S+)\s+([0-9a-f]+)\s+\(?([A-Z]\w+?_[\d.]+)\)?\s+(\S+)",
            line,
        )
        if match is None or match[2] in ("*UND*", "*ABS*"):
            continue
        flags, section, size, version, name = match.groups()
        since = number(version)
        if since is None or since > NEWEST[version.split("_")[0]]:
            continue
        kind = "function" if "F" in flags or "i" in flags else "object"
        if section in (".tbss", ".tdata"):
            kind = "tls_object"
        if name not in found or found[name][0] < since:
            found[name] = since, Symbol(name, version, kind, int(size, 16))
    return (symbol for _, symbol in found.values())


def assembly(listed: list[Symbol]) -> str:
    """A library that defines these symbols and does nothing."""
    lines = []
    for i, (name, version, kind, size) in enumerate(listed):
        # Data of no size would be copied into a program that uses it.
        section = {"function": ".text", "object": ".data"}.get(
            kind, '.section .tbss,"awT",@nobits'
        )
        lines += [
            section,
            f".globl s{i}",
            f".type s{i}, @{kind}",
            f".size s{i}, {size}",
            f"s{i}: .skip {max(size, 1) if kind != 'function' else 1}",
            f".symver s{i}, {name}@@{version}",
        ]
    return "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])


def versions(listed: list[Symbol]) -> str:
    """A version script: every version has to be declared."""
    names = sorted({symbol.version for symbol in listed})
    return "".join(f"{name} {{}};\n" for name in names) + "OTHER { local: s*; };\n"


def make(folder: Path, compiler: list[str]) -> None:
    """Writes the libraries into a folder."""
    folder.mkdir(parents=True, exist_ok=True)

    def run(*command: str | Path) -> str:
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def where(name: str) -> Path:
        path = Path(run(*compiler, f"-print-file-name={name}").strip())
        if not path.is_absolute():
            raise SystemExit(f"{compiler[0]} knows no {name}")
        return path.resolve()

    def compiled(*arguments: str | Path) -> None:
        run(*compiler, *arguments)

    for short, (name, has_symbols) in LIBRARIES.items():
        table = run("objdump", "-T", where(name)) if has_symbols else ""
        listed = sorted(symbols(table))
        if has_symbols and not listed:
            raise SystemExit(f"objdump lists no symbol of {where(name)}")
        source, script = folder / f"{short}.s", folder / f"{short}.map"
        source.write_text(assembly(listed))
        script.write_text(versions(listed))
        stub = folder / name
        options = [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}"]
        compiled("-shared", "-nostdlib", *options, source, "-o", stub)
        content = [stub]
        if short == "stdc++":
            content.append(where("libstdc++.a"))
        elif short == "c":
            newer = folder / "old_glibc.o"
            code = Path(__file__).with_name("old_glibc.c")
            compiled("-x", "c", "-O2", "-fPIC", "-c", code, "-o", newer)
            archive = folder / "libold_glibc.a"
            archive.unlink(missing_ok=True)
            run("ar", "rcs", archive, newer)
            loader = where("ld-linux-x86-64.so.2")
            content += [archive, where("libc_nonshared.a")]
            content.append(f"AS_NEEDED({loader})")
        group = " ".join(map(str, content))
        (folder / f"lib{short}.so").write_text(f"GROUP({group})\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute(), sys.argv[2:])
