"""jax.export: as for every custom call, the user says that it is wanted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from problems import normal

import jax_convbatch as jc
from jax_convbatch import targets

ALLOWED = [
    export.DisabledSafetyCheck.custom_call(f"jax_convbatch_{name}")
    for name in (
        "bgrad",
        "act_bgrad",
        "implicit_gemm_fprop_act",
        *(f"implicit_gemm_{op}" for op in ("fprop", "dgrad", "wgrad")),
    )
]


def step(x, w, bias):
    return jax.value_and_grad(
        lambda *a: (jc.conv_bias_act(*a, activation="relu") ** 2).sum(),
        argnums=(0, 1, 2),
    )(x, w, bias)


def arguments(batch=3):
    shapes = (batch, 6, 5, 4), (3, 3, 4, 8), (8,)
    return [jnp.asarray(normal(i, s, "float32")) for i, s in enumerate(shapes)]


def test_an_exported_program_gives_the_same_bits():
    args = arguments()
    exported = export.export(jax.jit(step), disabled_checks=ALLOWED)(*args)
    want = jax.jit(step)(*args)
    jax.tree.map(np.testing.assert_array_equal, exported.call(*args), want)


def test_an_exported_program_can_be_stored():
    pytest.importorskip("flatbuffers")
    args = arguments()
    exported = export.export(jax.jit(step), disabled_checks=ALLOWED)(*args)
    stored = export.deserialize(exported.serialize())
    want = jax.jit(step)(*args)
    jax.tree.map(np.testing.assert_array_equal, stored.call(*args), want)


def test_the_calls_to_allow_are_all_the_native_ones():
    names = {
        f"jax_convbatch_{engine}_{op}"
        for engine in ("implicit_gemm", "im2col_gemm", "per_sample")
        for op in ("fprop", "dgrad", "wgrad")
    }
    names |= {f"jax_convbatch_{name}" for name in ("bgrad", "act_bgrad", "epilogue")}
    assert {*targets._natives["cpu"].module.targets()} >= names


def test_without_permission_jax_refuses_and_names_the_call():
    with pytest.raises(ValueError, match="jax_convbatch_implicit_gemm_fprop"):
        export.export(jax.jit(jc.conv))(*arguments()[:2])


def test_symbolic_sizes_run_in_jax_lax():
    (n,) = export.symbolic_shape("n")
    _, w, bias = arguments()
    x = jax.ShapeDtypeStruct((n, 6, 5, 4), "float32")
    exported = export.export(jax.jit(step))(x, w, bias)
    for batch in (1, 4):
        x = arguments(batch)[0]
        got, want = exported.call(x, w, bias), step(x, w, bias)
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)  # noqa: E731
        jax.tree.map(close, got, want)
