# SPDX-License-Identifier: Apache-2.0
"""The public names, what types they take and give, and that type checkers see them."""

import importlib
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import jax
import jax.typing
import pytest

import jax_convbatch as jc
from jax_convbatch import deform, norms, ops

TESTS = Path(__file__).parent
FUNCTIONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in (
        (jc, jc.__all__),
        (ops, ops.__all__),
        (norms, norms.__all__),
        (deform, deform.__all__),
    )
    for name in names
    if inspect.isfunction(getattr(module, name))
}


def test_dir_shows_the_public_names_alone():
    assert dir(jc) == sorted([*jc.__all__, "__version__"])
    assert not [name for name in jc.__all__ if not hasattr(jc, name)]
    assert "plan" not in dir(jc) and "conv" in dir(jc)


@pytest.mark.parametrize("name", ["deform", "flax", "norms", "ops"])
def test_dir_of_a_module_shows_its_public_names_alone(name):
    if name == "flax":
        pytest.importorskip("flax")
    module = importlib.import_module(f"jax_convbatch.{name}")
    for each in [module, *([module.linen, module.nnx] if name == "flax" else [])]:
        assert dir(each) == sorted(each.__all__)
        assert not [public for public in each.__all__ if not hasattr(each, public)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_are_annotated(name):
    function = FUNCTIONS[name]
    hints = typing.get_type_hints(function)
    assert {*inspect.signature(function).parameters, "return"} == {*hints}


# Those that return a state, too, where it is asked for.
IN_PARTS = ("conv", "conv_bias_act")


def test_arrays_are_array_like():
    for name in ("conv", "conv_bias_act", "conv_transpose", "deform_conv"):
        hints = typing.get_type_hints(getattr(jc, name))
        assert hints["x"] == hints["w"] == jax.typing.ArrayLike
        assert hints["bias"] == jax.typing.ArrayLike | None
        in_parts = tuple[jax.Array, jax.Array] if name in IN_PARTS else jax.Array
        assert hints["return"] == jax.Array | in_parts


def test_the_package_is_marked_as_typed():
    assert Path(jc.__file__).with_name("py.typed").exists()


def mypy(path):
    """Its exit status and what it says, called as a user does."""
    pytest.importorskip("mypy")
    options = ["--config-file=", "--strict", "--follow-imports=silent"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, path],
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
    )
    return run.returncode, run.stdout + run.stderr


def test_mypy_passes_a_users_program():
    status, said = mypy(TESTS / "user_program.py")
    assert status == 0, said


# A line with a mistake, and what mypy calls it.
WRONG = {
    'jc.conv("x", w)': "call-overload",
    'jc.conv(w, w, strides="two")': "arg-type",
    'jc.conv_transpose("x", w)': "arg-type",
    "jc.conv_transpose(w, w, stride=2)": "call-arg",
    "jc.conv_bias_act(w, w, activation=3)": "call-overload",
    "jc.conv(w, w).nothing": "attr-defined",
    "jc.ops.dgrad(w, w, 3)": "arg-type",
    "jc.tune(3)": "arg-type",
    "jc.explain(jc.conv, w)[0].nothing": "attr-defined",
}


def test_mypy_finds_a_users_mistakes(tmp_path):
    program = tmp_path / "wrong.py"
    start = ["import jax", "import jax_convbatch as jc", "w: jax.Array"]
    program.write_text("\n".join([*start, *WRONG]))
    status, said = mypy(program)
    assert status == 1, said
    for line, (text, kind) in enumerate(WRONG.items(), len(start) + 1):
        found = [s for s in said.splitlines() if f"wrong.py:{line}: error" in s]
        assert len(found) == 1 and f"[{kind}]" in found[0], (text, said)
