"""The convolutions that the benchmarks time, as plain data.

Every row is (H, W, C, K, R, S, stride, pad, dilation, groups): input height and
width, input and output channels, filter height and width, then one number each
for both spatial axes.
"""

# ResNet-50 v1, the 19 rows of TVM's CUTLASS dgrad/wgrad study.
RESNET50_V1 = {
    "56_1x1_64_256": (56, 56, 64, 256, 1, 1, 1, 0, 1, 1),
    "56_1x1_64_64": (56, 56, 64, 64, 1, 1, 1, 0, 1, 1),
    "56_3x3_64_64": (56, 56, 64, 64, 3, 3, 1, 1, 1, 1),
    "56_1x1_256_64": (56, 56, 256, 64, 1, 1, 1, 0, 1, 1),
    "56_1x1s2_256_512": (56, 56, 256, 512, 1, 1, 2, 0, 1, 1),
    "56_1x1s2_256_128": (56, 56, 256, 128, 1, 1, 2, 0, 1, 1),
    "28_3x3_128_128": (28, 28, 128, 128, 3, 3, 1, 1, 1, 1),
    "28_1x1_128_512": (28, 28, 128, 512, 1, 1, 1, 0, 1, 1),
    "28_1x1_512_128": (28, 28, 512, 128, 1, 1, 1, 0, 1, 1),
    "28_1x1s2_512_1024": (28, 28, 512, 1024, 1, 1, 2, 0, 1, 1),
    "28_1x1s2_512_256": (28, 28, 512, 256, 1, 1, 2, 0, 1, 1),
    "14_3x3_256_256": (14, 14, 256, 256, 3, 3, 1, 1, 1, 1),
    "14_1x1_256_1024": (14, 14, 256, 1024, 1, 1, 1, 0, 1, 1),
    "14_1x1_1024_256": (14, 14, 1024, 256, 1, 1, 1, 0, 1, 1),
    "14_1x1s2_1024_2048": (14, 14, 1024, 2048, 1, 1, 2, 0, 1, 1),
    "14_1x1s2_1024_512": (14, 14, 1024, 512, 1, 1, 2, 0, 1, 1),
    "7_3x3_512_512": (7, 7, 512, 512, 3, 3, 1, 1, 1, 1),
    "7_1x1_512_2048": (7, 7, 512, 2048, 1, 1, 1, 0, 1, 1),
    "7_1x1_2048_512": (7, 7, 2048, 512, 1, 1, 1, 0, 1, 1),
}

# ROOT/SOFIE's gemmStridedBatched study, float32. The stack is 8 equal layers in
# a row at each batch size; the single layers are timed at batch 8.
SOFIE_LAYERS = 8
SOFIE_BATCHES = (1, 4, 8, 16)
SOFIE_STACK = (16, 16, 16, 16, 3, 3, 1, 1, 1, 1)
SOFIE_SINGLE_BATCH = 8
SOFIE_SINGLE = {
    "C16_8x8": (8, 8, 16, 16, 3, 3, 1, 1, 1, 1),
    "C64_32x32": (32, 32, 64, 64, 3, 3, 1, 1, 1, 1),
    "C128_28x28": (28, 28, 128, 128, 3, 3, 1, 1, 1, 1),
    "C64_56x56": (56, 56, 64, 64, 3, 3, 1, 1, 1, 1),
}


def arguments(row) -> dict:
    """Keyword arguments with which `jax_convbatch.conv` runs a row."""
    *_, stride, pad, dilation, groups = row
    return {"strides": stride, "padding": pad, "dilation": dilation, "groups": groups}


def shapes(batch: int, row):
    """Shapes of x, w and y."""
    height, width, c, k, r, s, stride, pad, dilation, groups = row
    p = (height + 2 * pad - dilation * (r - 1) - 1) // stride + 1
    q = (width + 2 * pad - dilation * (s - 1) - 1) // stride + 1
    return (batch, height, width, c), (r, s, c // groups, k), (batch, p, q, k)


def flops(batch: int, row) -> int:
    """Multiply-adds counted as two operations; fprop, dgrad and wgrad are equal."""
    _, (r, s, c, k), (n, p, q, _) = shapes(batch, row)
    return 2 * n * p * q * k * r * s * c
