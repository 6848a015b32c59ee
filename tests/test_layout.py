# SPDX-License-Identifier: Apache-2.0
"""Dimension numbers are served by physical layouts: nothing is transposed."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import normal, whole

import jax_convbatch as jc

# Minor-to-major orders, as HLO prints them, that are channels last in memory.
LAYOUTS = {
    ("NCHW", "OIHW", "NCHW"): ("1,3,2,0", "0,1,3,2", "1,3,2,0"),
    ("NHWC", "HWIO", "NHWC"): ("3,2,1,0", "3,2,1,0", "3,2,1,0"),
    ("HWNC", "HWOI", "CNHW"): ("3,1,0,2", "2,3,1,0", "0,3,2,1"),
    ("CHWN", "IHWO", "HWCN"): ("0,2,1,3", "3,0,2,1", "2,1,0,3"),
}
SIZES = dict(N=4, H=6, W=7, C=5, O=8, I=5)


def arrays(numbers):
    x, w, y = numbers
    y_sizes = SIZES | {"C": 8}
    return (
        normal(0, [SIZES[c] for c in x], "float32"),
        normal(1, [3 if c in "HW" else SIZES[c] for c in w], "float32"),
        normal(2, [y_sizes[c] for c in y], "float32"),
    )


def custom_calls(compiled):
    """For each native call of the program: name, and layouts of all its arrays."""
    for line in compiled.as_text().splitlines():
        target = re.search(r'custom_call_target="jax_convbatch_\w+_(\w+)"', line)
        if target:
            result, operands = line.split("operand_layout_constraints=")
            layouts = [
                re.findall(r"f32\[[\d,]+\]\{([\d,]+)", part)
                for part in (
                    operands.split("}}")[0] + "}",
                    result.split("custom-call(")[0],
                )
            ]
            yield target[1], tuple(layouts[0]), layouts[1][0]


@pytest.mark.parametrize("numbers", LAYOUTS)
def test_native_calls_see_channels_last_memory(numbers):
    x, w, y = LAYOUTS[numbers]
    fun = functools.partial(
        jc.conv_general_dilated,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=numbers,
    )
    step = jax.jit(lambda x, w, dy: jax.vjp(fun, x, w)[1](dy))
    *operands, dy = arrays(numbers)
    calls = list(custom_calls(jax.jit(fun).lower(*operands).compile()))
    calls += custom_calls(step.lower(*operands, dy).compile())
    found = {name: (operands, result) for name, operands, result in calls}
    assert found == {
        "fprop": ((x, w), y),
        "dgrad": ((y, w), x),
        "wgrad": ((x, y), w),
    }


def chain(numbers, x, weights, bias):
    for w in weights:
        x = jc.conv_bias_act(x, w, bias, dimension_numbers=numbers, activation="relu")
    return x


@pytest.mark.parametrize(
    "numbers", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")]
)
def test_a_chain_of_layers_transposes_nothing(numbers):
    """Channels first too: the layers agree on memory, so only the first one's
    input and the last one's output are copied."""
    x = jnp.ones([SIZES[c] for c in numbers[0]])
    w = jnp.ones([3 if c in "HW" else 5 for c in numbers[1]])
    fun = jax.jit(functools.partial(chain, numbers))
    text = fun.lower(x, [w] * 4, jnp.ones(5)).compile().as_text()
    assert len(re.findall(r"custom_call_target=\"jax_convbatch_implicit", text)) == 4
    assert not re.findall(r"= \S+ transpose\(", text)
    # Copies that stand alone; those inside a fusion with arithmetic cost nothing.
    entry = text[text.index("ENTRY") :]
    shape = ",".join(map(str, x.shape))
    copies = re.findall(
        rf"wrapped_copy\S* = f32\[{shape}\]|= f32\[{shape}\]\S* copy\(", entry
    )
    want = 2 if numbers[0] == "NCHW" else 0  # the input's, and the output's
    assert len(copies) == want


def test_every_layout_has_the_same_bits():
    results = []
    x, w, dy = (
        whole(i, s, "float32", 9) / 7
        for i, s in enumerate([(4, 6, 7, 5), (3, 3, 5, 8), (4, 6, 7, 8)])
    )
    for numbers in LAYOUTS:
        orders = [
            [letters.index(c) for c in spec]
            for letters, spec in zip(("NHWC", "HWIO", "NHWC"), numbers, strict=True)
        ]
        args = [a.transpose(o) for a, o in zip((x, w, dy), orders, strict=True)]
        fun = functools.partial(
            jc.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=numbers,
        )
        y, pullback = jax.vjp(fun, *args[:2])
        back = zip(
            (y, *pullback(args[2])), (orders[2], orders[0], orders[1]), strict=True
        )
        results.append([np.asarray(a).transpose(np.argsort(o)) for a, o in back])
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(a, b)
