"""The rule of "auto": which engines are tried for a convolution, in which order.

The first line that applies decides. An engine that refuses a convolution, or that its
own plan calls slower, leaves it to the next one; `explain` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax_convbatch import depth, targets
from jax_convbatch.planners import Problem

COLUMNS_LAST = ("cudnn", "im2col_gemm")
OURS_FIRST = ("implicit_gemm", *COLUMNS_LAST)
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


def _always(problem: Problem) -> bool:
    return True


def _f64(problem: Problem) -> bool:
    return problem.dtype.name == "float64"


def _groups(problem: Problem) -> bool:
    return problem.geometry.groups > 1


def _tensor_cores(problem: Problem) -> bool:
    """One group, in 16 bits or in f32 as TF32."""
    half, tf32 = problem.dtype.itemsize == 2, problem.precision == 0
    return problem.geometry.groups == 1 and (half or tf32)


def _half(problem: Problem) -> bool:
    return _tensor_cores(problem) and problem.dtype.itemsize == 2


def _tf32(problem: Problem) -> bool:
    return _tensor_cores(problem) and problem.dtype.itemsize == 4


def _taps(problem: Problem) -> int:
    g = problem.geometry
    return g.T * g.R * g.S


def _least(problem: Problem) -> int:
    """Of the numbers of channels of x and y."""
    return min(problem.geometry.C, problem.geometry.K)


def _sequence(problem: Problem) -> bool:
    g = problem.geometry
    return g.H == g.D == 1 and g.S > 1


def _three_axes(problem: Problem) -> bool:
    """That are no two, as the first has taps or a stride and others have, too."""
    g = problem.geometry
    moves = g.T > 1 or g.stride[0] > 1
    return depth.is_deep(g) and moves and depth.flat(g) is None


def _volumes(problem: Problem) -> bool:
    """Filters of three axes."""
    g = problem.geometry
    return _tensor_cores(problem) and _three_axes(problem) and g.T > 1 and g.R * g.S > 1


def _wide_volumes(problem: Problem) -> bool:
    """Of one step, of channels that fill the tiles of cuDNN's kernels."""
    g = problem.geometry
    if not _volumes(problem) or g.stride != (1, 1, 1):
        return False
    if problem.dtype.itemsize == 2:
        return _least(problem) >= 256
    if problem.op == "dgrad":
        return _least(problem) >= 128 and g.C % 128 == 0
    copies = g.D * g.H * g.W * g.C * g.T * 4
    return _least(problem) >= 128 or (_least(problem) >= 32 and copies >= 1 << 28)


def _copied_volumes(problem: Problem) -> bool:
    """In 16 bits, what our kernels do not read in place, in all but small images."""
    g = problem.geometry
    if not _three_axes(problem) or not _half(problem) or _least(problem) < 32:
        return False
    if g.input_dilation != (1, 1, 1):
        return True
    if g.C % 64 == 0 and g.K % 64 == 0:
        return g.stride != (1, 1, 1) and _least(problem) >= 512
    return g.O * g.P * g.Q > 4096


def _strided_f32_volumes(problem: Problem) -> bool:
    g = problem.geometry
    strided = g.stride[1:] != (1, 1) or g.input_dilation != (1, 1, 1)
    return _tf32(problem) and _three_axes(problem) and strided and _least(problem) >= 32


def _wgrad_of_volumes(problem: Problem) -> bool:
    g = problem.geometry
    if not _volumes(problem):
        return False
    if problem.dtype.itemsize == 4:
        return max(g.C, g.K) <= 8
    if g.stride != (1, 1, 1) or g.input_dilation != (1, 1, 1):
        return 32 <= _least(problem) < 256
    whole = g.C % 64 == 0 and g.K % 64 == 0 and 128 <= _least(problem) <= 512
    return whole and g.N * g.O * g.P * g.Q >= 4096


def _many_taps(problem: Problem) -> bool:
    """5x5 and larger filters of one step between channels that fill tiles."""
    g = problem.geometry
    many = g.R * g.S >= 25 and g.T == 1 and g.stride == (1, 1, 1)
    return _tensor_cores(problem) and many and _least(problem) >= 64


def _long_sequences(problem: Problem) -> bool:
    """Of 64k steps and more, of many channels."""
    long = problem.geometry.Q >= 1 << 16 and _sequence(problem)
    return _half(problem) and long and _least(problem) >= 512


def _wgrad_of_sequences(problem: Problem) -> bool:
    """Long ones of many channels, and very long ones of few."""
    g = problem.geometry
    if not _tensor_cores(problem) or not _sequence(problem) or g.T * g.R > 1:
        return False
    half = problem.dtype.itemsize == 2
    if half and _least(problem) >= 16 and max(g.C, g.K) <= 32:
        return g.N * g.Q >= 1 << 20
    return 1 << (15 if half else 17) <= g.Q and _least(problem) >= 512


def _thin_sequences(problem: Problem) -> bool:
    """Of a few channels; f32's of 4096 steps and more."""
    g = problem.geometry
    most = 32 if problem.dtype.itemsize == 2 else 24
    thin = _least(problem) >= 16 and max(g.C, g.K) <= most and _sequence(problem)
    long = problem.op == "dgrad" or g.Q >= 4096
    return thin and (_half(problem) or (_tf32(problem) and long))


def _thin_images(problem: Problem) -> bool:
    """f32 of 32 channels, which half fill our tiles."""
    g = problem.geometry
    return _tf32(problem) and g.C == g.K == 32 and g.R * g.S > 1


def _uneven_images(problem: Problem) -> bool:
    """f32 of channels that leave much of our tiles empty, as 48 and 50."""
    g = problem.geometry
    large = g.T == 1 and g.R > 1 and g.S > 1 and g.P * g.Q >= 4096
    uneven = g.C % 32 != 0 or g.K % 32 != 0
    one = g.stride == g.input_dilation == (1, 1, 1)
    return _tf32(problem) and large and one and uneven and _least(problem) >= 24


def _large_images(problem: Problem) -> bool:
    """f32 of 64k pixels and more, of 64 to 128 channels."""
    g = problem.geometry
    large = g.T == 1 and g.R > 1 and g.S > 1 and g.P * g.Q >= 1 << 16
    one = g.stride == g.input_dilation == (1, 1, 1)
    between = _least(problem) >= 64 and max(g.C, g.K) <= 128
    return _tf32(problem) and large and one and between


def _narrow_products(problem: Problem) -> bool:
    """1x1 of few channels that our kernels for those do not take, or not well."""
    g = problem.geometry
    ours = _least(problem) <= 32 and max(g.C, g.K) <= 192
    if problem.op == "dgrad" and g.C % 16 != 0:
        ours = False
    pointwise = _taps(problem) == 1 and g.stride == (1, 1, 1)
    return _half(problem) and pointwise and 16 <= _least(problem) < 64 and not ours


def _few_outputs(problem: Problem) -> bool:
    return _volumes(problem) and problem.geometry.K <= 6 and problem.geometry.C >= 128


def _few_inputs(problem: Problem) -> bool:
    """f32 of colours and the like and few taps: long sequences, patches of 16 taps
    and more, one or two outputs."""
    g = problem.geometry
    patches = g.taps == g.stride and _taps(problem) >= 16
    some = g.Q >= 1 << 17 or patches or g.K <= 2
    few = g.C <= 5 and 9 <= _sums(problem) <= 64
    return _tf32(problem) and few and some


def _sums(problem: Problem) -> int:
    return _taps(problem) * problem.geometry.C


def _odd_width(problem: Problem) -> bool:
    """dx of 40 to 56 channels, which our tiles fill to 64."""
    many = _taps(problem) > 1 and problem.geometry.K >= 128
    return _half(problem) and many and 32 < problem.geometry.C < 64


BOTH = ("fprop", "dgrad")
FPROP, DGRAD, WGRAD = ("fprop",), ("dgrad",), ("wgrad",)


def _cudnn_first(ops, applies, why: str) -> Line:
    """On Hopper."""
    return Line("hopper", ops, applies, CUDNN_FIRST, f"{why} (H100)")


CUDA = (
    Line(
        "any",
        ALL,
        _f64,
        ("im2col_gemm", "cudnn"),
        "cuBLAS has tensor cores for f64, cuDNN's convolutions do not use them",
    ),
    _cudnn_first(
        BOTH,
        _wide_volumes,
        "ours reads x, or copies of it, again for each tap: 16x16x16 256 at batch 2 "
        "54 us, cuDNN 45; f32 125, 90; f32 17x90x80 192 fprop 826, 628",
    ),
    _cudnn_first(
        BOTH,
        _copied_volumes,
        "ours copies x for each tap of depth: 3x60x320 512->1024 s1x2x2 1986 us, "
        "cuDNN 1254; 64x64x64 128->64 transposed 957, 568 (PyTorch's)",
    ),
    _cudnn_first(
        BOTH,
        _strided_f32_volumes,
        "ours copies x for each tap of depth, 3 to 4 GB of 128x128x128 32->64",
    ),
    _cudnn_first(
        WGRAD,
        _wgrad_of_volumes,
        "16x16x16 256 at batch 2 55 us, cuDNN 45; 24x96x96 32->64 s2 54, 44; f32 "
        "34x34x34 6 at batch 32 539, 264",
    ),
    _cudnn_first(
        BOTH,
        _many_taps,
        "ours reads x again for each tap: 16x16 192->256 5x5 at batch 672 fprop 694 "
        "us, cuDNN 531; 32x32 96->192 in f32 at batch 1024 5005, 3307",
    ),
    _cudnn_first(
        BOTH,
        _long_sequences,
        "131072 steps of 1152 channels, 5 taps, batch 2: fprop 6618 us, cuDNN 5267",
    ),
    _cudnn_first(
        WGRAD,
        _wgrad_of_sequences,
        "131072 steps of 1152 channels, 5 taps, batch 2: 11253 us, cuDNN 6232; 120000 "
        "steps of 16 channels, 7 taps, batch 16: 413, 318",
    ),
    _cudnn_first(
        BOTH,
        _thin_sequences,
        "our tiles are 64 channels wide: 120000 steps of 16 channels fprop 26 us, "
        "cuDNN 13; f32 16384 steps of 16 at batch 4 50, 21",
    ),
    _cudnn_first(
        FPROP,
        _thin_images,
        "21x21 of 32 channels at batch 672 129 us, cuDNN 59",
    ),
    _cudnn_first(
        FPROP,
        _uneven_images,
        "75x75 48->96 at batch 64 258 us, cuDNN 204; 128x128 5x5 50->50 52, 43",
    ),
    _cudnn_first(
        FPROP,
        _large_images,
        "256x256 128->128 at batch 4 274 us, cuDNN 249",
    ),
    _cudnn_first(
        BOTH,
        _narrow_products,
        "56x56 192->40 at batch 16 fprop 22 us, cuDNN 7; dgrad 13, 9; 112x112 "
        "136->32 at batch 64 dgrad 235, 148",
    ),
    _cudnn_first(
        FPROP,
        _few_outputs,
        "ours fills a tile's width with zeros: bf16 9x60x480 384->3 1903 us, cuDNN "
        "742; f32 5x90x160 512->3 809, 740",
    ),
    _cudnn_first(
        FPROP,
        _few_inputs,
        "108x108 4x4s4 3->96 at batch 256 131 us, cuDNN 103; 240000 steps of 1->32, "
        "7 taps, at batch 8 250, 176; 66x66 5->1 at batch 32 41, 16",
    ),
    _cudnn_first(
        DGRAD,
        _odd_width,
        "112x112 48->192 at batch 128 873 us, cuDNN 739",
    ),
    Line(
        "hopper",
        ALL,
        _always,
        OURS_FIRST,
        "our kernels are measured ahead of cuDNN's (docs/benchmarks.md)",
    ),
    Line(
        "any",
        ALL,
        _groups,
        OURS_FIRST,
        "cuDNN's kernels for depthwise layers and small groups are far from the roof "
        "on every GPU; ours read each array once",
    ),
    Line(
        "any",
        ALL,
        _always,
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
