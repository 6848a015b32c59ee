# SPDX-License-Identifier: Apache-2.0
"""The epilogue in the tiles of implicit_gemm on Hopper: exact, the same bits always."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from fake_gpus import on
from problems import normal, whole
from promises import assert_same_bits, bits
from test_implicit_gemm import EDGES, problem

import jax_convbatch as jc
from jax_convbatch._api.canonical import resolve
from jax_convbatch._layers import act_grad, activations, fused
from jax_convbatch._native import targets
from jax_convbatch._select import plan

DTYPES = ["bfloat16", "float16", "float32"]
SAME = ((1, 1), (1, 1))
TWO = ((2, 2), (2, 2))
# Of few channels, whose path keeps strips of the image in shared memory.
STEMS = {
    "stem": problem(3, (37, 41), 3, 64, (7, 7), (2, 2), ((3, 3), (3, 3))),
    "stem of two blocks": problem(2, (30, 28), 3, 72, (3, 3), (1, 2), SAME),
    "stem of one channel": problem(3, (28, 28), 1, 16, (3, 3), (2, 2), SAME),
}
# Of channels that are rounded up in the workspace, the last a slice at a time.
PADDED = {
    ("float32", "one channel"): problem(30, (28, 28), 1, 72, (3, 3), padding=SAME),
    ("float32", "one channel to 16"): problem(5, (27, 28), 1, 16, (3, 3), padding=SAME),
    ("bfloat16", "rows"): problem(30, (9, 61), 36, 40, (3, 3), padding=SAME),
    ("float16", "slices"): problem(600, (28, 28), 36, 8, (1, 1)),
}
# Enough tiles that every block has several, whatever their shape; sums in chunks, also
# of few tiles; and one tile a block.
MANY = {
    "1x1": problem(64, (28, 28), 64, 264, (1, 1)),
    "1x1 to many channels": problem(64, (28, 28), 64, 320, (1, 1)),
    "1x1 of three boxes": problem(64, (28, 28), 136, 232, (1, 1)),
    "3x3": problem(64, (28, 28), 64, 128, (3, 3), padding=SAME),
    "windows": problem(64, (28, 29), 64, 56, (3, 3), padding=SAME),
    "windows in strips": problem(64, (28, 32), 48, 64, (3, 3), padding=SAME),
    "windows of 32 channels": problem(40, (30, 24), 32, 40, (3, 3), padding=SAME),
    "windows of 128 channels": problem(64, (28, 28), 128, 32, (3, 3), padding=SAME),
    "windows to 96 channels": problem(40, (28, 32), 32, 96, (3, 3), padding=SAME),
    "windows of 25 taps": problem(20, (35, 34), 48, 64, (5, 5), padding=TWO),
    "odd widths": problem(70, (28, 28), 80, 160, (3, 3), padding=SAME),
    "long sums": problem(300, (7, 7), 512, 136, (3, 3), padding=SAME),
    "long sums, few tiles": problem(8, (7, 7), 512, 136, (3, 3), padding=SAME),
    "one tile a block": problem(8, (14, 13), 256, 200, (3, 3), padding=SAME),
    "one tile a block of 128 channels": problem(8, (14, 14), 136, 1024, (1, 1)),
}
# Tiles of f32 alone: in bf16 and f16 these channels are rounded up in the
# workspace, by one configuration.
MANY_F32 = {
    "f32 in 160x128": problem(8, (16, 15), 132, 1284, (3, 3), padding=SAME),
    "f32 in 224x128": problem(35, (39, 40), 132, 252, (3, 3), (2, 2), SAME),
    "f32 in 224x64": problem(67, (20, 19), 68, 60, (3, 3), padding=SAME),
    "f32 in 192x64": problem(66, (20, 19), 68, 60, (3, 3), padding=SAME),
    "f32 in 160x64": problem(89, (20, 19), 68, 60, (3, 3), padding=SAME),
    "f32 in 128x64": problem(40, (30, 31), 144, 60, (1, 1)),
}
ALL = MANY | MANY_F32
# Those that have several tiles, each in the dtypes that it is for.
TILED = [
    *((name, dtype) for name in MANY for dtype in DTYPES),
    *((name, "float32") for name in MANY_F32),
]


def layer(case, activation, **options):
    conv = case.kwargs
    return functools.partial(
        jc.conv_bias_act,
        activation=activation,
        strides=conv["window_strides"],
        padding=conv["padding"],
        dilation=conv["rhs_dilation"],
        algorithm="implicit_gemm",
        **options,
    )


def operands(case, dtype, make):
    """x, w, then bias, scale and residual by name."""
    k, shapes = case.w[-1], {}
    shapes = {"bias": (k,), "scale": (k,), "residual": case.y}
    x, w = make(0, case.x, dtype), make(1, case.w, dtype)
    return x, w, {n: make(2 + i, s, dtype) for i, (n, s) in enumerate(shapes.items())}


def parameters(case, x, w):
    return resolve(
        *(x, w, None, "implicit_gemm", None),
        batch_group_count=1,
        preferred_element_type=None,
        **case.kwargs,
    ).params


# Whose paths have no epilogue of their own: a pass over y follows.
IN_A_PASS = {
    (name, dtype) for name in EDGES for dtype in DTYPES[:2] if "shared" in name
}
# Of one pixel, the taps that meet it alone.
IN_A_PASS |= {("one pixel, 3x3", dtype) for dtype in DTYPES}


def assert_fused(fun, *args, fused=True):
    row = jc.explain(fun, *args)[0]
    assert ("in the same kernel" in row.reason) == fused, row.reason


def assert_exact(case, dtype, fused=True):
    """Whole numbers: z is exact, y and what backward keeps are rounded once."""
    x, w, rest = operands(case, dtype, functools.partial(whole, most=1))
    wide = [oracle.float64(a) for a in (x, w, *rest.values())]
    c = oracle.fprop(wide[0], wide[1], case.conv)
    for present in [(), ("bias",), ("residual",), tuple(rest)]:
        given = {n: rest[n] for n in present}
        z = c
        if "scale" in present:
            z = z * wide[3]
        if "bias" in present:
            z = z + wide[2]
        if "residual" in present:
            z = z + wide[4]
        for activation in ("relu", "relu6", "identity"):
            if activation == "identity" and not present:
                continue
            fun = layer(case, activation, **given)
            assert_fused(fun, x, w, fused=fused)
            want = {"relu": (0, np.inf), "relu6": (0, 6)}.get(activation)
            y = np.clip(z, *want) if want else z
            np.testing.assert_array_equal(jax.jit(fun)(x, w), y.astype(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EDGES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(EDGES[name], dtype, (name, dtype) not in IN_A_PASS)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", STEMS)
def test_whole_numbers_are_exact_from_strips(hopper, name, dtype):
    assert_exact(STEMS[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "name"), PADDED)
def test_whole_numbers_are_exact_with_padded_channels(hopper, dtype, name):
    assert_exact(PADDED[dtype, name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "name"), [*itertools.product(DTYPES, EDGES), *PADDED]
)
def test_signs_are_those_of_y_in_every_configuration(hopper, name, dtype):
    """Bit for bit as `activations.signs_of` makes them, nan and infinities included."""
    case = PADDED.get((dtype, name)) or EDGES[name]
    x, w, rest = operands(case, dtype, functools.partial(whole, most=1))
    rest["bias"][:4] = np.nan, np.inf, -np.inf, 0
    params = parameters(case, x, w)
    geometry = params.geometry
    if not plan.plan_of(params, "fprop", dtype, dtype, "cuda").signs:
        pytest.skip("this path keeps y instead")
    for config in plan.configs("implicit_gemm", "fprop", geometry, dtype, "cuda"):
        for present in [("bias",), ("scale", "bias", "residual")]:
            fun = functools.partial(
                fused.layer_p.bind,
                params=dataclasses.replace(params, config=config),
                epilogue=fused.Epilogue(
                    "relu", **dict.fromkeys(present, True), save_signs=True
                ),
                out_dtype=np.dtype(dtype),
                out_sharding=None,
            )
            y, signs = jax.jit(fun)(x, w, *(rest[n] for n in present))
            np.testing.assert_array_equal(signs, activations.signs_of(y, 3), config)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 7, 8), (2, 31, 33, 72), (256, 14, 14, 256)])
def test_the_derivative_by_signs_is_that_by_y(hopper, shape, dtype):
    """dz in every bit; db but for rounding, since each takes turns of its own."""
    y = jax.nn.relu(normal(0, shape, dtype))
    dy = normal(1, shape, dtype)

    def alone(saved, dy):
        return act_grad.cotangent("relu", saved, dy, -1, bias=True)

    for fun in map(jax.jit, (alone, jax.vmap(alone, in_axes=1))):
        want, found = fun(y, dy), fun(activations.signs_of(y, 3), dy)
        np.testing.assert_array_equal(bits(found[0]), bits(want[0]))
        size = np.abs(oracle.float64(want[0])).sum((-3, -2))
        size = size.reshape(-1, *found[1].shape).sum(0)
        wide = 4 * float(np.finfo(np.float32).eps) * size
        rounding = float(jnp.finfo(dtype).eps) * np.abs(oracle.float64(want[1]))
        difference = np.abs(oracle.float64(found[1]) - oracle.float64(want[1]))
        assert np.all(difference <= wide + rounding)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "case", "read"),
    [
        ("bfloat16", MANY["3x3"], "uint8"),
        ("float32", MANY["3x3"], "uint8"),
        ("bfloat16", STEMS["stem"], "bfloat16"),
    ],
)
def test_backward_reads_bits_where_a_kernel_writes_them(hopper, dtype, case, read):
    x, w, rest = operands(case, dtype, normal)

    def loss(x, w, bias):
        return layer(case, "relu", bias=bias)(x, w).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(x, w, rest["bias"])
    (eqn,) = (e for e in jaxpr.eqns if str(e.primitive) == "conv_act_cotangent")
    assert eqn.invars[0].aval.dtype == read


@pytest.mark.parametrize(("name", "dtype"), TILED)
def test_the_next_test_compares_several_tiles(native, monkeypatch, name, dtype):
    """What it runs is planned without a GPU; the rule's tile is one of them."""
    monkeypatch.setattr(targets, "_gpu", lambda: targets.Gpu("H200", "9.0", 132))
    case = ALL[name]
    x, w = (jax.ShapeDtypeStruct(shape, dtype) for shape in (case.x, case.w))
    geometry = parameters(case, x, w).geometry
    names = plan.configs("implicit_gemm", "fprop", geometry, dtype, "cuda")
    assert len({*names}) == len(names) > 2
    if name in MANY_F32:
        assert name.removeprefix("f32 in ") in names


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "dtype", "activation"),
    [*((*each, "relu") for each in TILED), *((n, "bfloat16", "gelu") for n in MANY)],
)
def test_every_tile_gives_the_same_bits(hopper, name, dtype, activation):
    """Of y and z, run after run, with one operand, with all, and with y alone."""
    case = ALL[name]
    x, w, rest = operands(case, dtype, normal)
    params = parameters(case, x, w)
    names = plan.configs("implicit_gemm", "fprop", params.geometry, dtype, "cuda")
    assert len(names) > 2
    # Of those of halos one: test_halo_tiles.py has all.
    halos = [n for n in names if n.endswith("h")]
    names = [n for n in names if n not in halos[1:]]
    for *has, saves in [(0, 1, 0, True), (1, 1, 1, True), (1, 1, 0, False)]:
        operands_there = [
            a
            for a, there in zip(
                (rest["scale"], rest["bias"], rest["residual"]), has, strict=True
            )
            if there
        ]
        want = None
        for config in names:
            fun = jax.jit(
                functools.partial(
                    fused.layer_p.bind,
                    params=dataclasses.replace(params, config=config),
                    epilogue=fused.Epilogue(activation, *map(bool, has), saves),
                    out_dtype=np.dtype(dtype),
                    out_sharding=None,
                )
            )
            for _ in range(10):
                found = fun(x, w, *operands_there)
                want = found if want is None else want
                assert_same_bits(found, want, config)


def biased(activation, x, w, bias, params, config, **saves):
    """A function of nothing, compiled: y and what is saved, by that configuration."""
    run = jax.jit(
        functools.partial(
            fused.layer_p.bind,
            params=dataclasses.replace(params, config=config),
            epilogue=fused.Epilogue(activation, bias=True, **saves),
            out_dtype=x.dtype,
            out_sharding=None,
        )
    )
    return lambda: run(x, w, bias)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("name", ALL)
def test_a_bias_alone_gives_the_bits_that_it_has_beside_z(
    hopper, name, activation, dtype
):
    """In every tile, run after run: what saves nothing has a way of its own."""
    case = ALL[name]
    x, w, rest = operands(case, dtype, normal)
    params = parameters(case, x, w)
    signs = (
        activation == "relu"
        and plan.plan_of(params, "fprop", dtype, dtype, "cuda").signs
    )
    for config in plan.configs(
        "implicit_gemm", "fprop", params.geometry, dtype, "cuda"
    ):
        compiled = functools.partial(
            biased, activation, x, w, rest["bias"], params, config
        )
        want = compiled(save_input=True)()[0]
        alone, with_signs = compiled(), compiled(save_signs=True)
        for _ in range(5):
            assert_same_bits(alone()[0], want, config)
            if signs:
                y, found = with_signs()
                right = activations.signs_of(y, 3)
                assert_same_bits((y, found), (want, right), config)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_has_the_same_bits_in_every_batch(hopper, dtype):
    case = problem(256, (9, 11), 64, 136, (3, 3), padding=SAME)
    x, w, rest = operands(case, dtype, normal)
    residual = rest.pop("residual")

    @jax.jit
    def step(x, residual):
        y, pullback = jax.vjp(
            lambda x, r: layer(case, "relu", residual=r, **rest)(x, w), x, residual
        )
        return y, *pullback(y)

    want = [bits(a) for a in step(x, residual)]
    for n in (1, 2, 3, 8, 33):
        for a, b in zip(step(x[-n:], residual[-n:]), want, strict=True):
            np.testing.assert_array_equal(bits(a), b[-n:])


def test_a_layer_has_the_tile_that_runs_it(native, monkeypatch):
    # Those of 128x192 form no epilogue, and 256x96 a plain one alone.
    on(monkeypatch, "9.0")
    x = jax.ShapeDtypeStruct((64, 32, 32, 64), "bfloat16")
    w = jax.ShapeDtypeStruct((3, 3, 64, 576), "bfloat16")
    b = jax.ShapeDtypeStruct((576,), "bfloat16")

    def reason(function, *operands):
        (row,) = jc.explain(function, *operands, platform="cuda")
        assert row.engine == "implicit_gemm"
        return row.reason

    relu = functools.partial(jc.conv_bias_act, activation="relu")
    gelu = functools.partial(jc.conv_bias_act, activation="gelu")
    assert "tiles of 128x192" in reason(jc.conv, x, w)
    plain, other = reason(relu, x, w, b), reason(gelu, x, w, b)
    assert plain.endswith("tiles of 256x96; bias, relu in the same kernel")
    assert other.endswith("bias, gelu in the same kernel")
    assert "128x192" not in other and "256x96" not in other
