# SPDX-License-Identifier: Apache-2.0
"""The convolutions that the benchmarks time, as plain data.

Every row is (H, W, C, K, R, S, stride, pad, dilation, groups): input height and
width, input and output channels, filter height and width, then one number each
for both spatial axes.
"""

# ResNet-50 v1, the 19 rows of TVM's CUTLASS dgrad/wgrad study (batch 8 and 256).
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

# What ResNet-50 v1.5 (torchvision, Flax) has besides: the stem and the strided 3x3.
RESNET50_V15_EXTRA = {
    "stem_224_7x7s2_3_64": (224, 224, 3, 64, 7, 7, 2, 3, 1, 1),
    "56_3x3s2_128_128": (56, 56, 128, 128, 3, 3, 2, 1, 1, 1),
    "28_3x3s2_256_256": (28, 28, 256, 256, 3, 3, 2, 1, 1, 1),
    "14_3x3s2_512_512": (14, 14, 512, 512, 3, 3, 2, 1, 1, 1),
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

# A question in PyTorch's forum: how the time of a convolution grows with the batch.
FORUM = {"128x256_3x3_512_1024": (128, 256, 512, 1024, 3, 3, 1, 1, 1, 1)}

# Flux's MNIST model, where the bias gradient took up to 28% of the time.
FLUX_MNIST = {
    "28_1_16": (28, 28, 1, 16, 3, 3, 1, 1, 1, 1),
    "14_16_32": (14, 14, 16, 32, 3, 3, 1, 1, 1, 1),
    "7_32_32": (7, 7, 32, 32, 3, 3, 1, 1, 1, 1),
}

# Shapes that the stock path serves badly on an H200: (batch, row).
HARD = {
    "stem_224_7x7s2_3_64": (256, (224, 224, 3, 64, 7, 7, 2, 3, 1, 1)),
    "vit_patch16_3_768": (256, (224, 224, 3, 768, 16, 16, 16, 0, 1, 1)),
    "convnext_patch4_3_96": (256, (224, 224, 3, 96, 4, 4, 4, 0, 1, 1)),
    "dilated_33_3x3d4_512": (16, (33, 33, 512, 512, 3, 3, 1, 4, 4, 1)),
    "mobilenet_dw3_112_32": (64, (112, 112, 32, 32, 3, 3, 1, 1, 1, 32)),
    "mobilenet_dw3_14_512": (64, (14, 14, 512, 512, 3, 3, 1, 1, 1, 512)),
    "resnext_g32_56_128": (64, (56, 56, 128, 128, 3, 3, 1, 1, 1, 32)),
}

# Layers of networks that people train, one or a few of each kind: (batch, row).
ZOO = {
    "vgg_224_3x3_64": (32, (224, 224, 64, 64, 3, 3, 1, 1, 1, 1)),
    "vgg_112_3x3_128": (32, (112, 112, 128, 128, 3, 3, 1, 1, 1, 1)),
    "vgg_28_3x3_512": (32, (28, 28, 512, 512, 3, 3, 1, 1, 1, 1)),
    "densenet_28_3x3_128_32": (64, (28, 28, 128, 32, 3, 3, 1, 1, 1, 1)),
    "densenet_14_1x1_640_128": (64, (14, 14, 640, 128, 1, 1, 1, 0, 1, 1)),
    "inception_35_5x5_48_64": (64, (35, 35, 48, 64, 5, 5, 1, 2, 1, 1)),
    "inception_35_3x3_96": (64, (35, 35, 96, 96, 3, 3, 1, 1, 1, 1)),
    "mobilenet_112_1x1_32_16": (64, (112, 112, 32, 16, 1, 1, 1, 0, 1, 1)),
    "mobilenet_56_1x1_24_144": (64, (56, 56, 24, 144, 1, 1, 1, 0, 1, 1)),
    "mobilenet_14_1x1_576_96": (64, (14, 14, 576, 96, 1, 1, 1, 0, 1, 1)),
    "mobilenet_dw3s2_112_96": (64, (112, 112, 96, 96, 3, 3, 2, 1, 1, 96)),
    "efficientnet_dw5_28_240": (64, (28, 28, 240, 240, 5, 5, 1, 2, 1, 240)),
    "efficientnet_dw5s2_56_144": (64, (56, 56, 144, 144, 5, 5, 2, 2, 1, 144)),
    "efficientnet_14_1x1_112_672": (64, (14, 14, 112, 672, 1, 1, 1, 0, 1, 1)),
    "convnext_dw7_56_96": (64, (56, 56, 96, 96, 7, 7, 1, 3, 1, 96)),
    "convnext_dw7_14_384": (64, (14, 14, 384, 384, 7, 7, 1, 3, 1, 384)),
    "convnext_56_2x2s2_96_192": (64, (56, 56, 96, 192, 2, 2, 2, 0, 1, 1)),
    "resnext_28_256_g32": (64, (28, 28, 256, 256, 3, 3, 1, 1, 1, 32)),
    "resnext_14_512_g32": (64, (14, 14, 512, 512, 3, 3, 1, 1, 1, 32)),
    "resnext_7_1024_g32": (64, (7, 7, 1024, 1024, 3, 3, 1, 1, 1, 32)),
    "regnet_28_144_g9": (64, (28, 28, 144, 144, 3, 3, 1, 1, 1, 9)),
    "regnet_14_320_g5": (64, (14, 14, 320, 320, 3, 3, 1, 1, 1, 5)),
    "unet_256_3x3_32": (16, (256, 256, 32, 32, 3, 3, 1, 1, 1, 1)),
    "unet_128_3x3_64": (16, (128, 128, 64, 64, 3, 3, 1, 1, 1, 1)),
    "unet_64_3x3_128": (16, (64, 64, 128, 128, 3, 3, 1, 1, 1, 1)),
    "unet_32_3x3_512_256": (16, (32, 32, 512, 256, 3, 3, 1, 1, 1, 1)),
    "diffusion_64_3x3_4_320": (8, (64, 64, 4, 320, 3, 3, 1, 1, 1, 1)),
    "diffusion_64_3x3_320": (8, (64, 64, 320, 320, 3, 3, 1, 1, 1, 1)),
    "diffusion_32_3x3_640": (8, (32, 32, 640, 640, 3, 3, 1, 1, 1, 1)),
    "diffusion_16_3x3_1280": (8, (16, 16, 1280, 1280, 3, 3, 1, 1, 1, 1)),
    "vae_256_3x3_256_128": (2, (256, 256, 256, 128, 3, 3, 1, 1, 1, 1)),
    "vae_512_3x3_128_3": (2, (512, 512, 128, 3, 3, 3, 1, 1, 1, 1)),
    "esrgan_128_3x3_64_32": (16, (128, 128, 64, 32, 3, 3, 1, 1, 1, 1)),
    "yolo_80_3x3s2_128_256": (16, (80, 80, 128, 256, 3, 3, 2, 1, 1, 1)),
    "alphazero_19_3x3_256": (256, (19, 19, 256, 256, 3, 3, 1, 1, 1, 1)),
    "dqn_84_8x8s4_4_32": (256, (84, 84, 4, 32, 8, 8, 4, 0, 1, 1)),
    "dqn_20_4x4s2_32_64": (256, (20, 20, 32, 64, 4, 4, 2, 0, 1, 1)),
    "dqn_9_3x3_64": (256, (9, 9, 64, 64, 3, 3, 1, 0, 1, 1)),
    "wideresnet_32_3x3_160": (128, (32, 32, 160, 160, 3, 3, 1, 1, 1, 1)),
    "wideresnet_8_3x3_640": (128, (8, 8, 640, 640, 3, 3, 1, 1, 1, 1)),
    "cifar_32_3x3_16": (128, (32, 32, 16, 16, 3, 3, 1, 1, 1, 1)),
    "cifar_8_3x3_64": (128, (8, 8, 64, 64, 3, 3, 1, 1, 1, 1)),
}

# Deformable convolution: (batch, row, offset groups, dtype), modulated (v2).
DEFORM = {
    "paddle_19x34_512_256": (6, (19, 34, 512, 256, 3, 3, 1, 1, 1, 1), 1, "float32"),
    "tv_56_256_256": (8, (56, 56, 256, 256, 3, 3, 1, 1, 1, 1), 1, "float32"),
    "tv_28_256_256": (8, (28, 28, 256, 256, 3, 3, 1, 1, 1, 1), 1, "float16"),
    "tv_28_128_128": (64, (28, 28, 128, 128, 3, 3, 1, 1, 1, 1), 1, "float32"),
    "tv_56_64_64": (8, (56, 56, 64, 64, 3, 3, 1, 1, 1, 1), 1, "float32"),
}

# A row small enough for tests.
TINY = {
    "tiny_3x3": (6, 5, 8, 16, 3, 3, 1, 1, 1, 1),
    "tiny_s2_g2": (7, 7, 8, 4, 3, 2, 2, 1, 1, 2),
    "tiny_1x1d": (5, 6, 3, 8, 2, 2, 1, 0, 2, 1),
}


def _all_at(rows, batches):
    return {name: (batches, row) for name, row in rows.items()}


def _each_at_its_own(rows):
    return {name: ((batch,), row) for name, (batch, row) in rows.items()}


# What `--table` takes: {row's name: (batches, row)}, and the dtype of the study.
TABLES = {
    "resnet50": (_all_at(RESNET50_V1 | RESNET50_V15_EXTRA, (8, 256)), "bfloat16"),
    "resnet50_v1": (_all_at(RESNET50_V1, (8, 256)), "bfloat16"),
    "resnet50_extra": (_all_at(RESNET50_V15_EXTRA, (8, 256)), "bfloat16"),
    "sofie": (
        _all_at({"C16_16x16": SOFIE_STACK}, SOFIE_BATCHES)
        | _all_at(SOFIE_SINGLE, (SOFIE_SINGLE_BATCH,)),
        "float32",
    ),
    "forum": (_all_at(FORUM, (1, 5)), "float32"),
    "flux": (_all_at(FLUX_MNIST, (100, 1000)), "float32"),
    "hard": (_each_at_its_own(HARD), "bfloat16"),
    "zoo": (_each_at_its_own(ZOO), "bfloat16"),
    "tiny": (_all_at(TINY, (3,)), "float32"),
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


def least_bytes(batch: int, row, itemsize: int, op: str = "fprop") -> int:
    """What has to move: each array once.

    Input pixels that no window touches need not be read (1x1 strided); dgrad
    writes them all the same.
    """
    (_, height, width, c), w, (_, p, q, k) = shapes(batch, row)
    r, s, *_ = w
    stride = row[6]
    pixels = p * q if r == s == 1 and stride > 1 and op != "dgrad" else height * width
    return itemsize * (batch * (pixels * c + p * q * k) + r * s * w[2] * k)
