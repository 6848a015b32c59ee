# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution: orders of axes, empty arrays, explain, what is refused."""

import functools

import jax
import numpy as np
import pytest
from deform_oracle import PROBLEMS, arrays, expected, problem, run
from problems import normal

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._shapes.geometry import ConvGeometry
from jax_convbatch.deform import from_torch


def test_torchs_order_of_axes(sampler):
    p = PROBLEMS["torchvision"]
    a = expected("torchvision")[0].cast("float32")
    want = jc.deform_conv(a.x, a.offset, a.w, a.bias, a.mask, **p.kwargs)
    x, offset, mask = (v.transpose(0, 3, 1, 2) for v in (a.x, a.offset, a.mask))
    w = a.w.transpose(3, 2, 0, 1)
    torch = functools.partial(
        jc.deform_conv,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        algorithm=sampler,
        **p.kwargs,
    )
    got, pull = jax.vjp(lambda *v: torch(*v[:3], a.bias, v[3]), x, offset, w, mask)
    np.testing.assert_array_equal(got, want.transpose(0, 3, 1, 2))
    grads = pull(a.dy.transpose(0, 3, 1, 2))
    exact = expected("torchvision")[1]
    for grad, value in zip(
        grads, (exact.dx, exact.doffset, exact.dw, exact.dmask), strict=True
    ):
        order = (3, 2, 0, 1) if value is exact.dw else (0, 3, 1, 2)
        np.testing.assert_array_equal(grad, value.transpose(order))
    moved = from_torch(x, offset, w, mask)
    again = jc.deform_conv(*moved[:3], a.bias, moved[3], **p.kwargs)
    np.testing.assert_array_equal(again, want)
    assert from_torch(w=w)[0] is None


def test_an_empty_batch(platform):
    p = PROBLEMS["torchvision"]._replace(x=(0, *PROBLEMS["torchvision"].x[1:]))
    got = run(p, arrays(p).cast("float32"))
    assert got.y.shape == p.y
    assert not got.dw.any() and not got.dbias.any()
    assert (got.dx.shape, got.doffset.shape[0]) == (p.x, 0)


def test_no_output_pixels(platform):
    p = problem((2, 2, 2, 4), (3, 3, 4, 4), padding=0)
    got = run(p, arrays(p).cast("float32"))
    assert got.y.shape == (2, 0, 0, 4)
    assert not got.dx.any() and not got.dw.any()


@pytest.mark.parametrize("size", ["N", "H", "C", "K"])
def test_a_size_of_zero(sampler, size):
    sizes = dict(N=2, H=4, C=4, K=4) | {size: 0}
    n, h, c, k = sizes.values()
    x, offset = np.ones((n, h, 4, c)), np.full((n, h, 4, 2 * 2 * 9), 0.3)
    w = np.ones((3, 3, c, k))
    fun = functools.partial(jc.deform_conv, offset_groups=2, algorithm=sampler)
    args = [a.astype("float32") for a in (x, offset, w)]
    y, pullback = jax.vjp(fun, *args)
    assert y.shape == (n, h, 4, k) and not y.any()
    for a, gradient in zip(args, pullback(y), strict=True):
        assert gradient.shape == a.shape and not gradient.any()


@pytest.mark.parametrize("activation", ["relu", jax.nn.softplus])
def test_activation(platform, activation):
    a = expected("3x3")[0].cast("float32")
    p = PROBLEMS["3x3"]
    z = jc.deform_conv(a.x, a.offset, a.w, a.bias, a.mask, **p.kwargs)
    y = jc.deform_conv(
        a.x, a.offset, a.w, a.bias, a.mask, activation=activation, **p.kwargs
    )
    want = jax.nn.relu(z) if activation == "relu" else activation(z)
    np.testing.assert_array_equal(y, want)


def test_explain():
    a = expected("3x3")[0].cast("float32")

    def loss(x, offset, w, mask, **options):
        return jc.deform_conv(x, offset, w, mask=mask, **options).sum()

    args = (a.x, a.offset, a.w, a.mask)
    rows = jc.explain(jax.grad(loss, (0, 1, 2, 3)), *args, platform="cpu")
    assert [row.op for row in rows] == ["deform_dgrad", "deform_wgrad"]
    assert {row.engine for row in rows} == {"im2col_gemm"}
    assert all(row.workspace_bytes > 0 and row.slice == 2 for row in rows)
    assert "2x6x7x8 * 3x3x8x5" in rows[0].geometry
    (row,) = jc.explain(loss, *args, platform="cuda")
    engine = "im2col_gemm" if targets.available("cuda") else "xla"
    assert (row.op, row.engine) == ("deform_fprop", engine)
    (row,) = jc.explain(loss, *args, platform="rocm")
    assert row.engine == "xla"
    assert "'rocm'" in row.reason
    (row,) = jc.explain(functools.partial(loss, algorithm="xla"), *args)
    assert (row.engine, row.reason) == ("xla", "asked for by name")


def test_only_what_is_read_is_computed():
    # A frozen filter takes no wgrad; fixed offsets take no gradient of them.
    a = expected("3x3")[0].cast("float32")

    def loss(x):
        return jc.deform_conv(x, a.offset, a.w, mask=a.mask).sum()

    assert [r.op for r in jc.explain(jax.grad(loss), a.x)] == ["deform_dgrad"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            dict(offset=(2, 6, 7, 17)),
            ValueError,
            r"offset must have shape \(2, 6, 7, 18",
        ),
        (dict(offset=(2, 6, 6, 18)), ValueError, r"got \(2, 6, 6, 18\)"),
        (dict(offset=(1, 6, 7, 18)), ValueError, "offset must have shape"),
        (dict(mask=(2, 6, 7, 18)), ValueError, r"mask must have shape \(2, 6, 7, 9\)"),
        (dict(mask=(2, 5, 7, 9)), ValueError, "mask must have shape"),
        (dict(bias=(4,)), ValueError, r"bias must have shape \(5,\)"),
        (dict(x=(2, 6, 7)), ValueError, "two spatial axes"),
        (dict(w=(3, 3, 8)), ValueError, "w must have as many axes as x, 4"),
        (dict(w=(3, 3, 7, 5)), ValueError, "w must have 8 input channels, got 7"),
        (
            dict(x=(2, 8, 6, 7)),
            ValueError,
            r"pass dimension_numbers=\('NCHW', 'HWIO', 'NCHW'\)",
        ),
        (dict(offset_groups=3), ValueError, "divide the 8 channels of x, got 3"),
        (dict(offset_groups=0), ValueError, "positive"),
        (dict(offset_groups=1.0), TypeError, "offset_groups must be an int"),
        (dict(algorithm="direct"), ValueError, "unknown algorithm"),
        *(
            (
                dict(algorithm=engine),
                ValueError,
                f"{engine} does not sample at offsets, im2col_gemm does",
            )
            for engine in ("cudnn", "implicit_gemm", "per_sample")
        ),
        (dict(workspace_limit=10), ValueError, "one sample needs"),
        (dict(activation="swoosh"), ValueError, "swoosh"),
        (dict(activation=3), TypeError, "activation must be"),
        (dict(groups="2"), TypeError, "groups must be an int"),
        (
            dict(algorithm="im2col_gemm", precision="F32_F32_F32"),
            ValueError,
            "cannot run this convolution: precision .*algorithm='xla' and",
        ),
    ],
)
def test_what_is_refused_is_refused_while_tracing(change, error, message):
    shapes = dict(
        x=(2, 6, 7, 8),
        offset=(2, 6, 7, 18),
        w=(3, 3, 8, 5),
        bias=(5,),
        mask=(2, 6, 7, 9),
    )
    options = {k: v for k, v in change.items() if k not in shapes}
    shapes |= {k: v for k, v in change.items() if k in shapes}
    structs = {k: jax.ShapeDtypeStruct(s, "float32") for k, s in shapes.items()}
    with pytest.raises(error, match=message):
        jax.eval_shape(functools.partial(jc.deform_conv, **options), **structs)


def test_dtypes_of_x_and_w_that_differ_are_named():
    x, offset = (jax.ShapeDtypeStruct((1, 4, 4, size), "float32") for size in (2, 18))
    w = jax.ShapeDtypeStruct((3, 3, 2, 1), "bfloat16")
    with pytest.raises(TypeError, match="x and w must have one dtype, got float32 and"):
        jax.eval_shape(jc.deform_conv, x, offset, w)


def test_a_precision_that_names_an_algorithm_is_for_xla():
    a = expected("3x3")[0]

    def loss(x, w):
        return (jc.deform_conv(x, a.offset, w, mask=a.mask) ** 2).sum()

    args = a.x.astype("float32"), a.w.astype("float32")
    with jax.default_matmul_precision("F32_F32_F32"):
        assert {r.engine for r in jc.explain(jax.grad(loss), *args)} == {"xla"}
        got = jax.grad(loss, (0, 1))(*args)
    for one, want in zip(got, jax.grad(loss, (0, 1))(*args), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-4 * abs(want).max())


@pytest.mark.parametrize("name", ["offset", "mask"])
def test_dtypes_of_offset_and_mask(name):
    a = expected("3x3")[0].cast("bfloat16")
    wrong = a._replace(**{name: getattr(a, name).astype("float16")})
    with pytest.raises(ValueError, match=f"{name} must have dtype bfloat16 or float32"):
        jc.deform_conv(wrong.x, wrong.offset, wrong.w, mask=wrong.mask)


def test_operands_that_are_no_floats():
    a = expected("3x3")[0]
    with pytest.raises(TypeError, match="floating-point"):
        jc.deform_conv(a.x.astype("int32"), a.offset, a.w.astype("int32"))
    with pytest.raises(TypeError, match="offset must be an array"):
        jc.deform_conv(normal(0, (1, 2, 2, 1), "float32"), 0, a.w)


def test_native_code_checks_its_arrays():
    target = "jax_convbatch_im2col_gemm_deform_fprop"
    p = PROBLEMS["3x3"]
    a = expected("3x3")[0].cast("float32")
    ones = (1, 1, 1)
    geometry = ConvGeometry(
        2, 1, 6, 7, 8, 5, 1, 3, 3, 1, 6, 7, 1, ones, (0, 1, 1), ones, ones
    )
    call = jax.ffi.ffi_call(
        target,
        (
            jax.ShapeDtypeStruct(p.y, "float32"),
            jax.ShapeDtypeStruct((1 << 20,), "uint8"),
        ),
    )
    cells = np.zeros((2, 6, 7, 9), "int32")
    corners = np.zeros((2, 6, 7, 9, 4), "float32")

    def run_it(cells=cells, corners=corners, offset_groups=1):
        options = dict(slice=np.int64(1), precision=np.int64(0))
        return jax.block_until_ready(
            call(
                a.x,
                cells,
                corners,
                a.w,
                geometry=geometry.attribute(),
                offset_groups=np.int64(offset_groups),
                **options,
            )
        )

    assert not run_it()[0].any()
    for wrong, message in (
        (dict(cells=cells[:1]), "cells has"),
        (dict(cells=cells.astype("float32")), "int32"),
        (dict(corners=corners[..., :3]), "corners has"),
        (dict(corners=corners.astype("float16")), "accumulator"),
        (dict(offset_groups=3), "not a deformable convolution"),
    ):
        with pytest.raises(Exception, match=message):
            run_it(**wrong)
