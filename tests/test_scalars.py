# SPDX-License-Identifier: Apache-2.0
"""f32 of a few channels on CUDA, see `ffi/cuda/sm80/direct/scalars.h`."""

import random
from dataclasses import replace

import fake_gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from problems import CHANNELS_LAST, Problem, normal
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    params_of,
)

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._plans import planners
from jax_convbatch._select import implicit_cuda, rule_odd, rules
from jax_convbatch._shapes.geometry import ConvGeometry


def layer(n, size, c, k, taps, pads=None, dilation=1):
    rank = len(size)
    ones = (1,) * rank
    pads = pads or tuple(((t - 1) // 2, t // 2) for t in taps)
    conv = oracle.Conv(ones, pads, ones, (dilation,) * rank, 1)
    return Problem((n, *size, c), (*taps, c, k), conv, CHANNELS_LAST[rank])


CASES = {
    "1->1": layer(3, (21, 33), 1, 1, (3, 3)),
    "1->1, eight rows": layer(8, (513, 520), 1, 1, (5, 5)),
    "2->2, uneven": layer(2, (9, 12), 2, 2, (3, 5), ((0, 2), (3, -1))),
    "5->6": layer(2, (10, 17), 5, 6, (3, 3)),
    "one tap": layer(3, (9, 35), 4, 3, (1, 1)),
    "dilated": layer(2, (19, 15), 3, 2, (3, 3), ((2, 2), (2, 2)), dilation=2),
    "four rows of taps": layer(2, (12, 14), 2, 1, (4, 2)),
    "a sequence": layer(5, (700,), 3, 5, (5,)),
    "a sequence, dilated": layer(3, (90,), 6, 6, (2,), ((6, 0),), dilation=3),
    "a volume": layer(2, (7, 6, 19), 3, 3, (3, 3, 3)),
    "a deep volume": layer(2, (9, 5, 8), 3, 1, (5, 3, 1)),
    "depth alone": layer(2, (6, 5, 9), 2, 4, (3, 1, 1)),
    "2->34": layer(2, (19, 35), 2, 34, (3, 3)),
    "2->34, eight rows": layer(16, (200, 203), 2, 34, (3, 3)),
    "1->66, five rows of taps": layer(2, (17, 18), 1, 66, (5, 3), ((0, 1), (2, 0))),
    "3->18, one tap": layer(3, (13, 21), 3, 18, (1, 1)),
    "1->12": layer(3, (22, 19), 1, 12, (5, 5)),
    "1->12, eight rows": layer(16, (190, 203), 1, 12, (3, 3)),
    "a sequence, 6->34": layer(3, (517,), 6, 34, (3,)),
    "a sequence, 1->34, dilated": layer(3, (90,), 1, 34, (3,), ((6, 0),), dilation=3),
    "1->34, one tap, eight rows": layer(2, (512, 515), 1, 34, (1, 1)),
    "a volume, 1->34": layer(2, (6, 9, 11), 1, 34, (3, 3, 3)),
    "negative padding": layer(2, (15, 15), 1, 2, (3, 3), ((-2, -1), (-1, -3))),
}
# Those of few outputs have it both ways.
SHARED = [name for name, case in CASES.items() if case.w[-1] > 6]
TO_ONE = layer(2, (20, 23), 10, 1, (3, 3))
each_case = pytest.mark.parametrize("name", CASES)


def problem(case, op="fprop", dtype="float32"):
    geometry = params_of(case, *arrays(case, normal, dtype)[:2]).geometry
    return planners.Problem(op, geometry, jnp.dtype(dtype), jnp.dtype(dtype), "cuda")


def path(one):
    """Of the native plan."""
    found = targets.implicit_gemm_plans(one.op, one.geometry, one.dtype.name, False)
    return "" if isinstance(found, str) else found[0]["path"]


def config(one):
    return implicit_cuda.planned(one).config


# --- which have the kernel --------------------------------------------------------


@each_case
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("precision", [0, 1, 2])
def test_few_channels_have_it(native, monkeypatch, name, op, precision):
    fake_gpus.on(monkeypatch, "9.0")
    one = replace(problem(CASES[name], op), precision=precision)
    if name in SHARED and op == "dgrad":  # the other way round
        g = one.geometry
        one = replace(one, geometry=g._replace(C=g.K, K=g.C))
    assert rules.line(one).applies is rule_odd.scalars
    plan = implicit_cuda.planned(one)
    assert plan.reason == f"scalar tiles of {plan.config}"


def test_rows_of_a_thread(native, monkeypatch):
    fake_gpus.on(monkeypatch, "9.0")
    large, small = problem(CASES["1->1, eight rows"]), problem(CASES["1->1"])
    assert config(large) == "8x256x1" and config(small) == "4x256x1"
    one = replace(large, geometry=large.geometry._replace(N=1))
    assert config(one) == "4x256x1"  # of the same bits
    assert config(problem(CASES["a sequence"])) == "1x256x5"
    assert config(problem(CASES["2->34"])) == "4x256x2"
    assert config(problem(CASES["2->34, eight rows"])) == "8x256x2"
    assert config(problem(CASES["1->12"])) == "4x256x4"
    assert config(problem(CASES["1->12, eight rows"])) == "8x256x4"
    assert config(problem(CASES["a sequence, 6->34"])) == "4x256x2"


def test_others_have_not(native, monkeypatch):
    fake_gpus.on(monkeypatch, "9.0")
    one = problem(CASES["1->1"])
    g = one.geometry
    for other in (
        replace(one, op="wgrad"),
        problem(CASES["1->1"], dtype="bfloat16"),
        problem(CASES["2->34"], "dgrad"),
        replace(one, geometry=g._replace(stride=(1, 2, 1), P=11)),
        replace(one, geometry=g._replace(K=7)),
        replace(one, geometry=g._replace(C=13)),
        replace(one, geometry=g._replace(K=16)),
        replace(one, geometry=g._replace(C=2, K=12)),
        replace(one, geometry=g._replace(C=6, K=34)),
        replace(one, geometry=g._replace(C=4, K=34, R=1, P=23)),
        problem(layer(3, (90,), 2, 34, (3,), ((6, 0),), dilation=3)),
        problem(layer(3, (90,), 2, 34, (7,))),
        replace(one, geometry=g._replace(C=5, K=5, R=5, S=6)),
        replace(one, geometry=g._replace(N=0)),
    ):
        assert not rule_odd.scalars(other) and path(other) != "scalar tiles", other


def test_python_and_the_kernel_agree(native, monkeypatch):
    fake_gpus.on(monkeypatch, "9.0")
    rng = random.Random(0)
    one = problem(CASES["1->1"])
    found = set()
    for _ in range(2000):
        taps = [rng.choice([1, 1, 2, 3, 5, 7]) for _ in range(3)]
        sizes = [rng.choice([1, 2, 9, 40, 9000]) for _ in range(3)]
        flat = rng.random() < 0.4
        if flat:
            taps[:2], sizes[:2] = [1, 1], [1, 1]
        pads = [rng.randint(-1, t) for t in taps]
        dilation = tuple(rng.choice([1, 1, 3]) for _ in range(3))
        outputs = [
            size + pad + rng.randint(-1, 3) - step * (t - 1)
            for size, pad, t, step in zip(sizes, pads, taps, dilation, strict=True)
        ]
        if flat:
            pads[:2], outputs[:2] = [0, 0], [1, 1]
        g = ConvGeometry(
            N=rng.choice([1, 4]),
            C=rng.randint(1, 14),
            K=rng.choice([1, 2, 3, 5, 6, 7, 8, 10, 12, 20, 24, 34, 130]),
            **dict(zip("DHW", sizes, strict=True)),
            **dict(zip("OPQ", outputs, strict=True)),
            **dict(zip("TRS", taps, strict=True)),
            pad=tuple(pads),
            stride=(1, 1, 1),
            input_dilation=(1, 1, 1),
            filter_dilation=dilation,
            groups=1,
        )
        if min(outputs) < 1:
            continue
        for op in ("fprop", "dgrad"):
            other = replace(one, op=op, geometry=g)
            its = rule_odd.scalars(other)
            assert its == (path(other) == "scalar tiles"), other
            found.add((its, (g.C if op == "dgrad" else g.K) > 6, flat))
    assert len(found) == 8


# --- on Hopper --------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*CASES, "10->1"])
def test_whole_numbers_are_exact(hopper, name):
    assert_exact((CASES | {"10->1": TO_ONE})[name], "float32", algorithm="auto")


@pytest.mark.gpu
@pytest.mark.parametrize("outputs", [10, 12, 20, 34])
def test_dx_of_few_outputs_is_exact(hopper, outputs):
    for size, taps in (((20, 23), (3, 3)), ((41,), (3,)), ((9, 8, 7), (3, 3, 3))):
        for k in (1, 2):
            case = layer(2, size, outputs, k, taps)
            assert_exact(case, "float32", algorithm="auto")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["1->1, eight rows", "5->6", "a sequence", "a volume", "2->34"],
)
def test_promises(hopper, name):
    case = CASES[name]
    assert_batch_invariant(case, "float32")
    assert_a_hundred_runs_agree(case, "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["1->1", "a deep volume", "a sequence", "2->34"])
def test_every_precision_has_the_same_bits(hopper, name):
    case = CASES[name]
    x, w, _ = arrays(case, normal, "float32")
    default, high, highest = (
        jc.conv_general_dilated(x, w, **case.kwargs, precision=precision)
        for precision in ("default", "high", "highest")
    )
    np.testing.assert_array_equal(default, high)
    np.testing.assert_array_equal(default, highest)


@pytest.mark.gpu
def test_what_is_not_finite_stays_where_it_belongs(hopper):
    case = CASES["2->2, uneven"]
    x, w, _ = arrays(case, normal, "float32")
    x[0, 4, 5, 0] = np.inf
    y = np.asarray(jc.conv_general_dilated(x, w, **case.kwargs))
    want = np.asarray(jax.lax.conv_general_dilated(x, w, **case.kwargs))
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(want))
