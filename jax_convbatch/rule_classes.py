"""Classes of convolutions that the rule of "auto" tells apart.

A class of fprop and dgrad does not depend on the batch size: the engine, and with it
the bits of a sample, must not.
"""

from __future__ import annotations

from jax_convbatch import depth
from jax_convbatch.planners import Problem


def always(problem: Problem) -> bool:
    return True


def f64(problem: Problem) -> bool:
    return problem.dtype.name == "float64"


def groups(problem: Problem) -> bool:
    return problem.geometry.groups > 1


def tensor_cores(problem: Problem) -> bool:
    """One group, in 16 bits or in f32 as TF32."""
    fast = problem.dtype.itemsize == 2 or problem.precision == 0
    return problem.geometry.groups == 1 and fast


def half(problem: Problem) -> bool:
    return tensor_cores(problem) and problem.dtype.itemsize == 2


def tf32(problem: Problem) -> bool:
    return tensor_cores(problem) and problem.dtype.itemsize == 4


def taps(problem: Problem) -> int:
    g = problem.geometry
    return g.T * g.R * g.S


def sums(problem: Problem) -> int:
    """Products of one sum of y."""
    return taps(problem) * problem.geometry.C


def least(problem: Problem) -> int:
    """Of the numbers of channels of x and y."""
    return min(problem.geometry.C, problem.geometry.K)


def most(problem: Problem) -> int:
    return max(problem.geometry.C, problem.geometry.K)


def sequence(problem: Problem) -> bool:
    g = problem.geometry
    return g.H == g.D == 1 and g.S > 1


def images(problem: Problem, pixels: int) -> bool:
    """Filters of two axes and one step, of results with so many pixels and more."""
    g = problem.geometry
    two = g.T == 1 and g.R > 1 and g.S > 1
    one_step = g.stride == g.input_dilation == (1, 1, 1)
    return two and one_step and pixels <= g.P * g.Q


def patches(problem: Problem) -> bool:
    """Filters as large as their steps, without padding."""
    g = problem.geometry
    return g.taps == g.stride and g.pad == (0, 0, 0)


def three_axes(problem: Problem) -> bool:
    """That are no two, as the first has taps or a stride and others have, too."""
    g = problem.geometry
    moves = g.T > 1 or g.stride[0] > 1
    return depth.is_deep(g) and moves and depth.flat(g) is None


def volumes(problem: Problem) -> bool:
    """Filters of three axes."""
    g = problem.geometry
    return tensor_cores(problem) and three_axes(problem) and g.T > 1 and g.R * g.S > 1


def wide_volumes(problem: Problem) -> bool:
    """Of one step, of channels that fill the tiles of cuDNN's kernels."""
    g = problem.geometry
    if not volumes(problem) or not g.stride == g.input_dilation == (1, 1, 1):
        return False
    if problem.dtype.itemsize == 2:
        large = g.C == g.K == 64 and g.O * g.P * g.Q >= 1 << 17
        return least(problem) >= 192 or large
    if problem.op == "dgrad":
        filled = g.C % 128 == 0 or g.C % 128 >= 96
        return (96 <= least(problem) <= 256 and filled) or g.C == g.K == 32
    copies = g.D * g.H * g.W * g.C * g.T * 4
    return least(problem) >= 96 or (least(problem) >= 32 and copies >= 1 << 27)


def copied_volumes(problem: Problem) -> bool:
    """In 16 bits, what our kernels do not read in place, in all but small images."""
    g = problem.geometry
    if not three_axes(problem) or not half(problem) or least(problem) < 32:
        return False
    whole = g.C % 64 == 0 and g.K % 64 == 0
    if g.input_dilation != (1, 1, 1):
        return not whole or g.O * g.P * g.Q > 4096
    if whole:
        return g.stride != (1, 1, 1) and least(problem) >= 384
    return g.O * g.P * g.Q > 4096


def strided_f32_volumes(problem: Problem) -> bool:
    g = problem.geometry
    strided = g.stride[1:] != (1, 1) or g.input_dilation != (1, 1, 1)
    return tf32(problem) and three_axes(problem) and strided and least(problem) >= 32


def wgrad_of_volumes(problem: Problem) -> bool:
    g = problem.geometry
    if not volumes(problem):
        return False
    pixels = g.N * g.O * g.P * g.Q
    if problem.dtype.itemsize == 4:
        return most(problem) <= 8 or g.input_dilation != (1, 1, 1)
    if g.stride != (1, 1, 1) or g.input_dilation != (1, 1, 1):
        some = pixels >= 4096 or least(problem) >= 128
        return some and 32 <= least(problem) < 256
    whole = g.C % 64 == 0 and g.K % 64 == 0 and 128 <= least(problem) <= 512
    return whole and pixels >= 4096


def many_taps(problem: Problem) -> bool:
    """5x5 and larger filters of one step between channels that fill tiles."""
    g = problem.geometry
    many = g.R * g.S >= 25 and g.T == 1 and g.stride == (1, 1, 1)
    return tensor_cores(problem) and many and least(problem) >= 64


def long_sequences(problem: Problem) -> bool:
    """Of 64k steps and more and many channels, or of very many."""
    long = problem.geometry.Q >= 1 << 16 and least(problem) >= 512
    return half(problem) and sequence(problem) and (long or least(problem) >= 1024)


def wgrad_of_sequences(problem: Problem) -> bool:
    """Long ones of many channels, and very long ones of few."""
    g = problem.geometry
    if not tensor_cores(problem) or not sequence(problem) or g.T * g.R > 1:
        return False
    if half(problem) and least(problem) >= 16 and most(problem) <= 32:
        return g.N * g.Q >= 1 << 20
    return g.Q >= 1 << 15 and least(problem) >= (512 if half(problem) else 1024)


def thin_sequences(problem: Problem) -> bool:
    """Of a few channels; f32's of 4096 steps and more."""
    g = problem.geometry
    widest = 32 if problem.dtype.itemsize == 2 else 24
    thin = least(problem) >= 16 and most(problem) <= widest and sequence(problem)
    long = problem.op == "dgrad" or g.Q >= 4096
    return thin and (half(problem) or (tf32(problem) and long))


def thin_images(problem: Problem) -> bool:
    """f32 of 32 channels and up to 64x64 pixels, which half fill our tiles."""
    g = problem.geometry
    small = g.P * g.Q <= 4096 and g.R * g.S > 1
    return tf32(problem) and g.C == g.K == 32 and small


def uneven_images(problem: Problem) -> bool:
    """f32 of channels that leave much of our tiles empty, as 48 and 50."""
    g = problem.geometry
    uneven = g.C % 32 != 0 or (g.K % 64 != 0 and g.K > 32)
    return tf32(problem) and images(problem, 4096) and uneven and least(problem) >= 24


def large_images(problem: Problem) -> bool:
    """f32 of 64k pixels and more, of 64 to 128 channels."""
    between = least(problem) >= 64 and most(problem) <= 128
    return tf32(problem) and images(problem, 1 << 16) and between


def wgrad_of_few_pixels(problem: Problem) -> bool:
    """Of many channels, so that dw is most of what moves."""
    g = problem.geometry
    few = g.N * g.O * g.P * g.Q <= 256 and taps(problem) > 1
    return tensor_cores(problem) and few and least(problem) >= 640


def wide_images(problem: Problem) -> bool:
    """In 16 bits, of 1024 channels and more on one side, 64x64 pixels and more."""
    wide = most(problem) >= 1024 and least(problem) >= 256
    return half(problem) and images(problem, 4096) and wide


def huge_images(problem: Problem) -> bool:
    """In 16 bits, of 512x512 pixels and more."""
    wide = most(problem) >= 128 and least(problem) >= 64
    return half(problem) and images(problem, 1 << 18) and wide


def narrow_products(problem: Problem) -> bool:
    """1x1 of few channels that our kernels for those do not take, or not well."""
    g = problem.geometry
    ours = least(problem) <= 32 and most(problem) <= 192
    if problem.op == "dgrad" and g.C % 16 != 0:
        ours = False
    pointwise = taps(problem) == 1 and g.stride == (1, 1, 1)
    return half(problem) and pointwise and 16 <= least(problem) < 64 and not ours


def gradients_of_examples(problem: Problem) -> bool:
    """Filters with more taps than there are outputs, several for each group: what
    `jax.vmap` makes of the filter's gradient. Their columns are few."""
    g = problem.geometry
    wide = g.groups > 1 and g.groups < g.K
    return wide and g.T == g.O == 1 and max(64, g.P * g.Q) <= g.R * g.S


def f32_patches(problem: Problem) -> bool:
    """Patches that are whole columns, of a few pixels."""
    small = taps(problem) > 1 and sums(problem) <= 48
    return tf32(problem) and patches(problem) and small


def wide_stems(problem: Problem) -> bool:
    """Few channels to many: what reads columns takes longer than to write them."""
    g = problem.geometry
    overlapping = g.T == 1 and g.R > g.stride[1] > 1 and g.S > g.stride[2] > 1
    return half(problem) and overlapping and g.C <= 4 and g.K >= 768


def odd_scalars(problem: Problem) -> bool:
    """f32 for which our kernels copy x with zeros beside its channels: 1x1x1 filters,
    and short sequences of one channel."""
    g = problem.geometry
    odd = g.C % 4 != 0 or g.K % 4 != 0
    pointwise = taps(problem) == 1 and depth.is_deep(g) and most(problem) <= 8
    scalars = g.C == g.K == 1 and g.O * g.P * g.Q <= 1024
    return tf32(problem) and odd and (pointwise or scalars)


def large_f32_patches(problem: Problem) -> bool:
    """Which our kernels have no place for."""
    large = sums(problem) >= 256 and problem.geometry.C <= 4
    return tf32(problem) and patches(problem) and large


def few_outputs(problem: Problem) -> bool:
    return volumes(problem) and problem.geometry.K <= 6 and problem.geometry.C >= 128


def few_inputs(problem: Problem) -> bool:
    """f32 of colours and the like and few taps: sequences that are long or of some
    taps, one or two outputs."""
    g = problem.geometry
    sequences = sequence(problem) and (g.Q >= 1 << 17 or sums(problem) >= 32)
    some = sequences or g.K <= 2
    few = g.C <= 5 and 9 <= sums(problem) <= 64
    return tf32(problem) and few and some


def odd_width(problem: Problem) -> bool:
    """dx of 40 to 56 channels, which our tiles fill to 64."""
    many = taps(problem) > 1 and problem.geometry.K >= 128
    return half(problem) and many and 32 < problem.geometry.C < 64
