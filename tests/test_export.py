# SPDX-License-Identifier: Apache-2.0
"""jax.export: as for every custom call, the user says that it is wanted."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from problems import normal

import jax_convbatch as jc
from jax_convbatch._native import targets

ALLOWED = jc.export_checks()


def step(x, w, bias):
    return jax.value_and_grad(
        lambda *a: (jc.conv_bias_act(*a, activation="relu") ** 2).sum(),
        argnums=(0, 1, 2),
    )(x, w, bias)


def arguments(batch=3):
    shapes = (batch, 6, 5, 4), (3, 3, 4, 8), (8,)
    return [jnp.asarray(normal(i, s, "float32")) for i, s in enumerate(shapes)]


def assert_close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


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
    checks = {export.DisabledSafetyCheck.custom_call(name) for name in names}
    assert checks <= {*ALLOWED}
    assert {*targets._natives["cpu"].module.targets()} >= names


@pytest.mark.parametrize("axis", [AxisType.Auto, AxisType.Explicit])
def test_programs_of_several_devices(axis):
    """What splits a batch calls back to Python, so each device does the whole."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis,))
    x, w, bias = arguments(batch=8)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("d")))
        w, bias = jax.device_put((w, bias), NamedSharding(mesh, PartitionSpec()))
        exported = export.export(jax.jit(step), disabled_checks=ALLOWED)(x, w, bias)
        got = jax.jit(exported.call)(x, w, bias)
        want = jax.jit(step)(x, w, bias)
    assert exported.nr_devices == 8
    jax.tree.map(assert_close, got, want)


def test_shard_map_leaves_every_device_its_part():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    x, w, bias = arguments(batch=8)
    split, whole = PartitionSpec("d"), PartitionSpec()
    layer = jax.jit(
        jax.shard_map(
            jc.conv, mesh=mesh, in_specs=(split, whole, whole), out_specs=split
        )
    )
    x = jax.device_put(x, NamedSharding(mesh, split))
    w, bias = jax.device_put((w, bias), NamedSharding(mesh, whole))
    exported = export.export(layer, disabled_checks=ALLOWED)(x, w, bias)
    compiled = jax.jit(exported.call).lower(x, w, bias).compile()
    assert "all-gather" not in compiled.as_text()
    np.testing.assert_array_equal(compiled(x, w, bias), layer(x, w, bias))


def test_without_permission_jax_refuses_and_names_the_call():
    with pytest.raises(ValueError, match="jax_convbatch_implicit_gemm_fprop"):
        export.export(jax.jit(jc.conv))(*arguments()[:2])


@pytest.fixture
def never_asked(monkeypatch):
    monkeypatch.setattr("jax_convbatch._api.export._asked", False)


def test_a_warning_before_jaxs_error_says_what_to_pass(never_asked):
    args = arguments()

    def fresh(*args):  # which no other test has lowered
        return step(*args)

    with (
        pytest.warns(
            UserWarning, match=r"disabled_checks=jax_convbatch.export_checks"
        ) as warned,
        pytest.raises(ValueError, match="compatibility guarantees"),
    ):
        export.export(jax.jit(fresh))(*args)
    assert {each.filename for each in warned} == {__file__}  # the user's line
    jax.clear_caches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        allowed = jc.export_checks()
        export.export(jax.jit(fresh), disabled_checks=allowed)(*args)


def test_without_a_native_call_there_is_no_such_warning(never_asked, monkeypatch):
    missing = targets._Native(problem="the cuda module is not there")
    monkeypatch.setitem(targets._natives, "cuda", missing)
    x, w, bias = arguments()
    (n,) = export.symbolic_shape("n")
    symbolic = jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype)
    stock = functools.partial(jc.conv, algorithm="xla")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.clear_caches()
        jax.jit(step).lower(x, w, bias).compile()
        export.export(jax.jit(step))(symbolic, w, bias)
        export.export(jax.jit(stock))(x, w)
        for platform in ("tpu", "cuda"):
            export.export(jax.jit(jc.conv), platforms=[platform])(x, w)


def test_symbolic_sizes_run_in_jax_lax():
    (n,) = export.symbolic_shape("n")
    _, w, bias = arguments()
    x = jax.ShapeDtypeStruct((n, 6, 5, 4), "float32")
    exported = export.export(jax.jit(step))(x, w, bias)
    for batch in (1, 4):
        x = arguments(batch)[0]
        got, want = exported.call(x, w, bias), step(x, w, bias)
        jax.tree.map(assert_close, got, want)


def test_symbolic_sizes_sample_in_jax_lax():
    (n,) = export.symbolic_shape("n")
    shapes = (2, 6, 5, 4), (2, 6, 5, 18), (3, 3, 4, 8)
    x, offset, w = (jnp.asarray(normal(i, s, "float32")) for i, s in enumerate(shapes))
    symbolic = [jax.ShapeDtypeStruct((n, *a.shape[1:]), a.dtype) for a in (x, offset)]
    exported = export.export(jax.jit(jc.deform_conv))(*symbolic, w)
    assert_close(exported.call(x, offset, w), jc.deform_conv(x, offset, w))
    named = functools.partial(jc.deform_conv, algorithm="im2col_gemm")
    with pytest.raises(ValueError, match="symbolic sizes"):
        export.export(jax.jit(named))(*symbolic, w)
