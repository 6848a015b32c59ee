# SPDX-License-Identifier: Apache-2.0
"""dx of patches as a product (`_plans/patches.py`)."""

import functools
from dataclasses import replace

import fake_gpus
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import exact, layer, normal, of_one_group, problems, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_as_by_columns,
    assert_right_but_for_rounding,
    params_of,
)

import jax_convbatch as jc
from jax_convbatch._plans import patches, planners
from jax_convbatch._plans.kinds import InXla
from jax_convbatch._plans.params import OPS
from jax_convbatch._select import choices
from jax_convbatch._select.plan import configs, make_plan, plan_of


def patched(n, size, c, k, taps):
    """Filters as large as their steps, without padding."""
    case = layer(n, size, c, k, taps, ((0, 0),) * len(size))
    return case._replace(conv=case.conv._replace(strides=taps))


CASES = {
    "colours": patched(3, (32, 48), 3, 64, (16, 16)),
    "small": patched(2, (12, 20), 3, 48, (4, 4)),
    "odd rows": patched(2, (28, 42), 3, 40, (14, 14)),
    "frames": patched(2, (4, 8, 12), 1, 32, (2, 4, 4)),
    "a sequence": patched(3, (240,), 2, 24, (8,)),
    "a rest": patched(2, (13, 19), 3, 16, (4, 4)),
}
each_case = pytest.mark.parametrize("name", CASES)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])


def geometry_of(case):
    x, w, _ = arrays(case, whole, "float32")
    return params_of(case, case.user("x", x), case.user("w", w)).geometry


@each_case
@each_dtype
def test_dgrad_of_few_channels_is_one(native, monkeypatch, name, dtype):
    fake_gpus.on(monkeypatch, "9.0")
    g = geometry_of(CASES[name])
    plan = make_plan("dgrad", g, dtype, dtype, "cuda", "implicit_gemm")
    assert "patches by a product" in plan.reason
    assert configs("implicit_gemm", "dgrad", g, dtype, "cuda") == [""]
    for other in (
        dict(pad=(0, 0, 1)),
        dict(S=g.S + 1, W=g.W + 1),
        dict(W=g.Q * g.S - 1),
    ):
        assert patches.geometry(g._replace(**other)) is None
    for op in ("fprop", "wgrad"):
        plan = make_plan(op, g, dtype, dtype, "cuda")
        assert "patches by a product" not in plan.reason


@settings(deadline=None, max_examples=60)
@given(problems(ranks=(1, 2, 3), empty=False, wide=False), st.booleans())
def test_it_is_the_same_gradient(drawn, channels_first):
    case = of_one_group(drawn, channels_first)
    taps = case.w[:-2]
    conv = case.conv._replace(
        strides=taps,
        padding=((0, 0),) * len(taps),
        input_dilation=(1,) * len(taps),
        filter_dilation=(1,) * len(taps),
    )
    size = [max(n, t) for n, t in zip(case.x[1:-1], taps, strict=True)]
    case = case._replace(conv=conv, x=(case.x[0], *size, case.x[-1]))
    x, w, dy = arrays(case, whole, "float32")
    params = params_of(case, case.user("x", x), case.user("w", w))
    if patches.geometry(params.geometry) is None:
        assert set(taps) == {1}
        return
    plan = patches.OfPatches("implicit_gemm", "", of=InXla())
    operands = jnp.asarray(case.user("y", dy)), jnp.asarray(case.user("w", w))
    dx = plan.run(OPS["dgrad"], *operands, params, jnp.dtype("float32"))
    want = exact(case, x, w, dy)[1]
    np.testing.assert_array_equal(case.canonical("x", dx), want)


def test_what_was_tuned_before_is_a_product(native, monkeypatch):
    """The bits of a sample do not depend on which batches have a configuration."""
    fake_gpus.on(monkeypatch, "9.0")
    choice = choices.Choice("implicit_gemm", "64x64", "tuned")
    monkeypatch.setattr(choices, "measured", lambda *_: (choice,))
    g = geometry_of(CASES["small"])
    chosen = make_plan("dgrad", g, "bfloat16", "bfloat16", "cuda", "auto")
    assert "patches by a product" in chosen.reason and chosen.source == "tuned"


def test_more_steps_than_tma_takes_are_one(native, monkeypatch):
    fake_gpus.on(monkeypatch, "9.0")
    g = geometry_of(patched(2, (32, 32), 8, 64, (16, 16)))
    plan = make_plan("dgrad", g, "bfloat16", "bfloat16", "cuda", "implicit_gemm")
    assert "patches by a product" in plan.reason


@pytest.mark.parametrize("op", ["fprop", "wgrad"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_x_is_read_in_place_by_rows_of_patches(native, monkeypatch, op, dtype):
    fake_gpus.on(monkeypatch, "9.0")
    g = geometry_of(CASES["colours"])
    plan = make_plan(op, g, dtype, dtype, "cuda", "implicit_gemm")
    assert "tiles of" in plan.reason and "padded" not in plan.reason
    assert plan.workspace_bytes == 0 or op == "wgrad"


def test_the_patches_count():
    g = geometry_of(CASES["small"])
    one = planners.Problem("dgrad", g, *[jnp.dtype("float32")] * 2, "cuda")
    of = InXla("implicit_gemm", "tiles", workspace_bytes=7)
    size = planners.aligned(2 * 12 * 20 * 3, 4)
    assert patches.plan(one, lambda other: of).workspace_bytes == size + 7
    # In some batches a limit would have room for them, in others not.
    with pytest.raises(planners.Unable, match="patches under a limit"):
        patches.plan(replace(one, workspace_limit=1 << 40), lambda other: of)


@pytest.mark.gpu
@each_case
@each_dtype
def test_exact(hopper, name, dtype):
    x, w, _ = arrays(CASES[name], whole, dtype)
    params = replace(params_of(CASES[name], x, w), algorithm="implicit_gemm")
    plan = plan_of(params, "dgrad", x.dtype, x.dtype, "cuda")
    assert "patches by a product" in plan.reason
    assert_exact(CASES[name], dtype, "auto")


@pytest.mark.gpu
@each_case
def test_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "bfloat16", "auto")


@pytest.mark.gpu
def test_what_is_not_finite_stays_where_it_belongs(hopper):
    case = CASES["small"]
    x, w, dy = arrays(case, normal, "bfloat16")
    x[1, 5, 6, 0], dy[0, 1, 2, 3], dy[1, 0, 0, 0] = np.inf, np.inf, np.nan
    assert_not_finite_as_by_columns(case, x, w, dy, in_some_tap=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits(hopper, dtype):
    assert_batch_invariant(CASES["colours"], dtype, "auto")
    assert_a_hundred_runs_agree(CASES["colours"], dtype)


@pytest.mark.gpu
def test_a_layer_of_f32_is_its_convolution_bias_and_relu(hopper):
    case = CASES["colours"]
    x, w, _ = arrays(case, normal, "float32")
    bias = normal(3, case.w[-1:], "float32")
    layer_of = functools.partial(
        jc.conv_bias_act, strides=case.conv.strides, padding="VALID", activation="relu"
    )
    y = jax.jit(functools.partial(jc.conv_general_dilated, **case.kwargs))(x, w)
    got = jax.jit(layer_of)(x, w, bias)
    np.testing.assert_allclose(got, jnp.maximum(y + bias, 0), 1e-5, 1e-4)
