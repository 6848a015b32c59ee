# SPDX-License-Identifier: Apache-2.0
"""Operations have names of their own in jaxprs, compiled programs and profiles."""

import functools
import re
import struct
from pathlib import Path

import fake_gpus
import jax
import jax.numpy as jnp
import pytest

import jax_convbatch as jc
from jax_convbatch._native import names, targets
from jax_convbatch._primitives import primitives
from jax_convbatch._select.plan import plan_of

X = jax.ShapeDtypeStruct((2, 8, 8, 6), "float32")
W = jax.ShapeDtypeStruct((3, 3, 6, 4), "float32")
B = jax.ShapeDtypeStruct((4,), "float32")
NCHW = jax.ShapeDtypeStruct((2, 6, 8, 8), "bfloat16")
OIHW = jax.ShapeDtypeStruct((4, 3, 1, 5), "bfloat16")
SEQUENCE = jax.ShapeDtypeStruct((2, 9, 6), "float64")
TAPS = jax.ShapeDtypeStruct((4, 6, 6), "float64")
OFFSET = jax.ShapeDtypeStruct((2, 8, 8, 18), "float32")


def gradients(fun):
    def total(*arrays):
        return fun(*arrays).astype("float32").sum()

    return lambda *arrays: jax.grad(total, range(len(arrays)))(*arrays)


layer = functools.partial(jc.conv_bias_act, activation="gelu")

CASES = {
    "plain": (jc.conv, (X, W), ["conv_fprop 3x3 6->4 s1 f32"]),
    "strides": (
        functools.partial(jc.conv, strides=(1, 2), dilation=2),
        (X, W),
        ["conv_fprop 3x3 6->4 s1x2 d2 f32"],
    ),
    "groups": (
        functools.partial(
            jc.conv_general_dilated,
            window_strides=(2, 2),
            padding="SAME",
            feature_group_count=2,
        ),
        (NCHW, OIHW),
        ["conv_fprop 1x5 6->4 s2 g2 bf16"],
    ),
    "transposed": (
        functools.partial(jc.conv_transpose, strides=2),
        (X, W),
        ["conv_fprop 3x3 6->4 s1 i2 f32"],
    ),
    "a sequence": (jc.conv, (SEQUENCE, TAPS), ["conv_fprop 4 6->6 s1 f64"]),
    "gradients": (
        gradients(jc.conv),
        (X, W),
        ["conv_dgrad 3x3 6->4 s1 f32", "conv_wgrad 3x3 6->4 s1 f32"],
    ),
    "a layer": (layer, (X, W, B), ["conv_fprop 3x3 6->4 s1 f32 bias gelu"]),
    "a layer by columns": (
        functools.partial(layer, algorithm="im2col_gemm"),
        (X, W, B),
        ["conv_fprop 3x3 6->4 s1 f32", "conv_epilogue 4 f32 bias gelu"],
    ),
    "a layer's gradients": (
        gradients(layer),
        (X, W, B),
        [
            "conv_fprop 3x3 6->4 s1 f32 bias gelu",
            "conv_act_bgrad 4 f32 gelu bias",
            "conv_dgrad 3x3 6->4 s1 f32",
            "conv_wgrad 3x3 6->4 s1 f32",
        ],
    ),
    "a bias gradient": (jc.ops.bias_grad, (X,), ["conv_bgrad 6 f32"]),
    "deformable": (jc.deform_conv, (X, OFFSET, W), ["deform_fprop 3x3 6->4 s1 f32"]),
    "deformable, gradients": (
        gradients(jc.deform_conv),
        (X, OFFSET, W),
        ["deform_dgrad 3x3 6->4 s1 f32", "deform_wgrad 3x3 6->4 s1 f32"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_compiled_operations_are_named(case, x64):
    fun, arrays, wanted = CASES[case]
    text = jax.jit(fun).lower(*arrays).compile().as_text()
    assert "ffi_call" not in text
    calls = [s for s in text.splitlines() if 'custom_call_target="jax_convbatch' in s]
    ops = [re.search(r'op_name="([^"]*)"', call)[1].split("/")[-1] for call in calls]
    assert sorted(ops) == sorted(wanted)
    # Traces show instructions, which XLA names after that.
    for call, op in zip(calls, ops, strict=True):
        assert re.search(r"%?([\w.-]+) = ", call)[1].startswith(op.split()[0])


@pytest.mark.parametrize(
    ("case", "wanted"),
    {
        "plain": ["conv_fprop 3x3 6->4 s1 f32"],
        "groups": ["conv_fprop 1x5 6->4 s2 g2 bf16"],
        "gradients": ["conv_dgrad 3x3 6->4 s1 f32", "conv_wgrad 3x3 6->4 s1 f32"],
        "a layer": ["conv_layer 3x3 6->4 s1 f32"],
        "deformable": ["deform_forward 3x3 6->4 s1 f32"],
    }.items(),
)
def test_jaxprs_show_the_names_of_convolutions(case, wanted):
    fun, arrays, _ = CASES[case]
    text = str(jax.make_jaxpr(fun)(*arrays))
    assert "ffi_call" not in text
    found = re.findall(r"name=((?:conv|deform)_.*)", text)
    assert {*wanted} <= {*map(str.strip, found)}


def test_every_device_of_a_sharded_program_has_them(mesh):
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    x = jnp.zeros((8, *X.shape[1:]), device=sharding)
    w = jnp.zeros(W.shape)
    text = jax.jit(gradients(jc.conv)).lower(x, w).compile().as_text()
    assert "ffi_call" not in text
    for name in ("conv_dgrad 3x3 6->4 s1 f32", "conv_wgrad 3x3 6->4 s1 f32"):
        assert f'{name}"' in text


def test_operations_run_eagerly_too():
    params = jax.make_jaxpr(jc.conv)(X, W).eqns[0].params["params"]
    x, w = jnp.ones(X.shape), jnp.ones(W.shape)
    chosen = plan_of(params, "fprop", x.dtype, x.dtype, "cpu")
    y = chosen.run(primitives.OPS["fprop"], x, w, params, x.dtype)
    assert y.shape == params.shape("y")
    assert y[0, 4, 4, 0] == 9 * 6


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_names_on_cuda(native, monkeypatch, dtype):
    fake_gpus.on(monkeypatch, "9.0")
    x = jax.ShapeDtypeStruct((8, 28, 28, 128), dtype)
    w = jax.ShapeDtypeStruct((3, 3, 128, 128), dtype)
    b = jax.ShapeDtypeStruct((128,), dtype)
    short = names.of_dtype(dtype)
    layer = gradients(functools.partial(jc.conv_bias_act, activation="relu"))
    for fun, arrays in ((layer, (x, w, b)), (jc.conv, (x, w))):
        traced = jax.jit(fun).trace(*arrays)
        lowered = traced.lower(lowering_platforms=("cuda",))
        text = lowered.as_text(debug_info=True)
        assert "jax_convbatch_" in text and "ffi_call" not in text
        assert f"conv_fprop 3x3 128->128 s1 {short}" in text


def _constants(file):
    """The section .rodata of a library of 64 bits."""
    data = file.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, of_names = struct.unpack_from("<3H", data, 0x3A)
    sections = [
        struct.unpack_from("<2I4Q", data, table + i * size) for i in range(count)
    ]
    names = sections[of_names][4]
    (found,) = (s for s in sections if data[names + s[0] :].startswith(b".rodata\0"))
    return data[found[4] : found[4] + found[5]]


def test_kernels_have_names_of_this_package(native):
    """As Nsight shows them. Only the library that sorts for us has its own.

    The kernels are compressed, but the CUDA runtime finds them by their names.
    """
    constants = _constants(Path(targets._natives["cuda"].module.__file__))
    found = {*re.findall(rb"(_Z\w+)\0", constants)}
    kernels = {name for name in found if b"_INTERNAL_" not in name}  # but variables
    assert len(kernels) > 1000
    own = {name for name in kernels if b"13jax_convbatch" in name}
    assert all(b"3cub" in name for name in kernels - own)
