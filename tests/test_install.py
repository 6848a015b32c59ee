# SPDX-License-Identifier: Apache-2.0
"""`install` puts ours in the place of `jax.lax`'s, in libraries too; all of it can
be undone."""

import functools
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import libraries
import numpy as np
import pytest

import jax_convbatch as jc
from jax_convbatch import _compat

NAMES = ("conv", "conv_general_dilated", "conv_transpose", "conv_with_general_padding")
STOCK = {name: getattr(jax.lax, name) for name in NAMES}
NHWC = ("NHWC", "HWIO", "NHWC")

ours = functools.partial(np.testing.assert_equal, desired=["conv_fprop"])
stock = functools.partial(np.testing.assert_equal, desired=["conv_general_dilated"])


@pytest.fixture(autouse=True)
def undone(monkeypatch):
    monkeypatch.delenv("JAX_CONVBATCH", raising=False)
    yield
    jc.uninstall()
    assert {name: getattr(jax.lax, name) for name in NAMES} == STOCK


def integers(*shape):
    """Small ones, as floats: every sum is exact."""
    rng = np.random.default_rng(sum(shape))
    return jnp.asarray(rng.integers(-4, 5, shape), "float32")


X, W = integers(2, 3, 7, 8), integers(5, 3, 3, 2)
LAST, TAPS = integers(2, 7, 8, 3), integers(3, 2, 3, 5)

CALLS = {
    "conv": ("conv", (X, W, (2, 1), "SAME"), {}),
    "conv wider": (
        "conv",
        (X.astype("bfloat16"), W.astype("bfloat16"), (1, 1), "VALID"),
        {"preferred_element_type": jnp.float32},
    ),
    "general padding": (
        "conv_with_general_padding",
        (X, W, (2, 1), [(1, 0), (-1, 2)], (1, 2), (2, 1)),
        {},
    ),
    "general dilated": (
        "conv_general_dilated",
        (LAST, TAPS, (2, 2), "SAME"),
        {"dimension_numbers": NHWC},
    ),
    "transposed": ("conv_transpose", (LAST, TAPS, (2, 3), "SAME"), {}),
    "transposed by pairs": (
        "conv_transpose",
        (LAST, TAPS, (2, 3), [(1, 2), (0, 1)]),
        {"rhs_dilation": (2, 1)},
    ),
    "transposed by PyTorch's": (
        "conv_transpose",
        (LAST, TAPS, (2, 3), ((1, 1), (0, 0))),
        {"use_consistent_padding": True},
    ),
    "transposed, kernel too": (
        "conv_transpose",
        (LAST, jnp.swapaxes(TAPS, 2, 3), (2, 1), "VALID"),
        {"transpose_kernel": True},
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_functions_of_jax_lax_run_ours_with_the_same_result(case):
    name, args, kwargs = CALLS[case]

    def call(*arrays):
        return getattr(jax.lax, name)(*arrays, *args[2:], **kwargs)

    want = call(*args[:2])
    stock(libraries.runs(call, *args[:2]))
    jc.install()
    ours(libraries.runs(call, *args[:2]))
    got = call(*args[:2])
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    jc.uninstall()
    stock(libraries.runs(call, *args[:2]))


@pytest.mark.parametrize("name", NAMES)
def test_signatures_words_and_refusals_are_those_of_jax_lax(name):
    jc.install()
    new = getattr(jax.lax, name)
    assert new is not STOCK[name]
    assert inspect.signature(new) == inspect.signature(STOCK[name])
    assert new.__doc__ == STOCK[name].__doc__ and new.__name__ == name
    assert pickle.loads(pickle.dumps(new)) is new
    more = {"conv_with_general_padding": (None, None)}.get(name, ())
    refused = [
        ((X, W), {}),
        ((X, W, (1,), "SAME", *more), {}),
        ((X, W, (1, 1), "NO", *more), {}),
        ((X, W[:, :2], (1, 1), "SAME", *more), {}),
        ((X, W, (1, 1), "SAME", *more), {"algorithm": "xla"}),
        ((X, W, (1, 1), "SAME", *more), {"workspace_limit": 0}),
    ]
    for args, kwargs in refused:
        with pytest.raises(Exception) as wanted:
            STOCK[name](*args, **kwargs)
        with pytest.raises(wanted.type) as got:
            new(*args, **kwargs)
        assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize("name", NAMES)
def test_what_no_engine_covers_runs_in_jax_lax(name):
    more = {"conv_with_general_padding": (None, None)}.get(name, ())
    w = jnp.ones((3, 2, 8, 3), "int8") if name == "conv_transpose" else W.astype("int8")
    args = (X.astype("int8"), w, (1, 1), "SAME", *more)
    want = STOCK[name](*args)
    jc.install()
    np.testing.assert_array_equal(getattr(jax.lax, name)(*args), want)


def test_functions_of_this_package_work_under_it():
    calls = {
        "conv": lambda x: jc.conv(x, TAPS[..., :3, :]),
        "transposed": lambda x: jc.conv_transpose(x, TAPS, strides=2),
        "turned": lambda x: jc.conv_transpose(
            x, jnp.swapaxes(TAPS, 2, 3), transpose_kernel=True
        ),
        "xla": lambda x: jc.conv(x, TAPS, algorithm="xla"),
        "integers": lambda x: jc.conv(x.astype("int8"), TAPS.astype("int8")),
        "gradient": jax.grad(lambda x: jc.conv_transpose(x, TAPS).sum()),
    }
    want = {name: call(LAST) for name, call in calls.items()}
    primitives = {name: libraries.runs(call, LAST) for name, call in calls.items()}
    with jc.install():
        for name, call in calls.items():
            np.testing.assert_array_equal(call(LAST), want[name])
            assert libraries.runs(call, LAST) == primitives[name]


def test_gradients_and_vmap_of_what_was_replaced():
    def loss(x, w):
        return (jax.lax.conv_transpose(x, w, (2, 2), "SAME") ** 2).sum()

    want = jax.grad(loss, (0, 1))(LAST, TAPS)
    with jc.install():
        got = jax.grad(loss, (0, 1))(LAST, TAPS)
        names = libraries.runs(jax.grad(loss, (0, 1)), LAST, TAPS)
        mapped = jax.vmap(lambda x: jax.lax.conv(x[None], W, (1, 1), "SAME"))(X)
    assert sorted(names) == ["conv_dgrad", "conv_fprop", "conv_wgrad"]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(mapped[:, 0], STOCK["conv"](X, W, (1, 1), "SAME"))


def test_a_jitted_function_is_traced_anew():
    traced = []

    @jax.jit
    def f(x):
        traced.append(_compat.installed.value)
        return jax.lax.conv(x, W, (1, 1), "SAME")

    stock(libraries.runs(f, X))
    f(X)
    with jc.install():
        ours(libraries.runs(f, X))
        f(X)
        assert "custom_call" in f.lower(X).as_text()
    stock(libraries.runs(f, X))
    assert "custom_call" not in f.lower(X).as_text()
    f(X)
    assert set(traced) == {False, True}


def test_it_says_what_it_replaced():
    first = jc.install()
    lax = [name for name in first.replaced if name.startswith("jax.lax.")]
    assert lax == [f"jax.lax.{name}" for name in NAMES]
    assert "jax.lax.conv_transpose" in repr(first)
    assert not first.reason
    again = jc.install()
    assert again.replaced == () and again.reason in repr(again)


def test_a_context_manager_undoes_it_at_the_end():
    with pytest.raises(ZeroDivisionError), jc.install():
        assert jax.lax.conv is not STOCK["conv"]
        with jc.install():
            pass
        assert jax.lax.conv is not STOCK["conv"]
        1 / 0  # noqa: B018
    assert jax.lax.conv is STOCK["conv"]


def test_the_environment_switches_it_off(monkeypatch):
    monkeypatch.setenv("JAX_CONVBATCH", "off")
    done = jc.install()
    assert done.replaced == () and "JAX_CONVBATCH=off" in repr(done)
    assert jax.lax.conv is STOCK["conv"]
    stock(libraries.runs(lambda x: jax.lax.conv(x, W, (1, 1), "SAME"), X))
    monkeypatch.setenv("JAX_CONVBATCH", "on")
    assert jc.install().replaced
    monkeypatch.setenv("JAX_CONVBATCH", "of")
    with pytest.raises(ValueError, match="'of'"):
        jc.install()


def test_what_others_put_there_stays(monkeypatch):
    def theirs(*args):
        return STOCK["conv"](*args)

    monkeypatch.setattr(jax.lax, "conv", theirs)
    assert "jax.lax.conv" not in jc.install().replaced
    assert jax.lax.conv is theirs
    jc.uninstall()
    assert jax.lax.conv is theirs
    monkeypatch.undo()


@pytest.fixture(scope="module", params=["before", "after"])
def imported(request):
    """The libraries' layers where they are imported before or after `install`."""
    script = Path(libraries.__file__)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", script, request.param],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return request.param, json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("library", libraries.LIBRARIES)
def test_layers_of_libraries_run_ours(library, imported):
    order, result = imported
    if not libraries.is_there(library):
        pytest.skip(f"{library} is not installed")
    names = result["runs"][library]
    assert len(names["installed"]) > 1
    for layer in names["installed"]:
        ours(layer)
    for layer in (*names["uninstalled"], *names.get("stock", [])):
        stock(layer)
    if (library, order) == ("flax.nnx", "before"):
        of_nnx = "flax.nnx.nn.linear.Conv.__init__(conv_general_dilated=)"
        assert of_nnx in result["replaced"]
