# SPDX-License-Identifier: Apache-2.0
"""x and w that do not fit are refused by their names, with the order that would fit."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from test_errors import shaped

import jax_convbatch as jc
from jax_convbatch import ops

X, W = shaped(2, 8, 9, 4), shaped(3, 3, 4, 6)
CONVS = {
    "conv": jc.conv,
    "conv_bias_act": jc.conv_bias_act,
    "jax.lax": functools.partial(jc.conv, algorithm="xla"),
    "fprop": ops.fprop,
}
each = pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())


def refused(kind, conv, x, w, **options):
    with pytest.raises(kind) as caught:
        jax.eval_shape(functools.partial(conv, **options), x, w)
    message = str(caught.value)
    assert "lhs" not in message and "rhs" not in message
    return message


@each
def test_channels_that_do_not_fit(conv):
    message = refused(ValueError, conv, X, shaped(3, 3, 5, 6))
    assert message == (
        "w must have 4 input channels, got 5; x (2, 8, 9, 4) has its channels at axis "
        "3, w (3, 3, 5, 6) its input channels at axis 2"
    )


@each
def test_groups_that_do_not_fit(conv):
    run = functools.partial(refused, ValueError, conv)
    two = run(X, W, groups=2)
    assert two.startswith("w must have 2 input channels (4 in 2 groups), got 4; ")
    assert two.endswith(
        "It is the filter of groups=1; of 2 it has axes of 2 and 6 there"
    )
    # Not what would fit by chance, were the channels first.
    chance = run(shaped(2, 8, 8, 4), shaped(3, 3, 4, 6), groups=2)
    assert "NCHW" not in chance
    assert run(X, W, groups=3).startswith("groups=3 must divide the 4 channels of x")
    odd = run(X, shaped(3, 3, 2, 5), groups=2)
    assert odd == "groups=2 must divide the 5 output channels of w"
    for groups in (0, -1):
        assert run(X, W, groups=groups) == f"groups must be at least 1, got {groups}"


@each
@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "complex64"])
def test_dtypes_that_differ(conv, dtype):
    message = refused(TypeError, conv, X, shaped(3, 3, 4, 6, dtype=jnp.dtype(dtype)))
    assert message.startswith(f"x and w must have one dtype, got float32 and {dtype}")


@each
@pytest.mark.parametrize(
    ("x", "w", "numbers", "groups"),
    [
        ((2, 64, 32, 33), (3, 3, 64, 6), ("NCHW", "HWIO", "NCHW"), 1),
        ((2, 64, 32, 33), (6, 64, 3, 3), ("NCHW", "OIHW", "NCHW"), 1),
        ((2, 32, 33, 64), (6, 64, 3, 3), ("NHWC", "OIHW", "NHWC"), 1),
        ((2, 64, 32, 33), (3, 3, 1, 64), ("NCHW", "HWIO", "NCHW"), 64),
        ((2, 64, 33), (3, 32, 6), ("NCW", "WIO", "NCW"), 2),
        ((2, 64, 8, 9, 7), (6, 64, 3, 3, 3), ("NCDHW", "OIDHW", "NCDHW"), 1),
    ],
)
def test_another_order_of_axes_that_fits_is_named(conv, x, w, numbers, groups):
    x, w = shaped(*x), shaped(*w)
    message = refused(ValueError, conv, x, w, groups=groups)
    assert f"pass dimension_numbers={numbers}" in message
    jax.eval_shape(
        functools.partial(conv, groups=groups, dimension_numbers=numbers), x, w
    )


@each
def test_no_order_is_named_where_none_fits_or_one_is_given(conv):
    assert "dimension_numbers" not in refused(ValueError, conv, X, shaped(3, 3, 5, 6))
    given = dict(dimension_numbers=("NCHW", "OIHW", "NCHW"))
    assert "pass dim" not in refused(ValueError, conv, X, W, **given)


@each
def test_what_is_wrong_with_dimension_numbers_is_said_by_jax_lax(conv):
    def said(function, *options):
        with pytest.raises((TypeError, ValueError)) as caught:
            jax.eval_shape(function, X, W)
        return caught.type, str(caught.value)

    bad = ("NHWC", "HWIO", "NXWC")
    theirs = said(
        lambda x, w: jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=bad
        )
    )
    assert said(functools.partial(conv, dimension_numbers=bad)) == theirs


@pytest.mark.parametrize("transpose_kernel", [False, True])
def test_conv_transpose_names_them_too(transpose_kernel):
    run = functools.partial(jc.conv_transpose, transpose_kernel=transpose_kernel)
    shape = (3, 3, 6, 5) if transpose_kernel else (3, 3, 5, 6)
    message = refused(ValueError, run, X, shaped(*shape))
    assert message.startswith("w must have 4 input channels, got 5; x (2, 8, 9, 4)")
    assert f"at axis {shape.index(5)}" in message
    refused(TypeError, run, X, shaped(*shape, dtype=jnp.bfloat16))
    first = shaped(2, 4, 8, 9)
    hint = re.search("pass (.*)$", refused(ValueError, jc.conv_transpose, first, W))
    numbers = ("NCHW", "HWIO", "NCHW")
    assert hint[1] == f"dimension_numbers={numbers}"
    jax.eval_shape(
        functools.partial(jc.conv_transpose, dimension_numbers=numbers), first, W
    )


def test_gradients_name_them_too():
    dy = jax.eval_shape(jc.conv, X, W)
    wrong = shaped(3, 3, 5, 6)
    for function in (
        lambda dy, w: ops.dgrad(dy, w, X.shape),
        lambda dy, w: ops.wgrad(jnp.ones(X.shape), dy, w.shape),
    ):
        message = refused(ValueError, function, dy, wrong)
        assert message.startswith("w must have 4 input channels, got 5")


@pytest.mark.parametrize(
    ("w", "groups", "hint"),
    [
        ((3, 3, 1, 4), 1, "For a depthwise convolution pass groups=4"),
        ((3, 3, 4, 1), 4, "The filter of a depthwise convolution has axes of 1 and 4"),
    ],
)
def test_depthwise_filters_are_recognized(w, groups, hint):
    assert hint in refused(ValueError, jc.conv, X, shaped(*w), groups=groups)


def test_the_filter_of_what_is_transposed_is_recognized():
    transposed = functools.partial(jc.conv_transpose, strides=2)
    message = refused(ValueError, transposed, X, shaped(2, 2, 16, 4))
    assert message.endswith("pass transpose_kernel=True")
    fits = jax.eval_shape(
        functools.partial(transposed, transpose_kernel=True), X, shaped(2, 2, 16, 4)
    )
    assert fits.shape[-1] == 16


@pytest.mark.parametrize(
    ("x", "w", "hint"),
    [
        ("uint8", "float32", "pass x.astype(w.dtype)"),
        ("float32", "int32", "pass w.astype(x.dtype)"),
        ("float32", "bfloat16", "cast one of them"),
    ],
)
def test_the_array_to_cast_is_named(x, w, hint):
    w = shaped(3, 3, 4, 6, dtype=w)
    assert refused(TypeError, jc.conv, shaped(*X.shape, dtype=x), w).endswith(hint)
