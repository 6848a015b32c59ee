# SPDX-License-Identifier: Apache-2.0
"""Which engine "auto" takes on GPUs of every kind. Needs none: they are planned for."""

import functools
import re
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_gpus import DTYPES, GPUS, OPS, on, problems

import jax_convbatch as jc
from jax_convbatch import __main__
from jax_convbatch._layers import channel_sums
from jax_convbatch._native import targets
from jax_convbatch._plans import one_output, tf32x3
from jax_convbatch._plans.planners import Unable
from jax_convbatch._primitives import bias
from jax_convbatch._select import cudnn, implicit_cuda, plan, rule_line, rules
from jax_convbatch._select.rule_table import CUDA

OLD, *SERVED = GPUS
ANYWHERE = r"\b(direct|sequence|true f32) tiles of "  # kernels from 8.0 on
NOT_HOPPER = [capability for capability in SERVED if capability != "9.0"]
each_gpu = pytest.mark.parametrize("capability", GPUS)
each_served = pytest.mark.parametrize("capability", SERVED)

CUDNN_PLAN = {
    "config": "eng0",
    "workspace": 0,
    "compiled": False,
    "depends_on_batch": False,
}


@pytest.fixture
def library(monkeypatch):
    """A cuDNN that covers everything; its answer can be replaced."""
    answer = {"problem": None, "plans": [CUDNN_PLAN]}
    monkeypatch.setattr(targets, "cudnn_problem", lambda: answer["problem"])
    monkeypatch.setattr(targets, "cudnn_version", lambda: "9.19.0")
    monkeypatch.setattr(targets, "cudnn_plans", lambda *args: answer["plans"])
    return answer


@pytest.fixture
def no_kernels(monkeypatch):
    """A module in the place of the compiled one, whose implicit_gemm has no kernel."""
    module = types.SimpleNamespace(implicit_gemm_plans=lambda *args: [])
    monkeypatch.setitem(targets._natives, "cuda", targets._Native(module))


def planned(problem, algorithm="auto", precision=0):
    p = problem
    return plan.make_plan(
        *(p.op, p.geometry, p.dtype, p.out_dtype, p.platform, algorithm),
        precision=precision,
    )


def calls_of(chosen):
    """The plans of the calls that a plan is."""
    if not chosen.parts:
        return [chosen]
    return [call for part in chosen.parts for call in calls_of(part)]


def columns_beat_cudnn(problem):
    engines = rules.engines(problem)
    return engines.index("im2col_gemm") < engines.index("cudnn")


# --- the table -------------------------------------------------------------------


def test_every_line_is_whole():
    for line in CUDA:
        assert line.gpus in ("hopper", "any")
        assert line.ops and set(line.ops) <= set(OPS)
        assert len(set(line.engines)) == len(line.engines) > 0
        assert all("cuda" in plan.ENGINES[name] for name in line.engines)
        assert line.why.strip()
        # A device's part of a sharded array may be refused where the whole is not.
        assert set(line.engines) & set(plan.GENERAL_ENGINES["cuda"]), line
        assert "per_sample" not in line.engines


def test_every_line_decides_on_something(monkeypatch):
    found = set()
    for capability in SERVED:
        on(monkeypatch, capability)
        each = problems((*DTYPES, "float64"))
        found |= {
            CUDA.index(rules.line(replace(problem, precision=precision)))
            for _, problem in each
            for precision in (0, 2)
        }
    assert found == set(range(len(CUDA)))


def test_few_pixels_of_wgrad_are_those_of_the_whole_batch(monkeypatch):
    on(monkeypatch, "9.0")
    (p,) = (
        p
        for name, p in problems(("bfloat16",))
        if name == "wgrad bfloat16 diffusion_16_3x3_1280 of 8"
    )
    few, many = (
        rules.engines(replace(p, geometry=p.geometry._replace(N=n))) for n in (1, 16)
    )
    assert few == rule_line.CUDNN_FIRST
    assert many == rule_line.OURS_FIRST


def test_a_samples_engines_do_not_depend_on_its_batch(monkeypatch):
    for capability in SERVED:
        on(monkeypatch, capability)
        for name, p in problems(("bfloat16", "float32")):
            if p.op == "wgrad":
                continue
            of = {
                rules.engines(replace(p, geometry=g))
                for g in (p.geometry, p.geometry._replace(N=1))
            }
            assert len(of) == 1, name


@each_served
def test_nor_does_what_they_cover(native, library, monkeypatch, capability):
    on(monkeypatch, capability)
    for name, p in problems(("bfloat16", "float32")):
        if p.op != "wgrad":
            one = replace(p, geometry=p.geometry._replace(N=1))
            assert planned(one).engine == planned(p).engine, name


def test_platforms_without_lines_of_their_own():
    _, problem = next(problems())
    for platform in ("rocm", "tpu", "METAL"):
        other = replace(problem, platform=platform)
        assert rules.engines(other) == ()
        assert planned(other).engine == "xla"
        for name in plan.ENGINES:
            with pytest.raises(ValueError, match=platform):
                planned(other, name)
    cpu = rules.engines(replace(problem, platform="cpu"))
    assert all("cpu" in plan.ENGINES[name] for name in cpu)


# --- what auto takes, by the kernels that were compiled ---------------------------


@each_served
def test_auto_takes_a_kernel_made_for_it(native, library, monkeypatch, capability):
    """Never columns, but where measurements put them before cuDNN; nor what does not
    run."""
    on(monkeypatch, capability)
    taken = set()
    for name, problem in problems():
        chosen = planned(problem)
        assert chosen.engine in rules.engines(problem), name
        assert chosen.engine != "per_sample", name
        if chosen.engine == "im2col_gemm":
            assert columns_beat_cudnn(problem), (name, chosen.reason)
        taken.add(chosen.engine)
        if chosen.engine == "implicit_gemm" and capability != "9.0":
            for call in calls_of(chosen):
                assert re.search(ANYWHERE, call.reason), name
    assert "cudnn" in taken or capability == "9.0"
    assert "implicit_gemm" in taken


@each_served
def test_a_wider_result_is_no_reason_for_columns(
    native, library, monkeypatch, capability
):
    on(monkeypatch, capability)
    wide = np.dtype("float32")
    for name, p in problems(("bfloat16", "float16")):
        if p.op == "fprop":
            chosen = planned(replace(p, out_dtype=wide))
            columns = columns_beat_cudnn(p)
            assert chosen.engine == "cudnn" or columns, name


@each_served
def test_precise_f32_is_multiplied_as_columns_where_these_are_faster(
    native, library, monkeypatch, capability
):
    on(monkeypatch, capability)
    for name, problem in problems(("float32",)):
        for precision in (1, 2):
            chosen = planned(problem, precision=precision)
            columns = columns_beat_cudnn(replace(problem, precision=precision))
            assert chosen.engine != "im2col_gemm" or columns, name


@each_gpu
def test_kernels_are_planned_where_they_were_compiled_for(
    native, library, monkeypatch, capability
):
    """Of implicit_gemm by name: Hopper's on Hopper alone, the others from 8.0 on."""
    on(monkeypatch, capability)
    found = {"direct": 0, "sequence": 0, "true f32": 0, "hopper": 0}
    for _, problem in problems():
        for precision in (0, 2) if problem.dtype.itemsize == 4 else (0,):
            precise = replace(problem, precision=precision)
            try:
                calls = calls_of(implicit_cuda.planned(precise))
            except Unable:
                continue
            for call in calls:
                kinds = re.findall(ANYWHERE, call.reason)
                found[kinds[0] if kinds else "hopper"] += 1
    assert (found["hopper"] > 0) == (capability == "9.0")
    for kind in ("direct", "sequence", "true f32"):
        assert (found[kind] > 0) == (capability != OLD)


@pytest.mark.parametrize("capability", NOT_HOPPER)
def test_hopper_kernels_by_name_are_refused_elsewhere(native, monkeypatch, capability):
    on(monkeypatch, capability)
    refused = 0
    for name, problem in problems(("bfloat16",)):
        if problem.geometry.groups == 1:
            with pytest.raises(ValueError, match=re.escape(capability)) as error:
                planned(problem, "implicit_gemm")
            assert "Hopper" in str(error.value), name
            refused += 1
    assert refused


# --- GPUs that nothing was compiled for --------------------------------------------


def shown(fn, *args):
    """What `fn` is lowered to on CUDA."""
    jax.clear_caches()  # a process has but one GPU, usually
    return jax.jit(fn).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def _layer(x, w, b):
    return jc.conv_bias_act(x, w, b, activation="relu")


X, W = jnp.ones((2, 6, 6, 8), "bfloat16"), jnp.ones((3, 3, 8, 8), "bfloat16")
B, OFFSET = jnp.ones(8, "bfloat16"), jnp.zeros((2, 6, 6, 18), "bfloat16")


def gradients(fn):
    def run(*args):
        y, pullback = jax.vjp(fn, *args)
        return pullback(y)

    return run


def _normalized(x, scale):
    return channel_sums.normalized(x, scale, scale, 1e-5)[0]


CALLS = {
    "conv": (gradients(jc.conv), (X, W)),
    "depthwise": (
        gradients(functools.partial(jc.conv, groups=8)),
        (X, W[:, :, :1]),
    ),
    "transposed": (gradients(functools.partial(jc.conv_transpose, strides=2)), (X, W)),
    "layer": (gradients(_layer), (X, W, B)),
    "deformable": (gradients(jc.deform_conv), (X, OFFSET, W)),
    "bias gradient": (lambda x: bias.bias_grad(x, -1), (X,)),
    "norm": (gradients(_normalized), (X, jnp.ones(8))),
}


@pytest.mark.parametrize("name", CALLS)
def test_on_older_gpus_all_is_jax_lax(no_kernels, library, monkeypatch, name):
    fn, args = CALLS[name]
    monkeypatch.setattr(targets, "default_platform", lambda: "cuda")
    on(monkeypatch, "8.0")
    assert "jax_convbatch" in shown(fn, *args)
    on(monkeypatch, OLD)
    assert "jax_convbatch" not in shown(fn, *args)
    for row in jc.explain(fn, *args, platform="cuda"):
        assert row.engine == "xla"
        assert "Tesla T4 has 7.5" in row.reason


def test_on_older_gpus_nothing_runs_by_name(no_kernels, library, monkeypatch):
    on(monkeypatch, OLD)
    assert bias.native_reason("float32", "cuda") == targets.problem("cuda")
    for dtype in (*DTYPES, "float64"):
        for _, problem in problems((dtype,)):
            assert planned(problem).engine == "xla"
            break
        for name in plan.ENGINES:
            with pytest.raises(ValueError, match=r"Tesla T4 has 7\.5"):
                planned(problem, name)
    deform = functools.partial(jc.deform_conv, algorithm="im2col_gemm")
    with pytest.raises(ValueError, match=r"Tesla T4 has 7\.5"):
        jc.explain(deform, X, OFFSET, W, platform="cuda")


# --- without cuDNN -----------------------------------------------------------------

MISSING = "libcudnn.so.9: cannot open shared object file"


def assert_next_is_taken(text):
    """Of the engines besides implicit_gemm, which has no kernel here."""
    reached = 0
    for name, problem in problems():
        names = [n for n in rules.engines(problem) if n != "implicit_gemm"]
        with pytest.raises(ValueError, match=re.escape(text)):
            planned(problem, "cudnn")
        # A sum in XLA needs no kernel.
        if names[0] == "cudnn" and not one_output.covers(problem):
            chosen = planned(problem)
            assert chosen.engine == names[1], name
            assert f"cudnn does not cover this: {text}" in chosen.reason, name
            reached += 1
    assert reached


def reasons(fn=jc.conv):
    """What `explain` says of cudnn, or of what is taken in its place."""
    (row,) = jc.explain(fn, X, W, platform="cuda")
    return row.reason


def always_cudnn_first(monkeypatch):
    monkeypatch.setattr(rules, "engines", lambda _: ("cudnn", "im2col_gemm"))


@each_served
def test_without_the_library_the_next_engine_is_taken(
    no_kernels, library, monkeypatch, capability
):
    on(monkeypatch, capability)
    library["problem"] = MISSING
    assert_next_is_taken(MISSING)
    always_cudnn_first(monkeypatch)
    assert MISSING in reasons()


@each_served
def test_what_it_refuses_the_next_engine_takes(
    no_kernels, library, monkeypatch, capability
):
    on(monkeypatch, capability)
    library["plans"] = "cuDNN has no deterministic engine for it"
    assert_next_is_taken(library["plans"])
    always_cudnn_first(monkeypatch)
    assert library["plans"] in reasons()


def test_bits_that_may_depend_on_the_batch_are_said(no_kernels, library, monkeypatch):
    on(monkeypatch, "8.0")
    always_cudnn_first(monkeypatch)
    by_name = functools.partial(jc.conv, algorithm="cudnn")
    said = "bits may depend on the batch"
    assert "cuDNN 9.19.0, eng0" in reasons() and said not in reasons()
    assert "cuDNN 9.19.0, eng0" in reasons(by_name) and said not in reasons(by_name)
    library["plans"] = [CUDNN_PLAN | {"depends_on_batch": True}]
    assert said in reasons() and said in reasons(by_name)


def test_the_command_line_says_why_there_is_no_cudnn(library, capsys):
    library["problem"] = MISSING
    __main__.main()
    lines = capsys.readouterr().out.splitlines()
    assert f"  {'cudnn':<14} {MISSING}" in lines


# --- what cuDNN is asked -----------------------------------------------------------


def test_parts_of_f32_never_lie_in_other_groups(no_kernels, library, monkeypatch):
    on(monkeypatch, "8.0")
    for name, problem in problems(("float32",)):
        high = replace(problem, precision=1)
        three = isinstance(cudnn.planned(high), tf32x3.ThreeProducts)
        assert three == (problem.geometry.groups == 1), name


def test_a_limit_of_workspace_reaches_it(no_kernels, library, monkeypatch):
    on(monkeypatch, "8.0")
    asked = []
    monkeypatch.setattr(
        targets, "cudnn_plans", lambda *args: asked.append(args[6:]) or [CUDNN_PLAN]
    )
    _, problem = next(problems())
    for limit in (None, 0, 1 << 20):
        cudnn.planned(replace(problem, workspace_limit=limit))
    assert asked == [(256 << 20, 1), (0, 1), (1 << 20, 1)]
