# SPDX-License-Identifier: Apache-2.0
"""wgrad on Hopper: exact and reproducible however its tiles are shared."""

import functools

import jax
import numpy as np
import pytest
from problems import layer, normal, run, whole
from promises import arrays, bits
from test_implicit_gemm import SAME, problem

import jax_convbatch as jc

# Problems large enough for wgrad's kernel that reads x once for nine taps.
HALO = {
    "odd": problem(96, (30, 17), 72, 136, (3, 3), padding=SAME),
    "eight images": problem(8, (56, 56), 256, 256, (3, 3), padding=SAME),
    "rows that are left out": problem(
        129, (9, 7), 512, 512, (3, 3), padding=((2, 0), (-1, 3))
    ),
    "dilated by four": problem(
        16, (33, 33), 512, 512, (3, 3), padding=((4, 4), (4, 4)), dilation=(4, 4)
    ),
    "dilated, unequally": problem(
        70, (29, 21), 200, 264, (3, 3), padding=((5, 1), (0, 2)), dilation=(5, 2)
    ),
    "dilated along rows": problem(
        8, (40, 61), 264, 200, (3, 3), padding=((-1, 2), (3, 3)), dilation=(1, 3)
    ),
    "dilated along columns": problem(
        100, (26, 15), 136, 264, (3, 3), padding=((3, 3), (1, 0)), dilation=(3, 1)
    ),
    "four images": problem(4, (56, 56), 256, 264, (3, 3), padding=SAME),
    "three images, dilated": problem(
        3, (92, 83), 256, 264, (3, 3), padding=((2, 3), (3, 0)), dilation=(2, 3)
    ),
    "two images": problem(2, (64, 110), 136, 264, (3, 3), padding=((2, 0), (-1, 3))),
    "one image": problem(1, (90, 220), 200, 192, (3, 3), padding=SAME),
    "one image, dilated by four": problem(
        1, (64, 250), 256, 256, (3, 3), padding=((4, 4), (4, 4)), dilation=(4, 4)
    ),
    "slices, one at a time": layer(
        2, (5, 30, 111), 192, 136, (3, 3, 3), ((2, 0), *SAME)
    ),
    "slices, four at a time": layer(
        2, (12, 31, 27), 128, 264, (3, 3, 3), ((1, 1), *SAME)
    ),
}


# wgrad's ways to share a tile among blocks, and the start of the configuration that
# tells them: blocks 132 where shares do not end with tiles, "c" clusters, "p" pairs.
# Few steps a block have a kernel of their own.
SPLITS = {
    "no pieces": (problem(8, (14, 14), 1024, 512, (1, 1), (2, 2)), "64x64/128"),
    "clusters of two, no pieces": (
        problem(8, (28, 14), 1024, 256, (1, 1), (2, 1)),
        "c2",
    ),
    "clusters of two, 576x64": (
        problem(64, (7, 7), 512, 512, (3, 3), padding=SAME),
        "576x64/128c2",
    ),
    "clusters of two, pieces, 576x64": (
        problem(32, (56, 56), 64, 64, (3, 3), padding=SAME),
        "576x64/132c2",
    ),
    "the same, channels that do not fill it, dilated by three": (
        problem(
            68, (62, 56), 56, 40, (3, 3), padding=((3, 3), (3, 3)), dilation=(3, 3)
        ),
        "576x64/132c2",
    ),
    "the same, 16 images": (
        problem(256, (60, 7), 64, 64, (3, 3), padding=SAME),
        "576x64/132c2",
    ),
    "pieces, 576x64": (
        problem(200, (15, 14), 200, 256, (3, 3), padding=SAME),
        "576x64/128",
    ),
    "clusters of four": (
        problem(8, (56, 56), 248, 504, (1, 1), (2, 2)),
        "128x64/64c4",
    ),
    "clusters of four, stages in turns": (
        problem(8, (28, 28), 264, 512, (1, 1)),
        "64x128/80c4",
    ),
    "clusters of eight": (problem(8, (28, 28), 504, 120, (1, 1)), "64x128/64c8"),
    "clusters of eight, pieces": (
        problem(8, (56, 56), 248, 128, (1, 1)),
        "64x128/96c8",
    ),
    "few steps, clusters of three": (
        problem(8, (56, 56), 256, 512, (1, 1), (2, 2)),
        "64x64/96c3",
    ),
    "fewer than ten steps, clusters of three": (
        problem(8, (28, 28), 512, 256, (1, 1), (2, 2)),
        "64x64/96c3",
    ),
    "few steps, clusters of two": (
        problem(8, (14, 14), 256, 1024, (1, 1)),
        "64x64/128c2",
    ),
    "few steps, clusters of six": (
        problem(8, (28, 28), 512, 128, (1, 1)),
        "64x64/96c6",
    ),
    "few steps, 128x64": (
        problem(8, (28, 28), 256, 256, (3, 3), (2, 2), SAME),
        "128x64/72",
    ),
    "few steps, 128x64, clusters of two": (
        problem(16, (28, 28), 512, 1024, (1, 1), (2, 2)),
        "128x64/128c2",
    ),
    "few steps, a last step of four pixels, clusters of three": (
        problem(68, (7, 7), 128, 512, (3, 3), padding=SAME),
        "128x128/108c3",
    ),
    "few steps, taps share pixels, clusters of four": (
        problem(8, (28, 28), 64, 256, (3, 3), padding=SAME),
        "96x64/96c4",
    ),
    "clusters of two share x": (
        problem(128, (112, 56), 64, 256, (1, 1), (2, 1)),
        "64x128/120c2px",
    ),
    "clusters of two share dy": (
        problem(64, (112, 56), 128, 128, (1, 1)),
        "64x128/120c2py",
    ),
    "blocks of large tiles share x": (
        problem(160, (28, 14), 1024, 256, (1, 1), (2, 1)),
        "128x128/128px",
    ),
    "three warpgroups share dy": (
        problem(128, (7, 7), 320, 384, (5, 5), (2, 2), ((2, 2), (2, 2))),
        "192x128/126py",
    ),
    "three warpgroups share x": (
        problem(64, (14, 14), 512, 512, (3, 3), (2, 2), SAME),
        "192x128/96px",
    ),
    "shares that do not end with tiles": (
        problem(256, (7, 7), 776, 1288, (3, 3), (2, 2), SAME),
        "256x128/132",
    ),
    "fewer blocks, of three whole tiles": (
        problem(96, (7, 9), 1040, 1152, (3, 3), (2, 2), SAME),
        "256x128/117",
    ),
    "fewer blocks, tiles that are left are shared": (
        problem(2, (1, 2048), 1024, 1152, (1, 5), padding=((0, 0), (2, 2))),
        "256x128/124",
    ),
    "the same, 576x64": (
        problem(16, (7, 7), 1200, 768, (3, 3), padding=SAME),
        "576x64/132",
    ),
    "helpers, 576x64": (
        problem(8, (20, 30), 600, 640, (3, 3), padding=SAME),
        "576x64/132",
    ),
    "helpers, 576x64, 16 images": (
        problem(24, (9, 15), 640, 584, (3, 3), padding=SAME),
        "576x64/132",
    ),
    "helpers, 576x64, dilated": (
        problem(16, (23, 27), 520, 640, (3, 3), padding=SAME, dilation=(2, 2)),
        "576x64/132",
    ),
    "clusters of two, 576x64, two slices at a time": (
        layer(1, (10, 24, 55), 264, 200, (3, 3, 3), ((3, 1), (0, 2), (1, 1))),
        "576x64/120c2",
    ),
    "helpers, 576x64, slices": (
        layer(1, (5, 60, 112), 320, 320, (3, 3, 3), ((2, 0), *SAME)),
        "576x64/132",
    ),
    "whole tiles of 576x64, two a block": (
        problem(8, (14, 14), 696, 1528, (3, 3), padding=SAME),
        "576x64/132",
    ),
    "the same, two tiles are left over": (
        problem(8, (13, 15), 896, 1216, (3, 3), padding=SAME),
        "576x64/132",
    ),
    "the same, eight, dilated": (
        problem(16, (17, 19), 1088, 1024, (3, 3), padding=SAME, dilation=(2, 2)),
        "576x64/132",
    ),
    "the same, five, 16 images": (
        problem(24, (9, 7), 1728, 960, (3, 3), padding=((2, 0), (-1, 3))),
        "576x64/132",
    ),
    "whole tiles of 576x64, fewer blocks": (
        problem(16, (14, 14), 1024, 1024, (3, 3), padding=SAME),
        "576x64/128",
    ),
    "the same, some tiles are one block's": (
        problem(8, (7, 7), 1200, 768, (3, 3), padding=SAME),
        "128x128/132",
    ),
    "tiles that are left are shared, blocks share x": (
        problem(256, (14, 14), 512, 512, (3, 3), (2, 2), SAME),
        "128x128/132",
    ),
    "the same, some blocks share none, a last step of 16 pixels": (
        problem(33, (7, 7), 456, 768, (5, 5), (2, 2), ((2, 2), (2, 2))),
        "256x128/132",
    ),
    "whole tiles and shares, three warpgroups, in pairs": (
        problem(1, (32, 32), 1032, 968, (3, 3), padding=SAME),
        "192x128/132px",
    ),
    "whole tiles and shares, 128x256": (
        problem(1, (32, 32), 1928, 1304, (3, 3), padding=SAME),
        "128x256/132",
    ),
    "slices of padding": (
        layer(1, (2, 32, 40), 520, 520, (3, 3, 3), ((1, 1), *SAME)),
        "128x256/122",
    ),
    "tiles that are left are shared, three warpgroups": (
        problem(8, (5, 5), 456, 1000, (3, 3), (2, 2), SAME),
        "192x128/132",
    ),
    "tiles that are left are shared, those of two steps": (
        problem(8, (5, 5), 320, 1200, (5, 5), (2, 2), ((2, 2), (2, 2))),
        "256x128/132",
    ),
    "shares that do not end with small tiles": (
        problem(3, (5, 5), 200, 768, (5, 5), (2, 2), ((2, 2), (2, 2))),
        "64x64/132",
    ),
    "channels that do not fill tiles": (
        problem(64, (14, 15), 328, 456, (3, 3), (2, 2), SAME),
        "128x128/108",
    ),
    "channels that do not fill small tiles": (
        problem(8, (28, 28), 328, 136, (1, 1)),
        "128x64/72c8",
    ),
    "channels that do not fill small tiles, stages in turns": (
        problem(9, (29, 27), 136, 520, (1, 1)),
        "64x128/120c8",
    ),
    "few steps, clusters of twelve": (
        problem(4, (56, 56), 64, 256, (1, 1)),
        "64x64/48c12",
    ),
    "few steps, clusters of eight": (
        problem(8, (56, 56), 256, 128, (1, 1), (2, 2)),
        "64x64/64c8",
    ),
    "few steps, clusters of nine": (
        problem(8, (14, 14), 128, 128, (1, 1)),
        "64x64/36c9",
    ),
    "few steps, clusters of six, pieces": (
        problem(8, (56, 56), 64, 64, (1, 1)),
        "64x64/102c6",
    ),
    "few steps, taps share pixels": (
        problem(8, (14, 14), 256, 256, (3, 3), padding=SAME),
        "96x64/96",
    ),
    "few steps, taps share pixels, clusters of twelve": (
        problem(8, (56, 56), 64, 64, (3, 3), padding=SAME),
        "96x64/72c12",
    ),
    "few steps, taps share pixels, clusters of sixteen": (
        problem(16, (56, 56), 64, 64, (3, 3), padding=SAME),
        "96x64/96c16",
    ),
    "few steps, taps share pixels, five images": (
        problem(5, (14, 14), 32, 64, (3, 3), padding=SAME),
        "96x64/21c7",
    ),
    "few steps, taps share pixels, eleven images, unequal padding": (
        problem(11, (17, 14), 96, 192, (3, 3), padding=((0, 2), (2, 0))),
        "96x64/108c4",
    ),
    "a last step of eight pixels": (
        problem(8, (14, 14), 1024, 2048, (1, 1), (2, 2)),
        "128x128/128",
    ),
    "a last step of eight pixels, 128x64": (
        problem(8, (7, 7), 256, 256, (3, 3), padding=SAME),
        "128x64/72",
    ),
    "a last step of four pixels, stages in turns": (
        problem(41, (11, 11), 248, 248, (3, 3), (2, 2), SAME),
        "64x128/72py",
    ),
    "a last step of four pixels, clusters of two": (
        problem(68, (13, 7), 264, 1024, (1, 1), (2, 1)),
        "64x128/80c2",
    ),
    "a last step of eight pixels, three warpgroups": (
        problem(8, (7, 7), 512, 512, (3, 3), padding=SAME),
        "192x128/96",
    ),
    "channels that do not fill small tiles, 3x3": (
        problem(30, (15, 13), 248, 72, (3, 3), (2, 2), SAME),
        "128x64/72c2",
    ),
}
WGRADS = {name: (case, "576x64") for name, case in HALO.items()} | SPLITS


def wgrad_of(case):
    options = case.kwargs | {"algorithm": "implicit_gemm"}

    def wgrad(x, w, dy):
        conv = functools.partial(jc.conv_general_dilated, x, **options)
        return jax.vjp(conv, w)[1](dy)

    return wgrad


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", WGRADS)
def test_wgrad_is_exact_however_it_is_split(hopper, name, dtype):
    case, config = WGRADS[name]
    x, w, dy = arrays(case, functools.partial(whole, most=1), dtype)
    rows = jc.explain(wgrad_of(case), x, w, dy)
    (row,) = (r for r in rows if r.op == "wgrad")
    assert config in str(row)
    got = run(case, x, w, dy, algorithm="implicit_gemm").dw
    want = run(case, x, w, dy, algorithm="im2col_gemm").dw
    np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WGRADS)
def test_wgrad_has_the_same_bits_every_time(hopper, name):
    case, _ = WGRADS[name]
    args = arrays(case, normal, "bfloat16")
    step = jax.jit(wgrad_of(case))
    want = bits(step(*args)[0])
    for _ in range(20):
        np.testing.assert_array_equal(bits(step(*args)[0]), want)
