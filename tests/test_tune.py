# SPDX-License-Identifier: Apache-2.0
"""tune keeps the fastest engine and configuration, and bits stay what they were."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_choices import ONES, RULE, WB, XB, G, Native, W, X, by_op, gpu, step

import jax_convbatch as jc
from jax_convbatch._primitives import primitives
from jax_convbatch._select import rules
from jax_convbatch._shapes.geometry import ConvGeometry
from jax_convbatch._tune import tune as tuning


def test_candidates_are_every_engine_and_configuration(monkeypatch):
    gpu(monkeypatch, "NVIDIA H200", "9.0")
    (fprop,) = tuning.problems_of(jc.conv, XB, WB)
    assert fprop.candidates("cuda") == [
        ("implicit_gemm", "64x64"),
        ("implicit_gemm", "128x128"),
        ("implicit_gemm", "256x64"),
        ("im2col_gemm", ""),
    ]
    (wide,) = tuning.problems_of(
        functools.partial(jc.conv, preferred_element_type="float32"), XB, WB
    )
    assert wide.candidates("cuda") == [("im2col_gemm", "")]
    monkeypatch.setattr(Native, "preferred", False)
    assert fprop.candidates("cuda")[0] == ("im2col_gemm", "")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_candidates_begin_with_the_rules_choice(monkeypatch, dtype):
    gpu(monkeypatch, "NVIDIA A100-SXM4-80GB", "8.0")
    monkeypatch.setattr(Native, "no_cudnn", "")
    cudnn = [("cudnn", "eng1"), ("cudnn", "eng2")]
    conv = functools.partial(jc.conv, precision="highest")
    (fprop,) = tuning.problems_of(conv, XB.astype(dtype), WB.astype(dtype))
    ours = [("implicit_gemm", name) for name in ("64x64", "128x128", "256x64")]
    ours = ours if dtype == "float32" else []  # Hopper's alone
    assert fprop.candidates("cuda") == [*ours, *cudnn, ("im2col_gemm", "")]
    monkeypatch.setattr(rules, "engines", lambda _: ("cudnn", "im2col_gemm"))
    assert fprop.candidates("cuda") == [*cudnn, ("im2col_gemm", ""), *ours]


def test_a_dtype_that_cudnn_alone_has_configurations_for(monkeypatch, x64):
    gpu(monkeypatch, "NVIDIA H200", "9.0")
    monkeypatch.setattr(Native, "no_cudnn", "")
    (fprop,) = tuning.problems_of(jc.conv, X.astype("float64"), W.astype("float64"))
    cudnn = [("cudnn", "eng1"), ("cudnn", "eng2")]
    assert fprop.candidates("cuda") == [*cudnn, ("im2col_gemm", "")]


def test_tune_keeps_the_fastest_of_every_convolution(own_choices, monkeypatch):
    def times(candidates, operands):
        found = candidates.problem.candidates("cpu")
        assert list(candidates.sides()) == found
        assert found[0][0] == "implicit_gemm"
        slow = {"fprop": "implicit_gemm", "dgrad": "im2col_gemm"}
        slow = slow.get(candidates.problem.op)
        return {c: always(9.0 if c[0] == slow else 5.0) for c in found}

    monkeypatch.setattr(tuning, "measure", times)
    rows = jc.tune(step, X, W)
    assert rows.path == own_choices
    assert {row.op: row.engine for row in rows} == {
        "fprop": "im2col_gemm",
        "dgrad": "implicit_gemm",
        "wgrad": "implicit_gemm",
    }
    assert (rows[0].microseconds, rows[0].default_microseconds) == (5, 9)
    assert "fprop  2x6x5x4 * 3x3x4x8 -> 2x4x3x8" in str(rows) or "pad" in str(rows)
    assert str(own_choices) in str(rows)
    found = by_op(jc.explain(step, X, W))
    assert found == {
        "fprop": ("im2col_gemm", "tuned"),
        "dgrad": ("implicit_gemm", "tuned"),
        "wgrad": ("implicit_gemm", "tuned"),
    }


def test_tune_measures(own_choices):
    rows = jc.tune(lambda x, w: jc.conv(x, w, strides=2), X, W)
    (row,) = rows
    assert row.engine in ("implicit_gemm", "im2col_gemm")
    assert 0 < row.microseconds < 1e6
    assert own_choices.exists()


def test_tune_sees_the_convolutions_of_a_layer(own_choices, monkeypatch):
    monkeypatch.setattr(
        tuning, "measure", lambda made, _: {c: always(9) for c in made.sides()}
    )

    def loss(x, w, b):
        return jc.conv_bias_act(x, w, b, activation="gelu").sum()

    training = jax.value_and_grad(loss, argnums=(0, 1, 2))
    rows = jc.tune(training, X, W, jnp.ones(8))
    assert sorted(row.op for row in rows) == ["dgrad", "fprop", "wgrad"]
    rows = jc.explain(training, X, W, jnp.ones(8))
    sources = {row.op: row.source for row in rows}
    assert {sources[op] for op in RULE} == {"tuned"}


def test_tune_leaves_out_what_is_asked_for_by_name_and_what_is_empty(own_choices):
    named = functools.partial(jc.conv, algorithm="im2col_gemm")
    assert jc.tune(named, X, W) == ()
    assert jc.tune(jc.conv, X[:0], W) == ()
    assert jc.tune(jnp.sin, X) == ()
    assert str(jc.tune(jnp.sin, X)) == "no convolutions that could be tuned"
    assert not own_choices.exists()


def test_tune_runs_under_the_settings_of_its_caller(own_choices):
    x, w = np.ones((2, 6, 5, 4)), np.ones((3, 3, 4, 8))
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        (row,) = jc.tune(jc.conv, x, w)
    assert row.dtype == "float64"


def test_what_no_engine_runs_all_of_keeps_the_rule(own_choices, monkeypatch):
    def times(candidates, operands):
        engines = list(candidates.sides())
        limited = candidates.problem.params.workspace_limit is not None
        return {engines[-1 if limited else 0]: always(5)}

    monkeypatch.setattr(tuning, "measure", times)
    limited = functools.partial(jc.conv, workspace_limit=1 << 20)
    rows = jc.tune(lambda x, w: (jc.conv(x, w), limited(x, w)), X, W)
    assert [row.engine for row in rows] == ["implicit_gemm", "im2col_gemm"]
    assert jc.explain(jc.conv, X, W)[0].source == "rule"


def always(us):
    return tuning.Time(us, us, us)


def problem(op="fprop", n=2):
    params = tuning.ConvParams(G._replace(N=n), None)
    return tuning.Problem(op, params, "float32", "float32")


def test_one_engine_is_kept_for_all_batch_sizes_of_a_key():
    few, many = problem(n=8), problem(n=256)
    times = {
        few: {("a", "s"): always(10), ("a", "l"): always(14), ("b", ""): always(4)},
        many: {("a", "s"): always(90), ("a", "l"): always(60), ("b", ""): always(80)},
    }
    # "s" is the rule's, and not named.
    assert tuning.fastest(times) == {few.key: {"engine": "a", "configs": {"256": "l"}}}
    times[many]["b", ""] = always(60)
    assert tuning.fastest(times) == {few.key: {"engine": "b", "configs": {}}}
    del times[many]["b", ""]
    assert tuning.fastest(times)[few.key]["engine"] == "a"
    apart = {problem("wgrad", n): each for n, each in ((8, times[few]),)}
    assert tuning.fastest(apart) == {
        problem("wgrad", 8).key: {"engine": "b", "configs": {}}
    }


@pytest.mark.parametrize(
    ("rule", "other", "moves"),
    [
        ([10, 10, 10], [9.9, 9.9, 9.9], False),  # by less than noise
        ([10, 10, 10], [9, 9, 9], True),
        ([10, 10.2, 11], [8, 9, 9.9], True),
        ([10, 10.2, 11], [8, 9, 40], True),  # something else disturbed one
        ([10, 10.2, 11], [8, 10.1, 10.1], False),  # by less than they vary
        ([8.9, 10, 10], [9, 9, 9], False),
    ],
)
def test_noise_does_not_move_a_choice(rule, other, moves):
    one = problem()
    times = {("a", "s"): tuning.Time.of(rule), ("a", "l"): tuning.Time.of(other)}
    configs = {"2": "l"} if moves else {}
    assert tuning.fastest({one: times})[one.key] == {"engine": "a", "configs": configs}


class Fixed:
    """Candidates whose times are given."""

    def __init__(self, **microseconds):
        self.us = microseconds

    def sides(self):
        return {("a", name): FixedSide(name) for name in self.us}


class FixedSide:
    calls = 4

    def __init__(self, name):
        self.name = name

    def take(self, *operands):
        pass

    release = take


def test_what_looks_faster_than_the_rule_is_timed_on_beside_it(monkeypatch):
    candidates, timed = Fixed(rule=10, slow=20, c=9, b=8, a=7.9, far=20), []

    def elapsed(side, rounds, ahead):
        assert ahead == rounds <= tuning.MOST_ROUNDS
        timed.append(side.name)
        return rounds * side.calls * candidates.us[side.name] * 1e-6

    # Roughly the slow one looks fast, and a part of the start counts everywhere.
    rough = candidates.us | {"slow": 7}
    monkeypatch.setattr(tuning.timing, "elapsed", elapsed)
    monkeypatch.setattr(
        tuning, "_roughly", lambda side: (rough[side.name] + 5) * side.calls * 1e-6
    )
    times = tuning.measure(candidates, [[], []], 0.01, 3)
    near = ["rule", "slow", "c", "b", "a"]
    assert timed == 3 * near + 3 * ["rule", "a", "b"]
    assert [c for _, c in times] == near
    assert times["a", "rule"] == pytest.approx((10, 10, 10))
    assert times["a", "slow"] == pytest.approx((20, 20, 20))


# --- on a GPU -----------------------------------------------------------------


PLANE = ConvGeometry(
    1, 1, 14, 13, 72, 136, 1, 3, 3, 1, 14, 13, 1, ONES, (0, 1, 1), ONES, ONES
)
ONE_TAP = PLANE._replace(C=184, K=136, R=1, S=1, pad=(0, 0, 0))
VOLUME = ConvGeometry(1, 5, 7, 9, 96, 168, 3, 3, 3, 5, 7, 9, 1, ONES, ONES, ONES, ONES)
TWOS = (2, 2, 2)
GEOMETRIES = {
    "plane": PLANE,
    "planes": PLANE._replace(N=60),
    "plane of one tap": ONE_TAP,
    "planes of one tap": ONE_TAP._replace(N=60),
    "planes of one tap to many": ONE_TAP._replace(N=90, C=72, K=520),
    "volume": VOLUME,
    "volumes": VOLUME._replace(N=9),
    "strided volumes": VOLUME._replace(N=3, O=3, P=4, Q=5, stride=TWOS),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
def test_every_configuration_is_right_and_none_changes_bits(hopper, op, dtype, name):
    g = GEOMETRIES[name]
    if name.startswith("plane"):
        orders = (0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)
    else:
        orders = (0, 4, 1, 2, 3), (4, 3, 0, 1, 2), (0, 4, 1, 2, 3)
    params = tuning.ConvParams(g, jax.lax.ConvDimensionNumbers(*orders))
    case = tuning.Problem(op, params, dtype, dtype)
    rng = np.random.default_rng(0)
    roles = primitives.OPS[op].operands
    whole = [rng.integers(-1, 2, params.shape(r)).astype(dtype) for r in roles]
    real = [rng.standard_normal(params.shape(r)).astype(dtype) for r in roles]

    def run(operands, engine, config):
        forced = dataclasses.replace(params, algorithm=engine, config=config)
        call = functools.partial(primitives.bind, op, params=forced)
        return np.asarray(jax.jit(call)(*operands))

    found = [c for c in case.candidates("cuda") if c[0] == "implicit_gemm"]
    assert len(set(found)) == len(found)
    assert (len(found) > 2) == (op != "wgrad")
    right = run(whole, "im2col_gemm", "")
    bits = run(real, *found[0]).tobytes()
    for candidate in found:
        np.testing.assert_array_equal(run(whole, *candidate), right, str(candidate))
        assert run(real, *candidate).tobytes() == bits, candidate


@pytest.mark.gpu
def test_tune_on_a_gpu(hopper, own_choices):
    x, w = jnp.ones((4, 14, 14, 64), "bfloat16"), jnp.ones((3, 3, 64, 64), "bfloat16")
    rows = jc.tune(step, x, w)
    assert sorted(row.op for row in rows) == ["dgrad", "fprop", "wgrad"]
    assert all(row.microseconds <= row.default_microseconds for row in rows)
    assert {row.source for row in jc.explain(step, x, w)} == {"tuned"}
