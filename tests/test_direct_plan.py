# SPDX-License-Identifier: Apache-2.0
"""What the direct kernels say they would do. They are asked without a GPU."""

import pytest
from test_hopper_plan import H200, OPS, geometry

from benchmarks.workloads import HARD

GROUPS = {name: case for name, case in HARD.items() if case[1][-1] > 1}
DTYPES = ("bfloat16", "float16", "float32")


@pytest.mark.parametrize("name", GROUPS)
def test_the_hard_rows_are_covered(native, name):
    batch, row = GROUPS[name]
    for op in OPS:
        plan = native(op, geometry(batch, row), "bfloat16", H200)
        assert plan["blocks"] >= H200  # the whole GPU is in use
        assert (plan["workspace"] > 0) == (op == "wgrad")
        assert plan["workspace"] <= 64 << 20
        assert plan["workspace"] % 256 == 0
        assert ("/" in plan["config"]) == (op == "wgrad")


@pytest.mark.parametrize(
    ("size", "channels", "fit"),
    [
        *((7, 40, False), (14, 40, True), (15, 40, False), (27, 40, True)),
        *((55, 40, True), (56, 40, False), (56, 48, True), (99, 40, False)),
        *((112, 40, True), (112, 8, False), (112, 56, False), (112, 64, True)),
    ],
)
def test_the_copy_engine_brings_tiles_on_hopper(native, size, channels, fit):
    """Where they fit the image and its channels, whatever N; a GPU of another kind has
    other tiles."""
    row = (size, size, channels, channels, 3, 3, 1, 1, 1, channels)
    for op in OPS:
        for dtype in DTYPES:
            path = native(op, geometry(2, row), dtype, H200)["path"]
            copies = op != "wgrad" and dtype != "float32" and fit
            assert path == ("copied tiles" if copies else "direct tiles")
            elsewhere = native(op, geometry(2, row), dtype, H200, False)
            assert elsewhere["path"] == "direct tiles"


@pytest.mark.parametrize("taps", [5, 7])
@pytest.mark.parametrize("n", [1, 64, 4096])
@pytest.mark.parametrize("size", [5, 14, 56, 113, 300])
def test_the_tensor_cores_multiply_planes_on_hopper(native, n, size, taps):
    for stride in (1, 2):
        row = (size, size, 40, 40, taps, taps, stride, taps // 2, 1, 40)
        for op in OPS:
            for dtype in DTYPES:
                plan = native(op, geometry(n, row), dtype, H200)
                planes = stride == 1 and dtype != "float32"
                assert plan["path"] == ("planes" if planes else "direct tiles")
                assert plan["blocks"] <= H200 or not planes
                elsewhere = native(op, geometry(n, row), dtype, H200, False)
                assert elsewhere["path"] == "direct tiles"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [2, 3, 17, 40, 96, 672, 1025])
@pytest.mark.parametrize("taps", [2, 3, 4, 5, 7, 11])
def test_depthwise_layers_of_any_width(native, dtype, channels, taps):
    # Tiles of a strided large filter may not fit into shared memory.
    for stride in (1, 2) if taps < 11 else (1,):
        row = (28, 28, channels, channels, taps, taps, stride, taps // 2, 1, channels)
        for op in OPS:
            assert native(op, geometry(8, row), dtype, H200), (op, stride)


@pytest.mark.parametrize("dtype", DTYPES)
def test_far_dilated_filters_are_covered_on_hopper(native, dtype):
    row = (56, 56, 64, 64, 7, 7, 1, 9, 3, 64)
    for op in OPS:
        for n in (1, 64):
            plan = native(op, geometry(n, row), dtype, H200)
            assert plan["path"] == "direct tiles"
            assert plan["preferred"]


@pytest.mark.parametrize("c", [1, 2, 4, 8, 16, 24, 32])
@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, 24, 32])
def test_groups_of_so_many_channels(native, c, k):
    # Eight channels of the narrow side would need over 128 of the other.
    wide = max(c, k) // min(c, k) > 16
    row = (14, 14, 8 * c, 8 * k, 3, 3, 1, 1, 1, 8)
    for op in OPS:
        plan = native(op, geometry(8, row), "bfloat16", H200)
        assert wide or plan, op
        if max(c, k) > 1:
            plan = native(op, geometry(8, row), "float32", H200)
            assert bool(plan) == (c % 4 == 0 and k % 4 == 0)
            assert plan is None or plan["preferred"]


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({}, (8, 8, 84, 84, 3, 3, 1, 1, 1, 2)),  # 42 channels a group
        ({}, (8, 8, 36, 36, 3, 3, 1, 1, 1, 3)),  # 12
        ({}, (8, 8, 20, 20, 3, 3, 1, 1, 1, 5)),  # not whole vectors
        ({}, (8, 8, 32, 32, 1, 1, 1, 0, 1, 32)),  # a product as it stands
        ({}, (40, 40, 32, 32, 3, 3, 9, 1, 1, 32)),  # a stride over 8
        ({"D": 2, "O": 2}, (8, 8, 32, 32, 3, 3, 1, 1, 1, 32)),  # three axes
    ],
)
def test_what_is_left_to_columns(native, changes, row):
    fields = {**geometry(2, row), **changes}
    assert native("dgrad", fields, "bfloat16", H200) is None


@pytest.mark.parametrize("n", [1, 32, 4096])
@pytest.mark.parametrize("size", [7, 56, 224])
def test_f32_groups_at_any_size(native, n, size):
    """wgrad's workers share its rows evenly, in a workspace of a moderate size."""
    row = (size, size, 256, 256, 3, 3, 1, 1, 1, 32)
    for op in OPS:
        plan = native(op, geometry(n, row), "float32", H200)
        assert plan["workspace"] <= 64 << 20
        if op == "wgrad":
            assert plan["blocks"] >= min(H200, n * size // 8)


def test_a_plan_is_the_same_every_time(native):
    _, row = GROUPS["mobilenet_dw3_14_512"]
    plans = [native("wgrad", geometry(64, row), "float32", H200) for _ in range(3)]
    assert plans[0] == plans[1] == plans[2]


def test_columns_are_left_aside_where_they_are_slower(native):
    for name, (batch, row) in GROUPS.items():
        for op in OPS:
            assert native(op, geometry(batch, row), "bfloat16", H200)["preferred"], name


@pytest.mark.parametrize("channels", [16, 24])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_long_sequences_of_few_channels(native, channels, dtype):
    def path(op, steps, dilation):
        row = (1, steps + 6 * dilation, channels, channels, 1, 7, 1, 0, dilation, 1)
        return native(op, geometry(16, row), dtype, H200)["path"]

    for op in OPS:
        least = 4096 if op == "wgrad" else 8192
        for dilation in (1, 9):
            assert path(op, least, dilation) == "direct tiles"
            assert path(op, least - 1, dilation) != "direct tiles"
    for op in ("fprop", "dgrad"):
        assert path(op, 4096, 9) == "tiles"  # strips were not timed
