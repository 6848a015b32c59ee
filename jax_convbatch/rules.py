"""The rule of "auto": which engines are tried for a convolution, in which order.

The first line that applies decides. An engine that refuses a convolution, or that its
own plan calls slower, leaves it to the next one; `explain` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax_convbatch import rule_classes as classes
from jax_convbatch import targets
from jax_convbatch.planners import Problem

COLUMNS_LAST = ("cudnn", "im2col_gemm")
OURS_FIRST = ("implicit_gemm", *COLUMNS_LAST)
COLUMNS_FIRST = ("im2col_gemm", "implicit_gemm", "cudnn")
CUDNN_FIRST = ("cudnn", "implicit_gemm", "im2col_gemm")


class Line(NamedTuple):
    """
    Attributes:
      gpus: "hopper" (compute capability 9.0) or "any" (8.0 and later; older ones have
        no native code).
      ops: of fprop, dgrad and wgrad.
      applies: to which problems.
      engines: in order.
      why: the measurement or the argument.
    """

    gpus: str
    ops: tuple[str, ...]
    applies: Callable[[Problem], bool]
    engines: tuple[str, ...]
    why: str


ALL = ("fprop", "dgrad", "wgrad")
BOTH = ("fprop", "dgrad")
FPROP, DGRAD, WGRAD = ("fprop",), ("dgrad",), ("wgrad",)


def _cudnn_first(ops, applies, why: str) -> Line:
    """On Hopper."""
    return Line("hopper", ops, applies, CUDNN_FIRST, f"{why} (H100)")


CUDA = (
    Line(
        "any",
        ALL,
        classes.f64,
        ("im2col_gemm", "cudnn"),
        "cuBLAS has tensor cores for f64, cuDNN's convolutions do not use them",
    ),
    Line(
        "hopper",
        FPROP,
        classes.gradients_of_examples,
        COLUMNS_FIRST,
        "20x20 taps of a filter over 84x84, 64 groups of 1->32, in bf16 64 us, cuDNN "
        "1666; f32 28x28 over 28x28 of 4 groups 12, ours 48, cuDNN 88 (H100)",
    ),
    Line(
        "hopper",
        FPROP,
        classes.f32_patches,
        COLUMNS_FIRST,
        "64x64 2x2s2 4->1152 at batch 256 438 us, ours 506, cuDNN 730; 56x56 4x4s4 "
        "3->96 at batch 64 12, cuDNN 16 (H100)",
    ),
    Line(
        "hopper",
        FPROP,
        classes.wide_stems,
        COLUMNS_FIRST,
        "512x512 7x7s4 3->1152 in bf16 at batch 8 530 us, ours 1109 (H100)",
    ),
    Line(
        "hopper",
        FPROP,
        classes.odd_scalars,
        COLUMNS_FIRST,
        "34x34x34 1x1x1 5->1 at batch 8 16 us, ours 40, cuDNN 20; 160 steps of one "
        "channel, 3 taps 3.4, 5.7 (H100)",
    ),
    Line(
        "hopper",
        FPROP,
        classes.large_f32_patches,
        COLUMNS_FIRST,
        "1024x1024 32x32s32 3->1152 at batch 8 410 us, cuDNN 1775 (H100)",
    ),
    _cudnn_first(
        BOTH,
        classes.wide_volumes,
        "ours reads x, or copies of it, again for each tap: 16x16x16 256 at batch 2 "
        "54 us, cuDNN 45; f32 125, 90; f32 17x90x80 192 fprop 826, 628",
    ),
    _cudnn_first(
        BOTH,
        classes.copied_volumes,
        "ours copies x for each tap of depth: 3x60x320 512->1024 s1x2x2 1986 us, "
        "cuDNN 1254; 64x64x64 128->64 transposed 957, 568 (PyTorch's)",
    ),
    _cudnn_first(
        BOTH,
        classes.strided_f32_volumes,
        "ours copies x for each tap of depth, 3 to 4 GB of 128x128x128 32->64",
    ),
    _cudnn_first(
        WGRAD,
        classes.wgrad_of_volumes,
        "16x16x16 256 at batch 2 55 us, cuDNN 45; 24x96x96 32->64 s2 54, 44; f32 "
        "34x34x34 6 at batch 32 539, 264",
    ),
    _cudnn_first(
        BOTH,
        classes.many_taps,
        "ours reads x again for each tap: 16x16 192->256 5x5 at batch 672 fprop 694 "
        "us, cuDNN 531; 32x32 96->192 in f32 at batch 1024 5005, 3307",
    ),
    _cudnn_first(
        BOTH,
        classes.long_sequences,
        "131072 steps of 1152 channels, 5 taps, batch 2: fprop 6618 us, cuDNN 5267",
    ),
    _cudnn_first(
        WGRAD,
        classes.wgrad_of_sequences,
        "131072 steps of 1152 channels, 5 taps, batch 2: 11253 us, cuDNN 6232; 120000 "
        "steps of 16 channels, 7 taps, batch 16: 413, 318",
    ),
    _cudnn_first(
        BOTH,
        classes.thin_sequences,
        "our tiles are 64 channels wide: 120000 steps of 16 channels fprop 26 us, "
        "cuDNN 13; f32 16384 steps of 16 at batch 4 50, 21",
    ),
    _cudnn_first(
        FPROP,
        classes.thin_images,
        "21x21 of 32 channels at batch 672 129 us, cuDNN 59",
    ),
    _cudnn_first(
        FPROP,
        classes.uneven_images,
        "75x75 48->96 at batch 64 258 us, cuDNN 204; 128x128 5x5 50->50 52, 43",
    ),
    _cudnn_first(
        FPROP,
        classes.large_images,
        "256x256 128->128 at batch 4 274 us, cuDNN 249",
    ),
    _cudnn_first(
        WGRAD,
        classes.wgrad_of_few_pixels,
        "8x8 of 1280 channels, 3x3, in bf16 55 us, cuDNN 18",
    ),
    _cudnn_first(
        BOTH,
        classes.wide_images,
        "128x128 1536->512 at batch 8 fprop 2396 us, cuDNN 2288; dgrad 3359, 2298",
    ),
    _cudnn_first(
        BOTH,
        classes.huge_images,
        "512x512 128->64 at batch 8 746 us, cuDNN 611 (PyTorch's)",
    ),
    _cudnn_first(
        BOTH,
        classes.narrow_products,
        "56x56 192->40 at batch 16 fprop 22 us, cuDNN 7; dgrad 13, 9; 112x112 "
        "136->32 at batch 64 dgrad 235, 148",
    ),
    _cudnn_first(
        FPROP,
        classes.few_outputs,
        "ours fills a tile's width with zeros: bf16 9x60x480 384->3 1903 us, cuDNN "
        "742; f32 5x90x160 512->3 809, 740",
    ),
    _cudnn_first(
        FPROP,
        classes.few_inputs,
        "240000 steps of 1->32, 7 taps, at batch 8 250 us, cuDNN 176; 2048 steps of "
        "4->608, 15 taps, at batch 2 43, 17; 66x66 5->1 at batch 32 41, 16",
    ),
    _cudnn_first(
        DGRAD,
        classes.odd_width,
        "112x112 48->192 at batch 128 873 us, cuDNN 739",
    ),
    Line(
        "hopper",
        ALL,
        classes.always,
        OURS_FIRST,
        "our kernels are measured ahead of cuDNN's (docs/benchmarks.md)",
    ),
    Line(
        "any",
        ALL,
        classes.groups,
        OURS_FIRST,
        "cuDNN's kernels for depthwise layers and small groups are far from the roof "
        "on every GPU; ours read each array once",
    ),
    Line(
        "any",
        ALL,
        classes.always,
        COLUMNS_LAST,
        "cuDNN's kernels were tuned for this GPU, and ours were not measured on it",
    ),
)
CPU = ("implicit_gemm", "im2col_gemm")


def engines(problem: Problem) -> tuple[str, ...]:
    """What "auto" tries, in order; after it `jax.lax`."""
    if problem.platform == "cpu":
        return CPU
    if problem.platform != "cuda":
        return ()
    return line(problem).engines


def line(problem: Problem) -> Line:
    """The line of the table that decides on CUDA."""
    return next(
        each
        for each in CUDA
        if (each.gpus == "any" or targets.is_hopper())
        and problem.op in each.ops
        and each.applies(problem)
    )
