# SPDX-License-Identifier: Apache-2.0
"""The reference against the definition, and the bound against wrong results."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from problems import Results, exact, normal, problems, terms


def by_definition(x, w, conv):
    """y one element after another: output o reads input d where
    o * stride - pad + t * filter_dilation == d * input_dilation."""
    outputs = conv.outputs(x.shape[1:-1], w.shape[:-2])
    y = np.zeros((x.shape[0], *outputs, w.shape[-1]))
    per_group = w.shape[-1] // conv.groups
    for n, *o, k in itertools.product(*map(range, y.shape)):
        for *tap, c in itertools.product(*map(range, w.shape[:-1])):
            pixel = []
            for axis, (i, t) in enumerate(zip(o, tap, strict=True)):
                at = i * conv.strides[axis] - conv.padding[axis][0]
                at += t * conv.filter_dilation[axis]
                d, rest = divmod(at, conv.input_dilation[axis])
                # Pixels that negative padding takes away at the high end are out
                # of every output's reach.
                if rest or not 0 <= d < x.shape[1 + axis]:
                    break
                pixel.append(d)
            else:
                channel = k // per_group * w.shape[-2] + c
                y[n, *o, k] += x[n, *pixel, channel] * w[*tap, c, k]
    return y


@given(problems(wide=False))
@settings(max_examples=150)
def test_the_reference_follows_the_definition(problem):
    x, w = (normal(i, s) for i, s in enumerate((problem.x, problem.w)))
    y = oracle.fprop(x, w, problem.conv)
    assert y.shape == problem.y
    np.testing.assert_allclose(y, by_definition(x, w, problem.conv), atol=1e-12)


@given(problems(wide=False))
@settings(max_examples=150)
def test_the_references_gradients_are_its_adjoints(problem):
    shapes = problem.x, problem.w, problem.y
    x, w, dy = (normal(i, s) for i, s in enumerate(shapes))
    y, dx, dw = exact(problem, x, w, dy)
    np.testing.assert_allclose((dx * x).sum(), (dy * y).sum(), atol=1e-9)
    np.testing.assert_allclose((dw * w).sum(), (dy * y).sum(), atol=1e-9)


@given(problems(wide=False))
@settings(max_examples=150)
def test_the_references_shapes_are_those_of_jax_lax(problem):
    out = jax.eval_shape(
        lambda *a: jax.lax.conv_general_dilated(*a, **problem.kwargs),
        problem.user("x", np.zeros(problem.x)),
        problem.user("w", np.zeros(problem.w)),
    )
    assert out.shape == problem.user("y", np.zeros(problem.y)).shape


CONV = oracle.Conv((2, 1), ((2, 0), (0, 1)), (1, 1), (1, 2))


@pytest.fixture
def data():
    return [normal(i, s) for i, s in enumerate([(2, 9, 9, 8), (3, 3, 8, 4)])]


def bounded(actual, x, w, dtype="float32"):
    y, magnitude = (oracle.fprop(*a, CONV) for a in [(x, w), (abs(x), abs(w))])
    oracle.assert_within_bound(jnp.asarray(actual, dtype), y, magnitude, 72)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_bound_lets_a_rounded_result_pass(data, dtype):
    bounded(oracle.fprop(*data, CONV), *data, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fault", ["scale", "padding", "tap", "one element"])
def test_the_bound_refuses_a_fault(data, dtype, fault):
    x, w = data
    conv, factor = CONV, 1.0
    if fault == "scale":
        factor = 1.02
    elif fault == "padding":
        conv = CONV._replace(padding=tuple(p[::-1] for p in CONV.padding))
    elif fault == "tap":
        w = w.copy()
        w[0, 2] = 0
    y = factor * oracle.fprop(x, w, conv)[: len(x), :5, :6]
    if fault == "one element":
        y[1, 2, 3, 1] += 0.1
    with pytest.raises(AssertionError, match="is right"):
        bounded(y, *data, dtype)


def test_terms_count_the_products_of_one_element():
    from problems import Problem

    problem = Problem((2, 9, 9, 8), (3, 3, 8, 4), CONV, ("NHWC", "HWIO", "NHWC"))
    ones = [np.ones(s) for s in (problem.x, problem.w, problem.y)]
    most = [a.max() for a in exact(problem, *ones)]
    counted = terms(problem)
    assert isinstance(counted, Results)
    assert all(m <= c for m, c in zip(most, counted, strict=True))
    assert (counted.y, counted.dx, counted.dw) == (72, 36, 60)
