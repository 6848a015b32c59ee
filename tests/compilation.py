# SPDX-License-Identifier: Apache-2.0
"""What each source of the CUDA module takes to compile, and whether registers spill.

    python tests/compilation.py BUILD_DIR [--record]

BUILD_DIR is CMake's, built by Ninja. Prints for each source its seconds, kernels, most
registers, and the kernels with a stack, which is where spilled registers go. On PATH
there has to be `cuobjdump` (of the CUDA toolkit, or of the package
nvidia-cuda-cuobjdump), and `c++filt`.

Fails if a source takes over 60 seconds, or a kernel has a stack, that is not among the
exceptions in `data/compilation.json`: seconds by source, and by kernel, whatever source
it is in, how many of its instances have a stack and of how many bytes at most. Fails,
too, where an exception of a stack is larger than it need be: the list only shrinks.
--record shrinks it; what is new it does not add, but where there is no list yet.
Machines differ, so that seconds may be a tenth more, and may well be fewer; give it a
build with nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import kernel_hashes

EXCEPTIONS = Path(__file__).parent / "data" / "compilation.json"
SLOWEST = 60.0
SLACK = 1.1  # of seconds
_OUTPUT = re.compile(r".*\.dir/(?:ffi/cuda/)?(.*\.(?:cu|cc))\.o$")


class Kernel(NamedTuple):
    """
    Attributes:
      name: of the function, without namespace and template arguments.
      architecture, registers, stack: the last in bytes.
    """

    name: str
    architecture: str
    registers: int
    stack: int


class Unit(NamedTuple):
    source: str
    seconds: float
    kernels: list[Kernel]

    @property
    def spilling(self) -> list[Kernel]:
        return [kernel for kernel in self.kernels if kernel.stack]


def times(log: str) -> dict[str, float]:
    """Seconds by object, of the last time that Ninja made it."""
    found = {}
    for line in log.splitlines():
        if not line.startswith("#"):
            start, end, _, output, _ = line.split("\t")
            found[output] = (int(end) - int(start)) / 1000
    return found


def function(name: str) -> str:
    """`f` of "void space::f<arguments>(parameters)"."""
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].split("::")[-1]


def kernels(usage: str, demangled: dict[str, str]) -> list[Kernel]:
    """Of what `cuobjdump -res-usage` prints."""
    found = []
    for architecture, name, lines in kernel_hashes.parts(
        usage.splitlines(), "Function "
    ):
        used = filter(None, map(kernel_hashes._USAGE.match, lines))
        registers, stack = map(int, next(used).groups())
        short = function(demangled.get(name, name))
        found.append(Kernel(short, architecture, registers, stack))
    return found


def units(build: Path) -> list[Unit]:
    """The sources of the CUDA module, the slowest first.

    Raises:
      SystemExit: there is no such build, or it is not finished.
    """
    log, rules = build / ".ninja_log", build / "build.ninja"
    if not (log.exists() and rules.exists()):
        raise SystemExit(f"error: {build} has no .ninja_log or no build.ninja")
    wanted = re.findall(r"^build (\S+\.cu\.o): ", rules.read_text(), re.MULTILINE)
    if missing := [output for output in wanted if not (build / output).exists()]:
        raise SystemExit(f"error: {len(missing)} sources of {build} are not compiled")
    found = []
    for output, seconds in times(log.read_text()).items():
        source = _OUTPUT.match(output)
        path = build / output
        if not source or source[1].startswith("ffi/cpu/") or not path.exists():
            continue
        usage = "" if source[1].endswith(".cc") else _usage(path)
        names = "\n".join(re.findall(r"Function (\w+):", usage))
        said = _run(["c++filt"], names).splitlines()
        demangled = dict(zip(names.splitlines(), said, strict=True))
        found.append(Unit(source[1], seconds, kernels(usage, demangled)))
    if not any(unit.kernels for unit in found):
        raise SystemExit(f"error: {build} has no objects of the CUDA module")
    return sorted(found, key=lambda unit: -unit.seconds)


def _usage(path: Path) -> str:
    return _run(["cuobjdump", "-res-usage", str(path)])


def _run(command: list[str], given: str = "") -> str:
    """What it prints; nothing where it fails: an object without kernels."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"error: {command[0]} is not on PATH") from None
    return "" if done.returncode else done.stdout


def measured(found: list[Unit]) -> dict:
    """What would be exceptions: {"seconds": ..., "stack": ...}."""
    instances: Counter[str] = Counter()
    most: dict[str, int] = defaultdict(int)
    for unit in found:
        for kernel in unit.spilling:
            key = f"{kernel.architecture} {kernel.name}"
            instances[key] += 1
            most[key] = max(most[key], kernel.stack)
    slow = {u.source: round(u.seconds, 1) for u in found if u.seconds > SLOWEST}
    stack = {k: {"kernels": n, "bytes": most[k]} for k, n in sorted(instances.items())}
    return {"seconds": slow, "stack": stack}


def faults(now: dict, allowed: dict) -> list[str]:
    """What is not allowed, and stacks that are allowed and not there any more."""
    found = []
    for source, seconds in now["seconds"].items():
        most = allowed["seconds"].get(source, 0) * SLACK
        if seconds > max(SLOWEST, most):
            found.append(f"{source} takes {seconds} s")
    for kernel, has in now["stack"].items():
        may = allowed["stack"].get(kernel, {"kernels": 0, "bytes": 0})
        if has["kernels"] > may["kernels"] or has["bytes"] > may["bytes"]:
            found.append(f"{kernel} has {_told(has)}; allowed are {_told(may)}")
    smaller = shrunk(now, allowed)["stack"]
    for kernel, may in allowed["stack"].items():
        if smaller.get(kernel) != may:
            found.append(f"the exception for {kernel} is larger than it need be")
    return found


def _told(stack: dict) -> str:
    return f"{stack['kernels']} with a stack, of up to {stack['bytes']} bytes"


def shrunk(now: dict, allowed: dict) -> dict:
    """The exceptions without what is not there any more."""
    architectures = {key.split()[0] for key in now["stack"]}
    seconds = {}
    for source, value in allowed["seconds"].items():
        if source in now["seconds"]:
            has = now["seconds"][source]
            seconds[source] = has if has * SLACK < value else value
    stack = {}
    for key, may in allowed["stack"].items():
        if key in now["stack"]:
            has = now["stack"][key]
            stack[key] = {which: min(may[which], has[which]) for which in may}
        elif key.split()[0] not in architectures:  # this build is of others
            stack[key] = may
    return {"seconds": seconds, "stack": stack}


def show(found: list[Unit]) -> None:
    print(f"{'seconds':>8} {'kernels':>8} {'registers':>10} {'stack':>16}  source")
    for unit in found:
        registers = max((k.registers for k in unit.kernels), default=0)
        largest = max((k.stack for k in unit.kernels), default=0)
        stack = f"{len(unit.spilling)}, {largest} bytes" if largest else ""
        print(
            f"{unit.seconds:>8.1f} {len(unit.kernels):>8} {registers:>10} "
            f"{stack:>16}  {unit.source}"
        )
    count = sum(len(unit.kernels) for unit in found)
    spilling = sum(len(unit.spilling) for unit in found)
    total = sum(unit.seconds for unit in found)
    print(
        f"{len(found)} sources, {total:.0f} s, {count} kernels, {spilling} with a stack"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--record", action="store_true", help="shrinks the exceptions")
    options = parser.parse_args(arguments)
    found = units(options.build)
    show(found)
    now = measured(found)
    there = EXCEPTIONS.exists()
    allowed = json.loads(EXCEPTIONS.read_text()) if there else now
    if options.record:
        allowed = shrunk(now, allowed)
        EXCEPTIONS.write_text(json.dumps(allowed, indent=1) + "\n")
    wrong = faults(now, allowed)
    for fault in wrong:
        print("error:", fault)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
