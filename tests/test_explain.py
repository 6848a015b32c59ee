# SPDX-License-Identifier: Apache-2.0
"""explain tells what runs; used here as a guard against silent fallbacks."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import FLOATS

import jax_convbatch as jc

NHWC = ("NHWC", "HWIO", "NHWC")
X, W = jnp.ones((8, 14, 14, 16)), jnp.ones((3, 3, 16, 32))
BIAS = jnp.ones(32)


def default(platform, hopper=True, oldest="9.0"):
    """What runs f32; `hopper` where GPUs from the `oldest` on have a kernel for it."""
    if platform == "cpu" or not hopper:
        return {"cpu": "implicit_gemm", "cuda": "cudnn"}[platform]
    capability = float(jax.devices("cuda")[0].compute_capability)
    served = capability == 9 if oldest == "9.0" else capability >= float(oldest)
    return "implicit_gemm" if served else "cudnn"


# Calls that an engine covers: none of them may go to jax.lax.
NATIVE = {
    "conv": jc.conv,
    "strided": functools.partial(jc.conv, strides=2),
    "dilated": functools.partial(jc.conv, dilation=(2, 3)),
    "input dilated": functools.partial(jc.conv, input_dilation=2, padding=1),
    "negative padding": functools.partial(jc.conv, padding=((-1, 3), (0, -2))),
    "valid": functools.partial(jc.conv, padding="VALID"),
    "same, lower": functools.partial(jc.conv, padding="SAME_LOWER"),
    "transposed": functools.partial(jc.conv_transpose, strides=2),
    "f32 result": functools.partial(jc.conv, preferred_element_type=jnp.float32),
    "precise": functools.partial(jc.conv, precision="highest"),
    "layer": functools.partial(jc.conv_bias_act, activation="gelu"),
    "general": lambda x, w: jc.conv_general_dilated(
        x, w, [1, 1], [(0, 0), (0, 0)], dimension_numbers=NHWC
    ),
    "batch groups": lambda x, w: jc.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=NHWC, batch_group_count=4
    ),
}


def engines(rows):
    return {row.engine for row in rows if row.op not in ("bgrad", "act_bgrad")}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("call", NATIVE)
def test_these_calls_and_their_gradients_run_natively(x64, platform, call, dtype):
    x, w = X.astype(dtype), W.astype(dtype)
    if call == "f32 result" and dtype == "float64":
        pytest.skip("jax.lax refuses a narrower result")
    step = jax.value_and_grad(lambda x, w: NATIVE[call](x, w).sum(), argnums=(0, 1))
    rows = jc.explain(step, x, w, platform=platform)
    assert [row.op for row in rows].count("fprop") == 1
    layer = {"act_bgrad"} if call == "layer" else set()
    assert {row.op for row in rows} == {"fprop", "dgrad", "wgrad", *layer}
    if platform == "cpu":
        assert engines(rows) == {"implicit_gemm"}
        (reason,) = {row.reason for row in rows if row.op in ("dgrad", "wgrad")}
        assert reason in {"avx512 kernels", "avx2 kernels", "portable kernels"}
    assert engines(rows) <= {"im2col_gemm", "implicit_gemm", "cudnn"}


@pytest.mark.parametrize("call", NATIVE)
def test_what_explain_says_is_what_is_lowered(call):
    text = jax.jit(NATIVE[call]).lower(X, W).as_text()
    assert "jax_convbatch_implicit_gemm_fprop" in text
    assert "stablehlo.convolution" not in text


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_up_to_three_spatial_axes_are_native(platform, rank):
    rows = jc.explain(
        jc.conv,
        jnp.ones((2, *[5] * rank, 16)),
        jnp.ones((*[3] * rank, 16, 8)),
        platform=platform,
    )
    (engine,) = (row.engine for row in rows)
    assert engine == default(platform)


def test_groups_are_native(platform):
    w = jnp.ones((3, 3, 1, 16))
    rows = jc.explain(functools.partial(jc.conv, groups=16), X, w, platform=platform)
    assert engines(rows) == {default(platform, oldest="8.0")}
    assert "groups 16" in rows[0].geometry


def shaped(*shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)


FALLBACKS = {
    "integers": (np.int32, 2, {}, "dtype int32"),
    "complex": (np.complex64, 2, {}, "dtype complex64"),
    "float8": (jnp.float8_e5m2, 2, {}, "dtype float8_e5m2"),
    "four axes": (np.float32, 4, {}, "4 spatial dimensions"),
    "by name": (np.float32, 2, {"algorithm": "xla"}, "algorithm='xla'"),
}


@pytest.mark.parametrize("call", FALLBACKS)
def test_a_fallback_has_its_reason(platform, call):
    dtype, rank, kwargs, reason = FALLBACKS[call]
    x, w = (
        shaped(2, 3, *[6] * rank, dtype=dtype),
        shaped(4, 3, *[3] * rank, dtype=dtype),
    )
    fun = functools.partial(
        jc.conv_general_dilated, window_strides=(1,) * rank, padding="SAME", **kwargs
    )
    (row,) = jc.explain(fun, x, w, platform=platform)
    assert row.engine == "xla"
    assert row.op == "fprop"
    assert reason in row.reason
    assert row.workspace_bytes == 0


def test_jax_lax_itself_is_seen(platform):
    fun = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(1,), padding="SAME"
    )
    (row,) = jc.explain(
        fun, jnp.ones((1, 2, 5)), jnp.ones((3, 2, 3)), platform=platform
    )
    assert (row.engine, row.geometry) == ("xla", "1x5x2 * 3x2x3 -> 1x5x3, pad 1")
    assert "jax.lax was called" in row.reason


def test_a_platform_without_native_code_is_the_reason():
    (row,) = jc.explain(jc.conv, X, W, platform="tpu")
    assert row.engine == "xla"
    assert "'tpu'" in row.reason
    step = jax.value_and_grad(lambda b: jc.conv(X, W, b).sum())
    rows = jc.explain(step, BIAS, platform="tpu")
    assert {row.engine for row in rows} == {"xla"}


def test_symbolic_sizes_are_the_reason(platform):
    from jax import export

    (n,) = export.symbolic_shape("n")
    (row,) = jc.explain(
        jc.conv, shaped(n, 5, 5, 2, dtype="float32"), jnp.ones((3, 3, 2, 4))
    )
    assert row.engine == "xla"
    assert row.reason == "symbolic sizes"


@pytest.mark.parametrize("algorithm", ["im2col_gemm", "per_sample"])
def test_an_engine_by_name_is_the_one_of_every_gradient(platform, algorithm):
    fun = functools.partial(jc.conv_bias_act, algorithm=algorithm)
    step = jax.value_and_grad(lambda *a: fun(*a).sum(), argnums=(0, 1, 2))
    rows = jc.explain(step, X, W, BIAS, platform=platform)
    assert engines(rows) == {algorithm}
    for row in rows:
        assert row.op == "bgrad" or row.reason.startswith("asked for by name")
    assert [r.slice for r in rows if r.op == "fprop"] == [
        1 if algorithm == "per_sample" else 8
    ]


def twice(fun):
    return lambda *args: fun(*args) + fun(*args)


@pytest.mark.parametrize(
    ("wrap", "count"),
    [
        (jax.jit, 1),
        (jax.remat, 1),
        (twice, 2),
        (lambda f: jax.jit(jax.remat(jax.jit(f))), 1),
        (
            lambda f: (
                lambda x, w: jax.lax.scan(
                    lambda c, _: (c + f(x, w), None), 0.0, None, 3
                )[0]
            ),
            1,
        ),
        (
            lambda f: (
                lambda x, w: jax.lax.fori_loop(0, 3, lambda _, c: c + f(x, w), 0.0)
            ),
            1,
        ),
        (
            lambda f: (
                lambda x, w: jax.lax.cond(True, f, lambda x, w: 2 * f(x, w), x, w)
            ),
            2,
        ),
        (lambda f: lambda x, w: jax.vmap(f, (0, None))(x[None], w), 1),
    ],
    ids=["jit", "remat", "twice", "nested", "scan", "loop", "cond", "vmap"],
)
def test_convolutions_are_found_inside(platform, wrap, count):
    fun = wrap(lambda x, w: jc.conv_bias_act(x, w, activation="relu").sum())
    rows = jc.explain(fun, X, W, platform=platform)
    assert [row.engine for row in rows] == [default(platform)] * count


def test_the_backward_rule_of_the_layer_shows(platform):
    step = jax.value_and_grad(
        lambda *a: jc.conv_bias_act(*a, activation="tanh").sum(), argnums=(0, 1, 2)
    )
    rows = jc.explain(jax.jit(step), X, W, BIAS, platform=platform)
    assert rows[0].op == "fprop"
    assert sorted(row.op for row in rows) == ["act_bgrad", "dgrad", "fprop", "wgrad"]
    one_pass = next(row for row in rows if row.op == "act_bgrad")
    assert one_pass.engine == "kernel"
    assert one_pass.reason == "derivative of tanh, sum in fixed chunks"


def test_what_follows_the_convolution_shows(platform):
    y = jax.eval_shape(jc.conv, X, W)
    fun = functools.partial(jc.conv_bias_act, algorithm="im2col_gemm")
    (row,) = jc.explain(
        lambda x, w, b, r: fun(x, w, b, scale=b, residual=r, activation="silu"),
        *(X, W, BIAS, y),
        platform=platform,
    )
    assert row.reason.endswith("scale, bias, residual, silu in one pass over y")
    (row,) = jc.explain(
        functools.partial(fun, activation=jax.nn.softplus), X, W, platform=platform
    )
    assert row.reason.endswith("softplus is a Python function, outside the kernel")


def test_gradients_that_nobody_asks_for_do_not_show(platform):
    rows = jc.explain(
        jax.value_and_grad(lambda w: jc.conv_bias_act(X, w).sum()), W, platform=platform
    )
    assert "wgrad" in {row.op for row in rows}


@pytest.mark.parametrize("limit", [None, 1_000_000, 300_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_workspace_bytes_are_those_of_the_lowered_buffer(engine, dtype, limit):
    x, w, bias = (a.astype(dtype) for a in (X, W, BIAS))
    fun = functools.partial(jc.conv_bias_act, algorithm=engine, workspace_limit=limit)
    step = jax.value_and_grad(lambda *a: fun(*a).sum(), argnums=(0, 1, 2))
    rows = jc.explain(step, x, w, bias)
    text = jax.jit(step).lower(x, w, bias).as_text()
    calls = re.findall(
        r"custom_call @jax_convbatch_(?:\w+_)?(fprop|dgrad|wgrad|bgrad)(?:_act)?\("
        r".*tensor<(\d+)xui8>\)",
        text,
    )
    lowered = {op: int(size) for op, size in calls}
    assert lowered == {row.op: row.workspace_bytes for row in rows if row.op in lowered}
    assert {"dgrad", "wgrad", "bgrad"} <= lowered.keys()
    for row in rows:
        assert limit is None or row.op == "bgrad" or row.workspace_bytes <= limit


def test_no_workspace_where_the_filter_is_pointwise():
    conv = functools.partial(jc.conv, algorithm="im2col_gemm")
    (row,) = jc.explain(conv, X, jnp.ones((1, 1, 16, 8)))
    assert row.workspace_bytes == 0
    assert row.slice == 8


HEADINGS = (
    *("op", "geometry", "dtype", "engine", "by"),
    *("slice", "workspace", "reason"),
)


def test_it_prints_as_a_table(platform):
    fun = functools.partial(jc.conv_bias_act, strides=2)
    step = jax.value_and_grad(lambda *a: fun(*a).sum(), argnums=(1, 2))
    rows = jc.explain(step, X, W, BIAS, platform=platform)
    lines = str(rows).splitlines()
    assert lines[0].split() == list(HEADINGS)
    assert len(lines) == len(rows) + 2
    for line, row in zip(lines[2:], rows, strict=True):
        assert line.startswith(row.op)
        assert row.geometry in line
        assert row.engine in line
        assert row.reason in line
    assert "8x14x14x16 * 3x3x16x32 -> 8x7x7x32, stride 2" in lines[2]
    assert repr(rows) == str(rows)


def test_without_convolutions_it_says_so():
    assert str(jc.explain(jnp.sin, 1.0)) == "no convolutions"


@pytest.mark.parametrize("call", NATIVE)
def test_flops_are_those_that_xla_counts(monkeypatch, call):
    fun = NATIVE[call]
    (row,) = rows = jc.explain(fun, X, W)
    with jax.default_device(jax.devices("cpu")[0]), monkeypatch.context() as m:
        for name in ("conv", "layer"):
            module = sys.modules[f"jax_convbatch._api.{name}"]
            m.setattr(module, "resolve", lambda *_, **__: "XLA is to count")
        alone = functools.partial(fun, activation=None) if call == "layer" else fun
        assert rows.flops == row.flops == jc.explain(fun, X, W).flops
        fresh = jax.jit(lambda *arrays: alone(*arrays))  # not traced by another test
        assert rows.flops == fresh.lower(X, W).cost_analysis()["flops"]


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_gradients_and_layers_have_the_flops_of_their_convolutions(groups):
    w = jnp.ones((3, 3, 16 // groups, 32))

    def loss(x, w, bias):
        return jc.conv_bias_act(
            *(x, w, bias), activation="relu", strides=2, groups=groups
        ).sum()

    forward = jc.explain(loss, X, w, BIAS).flops
    rows = jc.explain(jax.grad(loss, argnums=(0, 1, 2)), X, w, BIAS)
    assert rows.flops == 3 * forward > 0
    offset = jnp.zeros((8, 14, 14, 18))
    deform = functools.partial(jc.deform_conv, padding=1)
    assert jc.explain(deform, X, offset, W).flops == 2 * 8 * 14 * 14 * 9 * 16 * 32


def test_it_takes_keyword_arguments_and_shapes_and_runs_nothing():
    calls = []

    def fun(x, *, w):
        jax.debug.callback(lambda: calls.append(1))
        return jc.conv(x, w, algorithm="im2col_gemm")

    huge = shaped(1 << 20, 1024, 1024, 16, dtype="float32")
    (row,) = jc.explain(fun, huge, w=shaped(3, 3, 16, 32, dtype="float32"))
    assert row.slice == 1
    assert not calls


def test_what_is_no_array_reaches_the_function_as_it_is():
    (row,) = jc.explain(jc.conv, X, w=W, strides=2, padding="VALID")
    assert row.geometry == "8x14x14x16 * 3x3x16x32 -> 8x6x6x32, stride 2"

    def fun(parameters, x, mode):
        assert isinstance(parameters["scale"], float)
        return jc.conv(x, parameters["w"]) * parameters["scale"] if mode == "on" else x

    parameters = {"w": W, "scale": 2.0}
    assert len(jc.explain(fun, parameters, X, mode="on")) == 1
    assert len(jc.explain(fun, parameters, X, mode="off")) == 0


def test_random_keys_do_not_disturb_it():
    """NumPy does not know their dtype."""

    def dropout(key, x, w):
        y = jc.conv(x, w)
        return jnp.where(jax.random.bernoulli(key, 0.5, y.shape), y, 0)

    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert [row.op for row in jc.explain(dropout, key, X, W)] == ["fprop"]


@pytest.mark.parametrize("look", [jc.explain, jc.tune])
def test_a_result_in_the_place_of_a_function_is_refused(look):
    result = jc.conv(jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 2)))
    with pytest.raises(TypeError, match=r"must be a function.*, not \(fn\(x\)\)"):
        look(result)


def test_jaxs_other_name_for_cuda():
    def rows(platform):
        return jc.explain(jc.conv, X, W, platform=platform)

    assert rows("gpu") == rows("cuda")


def test_an_engine_that_cannot_is_refused():
    with pytest.raises(ValueError, match="no native code for platform 'tpu'"):
        jc.explain(
            functools.partial(jc.conv, algorithm="per_sample"), X, W, platform="tpu"
        )


def test_what_nobody_reads_has_no_row(platform):
    def wgrad_alone(x, w):
        y, pullback = jax.vjp(jc.conv, x, w)
        return pullback(y)[1]

    rows = jc.explain(wgrad_alone, X, W, platform=platform)
    assert [row.op for row in rows] == ["fprop", "wgrad"]
