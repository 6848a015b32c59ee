# SPDX-License-Identifier: Apache-2.0
"""What `profile` runs under Nsight Compute: every side of every case, a few times.

    python -m benchmarks.profiled WANTED.json MADE.json

WANTED has `cases`, `sides` and `runs`; MADE says on what they ran, and by which engine.
Kernels are counted between cuProfilerStart and cuProfilerStop, a run at a time. Before
those of a run there is an empty kernel whose name is the run's number, as Nsight
Compute itself does not say where a kernel belongs.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import jax

from benchmarks import ceilings, record, torch_side
from benchmarks.cases import Case, Pool
from benchmarks.jax_side import operation
from benchmarks.layers import chosen
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import sets_of

MARK = "convbatch_run_"
# Before those that are profiled: what is made lazily is then there.
WARM = 2


class Driver:
    """The calls of CUDA's driver that say what is profiled."""

    def __init__(self, runs: int):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        entries = "".join(
            f".visible .entry {MARK}{i}() {{ ret; }}\n" for i in range(runs)
        )
        ptx = f".version 7.0\n.target sm_80\n.address_size 64\n{entries}"
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), ptx.encode())

    def _call(self, name: str, *arguments) -> None:
        error = getattr(self._cuda, name)(*arguments)
        if error:
            raise RuntimeError(f"{name} failed: error {error} of CUDA's driver")

    def start(self, run: int) -> None:
        """What follows is profiled, as the run of this number."""
        kernel = ctypes.c_void_p()
        name = f"{MARK}{run}".encode()
        self._call("cuModuleGetFunction", ctypes.byref(kernel), self._module, name)
        self._call("cuProfilerStart")
        ones = (1,) * 6  # grid and block
        self._call("cuLaunchKernel", kernel, *ones, 0, None, None, None)
        self._call("cuCtxSynchronize")

    def stop(self) -> None:
        self._call("cuProfilerStop")


def program(side: str, case: Case, pool: Pool):
    """A function that runs one call of `case` to its end.

    Of the side "gemm" that is the product that a GPU's GEMM rate is measured with.
    """
    if side == "gemm":
        product = ceilings.product(case.dtype, case.precision)
        return lambda: (product.queue(), product.wait())
    if side == "torch":
        counts = sets_of(case.pairs("gpu"))
        torch = torch_side.TorchSide(case, *pool.operands(case, counts))

        def run() -> None:
            torch.alone()
            torch.wait()

        return run
    (first,), (second,) = pool.operands(case, [1, 1])
    one = jax.jit(operation("auto" if side == "ours" else side, case))
    one = one.lower(first, second).compile()
    return lambda: timing.wait_for(one(first, second))


def run(wanted: list[Case], sides: list[str], runs: int, driver: Driver) -> None:
    """Runs are numbered by case, then by side."""
    pool, number = Pool(wanted), 0
    for case in wanted:
        for side in sides:
            once = program(side, case, pool)
            for _ in range(WARM):
                once()
            for _ in range(runs):
                driver.start(number)
                once()
                driver.stop()
                number += 1


def main(arguments=None) -> None:
    wanted_path, made_path = map(Path, arguments or sys.argv[1:])
    wanted = json.loads(wanted_path.read_text())
    found = [Case(**{**case, "row": tuple(case["row"])}) for case in wanted["cases"]]
    if jax.default_backend() != "gpu":
        raise SystemExit("profile needs a GPU, and JAX has none here")
    if any(case.dtype == "float64" for case in found):
        jax.config.update("jax_enable_x64", True)
    sides, runs = wanted["sides"], wanted["runs"]
    if "torch" in sides and (problem := torch_side.problem("gpu")):
        raise SystemExit(f"no side torch: {problem}")
    run(found, sides, runs, Driver(len(found) * len(sides) * runs))
    made = {
        "environment": record.environment(),
        "chosen": [chosen("auto", case) for case in found] if "ours" in sides else [],
    }
    made_path.write_text(json.dumps(made))


if __name__ == "__main__":
    main()
