# SPDX-License-Identifier: Apache-2.0
"""Bits of a sample by cuDNN do not depend on its batch (GPU only)."""

import pytest
from promises import assert_batch_invariant
from test_cudnn import case, on_cuda  # noqa: F401 (for every test here, too)

pytestmark = pytest.mark.gpu


def square(size, c, k, taps, stride=1, **options):
    return case(
        (1, size, size, c), (taps, taps, c, k), stride, pad=taps // 2, **options
    )


GEOMETRIES = {
    **{
        f"{size} {taps}x{taps}s{stride} {c}->{k}": square(size, c, k, taps, stride)
        for size, taps, stride, c, k in (
            (28, 1, 1, 64, 64),
            (28, 1, 1, 64, 256),
            (28, 1, 1, 256, 64),
            (14, 1, 1, 1024, 256),
            (7, 1, 1, 2048, 512),
            (7, 1, 1, 512, 2048),
            (28, 1, 2, 256, 512),
            (14, 1, 2, 512, 1024),
            (28, 3, 1, 64, 64),
            (28, 3, 1, 128, 128),
            (14, 3, 1, 256, 256),
            (7, 3, 1, 512, 512),
            (28, 3, 2, 128, 128),
            (14, 3, 2, 256, 256),
            (14, 3, 2, 512, 512),
            (32, 7, 2, 3, 64),
            (16, 5, 1, 48, 64),
            (16, 3, 1, 24, 40),
            (16, 3, 1, 32, 16),
            (16, 3, 1, 8, 8),
            (15, 3, 1, 13, 7),
            (16, 3, 1, 160, 320),
            (16, 3, 1, 320, 160),
            (8, 3, 1, 1280, 1280),
            (16, 3, 1, 64, 3),
            (28, 2, 2, 96, 192),
            (28, 1, 1, 192, 40),
            (32, 1, 1, 34, 1),
            (32, 3, 1, 5, 1),
            (32, 4, 4, 3, 96),
            # Products whose kernel cuDNN chooses inside, by the number of pixels.
            (7, 1, 1, 960, 16),
            (28, 1, 1, 240, 16),
            (56, 1, 1, 136, 24),
            (56, 1, 1, 96, 136),
        )
    },
    "dilated": square(16, 64, 64, 3)._replace(
        conv=case((1, 16, 16, 64), (3, 3, 64, 64), 1, 2, 2).conv
    ),
    "causal 1-D": case((1, 200, 128), (3, 128, 128), pad=(2, 0)),
    "1-D": case((1, 200, 96), (7, 96, 96), pad=3),
    "strided 1-D": case((1, 200, 64), (8, 64, 128), 4, pad=2),
    "thin 1-D": case((1, 500, 16), (7, 16, 16), dilation=5, pad=15),
    "24 channels 1-D": case((1, 500, 24), (7, 24, 24), pad=3),
    "one channel 1-D": case((1, 2000, 1), (7, 1, 32), pad=(6, 0)),
    "transposed": case((1, 14, 14, 64), (4, 4, 64, 32), input_dilation=2, pad=2),
    "transposed 1-D": case((1, 50, 128), (8, 128, 64), input_dilation=4, pad=5),
    "groups of 64": case((1, 14, 14, 256), (3, 3, 64, 256), pad=1, groups=4),
    "groups of 16": case((1, 14, 14, 128), (3, 3, 16, 128), pad=1, groups=8),
    "groups of 3": case((1, 16, 16, 48), (3, 3, 3, 256), pad=1, groups=16),
    "gradients of examples": case((1, 9, 9, 32), (9, 9, 1, 512), pad=1, groups=32),
    "depthwise": case((1, 14, 14, 96), (3, 3, 1, 96), pad=1, groups=96),
    "depthwise 7x7": case((1, 14, 14, 96), (7, 7, 1, 96), pad=3, groups=96),
    "3-D": case((1, 8, 8, 8, 32), (3, 3, 3, 32, 32), pad=1),
    "strided 3-D": case((1, 8, 8, 8, 32), (3, 3, 3, 32, 64), 2, pad=1),
    "3-D of 64": case((1, 6, 8, 8, 64), (3, 3, 3, 64, 64), pad=1),
    "1x1 1-D": case((1, 700, 960), (1, 960, 136)),
    "1x1x1": case((1, 6, 12, 12, 96), (1, 1, 1, 96, 136)),
    "negative": case((1, 16, 16, 32), (3, 3, 32, 32), pad=(-1, -1)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_sample_has_its_bits_in_every_batch(name, dtype):
    batches = (1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 64, 100, 128, 255)
    assert_batch_invariant(GEOMETRIES[name], dtype, "cudnn", batches)


def test_there_are_forty():
    assert len(GEOMETRIES) >= 40
