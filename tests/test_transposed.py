# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions as gradients of strided ones: the same sums."""

import functools

import jax
import numpy as np
import oracle
import pytest
from hypothesis import assume, given, settings
from problems import Problem, exact, normal, problems, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
    params_of,
)
from test_implicit_gemm import NHWC

import jax_convbatch as jc
from jax_convbatch._plans import dual
from jax_convbatch._plans.kinds import InXla, xla_call
from jax_convbatch._primitives import primitives
from jax_convbatch._select.plan import plan_of


def transposed(
    n, size, c, k, taps, by=(2, 2), padding=((1, 1), (1, 1)), dilation=(1, 1)
):
    conv = oracle.Conv((1, 1), padding, by, dilation)
    return Problem((n, *size, c), (*taps, c, k), conv, NHWC)


CASES = {
    "4x4": transposed(2, (7, 9), 64, 32, (4, 4), padding=((2, 2), (2, 2))),
    "2x2": transposed(3, (8, 6), 32, 64, (2, 2)),
    "3x3": transposed(2, (6, 7), 24, 72, (3, 3), padding=((1, 2), (2, 1))),
    "one axis": transposed(2, (9, 5), 16, 40, (5, 3), by=(3, 1)),
    "wide steps": transposed(2, (5, 5), 8, 16, (2, 3), by=(4, 3)),
    "dilated": transposed(
        2, (6, 6), 16, 8, (3, 3), padding=((4, 3), (2, 5)), dilation=(2, 1)
    ),
    "more padding than taps": transposed(
        2, (6, 6), 16, 24, (3, 3), padding=((5, 3), (3, 4))
    ),
    "negative padding": transposed(
        2, (8, 8), 32, 16, (4, 4), padding=((-1, 2), (0, -2))
    ),
}


@settings(max_examples=40)
@given(case=problems(ranks=(1, 2, 3), empty=False))
def test_the_strided_convolution_gives_the_same_sums(case):
    assume(any(d > 1 for d in case.conv.input_dilation))
    ones = (1,) * case.conv.rank
    case = case._replace(conv=case.conv._replace(strides=ones))
    x, w, dy = arrays(case, whole, "float32")
    right = dict(zip("yxw", exact(case, x, w, dy), strict=True))
    given_ = {role: case.user(role, a) for role, a in {"x": x, "w": w, "y": dy}.items()}
    params = params_of(case, given_["x"], given_["w"])
    strided = dual.other_params(params)
    for op in primitives.OPS.values():
        name = dual.OPS[op.name][0]
        of = plan_of(strided, name, "float32", "float64", "cpu")
        call = functools.partial(
            dual.Strided.like(of, of=of).run,
            op,
            params=params,
            out_dtype=np.dtype("float32"),
        )
        got = jax.jit(call)(*(given_[role] for role in op.operands))
        np.testing.assert_array_equal(case.canonical(op.result, got), right[op.result])


def test_what_it_is_the_transpose_of():
    case = CASES["4x4"]
    x, w, _ = arrays(case, whole, "float32")
    g = params_of(case, x, w).geometry
    strided = dual.geometry(g)
    assert strided.stride == (1, 2, 2) and strided.inputs == g.outputs
    assert strided.pad == (0, 1, 1)
    assert dual.geometry(strided) is None
    assert dual.geometry(g._replace(stride=(1, 2, 1))) is None
    assert dual.geometry(g._replace(groups=2)) is None
    assert dual.geometry(g._replace(groups=2), grouped=True) == strided._replace(
        groups=2
    )


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("spec", [(0, 1, 2, 3), (3, 2, 0, 1), (1, 3, 2, 0)])
def test_the_filter_of_each_group_is_turned_by_itself(spec, groups):
    g = dict(K=4 * groups, C=5, R=2, S=3)
    w = whole(0, tuple(g.values()), "float32")  # K, C of a group, taps
    parts = [part[..., ::-1, ::-1].swapaxes(0, 1) for part in np.split(w, groups)]
    right = np.concatenate(parts)

    def kept(a):
        return a.transpose(np.argsort(spec))

    np.testing.assert_array_equal(dual.reverse(kept(w), spec, groups), kept(right))
    np.testing.assert_array_equal(dual.reverse(kept(right), spec, groups), kept(w))


@settings(max_examples=12)
@given(case=problems(ranks=(1, 2, 3), empty=False))
def test_it_is_the_same_as_jax_lax_in_f64(x64, case):
    """Of several groups, too, with jax.lax for the strided convolution."""
    assume(any(d > 1 for d in case.conv.input_dilation))
    ones = (1,) * case.conv.rank
    case = case._replace(conv=case.conv._replace(strides=ones))
    x, w, dy = arrays(case, normal, "float64")
    given_ = {role: case.user(role, a) for role, a in {"x": x, "w": w, "y": dy}.items()}
    params = params_of(case, given_["x"], given_["w"])
    strided = dual.other_params(params)
    for op in primitives.OPS.values():
        its, _ = dual.OPS[op.name]
        asked = []

        class Asked(InXla):
            def lower(self, op, operands, params, out_dtype, asked=asked):
                asked.append((op.name, params))
                return super().lower(op, operands, params, out_dtype)

        operands = [jax.numpy.asarray(given_[role]) for role in op.operands]
        chosen = dual.Strided("cudnn", "", of=Asked())
        got = chosen.run(op, *operands, params, np.dtype("float64"))
        assert asked == [(its, strided)]
        want = xla_call(op.name, *operands, params, np.dtype("float64"))
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_arguments_seen_before_are_not_traced_again(monkeypatch):
    x, w = np.ones((2, 5, 5, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)
    first = jc.conv_transpose(x, w, strides=2, padding=[(1, 1), (2, 2)])

    def refuse(*_, **__):
        raise AssertionError("traced again")

    monkeypatch.setattr(jax, "make_jaxpr", refuse)
    again = jc.conv_transpose(x, w, strides=2, padding=[(1, 1), (2, 2)])
    np.testing.assert_array_equal(again, first)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
def test_it_is_what_auto_takes(hopper):
    case = CASES["4x4"]
    x, w, dy = arrays(case, whole, "bfloat16")

    def both(x, w):
        return jax.vjp(lambda *a: jc.conv_general_dilated(*a, **case.kwargs), x, w)

    rows = jc.explain(lambda x, w, dy: (both(x, w)[0], both(x, w)[1](dy)), x, w, dy)
    found = {row.op: (row.engine, row.reason) for row in rows}
    assert len(found) == 3
    for op, (engine, reason) in found.items():
        assert engine == "implicit_gemm"
        assert f"as {dual.OPS[op][0]} of the strided" in reason


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["4x4", "3x3"])
def test_bits_do_not_depend_on_the_batch_or_the_run(hopper, name):
    assert_batch_invariant(CASES[name], "bfloat16")
    assert_a_hundred_runs_agree(CASES[name], "bfloat16", algorithm="implicit_gemm")
