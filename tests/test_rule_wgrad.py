# SPDX-License-Identifier: Apache-2.0
"""The rule of "auto" on either side of some bounds of wgrad's classes, and of patches'
of several frames."""

import pytest
from fake_gpus import on
from test_rule_products import problem

from jax_convbatch._select import rules

COLUMNS, CUDNN, OURS = "im2col_gemm", "cudnn", "implicit_gemm"


def engine(monkeypatch, op, dtype, n, sizes, c, k, taps, strides=None):
    on(monkeypatch, "9.0")
    pads = ((0, 0),) * len(sizes) if taps == strides else None
    given = problem(op, n, sizes, c, k, dtype, taps, strides, pads)
    return rules.engines(given)[0]


@pytest.mark.parametrize(
    ("n", "size", "c", "k", "stride", "takes"),
    [
        (8, 8, 1280, 1280, 1, CUDNN),
        (4, 16, 1280, 1280, 1, CUDNN),  # 1024 pixels
        (8, 16, 1280, 1280, 1, OURS),
        (2, 32, 1920, 640, 2, CUDNN),  # 512 pixels, 11 million weights
        (4, 32, 1920, 640, 2, OURS),
        (1, 32, 640, 640, 2, CUDNN),  # 256, 3.7 million
        (2, 32, 640, 640, 2, OURS),
        (2, 8, 1280, 504, 1, OURS),
    ],
)
def test_few_pixels_of_many_channels(monkeypatch, n, size, c, k, stride, takes):
    where = "wgrad", "bfloat16", n, (size, size), c, k, (3, 3), (stride, stride)
    assert engine(monkeypatch, *where) == takes


@pytest.mark.parametrize(
    ("c", "k", "patch", "size", "takes"),
    [
        (3, 384, 4, 64, COLUMNS),
        (4, 384, 4, 64, COLUMNS),
        (3, 376, 4, 64, OURS),
        (8, 384, 2, 32, OURS),
        (16, 384, 2, 32, OURS),
    ],
)
def test_patches_of_some_elements(monkeypatch, c, k, patch, size, takes):
    where = "wgrad", "bfloat16", 64, (size, size), c, k, (patch,) * 2, (patch,) * 2
    assert engine(monkeypatch, *where) == takes


@pytest.mark.parametrize(
    ("op", "dtype", "n", "size", "k", "patch", "stride", "takes"),
    [
        ("fprop", "bfloat16", 1, 224, 768, 8, 8, COLUMNS),
        ("wgrad", "bfloat16", 1, 224, 768, 8, 8, COLUMNS),
        ("fprop", "float32", 1, 224, 768, 8, 8, OURS),
        ("wgrad", "float32", 1, 224, 768, 8, 8, OURS),
        ("fprop", "float32", 1, 224, 128, 7, 4, OURS),
        ("fprop", "float32", 1, 512, 128, 7, 4, COLUMNS),
        ("wgrad", "float32", 1, 224, 128, 7, 4, CUDNN),
        ("wgrad", "float32", 4, 224, 128, 7, 4, CUDNN),
        ("wgrad", "float32", 3, 224, 192, 7, 4, CUDNN),
        ("wgrad", "float32", 4, 224, 192, 7, 4, COLUMNS),
        ("wgrad", "bfloat16", 4, 224, 192, 7, 4, OURS),
    ],
)
def test_patches_of_two_frames(
    monkeypatch, op, dtype, n, size, k, patch, stride, takes
):
    taps, strides = (2, patch, patch), (2, stride, stride)
    where = op, dtype, n, (8, size, size), 3, k, taps, strides
    assert engine(monkeypatch, *where) == takes


@pytest.mark.parametrize(
    ("n", "steps", "c", "k", "taps", "takes"),
    [
        (32, 160, 12, 12, 3, COLUMNS),
        (32, 160, 12, 64, 3, OURS),
        (1, 2048, 12, 64, 3, OURS),
        (32, 160, 12, 60, 3, COLUMNS),
    ],
)
def test_short_sequences_in_f32(monkeypatch, n, steps, c, k, taps, takes):
    where = "wgrad", "float32", n, (steps,), c, k, (taps,)
    assert engine(monkeypatch, *where) == takes


@pytest.mark.parametrize(
    ("n", "c", "k", "takes"),
    [
        (20, 128, 512, OURS),
        (21, 128, 512, CUDNN),
        (41, 768, 48, OURS),
        (42, 768, 48, CUDNN),
    ],
)
def test_products_in_f32_have_pixels_enough(monkeypatch, n, c, k, takes):
    where = "wgrad", "float32", n, (7, 7), c, k, (1, 1)
    assert engine(monkeypatch, *where) == takes


@pytest.mark.parametrize(
    ("n", "sizes", "c", "k", "strides", "takes"),
    [
        (2, (64, 64, 64), 96, 192, (2, 2, 2), CUDNN),
        (2, (5, 60, 80), 192, 96, (1, 2, 2), CUDNN),  # 12000 pixels
        (2, (5, 180, 256), 192, 96, (1, 2, 2), OURS),
        (2, (48, 48, 48), 128, 192, (2, 2, 2), OURS),
        (2, (48, 48, 48), 96, 96, (2, 2, 2), CUDNN),
        (2, (64, 64, 64), 96, 96, (2, 2, 2), OURS),
        (2, (48, 48, 48), 96, 160, (2, 2, 2), OURS),
    ],
)
def test_strided_volumes(monkeypatch, n, sizes, c, k, strides, takes):
    where = "wgrad", "bfloat16", n, sizes, c, k, (3, 3, 3), strides
    assert engine(monkeypatch, *where) == takes


@pytest.mark.parametrize(("slices", "takes"), [(7, CUDNN), (9, OURS)])
def test_strides_along_depth_alone(monkeypatch, slices, takes):
    where = "wgrad", "bfloat16", 1, (slices, 32, 64), 384, 384, (3, 1, 1), (2, 1, 1)
    assert engine(monkeypatch, *where) == takes


@pytest.mark.parametrize(
    ("size", "c", "k", "takes"),
    [(64, 20, 20, CUDNN), (63, 20, 20, OURS), (64, 12, 20, OURS), (64, 32, 32, OURS)],
)
def test_products_of_few_channels_in_f32(monkeypatch, size, c, k, takes):
    where = "wgrad", "float32", 32, (size, size), c, k, (1, 1)
    assert engine(monkeypatch, *where) == takes
