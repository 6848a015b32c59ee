# SPDX-License-Identifier: Apache-2.0
"""Convolutions of padded copies: what is asked of a library, and the same sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from problems import exact, normal, problems, whole
from promises import arrays, params_of

from jax_convbatch._native import targets
from jax_convbatch._plans import padded
from jax_convbatch._plans.kinds import InXla, OneCall, xla_call
from jax_convbatch._plans.planners import Problem, Unable
from jax_convbatch._primitives import primitives
from jax_convbatch._select import cudnn
from jax_convbatch._shapes.geometry import ConvGeometry

ONES = (1, 1, 1)
EVEN = padded.Wanted()
#   8x9 inputs, 3x3 taps, 8x9 outputs
G = ConvGeometry(2, 1, 8, 9, 4, 6, 1, 3, 3, 1, 8, 9, 1, ONES, (0, 1, 1), ONES, ONES)


def is_plain(g, even=True):
    """Whether libraries say it: no dilated input, both sides padded alike.

    The high side may be any that leaves as many outputs. Without `even`, it may be any
    that is not negative.
    """
    sides = zip(g.pad, g.pad_high, g.stride, strict=True)
    alike = [
        low >= 0 and (high <= low < high + stride if even else high + stride > 0)
        for low, high, stride in sides
    ]
    return g.input_dilation == ONES and all(alike)


def test_where_none_is_needed():
    assert padded.geometry(G, EVEN) is None
    # Two rows of x that no window reaches, beside a stride of 3.
    rest = G._replace(H=11, P=3, stride=(1, 3, 1), pad=(0, 0, 1))
    assert rest.pad_high[1] == -2
    assert padded.geometry(rest, EVEN) is None
    assert padded.geometry(rest._replace(H=12), EVEN) is not None


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        (dict(pad=(0, -1, 1), P=5), (1, 7, 9)),
        (dict(pad=(0, -2, -1), P=4, Q=6), (1, 6, 8)),
        (dict(pad=(0, 2, 1)), (1, 10, 9)),  # the low side alone
        (dict(pad=(0, 0, 1)), (1, 10, 9)),  # the high one
        (dict(H=20), (1, 10, 9)),  # negative there
        (dict(input_dilation=(1, 2, 1), P=15), (1, 17, 9)),
        (dict(input_dilation=(1, 3, 1), stride=(1, 2, 1), P=11), (1, 23, 9)),
        (dict(filter_dilation=(1, 2, 1), pad=(0, -1, 1), P=3), (1, 7, 9)),
    ],
)
def test_the_copy_has_what_is_not_padded_alike(changes, sizes):
    g = G._replace(**changes)
    copy = padded.geometry(g, EVEN)
    assert copy.inputs == sizes
    assert is_plain(copy) and not is_plain(g)
    for field in ("N", "C", "K", "taps", "outputs", "stride", "filter_dilation"):
        assert getattr(copy, field) == getattr(g, field)
    assert padded.geometry(copy, EVEN) is None
    assert padded.copy_bytes(g, copy, 2) == 2 * 2 * np.prod(sizes) * 4


def given_of(case, make, dtype):
    x, w, dy = arrays(case, make, dtype)
    given_ = {role: case.user(role, a) for role, a in {"x": x, "w": w, "y": dy}.items()}
    return params_of(case, given_["x"], given_["w"]), {
        role: jnp.asarray(a) for role, a in given_.items()
    }


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("multiple", [1, 4, 8])
@settings(max_examples=20)
@given(case=problems(ranks=(1, 2, 3), empty=False))
def test_it_is_the_same_as_jax_lax_in_f64(x64, multiple, even, case):
    """With jax.lax for the convolution of the copies."""
    params, given_ = given_of(case, normal, "float64")
    wanted = padded.Wanted(multiple, even)
    copy = padded.geometry(params.geometry, wanted)
    if multiple == 1:
        assert (copy is None) == is_plain(params.geometry, even)
    elif copy is not None:
        each = multiple * copy.groups
        assert copy.C % each == copy.K % each == 0
    if copy is None:
        return
    f64 = np.dtype("float64")

    class OfTheCopy(InXla):
        def lower(self, op, operands, params, out_dtype):
            assert params.geometry == copy
            for role, array in zip(op.operands, operands, strict=True):
                assert array.shape == params.shape(role)
            return super().lower(op, operands, params, out_dtype)

    for op in primitives.OPS.values():
        operands = [given_[role] for role in op.operands]
        chosen = padded.OfCopies("cudnn", "", of=OfTheCopy(), wanted=wanted)
        got = chosen.run(op, *operands, params, f64)
        want = xla_call(op.name, *operands, params, f64)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


# --- all that is done for cuDNN ----------------------------------------------------


@pytest.fixture
def library(monkeypatch):
    """cuDNN, which covers everything, and jax.lax in the place of its calls."""
    plans = [{"config": "", "workspace": 0, "compiled": False}]
    plans[0]["depends_on_batch"] = False
    monkeypatch.setattr(targets, "cudnn_problem", lambda: None)
    monkeypatch.setattr(targets, "cudnn_version", lambda: "9.19.0")
    monkeypatch.setattr(targets, "cudnn_plans", lambda *args: plans)

    def lower(self, op, operands, params, out_dtype):
        assert is_plain(params.geometry, even=False)
        return xla_call(op.name, *operands, params, out_dtype)

    monkeypatch.setattr(OneCall, "lower", lower)


@settings(max_examples=20)
@given(case=problems(ranks=(1, 2, 3), empty=False))
def test_what_cudnn_is_asked_gives_the_same_sums(library, case):
    """At HIGH of several groups, too."""
    params, given_ = given_of(case, whole, "float32")
    x, w, dy = (case.canonical(role, given_[role]) for role in "xwy")
    right = dict(zip("yxw", exact(case, x, w, dy), strict=True))
    f32 = np.dtype("float32")
    for op in primitives.OPS.values():
        for precision in (0, 1):
            problem = Problem(
                *(op.name, params.geometry, f32, f32, "cuda"), precision=precision
            )
            chosen = cudnn.planned(problem)

            def call(a, b, op=op, chosen=chosen):
                return chosen.run(op, a, b, params, f32)

            got = jax.jit(call)(*(given_[role] for role in op.operands))
            np.testing.assert_array_equal(
                case.canonical(op.result, got), right[op.result]
            )


def test_the_copy_counts_as_workspace(library):
    g, f32 = G._replace(pad=(0, -1, 1), P=5), np.dtype("float32")
    problem = Problem("fprop", g, f32, f32, "cuda")
    size = padded.copy_bytes(g, padded.geometry(g, padded.Wanted(even=False)), 4)
    chosen = cudnn.planned(problem)
    assert chosen.workspace_bytes == size
    assert "padded copies" in chosen.reason
    with pytest.raises(Unable, match="padded copies"):
        cudnn.planned(Problem("fprop", g, f32, f32, "cuda", size - 1))
    assert cudnn.planned(Problem("fprop", g, f32, f32, "cuda", size)) == chosen


def test_channels_are_padded_where_there_are_some(library):
    """Of a few, kernels without tensor cores are faster."""
    f32 = np.dtype("float32")
    for c, k, precision, padded_to in ((30, 50, 0, 4), (30, 3, 0, 1), (30, 50, 2, 1)):
        g = G._replace(C=c, K=k)
        problem = Problem("fprop", g, f32, f32, "cuda", precision=precision)
        chosen = cudnn.planned(problem)
        copied = isinstance(chosen, padded.OfCopies)
        assert (chosen.wanted.multiple if copied else 1) == padded_to


def test_uneven_padding_is_in_the_graph_but_of_depthwise_layers(library):
    f32 = np.dtype("float32")
    uneven = G._replace(pad=(0, 2, 1))
    for g, copied in ((uneven, False), (uneven._replace(C=6, groups=6), True)):
        chosen = cudnn.planned(Problem("fprop", g, f32, f32, "cuda"))
        assert isinstance(chosen, padded.OfCopies) == copied
