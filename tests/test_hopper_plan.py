# SPDX-License-Identifier: Apache-2.0
"""What the Hopper kernels say they would do. They are asked without a GPU."""

import pytest

from benchmarks.workloads import (
    FLUX_MNIST,
    RESNET50_V1,
    SOFIE_SINGLE,
    SOFIE_STACK,
    ZOO,
)
from jax_convbatch._native import targets
from jax_convbatch._shapes.geometry import ConvGeometry

OPS = ("fprop", "dgrad", "wgrad")
H200 = 132  # multiprocessors


def geometry(batch, row, **changes):
    h, w, c, k, r, s, stride, pad, dilation, groups = row

    def outputs(size, taps):
        return (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1

    def axes(first, others):
        return (first, others, others)

    g = ConvGeometry(
        *(batch, 1, h, w, c, k, 1, r, s, 1, outputs(h, r), outputs(w, s), groups),
        stride=axes(1, stride),
        pad=axes(0, pad),
        input_dilation=(1, 1, 1),
        filter_dilation=axes(1, dilation),
    )._replace(**changes)
    return {name: int(value) for name, value in g.attribute().items()}


ROW = RESNET50_V1["56_3x3_64_64"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("batch", [1, 8, 256])
@pytest.mark.parametrize("row", RESNET50_V1.values(), ids=RESNET50_V1)
def test_resnet_takes_little_workspace(native, row, batch, dtype):
    for op in OPS:
        plan = native(op, geometry(batch, row), dtype, H200)
        # Small tiles of wgrad share a multiprocessor.
        assert 1 <= plan["blocks"] <= (2 * H200 if op == "wgrad" else H200)
        if op == "wgrad":
            assert plan["workspace"] <= 64 << 20
        elif plan["config"].endswith("t"):  # the transposed filter
            _, _, c, k, r, s, *_ = row
            assert (op, dtype) == ("fprop", "float32")
            assert plan["workspace"] == 4 * r * s * c * k
        else:
            assert plan["workspace"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_multiple_of_16_bytes_of_channels_is_covered(native, dtype):
    vector = {"bfloat16": 8, "float16": 8, "float32": 4}[dtype]
    for op in OPS:
        for c in range(vector, 8 * vector, vector):
            for sizes in ({"C": c}, {"K": c}):
                assert native(op, geometry(2, ROW, **sizes), dtype, H200), (op, sizes)


HALO = "576x64"  # the tile of the kernel that reads x once for nine taps


def test_large_3x3_layers_read_x_once_in_wgrad(native):
    def tile(row, batch=256, dtype="bfloat16", **changes):
        plan = native("wgrad", geometry(batch, row, **changes), dtype, H200)
        return plan["config"].split("/")[0]

    rows = [row for row in RESNET50_V1.values() if row[4] == 3]
    assert len(rows) == 4
    for row in rows:
        assert tile(row) == HALO
        assert tile(row, dtype="float16") == HALO
        dilated = tile(row, filter_dilation=(1, 2, 2), pad=(0, 2, 2))
        assert (dilated == HALO) == (row[0] >= 8)  # four rows that taps connect
        assert tile(row, filter_dilation=(1, 5, 5), pad=(0, 5, 5)) != HALO
        assert tile(row, R=1, pad=(0, 0, 1)) != HALO
        assert tile(row, batch=8) != HALO  # too little work for such pieces


# Tiles of the kernel that reads a tile's pixels once: strips and whole rows.
STRIP, WINDOW = "224x64", "232x64"


def test_64_channels_of_3x3_layers_are_read_as_windows(native):
    def tiles(row=ROW, batch=256, dtype="bfloat16", **changes):
        g = geometry(batch, row, **changes)
        return {native(op, g, dtype, H200)["config"] for op in ("fprop", "dgrad")}

    for batch in (8, 256):
        for dtype in ("bfloat16", "float16"):
            assert tiles(batch=batch, dtype=dtype) == {STRIP}
    assert tiles(H=14, W=14, P=14, Q=14) == {WINDOW}  # strips would hang over
    assert tiles(H=240, W=240, P=240, Q=240) == {STRIP}  # rows fit no product
    five = {"R": 5, "S": 5, "pad": (0, 2, 2)}
    five |= {"H": 35, "W": 35, "P": 35, "Q": 35}
    assert tiles(batch=64, C=48, **five) == {STRIP}
    assert tiles(batch=64, groups=4, **five) == {"128x64"}  # up to nine taps
    neither = {STRIP, WINDOW}.isdisjoint
    assert neither(tiles(batch=1))  # too few tiles
    assert neither(tiles(dtype="float32"))
    assert neither(tiles(RESNET50_V1["28_3x3_128_128"]))
    assert neither(tiles(RESNET50_V1["56_1x1_64_64"]))
    assert neither(tiles(stride=(1, 2, 2), P=28, Q=28))
    assert neither(tiles(H=7, W=7, P=7, Q=7))  # fills either badly


def test_windows_have_many_channels_on_one_side(native):
    def tile(op, batch=64, row=ROW, **changes):
        return native(op, geometry(batch, row, **changes), "bfloat16", H200)["config"]

    _, dense = ZOO["densenet_28_3x3_128_32"]
    assert tile("fprop", row=dense) == tile("dgrad", row=dense) == STRIP
    assert tile("dgrad", 16, row=dense) == STRIP
    assert tile("fprop", row=dense, K=40) != STRIP
    assert tile("fprop", row=dense, C=136) != STRIP
    assert tile("dgrad", C=32, K=128) != STRIP
    assert tile("fprop", C=48, K=192) == STRIP
    assert tile("fprop", C=64, K=192) == tile("fprop", C=64, K=256) == STRIP
    assert tile("fprop", C=64, K=320) != STRIP
    assert tile("fprop", C=72, K=192) != STRIP
    for size, large in ((28, True), (19, False)):
        row = (size, size, 64, 96, 3, 3, 1, 1, 1, 1)
        assert (tile("fprop", row=row) == STRIP) == large


@pytest.mark.parametrize("c", [24, 40, 64, 72, 128])
def test_groups_that_fill_no_box_have_tiles_of_64_outputs_in_wgrad(native, c):
    found = set()
    for batch, size in ((1, 96), (4, 48), (9, 28)):
        row = (size, size, 4 * c, 512, 3, 3, 1, 1, 1, 4)
        config = native("wgrad", geometry(batch, row), "bfloat16", H200)["config"]
        found.add(config.split("/")[0])
    assert ("128x128" in found) == (c % 64 == 0), found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_small_batches_of_deep_layers_need_no_pieces_in_wgrad(native, dtype):
    for name, row in RESNET50_V1.items():
        if name.startswith(("14_", "7_")):
            assert native("wgrad", geometry(8, row), dtype, H200)["workspace"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_taps_of_3x3_layers_share_pixels_in_wgrad_of_small_batches(native, dtype):
    for name in ("56_3x3_64_64", "28_3x3_128_128", "14_3x3_256_256"):
        plan = native("wgrad", geometry(8, RESNET50_V1[name]), dtype, H200)
        assert plan["config"].startswith("96x64/")
        assert plan["workspace"] == 0


def test_long_sums_of_few_outputs_take_clusters_in_small_batches(native):
    def tile(op, batch, row=RESNET50_V1["7_3x3_512_512"]):
        return native(op, geometry(batch, row), "bfloat16", H200)["config"]

    for op in ("fprop", "dgrad"):
        # All clusters run at once.
        assert tile(op, 1) == "56x64"
        assert tile(op, 8) == "56x128"
        assert tile(op, 9) == "64x128"
        assert tile(op, 12) == "104x128"
        assert tile(op, 16) == "136x128"
        assert tile(op, 20) == "64x64"
        assert tile(op, 256) == "128x128"


@pytest.mark.parametrize(("c", "path"), [(4, "strips"), (8, "strips"), (16, "tiles")])
def test_patches_in_f32_whose_rows_fill_a_box_have_tiles(native, c, path):
    g = geometry(256, (16, 16, c, 192, 2, 2, 2, 0, 1, 1))
    assert native("fprop", g, "float32", H200)["path"] == path


def test_short_layers_of_one_tap_have_one_wave_of_tiles(native):
    g = geometry(64, (14, 14, 576, 96, 1, 1, 1, 0, 1, 1))
    assert native("fprop", g, "bfloat16", H200)["config"] == "192x64"
    assert native("fprop", g, "float32", H200)["config"] != "192x64"


def test_tiles_have_no_more_channels_than_outputs(native):
    g = geometry(64, (28, 28, 240, 16, 1, 1, 1, 0, 1, 1))
    assert native("fprop", g, "bfloat16", H200)["config"] == "256x32"


def chosen(native, op, g, dtype):
    """Of the tiles that the plan chooses among, its own."""
    name = native(op, g, dtype, H200)["config"]
    tiles = targets._natives["cuda"].module.implicit_gemm_tiles(op, g, dtype, H200)
    return next(each for each in tiles if each["config"] == name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_few_outputs_run_at_once_and_many_in_large_tiles(native, op, dtype):
    for name in ("14_3x3_256_256", "28_3x3_128_128", "14_1x1_1024_256"):
        few = chosen(native, op, geometry(8, RESNET50_V1[name]), dtype)
        assert few["tiles"] <= 2 * H200
        many = chosen(native, op, geometry(256, RESNET50_V1[name]), dtype)
        assert many["products"] >= 0.75  # of a tile of 128x128
        assert many["products"] >= few["products"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_odd_numbers_of_channels_leave_little_empty(native, op, dtype):
    for name in (
        "wideresnet_32_3x3_160",
        "diffusion_64_3x3_320",
        "diffusion_32_3x3_640",
        "inception_35_3x3_96",
    ):
        batch, row = ZOO[name]
        g = geometry(batch, row)
        tile = chosen(native, op, g, dtype)
        outputs = g["N"] * g["P"] * g["Q"] * g["K"]
        # Where taps share pixels, some that are walked are no outputs.
        assert outputs > 0.7 * tile["tiles"] * tile["m"] * tile["n"]


def test_the_study_of_small_f32_layers_is_covered(native):
    for row in (SOFIE_STACK, *SOFIE_SINGLE.values(), FLUX_MNIST["14_16_32"]):
        for batch in (1, 16, 1000):
            for op in OPS:
                assert native(op, geometry(batch, row), "float32", H200)


def test_a_plan_is_the_same_every_time(native):
    for op in OPS:
        plans = [native(op, geometry(8, ROW), "float32", H200) for _ in range(3)]
        assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize(
    ("op", "dtype", "multiprocessors", "message"),
    [
        ("conv", "float32", H200, "op must be 'fprop', 'dgrad' or 'wgrad'"),
        ("fprop", "float64", H200, "dtype must be 'bfloat16', 'float16' or 'float32'"),
        ("fprop", "float32", 0, "multiprocessors must be positive, and is 0"),
    ],
)
def test_bad_questions(native, op, dtype, multiprocessors, message):
    with pytest.raises(ValueError, match=message):
        native(op, geometry(1, ROW), dtype, multiprocessors)


def test_a_geometry_without_a_field(native):
    fields = geometry(1, ROW)
    del fields["stride_w"]
    with pytest.raises(KeyError):
        native("fprop", fields, "float32", H200)


def test_wgrad_of_many_channels_has_whole_tiles_and_no_pieces(native):
    configs = {1280: "576x64/132", 1024: "576x64/128", 768: "576x64/132"}
    for channels, config in configs.items():
        row = (16, 16, channels, channels, 3, 3, 1, 1, 1, 1)
        plan = native("wgrad", geometry(8, row), "bfloat16", H200)
        assert (plan["config"], plan["workspace"]) == (config, 0)


def test_the_pixels_of_a_stride_are_channels_of_a_wide_filter(native):
    batch, row = ZOO["dqn_84_8x8s4_4_32"]
    for dtype in ("bfloat16", "float32"):
        for op in ("fprop", "dgrad"):
            assert native(op, geometry(batch, row), dtype, H200)["path"] == "tiles"
    # An odd width cannot be folded: 4 channels are then copied with 4 of zeros.
    odd = geometry(batch, row, W=83, Q=19)
    assert native("dgrad", odd, "bfloat16", H200)["path"] == "padded tiles"


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("sizes", [{"P": 0, "Q": 0}, {"C": 0}, {"K": 0}])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_products_of_no_columns_have_no_plan(native, op, sizes, dtype):
    """As of a deformable convolution without outputs."""
    module = targets._natives["cuda"].module
    asked = (op, geometry(2, ROW, **sizes), dtype, 1, H200)
    assert module.implicit_gemm_column_plan(*asked) is None


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", ["W", "Q", "S", "C", "K"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_convolutions_of_nothing_are_planned(native, op, size, dtype):
    """They divide by no size."""
    for channels in ((7, 20), (7, 7), (64, 64), (1, 8)):
        row = (1, 512, *channels, 1, 4, 1, 1, 1, 1)
        native(op, geometry(4096, row, **{size: 0}), dtype, H200, True, False)


def test_weights_stay_where_there_are_taps(native):
    """dgrad of one pixel of x that no output meets has none."""
    dense = geometry(20000, (2, 2, 128, 128, 1, 1, 1, 0, 1, 1))
    assert native("dgrad", dense, "float32", H200)["config"] == "128x128"
    beside = geometry(20000, (1, 1, 128, 128, 1, 1, 2, 1, 1, 1))
    tiles = targets._natives["cuda"].module.implicit_gemm_tiles
    names = {each["config"] for each in tiles("dgrad", beside, "float32", H200)}
    assert "128x64" not in names
    assert native("dgrad", beside, "float32", H200)["config"] in names
