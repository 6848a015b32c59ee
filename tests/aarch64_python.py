# SPDX-License-Identifier: Apache-2.0
"""A Python for AArch64 with jaxlib and pytest in a folder, which qemu-user runs.

    python tests/aarch64_python.py FOLDER

Debian's Python goes to FOLDER/sysroot, wheels to FOLDER/site. apt keeps its lists in
the folder too: nothing of the machine changes. `make aarch64-test` calls this.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# With what they depend on. The standard library's C++ is numpy's and jaxlib's.
DEBIAN = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
WHEELS = ("pytest", "hypothesis")
OLDEST_GLIBC, NEWEST_GLIBC = 17, 36  # 2.17 to 2.36, that of Debian 12


def main(folder: Path) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            sys.exit(f"error: there is no {tool}: the Python is that of Debian")
    shutil.rmtree(folder, ignore_errors=True)
    debian(folder)
    (library,) = folder.glob("sysroot/usr/lib/python3.*")
    wheels(folder / "site", library.name.removeprefix("python"))


def debian(folder: Path) -> None:
    """Packages for arm64, unpacked, not installed."""
    for part in ("apt/lists/partial", "apt/cache/archives/partial", "sysroot"):
        (folder / part).mkdir(parents=True)
    apt = folder.resolve() / "apt"
    (apt / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::Cache": apt / "cache",
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
    }
    command = ["apt-get", "-qq"]
    for name, value in options.items():
        command += ["-o", f"{name}={value}"]
    run(*command, "update")
    run(*command, "install", "--download-only", "--no-install-recommends", *DEBIAN)
    for package in sorted(apt.glob("cache/archives/*.deb")):
        run("dpkg-deb", "--extract", str(package), str(folder / "sysroot"))


def wheels(site: Path, version: str) -> None:
    """What the package needs and what its tests need, for that Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    libcs = range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in libcs]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["-q", "--only-binary=:all:", "--target", str(site)]
    command += ["--implementation", "cp", "--python-version", version]
    for platform in (*platforms, "manylinux2014_aarch64"):
        command += ["--platform", platform]
    run(*command, *project["dependencies"], *WHEELS)


def run(*command: str) -> None:
    """Runs a command; what it prints is shown where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = re.sub(r"\n+", "\n", done.stdout + done.stderr)
        sys.exit(f"error: {' '.join(command[:2])} failed\n{said}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
