# SPDX-License-Identifier: Apache-2.0
"""Twelve families of convolutions that people run, each a distribution to draw from.

The ranges are those of networks that are in use, named at each family. A draw depends
on the family, the seed and its place alone, so a longer table begins with a shorter
one's rows. Values that are listed twice are as much more frequent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

from benchmarks.drawn import Draw, DrawnCase
from benchmarks.window import Window

# What one GPU of today runs at once: bytes of x and y, operations of fprop.
MOST_BYTES, LEAST_BYTES, MOST_FLOPS = 2.2e9, 1e3, 4e12


@dataclass
class Layer:
    """A draw before its padding is known: numbers stand for all axes.

    Attributes:
      padding: "same", "causal" (past alone on the first axis), "valid", or one
        (low, high) for each axis.
      dtype, train: left to chance where they are None.
    """

    batch: int
    inputs: tuple[int, ...]
    c: int
    k: int
    taps: int | tuple[int, ...]
    strides: int | tuple[int, ...] = 1
    padding: str | tuple[tuple[int, int], ...] = "same"
    lhs_dilation: int = 1
    rhs_dilation: int = 1
    groups: int = 1
    dtype: str | None = None
    train: bool | None = None

    def draw(self, family: str, seed: int, rng: random.Random) -> Draw:
        dtype = self.dtype or rng.choice(["bfloat16", "float32"])
        train = self.train
        if train is None:
            train = rng.choice([False, True])
        rank = len(self.inputs)
        taps, strides, spread, dilation = (
            value if isinstance(value, tuple) else (value,) * rank
            for value in (
                self.taps,
                self.strides,
                self.lhs_dilation,
                self.rhs_dilation,
            )
        )
        spans = [d * (tap - 1) for tap, d in zip(taps, dilation, strict=True)]
        window = Window(
            strides, self._padding(spans), spread, dilation, groups=self.groups
        )
        return Draw(
            *(family, seed, "", self.batch, self.inputs, self.c, self.k),
            *(taps, window, dtype, train),
        )

    def _padding(self, spans: list[int]) -> tuple[tuple[int, int], ...]:
        if not isinstance(self.padding, str):
            return self.padding
        if self.padding == "valid":
            return ((0, 0),) * len(spans)
        same = tuple((span // 2, span - span // 2) for span in spans)
        return same if self.padding == "same" else ((spans[0], 0), *same[1:])


def video(rng: random.Random) -> Layer:
    """Autoencoders of video: Wan, HunyuanVideo, LTX, Cosmos, MAGVIT."""
    c = rng.choice([32, 48, 64, 96, 128, 192, 256, 384, 512, 1024])
    frames = rng.choice([1, 2, 3, 5, 9, 17])
    height = rng.choice([32, 44, 60, 90, 128, 180, 256, 360])
    width = rng.choice([32, 64, 80, 104, 160, 256, 320, 480])
    taps, strides = rng.choice(
        [
            *[((3, 3, 3), 1)] * 3,
            ((3, 1, 1), 1),
            ((1, 3, 3), 1),
            ((3, 3, 3), (1, 2, 2)),
            ((3, 3, 3), (2, 2, 2)),
            ((3, 1, 1), (2, 1, 1)),
        ]
    )
    batch = rng.choice([1, 1, 2])
    k = rng.choice([c, c, c, 2 * c, c // 2, 3])
    padding = rng.choice(["causal", "same"])
    return Layer(batch, (frames, height, width), c, k, taps, strides, padding)


def medical(rng: random.Random) -> Layer:
    """Segmentation of volumes: nnU-Net."""
    size, c = rng.choice(
        [(128, 32), (96, 32), (64, 64), (48, 96), (32, 128), (16, 256), (8, 320)]
    )
    kind = rng.choice(["conv", "conv", "down", "up"])
    # Slices that lie further apart than their pixels do.
    depth = size if rng.random() < 0.7 else max(4, size // 4)
    inputs, wider = (depth, size, size), min(2 * c, 320)
    if kind == "up":
        padding = ((1, 1),) * 3
        return Layer(2, inputs, wider, c, 2, 1, padding, lhs_dilation=2, train=True)
    if kind == "down":
        return Layer(2, inputs, c, wider, 3, 2, train=True)
    return Layer(2, inputs, c, c, 3, train=True)


def short_causal(rng: random.Random) -> Layer:
    """Short depthwise filters over a sequence: Mamba-2, gated delta nets, Evo 2."""
    c = rng.choice([512, 768, 1536, 2048, 3072, 4096, 5120, 8192, 10240, 12288])
    taps = rng.choice([2, 3, 4, 4, 4, 5, 7, 8])
    dilation = rng.choice([1, 1, 1, 1, 2, 3, 4])
    if rng.random() < 0.2:  # one token, while text is generated
        batch = rng.choice([1, 8, 32, 128, 256])
        fixed = {"groups": c, "dtype": "bfloat16", "train": False}
        return Layer(batch, (taps,), c, c, taps, 1, "valid", **fixed)
    batch = rng.choice([1, 2, 4, 8])
    inputs = (rng.choice([512, 1024, 2048, 4096, 8192]),)
    return Layer(
        batch, inputs, c, c, taps, 1, "causal", rhs_dilation=dilation, groups=c
    )


def long_depthwise(rng: random.Random) -> Layer:
    """Large depthwise filters: long convolutions of sequences, RepLKNet."""
    if rng.random() < 0.5:
        c = rng.choice([128, 160, 512, 1024, 4096])
        batch, length = rng.choice([1, 4, 32]), rng.choice([512, 2048, 8192])
        taps = rng.choice([16, 32, 64, 128, 256])
        return Layer(batch, (length,), c, c, taps, padding="causal", groups=c)
    c = rng.choice([64, 96, 128, 256, 384])
    taps = rng.choice([9, 11, 13, 17, 21, 27, 31])
    batch, size = rng.choice([8, 32]), rng.choice([14, 28, 56])
    return Layer(batch, (size, size), c, c, taps, groups=c)


def audio(rng: random.Random) -> Layer:
    """Vocoders, codecs, speech: HiFi-GAN, BigVGAN, DAC, EnCodec, Mimi, Whisper."""
    kind = rng.choice(["residual", "residual", "down", "up", "stem", "wide"])
    if kind == "residual":
        c = rng.choice([16, 24, 32, 64, 128, 256])
        batch = rng.choice([1, 4, 16])
        length = rng.choice([4096, 16384, 65536, 120000])
        taps, dilation = rng.choice([3, 7, 11]), rng.choice([1, 3, 5, 9])
        return Layer(batch, (length,), c, c, taps, rhs_dilation=dilation)
    if kind == "down":
        c, stride = rng.choice([32, 64, 128, 256]), rng.choice([2, 4, 5, 8])
        length = rng.choice([2400, 9600, 48000])
        padding = ((stride // 2, stride - stride // 2),)
        return Layer(8, (length,), c, 2 * c, 2 * stride, stride, padding)
    if kind == "up":
        c, factor = rng.choice([128, 256, 512, 1024, 1536]), rng.choice([2, 4, 5, 6, 8])
        batch, length = rng.choice([1, 8, 12]), rng.choice([32, 128, 500, 2000])
        padding = ((2 * factor - 1 - factor // 2,) * 2,)
        return Layer(
            batch, (length,), c, c // 2, 2 * factor, 1, padding, lhs_dilation=factor
        )
    if kind == "stem":
        length = rng.choice([24000, 120000, 240000])
        return Layer(8, (length,), 1, rng.choice([32, 64, 96]), 7, padding="causal")
    k = rng.choice([384, 512, 768, 1280])
    length, c = rng.choice([500, 1500, 3000]), rng.choice([80, 128, k])
    return Layer(16, (length,), c, k, 3, rng.choice([1, 2]))


def genomics(rng: random.Random) -> Layer:
    """Long sequences of DNA: Enformer, Borzoi, AlphaGenome."""
    c = rng.choice([4, 384, 512, 768, 896, 1024, 1152, 1536])
    length = rng.choice([2048, 8192, 16384, 32768, 65536, 131072])
    batch = rng.choice([1, 2])
    if c == 4:  # the bases
        return Layer(batch, (length,), c, rng.choice([512, 608, 768]), 15)
    k = rng.choice([c, c + 128])
    return Layer(batch, (length,), c, k, rng.choice([1, 5, 5]))


# (size, C, K, taps, stride)
_AGENTS = (
    *[(84, 4, 32, 8, 4), (84, 4, 16, 3, 1), (84, 16, 16, 3, 1), (42, 16, 32, 3, 1)],
    *[(42, 32, 32, 3, 1), (21, 32, 32, 3, 1), (20, 32, 64, 4, 2), (9, 64, 64, 3, 1)],
    *[(64, 3, 48, 5, 1), (32, 96, 192, 5, 1), (16, 192, 256, 5, 1)],
    (8, 256, 384, 4, 2),
    *[(19, 256, 256, 3, 1), (9, 128, 128, 3, 1), (10, 4, 16, 3, 1), (15, 32, 64, 3, 1)],
)


def small_images(rng: random.Random) -> Layer:
    """Agents that see games: DreamerV3, IMPALA, PQN, AlphaZero."""
    size, c, k, taps, stride = rng.choice(_AGENTS)
    batch = rng.choice([64, 256, 672, 1024])
    padding = "same" if stride == 1 else "valid"
    return Layer(batch, (size, size), c, k, taps, stride, padding)


def grids(rng: random.Random) -> Layer:
    """Solvers of differential equations, with odd sizes and channels: APEBench."""
    rank = rng.choice([1, 2, 2, 3])
    c = rng.choice([1, 2, 3, 5, 6, 10, 12, 20, 30, 34, 50, 66])
    sizes = [160, 512, 2048], [66, 128, 162, 256], [18, 34, 66]
    size = [rng.choice(some) for some in sizes][rank - 1]
    k = rng.choice([c, c, 34, 64, 1])
    batch, taps = rng.choice([1, 8, 20, 32]), rng.choice([1, 3, 3, 3, 5])
    padding = rng.choice(["same", "valid"])
    return Layer(batch, (size,) * rank, c, k, taps, padding=padding, dtype="float32")


def mapped(rng: random.Random) -> Layer:
    """`jax.vmap`: networks mapped over seeds, gradients of every example."""
    many = rng.choice([4, 8, 16, 32, 64, 256])
    size, c, k, taps, stride = rng.choice(
        [
            *[(84, 4, 32, 8, 4), (20, 32, 64, 4, 2), (9, 64, 64, 3, 1)],
            *[(32, 3, 16, 3, 1), (32, 16, 16, 3, 1), (16, 32, 64, 3, 2)],
            (28, 1, 16, 3, 1),
        ]
    )
    padding = "same" if stride == 1 else "valid"
    if rng.random() < 0.5:  # weights are mapped: they become groups
        batch, groups = rng.choice([16, 64, 128]), min(many, 64)
        return Layer(
            *(batch, (size, size), c * groups, k * groups, taps, stride, padding),
            groups=groups,
        )
    # wgrad of each example, as JAX writes it: the gradient of y is the filter.
    if stride == 1:
        outputs, around = size, ((taps - 1) // 2, taps - 1 - (taps - 1) // 2)
    else:
        outputs, around = (size - taps) // stride + 1, (0, 0)
    return Layer(
        *(c, (size, size), many, many * k, outputs, 1, (around, around)),
        rhs_dilation=stride,
        groups=many,
        train=False,
    )


def unet(rng: random.Random) -> Layer:
    """Diffusion: U-Nets and autoencoders of Stable Diffusion, SDXL, Flux."""
    size, width = rng.choice(
        [
            *[(1024, 32), (512, 64), (512, 128), (256, 128), (256, 256)],
            *[(128, 256), (128, 512), (64, 320), (64, 640), (32, 640)],
            *[(32, 1280), (16, 1280), (8, 1280)],
        ]
    )
    # Twice and three times the width: with a skip connection beside it.
    latent = 4 if size == 64 else width
    c = rng.choice([*[width] * 3, 2 * width, 3 * width, latent])
    kind = rng.choice(["conv", "conv", "conv", "down", "point", "last"])
    last = rng.choice([3, 4, 8, 16])
    taps, stride, k = {
        "conv": (3, 1, width),
        "down": (3, 2, width),
        "point": (1, 1, width),
        "last": (3, 1, last),
    }[kind]
    return Layer(rng.choice([1, 2, 4, 8]), (size, size), c, k, taps, stride)


def mobile(rng: random.Random) -> Layer:
    """Small and depthwise networks: EfficientNet, MobileNetV4, ConvNeXt, YOLO."""
    size, c = rng.choice(
        [
            *[(150, 24), (112, 32), (112, 96), (75, 96), (56, 144), (56, 192)],
            *[(56, 96), (38, 240), (28, 240), (28, 192), (19, 672), (14, 480)],
            *[(14, 672), (14, 384), (7, 1152), (7, 768)],
        ]
    )
    batch = rng.choice([16, 64, 128])
    kind = rng.choice(["depthwise", "depthwise", "expand", "project", "fused"])
    inputs = (size, size)
    if kind == "depthwise":
        taps, stride = rng.choice([3, 5, 7]), rng.choice([1, 1, 2])
        return Layer(batch, inputs, c, c, taps, stride, groups=c)
    if kind == "fused":
        narrow, wide = rng.choice([24, 48, 64]), rng.choice([96, 192, 256])
        return Layer(batch, inputs, narrow, wide, 3, rng.choice([1, 2]))
    narrow = rng.choice([16, 24, 40, 48, 80, 112, 136, 192])
    if kind == "expand":
        return Layer(batch, inputs, narrow, c, 1)
    return Layer(batch, inputs, c, narrow, 1)


def patches(rng: random.Random) -> Layer:
    """Patches of images and video: ViT, SigLIP, SAM 2, Hiera, ConvNeXt's stages."""
    patch, c = rng.choice(
        [
            *[(2, 4), (2, 16), (4, 3), (7, 3), (8, 3), (14, 3), (16, 3)],
            *[(16, 1), (32, 3), (2, 96), (2, 384)],
        ]
    )
    k = rng.choice([96, 128, 192, 384, 768, 1024, 1152])
    overlap = patch == 7
    stride = 4 if overlap else patch
    if overlap:
        size = rng.choice([224, 512])
    else:
        size = patch * rng.choice([8, 14, 16, 27, 32])
    if c <= 16 and rng.random() < 0.25:  # two frames a patch
        batch, frames = rng.choice([1, 4]), 2 * rng.choice([1, 4, 8])
        taps, strides = (2, patch, patch), (2, stride, stride)
        return Layer(batch, (frames, size, size), c, k, taps, strides, "valid")
    padding = "same" if overlap else "valid"
    batch = rng.choice([8, 64, 256])
    return Layer(batch, (size, size), c, k, patch, stride, padding)


FAMILIES: dict[str, Callable[[random.Random], Layer]] = {
    family.__name__: family
    for family in (
        *(video, medical, short_causal, long_depthwise, audio, genomics),
        *(small_images, grids, mapped, unet, mobile, patches),
    )
}


def stream(family: str, seed: int) -> Iterator[Draw]:
    """Draws without end, those left out that no GPU of today would run at once."""
    rng = random.Random(f"{family}/{seed}")
    numbers = count()
    while True:
        draw = FAMILIES[family](rng).draw(family, seed, rng)
        if _fits(draw):
            yield replace(draw, name=f"{family}_{seed}_{next(numbers)}")


def _fits(draw: Draw) -> bool:
    if min(draw.outputs) < 1:
        return False
    # All products, those with padding too: the bound is a round number anyway.
    products = draw.batch * math.prod((*draw.outputs, *draw.taps)) * draw.k
    flops = 2 * products * draw.c / draw.window.groups
    return LEAST_BYTES < draw.bytes < MOST_BYTES and flops < MOST_FLOPS


def draws(
    family: str,
    seed: int,
    number: int,
    largest: float = math.inf,
    dtype: str | None = None,
) -> list[Draw]:
    """The first of a stream, those of more than `largest` bytes left out.

    Fewer from a family that has hardly any as small. `dtype` is in the place of the
    drawn ones.
    """
    begin = islice(stream(family, seed), 200 * number)
    small = list(islice((d for d in begin if d.bytes <= largest), number))
    return [replace(draw, dtype=dtype or draw.dtype) for draw in small]


def cases(drawn: list[Draw], ops) -> list[DrawnCase]:
    """The operations of these draws, those among `ops`."""
    return [DrawnCase(draw, op) for draw in drawn for op in draw.ops(ops)]
