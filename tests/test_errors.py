# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused while tracing, in words that help; odd input gives what
`jax.lax` gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import ENGINES
from jax.lax import ConvDimensionNumbers

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._select import plan

F32 = np.float32


def shaped(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


X, W = shaped(2, 4, 8, 8), shaped(6, 4, 3, 3)
SAME = {"window_strides": (1, 1), "padding": "SAME"}

# Calls that jax.lax refuses: operands and what differs from SAME.
REFUSED = {
    "ranks differ": (X, shaped(6, 4, 3), {}),
    "rank one": (shaped(3), shaped(3), {"window_strides": ()}),
    "scalars": (shaped(), shaped(), {"window_strides": ()}),
    "channels do not match": (X, shaped(6, 5, 3, 3), {}),
    "channels not in groups": (X, shaped(6, 2, 3, 3), {"feature_group_count": 3}),
    "filters not in groups": (X, shaped(5, 2, 3, 3), {"feature_group_count": 2}),
    "no groups": (X, W, {"feature_group_count": 0}),
    "negative groups": (X, W, {"feature_group_count": -1}),
    "batch not in batch groups": (X, W, {"batch_group_count": 3}),
    "filters not in batch groups": (X, shaped(5, 4, 3, 3), {"batch_group_count": 2}),
    "no batch groups": (X, W, {"batch_group_count": 0}),
    "both kinds of groups": (
        X,
        shaped(6, 2, 3, 3),
        {"feature_group_count": 2, "batch_group_count": 2},
    ),
    "unknown padding": (X, W, {"padding": "FULL"}),
    "padding of another rank": (X, W, {"padding": [(1, 1)]}),
    "padding without pairs": (X, W, {"padding": [1, 1]}),
    "padding of floats": (X, W, {"padding": [(0.5, 0.5), (1, 1)]}),
    "padding takes more than there is": (X, W, {"padding": [(-5, -5), (0, 0)]}),
    "padding is None": (X, W, {"padding": None}),
    "one stride": (X, W, {"window_strides": (1,)}),
    "three strides": (X, W, {"window_strides": (1, 1, 1)}),
    "stride is an int": (X, W, {"window_strides": 1}),
    "strides of floats": (X, W, {"window_strides": (1.5, 1.0)}),
    "input dilation zero": (X, W, {"lhs_dilation": (0, 1), "padding": "VALID"}),
    "one input dilation": (X, W, {"lhs_dilation": (2,)}),
    "filter dilation zero": (X, W, {"rhs_dilation": (1, 0), "padding": "VALID"}),
    "dtypes differ": (X, shaped(6, 4, 3, 3, dtype=np.float16), {}),
    "a float and an integer": (X, shaped(6, 4, 3, 3, dtype=np.int32), {}),
    "narrower result": (X, W, {"preferred_element_type": jnp.bfloat16}),
    "integer result": (X, W, {"preferred_element_type": np.int32}),
    "dimension numbers of another rank": (
        X,
        W,
        {"dimension_numbers": ("NC", "OI", "NC")},
    ),
    "dimension numbers without N": (
        X,
        W,
        {"dimension_numbers": ("XCHW", "OIHW", "NCHW")},
    ),
    "dimension numbers with other axes": (
        X,
        W,
        {"dimension_numbers": ("NCHW", "OIDW", "NCHW")},
    ),
    "repeated dimension": (X, W, {"dimension_numbers": ("NCHH", "OIHH", "NCHH")}),
    "two dimension numbers": (X, W, {"dimension_numbers": ("NCHW", "OIHW")}),
    "dimension numbers are a number": (X, W, {"dimension_numbers": 3}),
    "dimension numbers beyond the axes": (
        X,
        W,
        {"dimension_numbers": ConvDimensionNumbers((0, 1, 2, 7), *[(0, 1, 2, 3)] * 2)},
    ),
    "unknown precision": (X, W, {"precision": "very high"}),
    "precision is a number": (X, W, {"precision": 2}),
    "three precisions": (X, W, {"precision": ("high", "high", "high")}),
    "two unlike precisions": (X, W, {"precision": ("high", 1)}),
    "an unknown dtype for the result": (X, W, {"preferred_element_type": "float31"}),
    "bool operands of floats": (shaped(2, 4, 8, 8, dtype=bool), W, {}),
}


def refusal(function, x, w, kwargs):
    try:
        jax.eval_shape(functools.partial(function, **(SAME | kwargs)), x, w)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("algorithm", ["auto", *ENGINES, "xla"])
@pytest.mark.parametrize("call", REFUSED)
def test_what_jax_lax_refuses_is_refused_in_its_words(call, algorithm):
    x, w, kwargs = REFUSED[call]
    theirs = refusal(jax.lax.conv_general_dilated, x, w, kwargs)
    assert theirs is not None, "jax.lax accepts this call"
    ours = refusal(
        functools.partial(jc.conv_general_dilated, algorithm=algorithm), x, w, kwargs
    )
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)


@pytest.mark.parametrize(
    ("ints", "floats"),
    [
        ({"window_strides": (1, 1)}, {"window_strides": (1.0, 1)}),
        ({"window_strides": [1, 1]}, {"window_strides": [np.float32(1), 1]}),
        ({"padding": ((1, 1), (1, 1))}, {"padding": ((1.0, 1), (1, 1))}),
    ],
)
def test_floats_are_refused_after_the_same_call_with_ints_too(ints, floats):
    assert refusal(jc.conv_general_dilated, X, W, ints) is None
    theirs = refusal(jax.lax.conv_general_dilated, X, W, floats)
    ours = refusal(jc.conv_general_dilated, X, W, floats)
    assert theirs is not None and str(ours) == str(theirs)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_the_same_call_is_worked_out_anew_with_x64(x64):
    wide = functools.partial(
        jc.conv_general_dilated, preferred_element_type="float64", **SAME
    )
    with jax.enable_x64(False):
        assert jax.eval_shape(wide, X, W).dtype == np.float32
    assert jax.eval_shape(wide, X, W).dtype == np.float64


def test_the_default_platforms_refusal_is_shown_first(monkeypatch):
    def refuse(*args):
        raise ValueError(args[4])

    monkeypatch.setattr(plan, "make_plan", refuse)
    monkeypatch.setattr(targets, "available", lambda platform: True)
    for platform in ("cpu", "cuda"):
        monkeypatch.setattr(targets, "default_platform", lambda p=platform: p)
        with pytest.raises(ValueError, match=f"^{platform}\\b"):
            jax.eval_shape(
                functools.partial(jc.conv, algorithm="per_sample"), IMAGE, FILTER
            )


# Calls that jax.lax traces, and refuses when it compiles them.
REFUSED_LATE = {
    "stride zero": {"window_strides": (0, 1)},
    "stride negative": {"window_strides": (1, -1), "padding": "VALID"},
    "one filter dilation": {"rhs_dilation": (2,)},
    "dimension numbers twice the same": {
        "dimension_numbers": ConvDimensionNumbers((0, 1, 2, 2), *[(0, 1, 2, 3)] * 2)
    },
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("algorithm", ["auto", *ENGINES])
@pytest.mark.parametrize("call", [*REFUSED_LATE, "empty filter"])
def test_what_jax_lax_refuses_to_compile_is_refused_in_its_words(call, algorithm):
    x, w = (
        jnp.ones(X.shape),
        jnp.ones(W.shape if call in REFUSED_LATE else (6, 4, 0, 3)),
    )
    kwargs = SAME | REFUSED_LATE.get(call, {})
    messages = []
    for function in (
        jax.lax.conv_general_dilated,
        functools.partial(jc.conv_general_dilated, algorithm=algorithm),
    ):
        with pytest.raises(ValueError) as caught:
            function(x, w, **kwargs)
        messages.append(
            next(m for m in str(caught.value).splitlines() if "expects" in m)
        )
    assert messages[0] == messages[1]


@pytest.mark.parametrize("arguments", [(), (np.ones((1, 1, 1), F32),)])
def test_missing_arguments_are_a_type_error(arguments):
    with pytest.raises(TypeError, match="missing"):
        jc.conv_general_dilated(*arguments)


@pytest.mark.parametrize("bad", [None, "x", [[[1.0]]], object()])
def test_what_is_no_array_is_refused_as_by_jax_lax(bad):
    w = np.ones((1, 1, 1), F32)
    errors = []
    for function in (jax.lax.conv_general_dilated, jc.conv_general_dilated):
        with pytest.raises(Exception) as caught:
            function(bad, w, (1,), "SAME")
        errors.append(caught)
    theirs, ours = errors
    assert ours.type is theirs.type
    assert str(ours.value) == str(theirs.value)


# --- options of this package --------------------------------------------------

FUNCTIONS = {
    "conv_general_dilated": lambda x, w, **kw: jc.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **kw
    ),
    "conv": jc.conv,
    "conv_transpose": jc.conv_transpose,
    "conv_bias_act": jc.conv_bias_act,
}
each_function = pytest.mark.parametrize(
    "function", FUNCTIONS.values(), ids=FUNCTIONS.keys()
)
IMAGE, FILTER = shaped(2, 8, 8, 4), shaped(3, 3, 4, 6)


@each_function
@pytest.mark.parametrize("algorithm", ["winograd", "", None, 3, "XLA"])
def test_an_unknown_algorithm_is_refused_with_the_choices(function, algorithm):
    with pytest.raises(ValueError, match="unknown algorithm") as caught:
        jax.eval_shape(functools.partial(function, algorithm=algorithm), IMAGE, FILTER)
    assert repr(algorithm) in str(caught.value)
    for name in plan.ALGORITHMS:
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["conv", "conv_bias_act", "conv_transpose"])
def test_an_unknown_padding_is_refused_with_the_choices(name):
    with pytest.raises(ValueError, match=r"padding must be 'SAME', .*got 'FULL'") as at:
        jax.eval_shape(
            functools.partial(FUNCTIONS[name], padding="FULL"), IMAGE, FILTER
        )
    assert ("'SAME_LOWER'" in str(at.value)) == (name != "conv_transpose")


@pytest.mark.parametrize("name", ["conv", "conv_bias_act", "conv_transpose"])
def test_the_case_of_a_padding_does_not_matter(name):
    shapes = [
        jax.eval_shape(functools.partial(FUNCTIONS[name], padding=p), IMAGE, FILTER)
        for p in ("valid", "VALID")
    ]
    assert shapes[0].shape == shapes[1].shape


UNCOVERED = {
    "int32": (
        shaped(2, 8, 8, 4, dtype=np.int32),
        shaped(3, 3, 4, 6, dtype=np.int32),
        "int32",
    ),
    "complex64": (
        shaped(2, 8, 8, 4, dtype=np.complex64),
        shaped(3, 3, 4, 6, dtype=np.complex64),
        "complex64",
    ),
    "float8": (
        shaped(2, 8, 8, 4, dtype=jnp.float8_e4m3fn),
        shaped(3, 3, 4, 6, dtype=jnp.float8_e4m3fn),
        "float8_e4m3fn",
    ),
}


@each_function
@pytest.mark.parametrize("named", ENGINES)
@pytest.mark.parametrize("call", UNCOVERED)
def test_an_engine_by_name_is_never_replaced(function, named, call):
    x, w, why = UNCOVERED[call]
    with pytest.raises(ValueError, match="cannot run this convolution") as caught:
        jax.eval_shape(functools.partial(function, algorithm=named), x, w)
    message = str(caught.value)
    assert repr(named) in message
    assert why in message
    assert "algorithm='xla' and algorithm='auto' can" in message


@pytest.mark.parametrize("named", ENGINES)
def test_four_spatial_axes_are_refused_by_name(named):
    x, w = shaped(1, 2, 4, 4, 4, 4), shaped(3, 2, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="4 spatial dimensions") as caught:
        jax.eval_shape(
            lambda x, w: jc.conv_general_dilated(
                x, w, (1,) * 4, "SAME", algorithm=named
            ),
            x,
            w,
        )
    assert repr(named) in str(caught.value)


@pytest.mark.parametrize("named", ENGINES)
@pytest.mark.parametrize("what", ["value", "gradient"])
def test_a_platform_without_the_engine_is_refused_by_name(named, what):
    fun = functools.partial(jc.conv, algorithm=named)
    if what == "gradient":
        fun = jax.grad(lambda x, w, fun=fun: fun(x, w).sum())
    lowered = jax.jit(fun).trace(IMAGE, FILTER)
    with pytest.raises(
        ValueError, match="no native code for platform 'rocm'"
    ) as caught:
        lowered.lower(lowering_platforms=("rocm",))
    assert repr(named) in str(caught.value)
    assert "algorithm='xla' and algorithm='auto' can" in str(caught.value)


def test_a_platform_without_native_code_gets_jax_lax():
    text = (
        jax.jit(jc.conv)
        .trace(IMAGE, FILTER)
        .lower(lowering_platforms=("rocm",))
        .as_text()
    )
    assert "stablehlo.convolution" in text
    assert "jax_convbatch" not in text


# --- workspace_limit ----------------------------------------------------------

OPS = {
    "fprop": lambda f: f,
    "dgrad": lambda f: lambda x, w: jax.vjp(lambda x: f(x, w), x)[1](f(x, w))[0],
    "wgrad": lambda f: lambda x, w: jax.vjp(lambda w: f(x, w), w)[1](f(x, w))[0],
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_smallest_workspace_that_the_message_names_works(column_engine, op, dtype):
    x, w = jnp.ones((3, 8, 9, 4), dtype), jnp.ones((3, 3, 4, 6), dtype)

    def fun(limit):
        conv = functools.partial(
            jc.conv, algorithm=column_engine, workspace_limit=limit
        )
        return OPS[op](conv)(x, w)

    limit = 0
    for _ in OPS:  # The gradients' functions run fprop too, each has its limit.
        try:
            fun(limit)
        except ValueError as error:
            message = str(error)
            assert f"workspace_limit={limit} bytes is too small" in message
            limit = int(message.split("one sample needs ")[1].split(" bytes")[0])
        else:
            break
    np.testing.assert_array_equal(fun(limit), fun(None))
    with pytest.raises(ValueError, match=f"one sample needs {limit} bytes"):
        fun(limit - 1)


@each_function
def test_a_negative_workspace_is_refused(function):
    with pytest.raises(ValueError, match="workspace_limit must be >= 0 bytes, got -1"):
        jax.eval_shape(functools.partial(function, workspace_limit=-1), IMAGE, FILTER)


@each_function
@pytest.mark.parametrize("limit", [1.5, "1 MiB", True])
def test_a_workspace_that_is_no_number_of_bytes_is_refused(function, limit):
    with pytest.raises(TypeError, match="number of bytes"):
        jax.eval_shape(
            functools.partial(function, workspace_limit=limit), IMAGE, FILTER
        )


def test_a_workspace_limit_may_be_a_numpy_integer():
    limit = np.int64(1 << 20)
    jax.eval_shape(functools.partial(jc.conv, workspace_limit=limit), IMAGE, FILTER)


def test_jax_lax_needs_no_workspace():
    x, w = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 2))
    y = jc.conv(x, w, algorithm="xla", workspace_limit=0)
    np.testing.assert_array_equal(y, jc.conv(x, w))
