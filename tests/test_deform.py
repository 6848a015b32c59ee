"""Deformable convolution: values, gradients, positions, bits, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deform_oracle import PROBLEMS, arrays, evaluate, problem, run
from jax.test_util import check_grads
from problems import normal, whole

import jax_convbatch as jc
from jax_convbatch import targets
from jax_convbatch.deform import from_torch
from jax_convbatch.geometry import ConvGeometry

each_problem = pytest.mark.parametrize("name", PROBLEMS)


@functools.cache
def expected(name):
    p = PROBLEMS[name]
    a = arrays(p)
    return a, evaluate(p, a)


EXACT = [
    *(("im2col_gemm", name, "float32") for name in PROBLEMS),
    *(("im2col_gemm", name, "bfloat16") for name in PROBLEMS),
    ("im2col_gemm", "torchvision", "float64"),
    ("im2col_gemm", "torchvision", "float16"),
]
XLA_EXACT = [
    *(("xla", name, "float32") for name in PROBLEMS),
    ("xla", "torchvision", "bfloat16"),
]


@pytest.mark.parametrize(("algorithm", "name", "dtype"), EXACT)
def test_values_and_gradients_are_exact(x64, platform, algorithm, name, dtype):
    assert_exact(algorithm, name, dtype)


@pytest.mark.parametrize(("algorithm", "name", "dtype"), XLA_EXACT)
def test_values_and_gradients_by_xla_are_exact(x64, algorithm, name, dtype):
    assert_exact(algorithm, name, dtype)


def assert_exact(algorithm, name, dtype):
    # Whole numbers and quarters: no sum rounds, so a wrong term shows in any dtype.
    a, want = expected(name)
    if np.dtype(jnp.dtype(dtype)).itemsize == 2:  # y is rounded before the bias
        want = want._replace(y=want.y - a.bias)
        a = a._replace(bias=0 * a.bias)
    got = run(PROBLEMS[name], a.cast(dtype), algorithm=algorithm)
    for field, value in got._asdict().items():
        exact = getattr(want, field)
        if exact is None:
            assert value is None
            continue
        assert value.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(value, exact.astype(value.dtype), err_msg=field)


@each_problem
def test_random_numbers(x64, platform, name):
    p = PROBLEMS[name]
    a = arrays(p, seed=1, exact=False)
    got = run(p, a)
    for field, exact in evaluate(p, a)._asdict().items():
        if exact is not None:
            np.testing.assert_allclose(
                getattr(got, field), exact, rtol=0, atol=1e-11, err_msg=field
            )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_offsets_in_float32_beside_another_dtype(platform, dtype):
    a, want = expected("3x3")
    mixed = a.cast(dtype)._replace(
        offset=a.offset.astype("float32"), mask=a.mask.astype("float32")
    )
    got = run(PROBLEMS["3x3"], mixed)
    assert got.y.dtype == jnp.dtype(dtype)
    assert got.doffset.dtype == got.dmask.dtype == np.float32
    np.testing.assert_array_equal(got.doffset, want.doffset)


# --- positions ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torchvision", "more_groups", "uneven_pads"])
def test_without_offsets_it_is_conv(sampler, name):
    p, (a, _) = PROBLEMS[name], expected(name)
    x, w = a.x.astype("float32"), a.w.astype("float32")
    kwargs = dict(p.kwargs)
    del kwargs["offset_groups"]
    want = jc.conv(x, w, **kwargs)
    mask = np.ones((*p.y[:-1], p.taps), "float32") if p.mask else None
    offset = np.zeros((*p.y[:-1], 2 * p.taps), "float32")
    got = jc.deform_conv(x, offset, w, mask=mask, algorithm=sampler, **p.kwargs)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shift", [(1, -2), (-3, 0), (2, 5)])
def test_whole_offsets_shift_the_image(sampler, shift):
    x, w = whole(0, (2, 6, 7, 4), "float32"), whole(1, (3, 3, 4, 5), "float32")
    offset = np.broadcast_to(np.tile(np.float32(shift), 9), (2, 6, 7, 18))
    got = jc.deform_conv(x, offset, w, padding=1, algorithm=sampler)
    pads = [(1 - s, 1 + s) for s in shift]
    np.testing.assert_array_equal(got, jc.conv(x, w, padding=pads))


@pytest.mark.parametrize("value", [1e6, -1e38, np.inf, np.nan])
def test_offsets_far_outside_and_not_finite_read_zero(sampler, value):
    p = PROBLEMS["3x3"]
    a, want = expected("3x3")
    a = a.cast("float32")
    # One tap of one output: what it read is missing, all else is the same.
    offset = a.offset.copy()
    offset[1, 2, 3, 2 * 4 + 1] = value
    mask = a.mask.copy()
    mask[1, 2, 3, 4] = 0
    got = run(p, a._replace(offset=offset), algorithm=sampler)
    without = run(p, a._replace(mask=mask), algorithm=sampler)
    for field in ("y", "dx", "dw"):
        np.testing.assert_array_equal(getattr(got, field), getattr(without, field))
    assert got.dmask[1, 2, 3, 4] == 0
    assert not got.doffset[1, 2, 3, 8:10].any()
    untouched = np.ones(offset.shape, bool)
    untouched[1, 2, 3, 8:10] = False
    np.testing.assert_array_equal(got.doffset[untouched], want.doffset[untouched])
    # Nor does a mask that is not finite matter there.
    nan_mask = mask.copy()
    nan_mask[1, 2, 3, 4] = np.nan
    again = run(p, a._replace(offset=offset, mask=nan_mask), algorithm=sampler)
    for field, values in got._asdict().items():
        np.testing.assert_array_equal(getattr(again, field), values)


def test_every_offset_far_outside(sampler):
    p = PROBLEMS["torchvision"]
    a = expected("torchvision")[0].cast("float32")
    a = a._replace(offset=np.full_like(a.offset, np.nan))
    got = run(p, a, algorithm=sampler)
    np.testing.assert_array_equal(got.y, np.broadcast_to(a.bias, p.y))
    for grad in (got.dx, got.doffset, got.dmask, got.dw):
        assert not grad.any()


def test_the_border_is_interpolated_with_zeros(sampler):
    x = np.full((1, 2, 2, 1), 8, "float32")
    w = np.ones((1, 1, 1, 1), "float32")
    for h, v, value in (
        (-0.75, 0, 2),
        (-1, 0, 0),
        (1.25, 1, 6),
        (2, 0, 0),
        (0, -0.5, 4),
        (1.5, 1.5, 2),
    ):
        offset = np.zeros((1, 2, 2, 2), "float32")
        offset[0, 0, 0] = h, v
        y = jc.deform_conv(x, offset, w, algorithm=sampler)
        assert y[0, 0, 0, 0] == value, (h, v)


def test_the_derivative_at_whole_numbers_is_from_the_right(platform):
    x = np.float32([3, 1, 5, 7]).reshape(1, 1, 4, 1)
    w = np.ones((1, 1, 1, 1), "float32")

    def read(v):
        offset = jnp.zeros((1, 1, 4, 2)).at[0, 0, 0, 1].set(v)
        return jc.deform_conv(x, offset, w)[0, 0, 0, 0]

    at = jnp.arange(-2.0, 5)
    want = [0, 3, -2, 4, 2, -7, 0]  # torchvision's too
    np.testing.assert_array_equal(jax.vmap(jax.grad(read))(at), want)
    forward = jax.vmap(lambda v: jax.jvp(read, (v,), (jnp.ones_like(v),))[1])
    np.testing.assert_array_equal(forward(at), want)


# --- differentiation ------------------------------------------------------------


def test_both_modes_and_orders(platform, x64):
    p = problem((1, 3, 4, 4), (2, 1, 2, 4), groups=2, offset_groups=4, padding=(1, 0))
    a = arrays(p, seed=2, exact=False, reach=1)

    @jax.jit
    def fun(x, offset, w, bias, mask):
        return jc.deform_conv(x, offset, w, bias, mask, activation="tanh", **p.kwargs)

    args = (a.x, a.offset, a.w, a.bias, a.mask)
    check_grads(fun, args, order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4)


def test_jacobians_agree(platform, x64):
    p = problem((1, 2, 3, 2), (2, 1, 2, 1), padding=0)
    a = arrays(p, seed=4, exact=False, reach=1)

    def fun(x, offset, mask):
        return jc.deform_conv(x, offset, a.w, mask=mask, **p.kwargs)

    def penalty(*args):
        return (fun(*args) ** 2).sum()

    args = (a.x, a.offset, a.mask)
    for function in (fun, jax.grad(penalty, 1)):
        forward = jax.jit(jax.jacfwd(function, (0, 1, 2)))(*args)
        reverse = jax.jit(jax.jacrev(function, (0, 1, 2)))(*args)
        for f, r in zip(forward, reverse, strict=True):
            np.testing.assert_allclose(f, r, atol=1e-10)


# --- calls ----------------------------------------------------------------------


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
        (dict(w=(3, 3, 7, 5)), (ValueError, TypeError), "feature"),
        (dict(offset_groups=3), ValueError, "divide the 8 channels of x, got 3"),
        (dict(offset_groups=0), ValueError, "positive"),
        (dict(offset_groups=1.0), TypeError, "offset_groups must be an int"),
        (dict(algorithm="cudnn"), ValueError, "unknown algorithm"),
        (dict(algorithm="implicit_gemm"), ValueError, "does not sample at offsets"),
        (dict(workspace_limit=10), ValueError, "one sample needs"),
        (dict(activation="swoosh"), ValueError, "swoosh"),
        (dict(activation=3), TypeError, "activation must be"),
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
