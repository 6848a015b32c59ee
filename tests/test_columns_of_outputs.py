# SPDX-License-Identifier: Apache-2.0
"""im2col_gemm of many inputs to few outputs: columns of y, as the mirrored dgrad."""

import functools
import types
from dataclasses import replace

import fake_gpus
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from jax import export
from problems import exact, layer, normal, problems, run, whole
from promises import (
    arrays,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
    bits,
    params_of,
)

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._plans import columns, dual, padded, planners
from jax_convbatch._plans.kinds import OneCall
from jax_convbatch._plans.params import OPS
from jax_convbatch._select import rules
from jax_convbatch._select.plan import make_plan, plan_of
from jax_convbatch._tune import tune

ONE = (1, 1)
CASES = {
    "3x3": layer(5, (9, 8), 320, 4, (3, 3), (ONE, ONE)),
    # Padded with outputs of zeros.
    "three outputs": layer(5, (9, 8), 320, 3, (3, 3), (ONE, ONE)),
    "one output": layer(5, (7, 10), 32, 1, (3, 3), (ONE, ONE)),
    "five outputs": layer(5, (8, 6), 72, 5, (3, 3), (ONE, ONE)),
    "eight outputs": layer(5, (6, 6), 64, 8, (5, 3), ((2, 2), ONE)),
    "1-D": layer(5, (40,), 48, 3, (7,), ((3, 3),)),
    "3-D": layer(5, (4, 5, 6), 64, 3, (3, 3, 3), (ONE, ONE, ONE)),
    "asymmetric": layer(5, (9, 7), 40, 3, (4, 2), ((3, 0), (0, 2))),
    "negative padding": layer(5, (11, 9), 40, 3, (3, 3), ((-1, 2), (0, -2))),
    "dilated filter": layer(5, (12, 9), 33, 5, (3, 3), ((2, 2), (1, 3)), 2),
    "dilated x": layer(5, (5, 6), 40, 8, (4, 4), ((2, 2), (1, 2)), 1, 2),
}
each_case = pytest.mark.parametrize("name", CASES)
by_columns = functools.partial(columns.columns, "im2col_gemm")


def geometry(name):
    case = CASES[name]
    return params_of(case, *arrays(case, whole, "float32")[:2]).geometry


def problem(name, op="fprop", dtype="bfloat16", **changes):
    dtype = jnp.dtype(dtype)
    of = planners.Problem(op, geometry(name), dtype, dtype, "cuda")
    return replace(of, **changes)


@pytest.fixture
def gpu(monkeypatch):
    """An H200 to plan for, with neither cuDNN nor a kernel of implicit_gemm."""
    fake_gpus.on(monkeypatch, "9.0")
    module = types.SimpleNamespace(
        implicit_gemm_plans=lambda *args: [],
        targets=targets._natives["cpu"].module.targets,
    )
    monkeypatch.setitem(targets._natives, "cuda", targets._Native(module))
    monkeypatch.setattr(targets, "cudnn_problem", lambda: "it is not there")


# --- geometry and values -----------------------------------------------------------


@each_case
def test_the_mirrored_convolution_has_the_same_products(name):
    g = geometry(name)
    turned = dual.turned(g)
    assert (turned.inputs, turned.outputs) == (g.outputs, g.inputs)
    assert (turned.C, turned.K) == (g.K, g.C)
    assert turned.stride == g.input_dilation
    assert turned.flops == g.flops
    if g.input_dilation == (1, 1, 1):
        assert dual.turned(turned) == g
        assert dual.geometry(g) is None  # the other engines take it as it is


def on_the_cpu(chosen, params, op, dtype):
    """The same plan with the CPU's code for the operation that it is made of."""
    if isinstance(chosen, padded.OfCopies):
        copied = padded.geometry(params.geometry, chosen.wanted)
        of = on_the_cpu(chosen.of, replace(params, geometry=copied), op, dtype)
        return replace(chosen, of=of)
    other, its = dual.other_params(params), dual.OPS[op][0]
    return replace(chosen, of=plan_of(other, its, dtype, dtype, "cpu"))


@settings(max_examples=40)
@given(case=problems(ranks=(1, 2, 3), empty=False))
def test_the_sums_are_the_same(case):
    ones = (1,) * case.conv.rank
    case = case._replace(conv=case.conv._replace(strides=ones))
    assume(case.conv.groups == 1 and np.prod(case.y) > 0)
    x, w, dy = arrays(case, whole, "float32")
    right = dict(zip("yxw", exact(case, x, w, dy), strict=True))
    given_ = {role: case.user(role, a) for role, a in {"x": x, "w": w, "y": dy}.items()}
    params = params_of(case, given_["x"], given_["w"])
    for op in (OPS["fprop"], OPS["wgrad"]):
        chosen = dual.Strided("im2col_gemm", "", of=OneCall("im2col_gemm", ""))
        chosen = on_the_cpu(chosen, params, op.name, "float32")
        call = functools.partial(
            chosen.run, op, params=params, out_dtype=np.dtype("float32")
        )
        got = jax.jit(call)(*(given_[role] for role in op.operands))
        np.testing.assert_array_equal(case.canonical(op.result, got), right[op.result])


@each_case
@pytest.mark.parametrize("op", ["fprop", "wgrad"])
def test_what_is_planned_gives_the_same_numbers(gpu, op, name):
    case = CASES[name]
    x, w, dy = arrays(case, functools.partial(whole, most=1), "bfloat16")
    right = dict(zip("yxw", exact(case, x, w, dy), strict=True))
    params = params_of(case, x, w)
    dtype = np.dtype(x.dtype)
    chosen = make_plan(op, params.geometry, dtype, dtype, "cuda", "im2col_gemm")
    # Of an odd number of outputs with zeros beside them, where x is not copied then.
    turned = chosen
    if params.geometry.K % 2 == 1 and name not in (
        "dilated filter",
        "negative padding",
    ):
        turned = chosen.of
        assert isinstance(chosen, padded.OfCopies)
    assert isinstance(turned, dual.Strided)
    chosen = on_the_cpu(chosen, params, op, dtype)
    operands = {"x": x, "w": w, "y": dy}
    a, b = (jnp.asarray(operands[role]) for role in OPS[op].operands)
    got = chosen.run(OPS[op], a, b, params, dtype)
    want = right[OPS[op].result].astype(dtype)
    np.testing.assert_array_equal(got, want)


# --- where, and with how much memory -----------------------------------------------


@each_case
def test_where_columns_of_outputs_are_smaller(name):
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        fprop = columns.columns_of_outputs(problem(name, dtype=dtype))
        assert fprop == problem(
            name, "dgrad", dtype, geometry=dual.turned(geometry(name))
        )
        wgrad = columns.columns_of_outputs(problem(name, "wgrad", dtype))
        assert wgrad == replace(fprop, op="wgrad")
        assert columns.columns_of_outputs(problem(name, "dgrad", dtype)) is None


@pytest.mark.parametrize(
    "changes",
    [
        dict(T=1, R=1, S=1, P=11, Q=10),
        dict(stride=(1, 1, 2), Q=4),
        dict(groups=5),
        dict(C=3),
        dict(C=2),
        dict(H=900, W=900, pad=(0, -400, -400)),  # most of x is not read
    ],
)
@pytest.mark.parametrize("op", ["fprop", "wgrad"])
def test_where_they_are_not(op, changes):
    of = problem("3x3", op, "float32")
    assert columns.columns_of_outputs(of)
    of = replace(of, geometry=of.geometry._replace(**changes))
    assert columns.columns_of_outputs(of) is None


def test_other_platforms_and_wider_results_unroll_inputs():
    of = problem("3x3")
    assert columns.columns_of_outputs(replace(of, platform="cpu")) is None
    wide = replace(of, out_dtype=np.dtype("float32"))
    assert columns.columns_of_outputs(wide) is None
    assert isinstance(by_columns(wide), OneCall)


def test_the_columns_of_dgrad_are_in_f32():
    g = geometry("3x3")
    for c, fprop in ((8, False), (9, True)):
        of = problem("3x3", geometry=g._replace(C=c))  # 4 outputs of 4 bytes
        assert (columns.columns_of_outputs(of) is not None) == fprop
        assert columns.columns_of_outputs(replace(of, op="wgrad"))


def test_a_sample_runs_the_same_way_in_every_batch():
    found = set()
    for name, of in fake_gpus.problems(("bfloat16", "float32")):
        whole_batch = columns.columns_of_outputs(of)
        one = replace(of, geometry=of.geometry._replace(N=1))
        assert (columns.columns_of_outputs(one) is None) == (whole_batch is None), name
        found.add((of.op, whole_batch is None))
    assert found == {
        *(("fprop", turned) for turned in (False, True)),
        *(("wgrad", turned) for turned in (False, True)),
        ("dgrad", True),
    }


def test_the_limit_counts_columns_of_outputs():
    of = problem("3x3")
    one = planners.aligned(9 * 8 * 9 * 4, 4)
    chosen = by_columns(of)
    assert isinstance(chosen, dual.Strided) and isinstance(chosen.of, OneCall)
    assert (chosen.slice, chosen.of.slice) == (5, 5)
    assert chosen.workspace_bytes == planners.aligned(5 * 9 * 8 * 9 * 4, 4)
    assert chosen.of.workspace_bytes == chosen.workspace_bytes
    assert not chosen.epilogue
    loop = columns.columns("per_sample", of)
    assert (loop.slice, loop.workspace_bytes) == (1, one)
    least = by_columns(replace(of, workspace_limit=one))
    assert (least.slice, least.workspace_bytes) == (1, one)
    some = by_columns(replace(of, workspace_limit=3 * one + 255))
    assert some.slice == 3 and some.workspace_bytes <= 3 * one + 255
    message = f"too small for this fprop: one sample needs {one} bytes"
    with pytest.raises(ValueError, match=message):
        by_columns(replace(of, workspace_limit=one - 1))


def test_outputs_of_zeros_need_room_for_copies():
    of = problem("three outputs")
    chosen = by_columns(of)
    copies = 5 * 9 * 8 * (3 + 4) * 2
    columns_ = planners.aligned(5 * 9 * 8 * 9 * 4, 4)
    assert isinstance(chosen, padded.OfCopies)
    assert columns_ < chosen.workspace_bytes <= columns_ + copies
    # Of fewer samples at a time; where not even one's columns fit beside, without.
    some = columns.columns(
        "im2col_gemm", replace(of, workspace_limit=chosen.workspace_bytes - 1)
    )
    assert isinstance(some, padded.OfCopies) and some.slice == 4
    assert some.workspace_bytes < chosen.workspace_bytes
    one = planners.aligned(9 * 8 * 9 * 3, 4)
    least = by_columns(replace(of, workspace_limit=one))
    assert isinstance(least, dual.Strided) and least.workspace_bytes <= one
    # Nothing is gained by columns as wide as those of x.
    few = problem("three outputs", geometry=of.geometry._replace(C=4))
    assert not isinstance(by_columns(few), padded.OfCopies)


def test_the_reason_says_so():
    for precision, arithmetic in ((0, "TF32"), (2, "in true float32")):
        of = problem("3x3", dtype="float32", precision=precision)
        reason = by_columns(of).reason
        assert arithmetic in reason
        end = "columns of outputs, as dgrad of the mirrored convolution"
        assert reason.endswith(end)


def test_auto_leaves_it_where_the_limit_has_no_room(gpu):
    case = layer(1, (64, 64), 128, 3, (3, 3), (ONE, ONE))
    params = params_of(case, *arrays(case, whole, "float32")[:2])
    of = "fprop", params.geometry, "float32", "float32", "cuda"
    plan = functools.partial(make_plan, *of)
    assert plan().engine == "im2col_gemm"
    refused = plan(workspace_limit=0)
    assert refused.engine == "xla"
    assert "im2col_gemm: workspace_limit=0 bytes is too small" in refused.reason


def test_a_wider_result_has_other_engines_first(gpu):
    case = layer(1, (64, 64), 512, 3, (3, 3), (ONE, ONE))
    params = params_of(case, *arrays(case, whole, "bfloat16")[:2])
    half, wide = np.dtype(jnp.bfloat16), np.dtype("float32")
    same = planners.Problem("fprop", params.geometry, half, half, "cuda")
    assert rules.engines(same)[0] == "im2col_gemm"
    assert rules.engines(replace(same, out_dtype=wide))[0] == "implicit_gemm"


# --- whole programs ----------------------------------------------------------------


def lowered(fun, *args):
    program = jax.jit(fun).trace(*args).lower(lowering_platforms=("cuda",))
    return program.as_text()


def shapes(name):
    case = CASES[name]
    return [jax.ShapeDtypeStruct(s, "bfloat16") for s in (case.x, case.w)]


def test_layers_transposed_axes_and_vmap_lower_to_it(gpu):
    x, w = shapes("3x3")
    bias = jax.ShapeDtypeStruct((4,), "bfloat16")
    named = dict(padding=1, algorithm="im2col_gemm")
    first = jax.ShapeDtypeStruct((5, 320, 9, 8), "bfloat16")
    filters = jax.ShapeDtypeStruct((4, 320, 3, 3), "bfloat16")
    mapped = jax.ShapeDtypeStruct((2, *x.shape), "bfloat16")
    conv = functools.partial(jc.conv, **named)
    programs = {
        "layer": (
            lambda *a: jc.conv_bias_act(*a, **named, activation="relu"),
            (x, w, bias),
        ),
        "NCHW": (
            lambda x, w: jc.conv_general_dilated(
                x, w, (1, 1), "SAME", algorithm="im2col_gemm"
            ),
            (first, filters),
        ),
        "vmap": (jax.vmap(conv, (0, None)), (mapped, w)),
    }
    for name, (fun, args) in programs.items():
        text = lowered(fun, *args)
        assert "@jax_convbatch_im2col_gemm_dgrad(" in text, name
        assert "@jax_convbatch_im2col_gemm_fprop(" not in text, name
    fun, args = programs["layer"]
    assert "@jax_convbatch_epilogue(" in lowered(fun, *args)


def test_explain_shows_what_is_lowered(gpu):
    x, w = shapes("3x3")
    conv = functools.partial(jc.conv, padding=1, algorithm="im2col_gemm")
    step = jax.grad(lambda x, w: conv(x, w).sum().astype("float32"), argnums=(0, 1))
    rows = jc.explain(lambda x, w: (conv(x, w), step(x, w)), x, w, platform="cuda")
    reasons = {row.op: row.reason for row in rows}
    for op in ("fprop", "wgrad"):
        its = dual.OPS[op][0]
        assert f"columns of outputs, as {its} of the mirrored" in reasons[op]
    assert "columns of outputs" not in reasons["dgrad"]
    fprop = next(row for row in rows if row.op == "fprop")
    assert f"tensor<{fprop.workspace_bytes}xui8>" in lowered(conv, x, w)


def test_programs_are_exported_with_it(gpu):
    conv = functools.partial(jc.conv, padding=1, algorithm="im2col_gemm")
    exported = export.export(
        jax.jit(functools.partial(conv, precision="highest")),
        platforms=["cuda"],
        disabled_checks=jc.export_checks(),
    )(*shapes("3x3"))
    assert "@jax_convbatch_im2col_gemm_dgrad(" in exported.mlir_module()


def test_tuning_measures_it(gpu):
    case = CASES["3x3"]
    params = params_of(case, *arrays(case, whole, "bfloat16")[:2])
    params = replace(params, algorithm="auto")
    ways = tune.Problem("fprop", params, "bfloat16", "bfloat16").candidates("cuda")
    assert ("im2col_gemm", "") in ways


# --- by every engine with columns, on the GPU too ----------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@each_case
def test_whole_numbers_are_exact(column_engine, name, dtype):
    assert_exact(CASES[name], dtype, algorithm=column_engine)


@each_case
def test_right_but_for_rounding(column_engine, name):
    case, engine = CASES[name], column_engine
    assert_right_but_for_rounding(case, "bfloat16", algorithm=engine)
    assert_right_but_for_rounding(
        case, "float32", algorithm=engine, precision="highest"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@each_case
def test_bits_do_not_depend_on_the_batch(column_engine, name, dtype):
    assert_batch_invariant(
        CASES[name], dtype, algorithm=column_engine, batches=(1, 256)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@each_case
def test_nor_on_slices_and_axes(column_engine, name, dtype):
    case = CASES[name]
    args = arrays(case, normal, dtype)
    want = run(case, *args, algorithm=column_engine)
    loop = run(case, *args, algorithm="per_sample")
    letters = case.specs[0][1:-1]
    first = case._replace(specs=(f"NC{letters}", f"OI{letters}", f"NC{letters}"))
    turned = run(first, *args, algorithm=column_engine)
    for a, b, c in zip(want, loop, turned, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
        np.testing.assert_array_equal(bits(a), bits(c))
