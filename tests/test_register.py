# SPDX-License-Identifier: Apache-2.0
"""The import of the package registers and warns in one place, `_register`."""

import os
import subprocess
import sys
from pathlib import Path

import jax_convbatch

# What JAX holds by primitive or by target, before and after a step.
PROGRAM = """
import contextlib, importlib, pkgutil, sys, types, warnings
import jax
from jax._src import checkify, core, dispatch
from jax._src.interpreters import ad, batching, mlir
from jax.experimental import jet

warnings.simplefilter("error")
TABLES = {
    "jvp": ad.primitive_jvps,
    "transpose": ad.primitive_transposes,
    "batching": batching.fancy_primitive_batchers,
    "lowering": mlir._lowerings,
    "cpu": mlir._platform_specific_lowerings["cpu"],
    "cuda": mlir._platform_specific_lowerings["cuda"],
    "jet": jet.jet_rules,
    "checkify": checkify.error_checks,
    "devices": dispatch.prim_requires_devices_during_lowering,
    "printing": core.pp_eqn_rules,
}
asked = []
jax.ffi.register_ffi_target = lambda name, *args, **kwargs: asked.append(name)


def ours():  # how many primitives of this package each table has
    names = {name: [str(p) for p in table] for name, table in TABLES.items()}
    jaxs = "conv_general_dilated"
    return {
        name: sum(p.startswith(("conv_", "deform_")) and p != jaxs for p in found)
        for name, found in names.items()
    }


# The package without its __init__.
package = types.ModuleType("jax_convbatch")
package.__path__ = [PATH]
sys.modules["jax_convbatch"] = package
for module in pkgutil.walk_packages(package.__path__, "jax_convbatch."):
    last = module.name.split(".")[-1]
    if last not in ("_cpu", "_cuda", "_build", "__main__", "flax", "linen", "nnx"):
        with contextlib.suppress(ModuleNotFoundError):  # flax
            importlib.import_module(module.name)
assert not any(ours().values()), ours()
assert not asked

warnings.simplefilter("ignore")
sys.modules["jax_convbatch._register"].everything()
assert all(ours().values()), ours()
print("targets", bool(asked))
"""


def output_of(program: str, *flags: str) -> str:
    run = subprocess.run(
        [sys.executable, *flags, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_modules_that_are_imported_register_nothing_and_do_not_warn():
    folder = Path(jax_convbatch.__file__).parent
    program = PROGRAM.replace("PATH", repr(str(folder)))
    native = bool(jax_convbatch._register.targets.modules())
    assert output_of(program).split() == ["targets", str(native)]


# All that is declared, whatever else is imported later.
ALL = """
import contextlib, importlib, pkgutil
import jax_convbatch
from jax_convbatch._compat import declared

for module in pkgutil.walk_packages(jax_convbatch.__path__, "jax_convbatch."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ModuleNotFoundError):  # flax
            importlib.import_module(module.name)
assert not declared._declared, declared._declared
"""


def test_nothing_is_left_to_register():
    output_of(ALL, "-W", "ignore")


def test_the_warning_names_the_line_that_imports_the_package():
    program = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    from jax_convbatch._native import built\n"
        "found = [w for w in caught if 'jax_convbatch' in str(w.message)]\n"
        "print([(w.filename, w.lineno) for w in found])\n"
    )
    # Without the CPU module there is a warning on every machine.
    broken = (
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "cpu = 'jax_convbatch._cpu'\n"
        "u.find_spec = lambda n, *a: None if n == cpu else find(n, *a)\n"
    )
    assert output_of(broken + program).strip() == "[('<string>', 8)]"
