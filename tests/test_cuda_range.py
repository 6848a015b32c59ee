# SPDX-License-Identifier: Apache-2.0
"""implicit_gemm on CUDA over all that it covers (GPU only).

Every operation and dtype, on whole numbers: equal to the oracle, bit for bit to
explicit columns, with nan where the results will stand.
"""

import functools
import math

import jax
import numpy as np
import oracle
import pytest
from hypothesis import assume, event, given, seed, settings
from hypothesis import strategies as st
from problems import Problem, nans
from promises import arrays, assert_exact, engine_of

import jax_convbatch as jc

pytestmark = pytest.mark.gpu

# Products that the oracle forms in one operation, which bounds a test's time.
MOST_PRODUCTS = 2**27
NHWC = ("NHWC", "HWIO", "NHWC")
DTYPES = ("bfloat16", "float16", "float32")


@st.composite
def axes(draw):
    """Size, taps, stride, padding and dilation of one axis; at least one output."""
    taps = draw(st.sampled_from([1, 2, 3, 3, 4, 5, 7]))
    dilation = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 8]))
    stride = draw(st.one_of(st.just(1), st.integers(2, taps + 3)))
    size = draw(st.one_of(st.integers(1, 3), st.integers(4, 14), st.integers(15, 64)))
    window = (taps - 1) * dilation + 1
    low = draw(st.integers(-min(2, size - 1), window + 3))
    high = max(-2, window - size - low) + draw(st.integers(0, 8))
    return size, taps, stride, (low, max(high, -size)), dilation


channels = st.one_of(
    st.integers(1, 16),
    st.integers(1, 160),
    st.integers(1, 32).map(lambda n: 8 * n),
    st.sampled_from([511, 512, 640, 1000, 1024, 1025]),
)


@st.composite
def convolutions(draw, multiple=1):
    """Any batch, sizes and channels (of this multiple) that one group may have."""
    size, taps, strides, padding, dilation = zip(
        *draw(st.tuples(*[axes()] * 2)), strict=True
    )
    c, k = (-(-draw(channels) // multiple) * multiple for _ in range(2))
    conv = oracle.Conv(strides, padding, (1, 1), dilation)
    case = Problem((1, *size, c), (*taps, c, k), conv, NHWC)
    products = math.prod(case.y) * math.prod(case.w[:-1])
    assume(products <= 2 * MOST_PRODUCTS)
    batch = draw(st.one_of(st.integers(1, 9), st.integers(1, 300)))
    return case._replace(x=(max(1, min(batch, MOST_PRODUCTS // products)), *size, c))


def note(case):
    """What `pytest --hypothesis-show-statistics` counts."""
    conv = case.conv
    if case.x[1:-1] == (1, 1):
        event("one-pixel images")
    if any(max(p) > n for n, p in zip(case.x[1:-1], conv.padding, strict=True)):
        event("padding larger than the image")
    if any(s > n for s, n in zip(conv.strides, case.w[:-2], strict=True)):
        event("stride larger than the filter")
    if max(conv.filter_dilation) == 8:
        event("dilated by 8")
    if case.x[0] > 100:
        event("more than 100 samples")
    if max(case.x[-1], case.w[-1]) > 1000:
        event("more than 1000 channels")


# dgrad is one problem for each residue class of the strides, and TMA takes eight.
MOST_CLASSES, MOST_STEPS = 16, 8


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_convolution_is_exact(hopper, dtype, part):
    @seed(part)
    @given(case=convolutions(4 if dtype == "float32" else 1))
    @settings(max_examples=25)
    def check(case):
        note(case)
        engine = engine_of(case, dtype)
        if dtype == "float32" and max(case.conv.strides) <= MOST_STEPS:
            covered = math.prod(case.conv.strides) <= MOST_CLASSES
            assert engine == ("implicit_gemm" if covered else "auto")
        assert_exact(case, dtype, engine)

    check()


def test_results_stand_where_nan_stood(hopper):
    conv = oracle.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    case = Problem((2, 8, 8, 16), (3, 3, 16, 24), conv, NHWC)
    x, w, dy = arrays(case, lambda _, *a: np.ones(*a), "bfloat16")

    @functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
    def all_three(places, x, w, dy):
        call = functools.partial(
            jc.conv_general_dilated, **case.kwargs, algorithm="implicit_gemm"
        )
        y, pullback = jax.vjp(call, x, w)
        return y, *pullback(dy)

    places = nans(case, x.dtype)
    assert all(np.isnan(np.float32(a)).all() for a in places)
    where = [a.unsafe_buffer_pointer() for a in places]
    results = all_three(places, x, w, dy)
    assert [a.unsafe_buffer_pointer() for a in results] == where
