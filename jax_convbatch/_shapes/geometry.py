# SPDX-License-Identifier: Apache-2.0
"""The static description of one convolution: sizes, no arrays.

N batch; D H W input depth, height, width; C input channels; K output channels;
T R S filter depth, height, width; O P Q output sizes. Problems of fewer spatial
dimensions are three-dimensional ones with leading sizes of 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.lax import ConvDimensionNumbers
from jax.typing import DTypeLike

Axes = tuple[int, int, int]

MAX_SPATIAL = 3


class ConvGeometry(NamedTuple):
    """Sizes of x[N, D, H, W, C], w[T, R, S, C / groups, K] and y[N, O, P, Q, K].

    `pad` is the low padding and may be negative; the high padding is implied by
    O, P and Q. `stride`, `pad`, `input_dilation` and `filter_dilation` have one
    number for each spatial axis. `ffi/conv_geometry.h` has the same struct.
    """

    N: int
    D: int
    H: int
    W: int
    C: int
    K: int
    T: int
    R: int
    S: int
    O: int
    P: int
    Q: int
    groups: int
    stride: Axes
    pad: Axes
    input_dilation: Axes
    filter_dilation: Axes

    @property
    def inputs(self) -> Axes:
        return (self.D, self.H, self.W)

    @property
    def taps(self) -> Axes:
        return (self.T, self.R, self.S)

    @property
    def outputs(self) -> Axes:
        return (self.O, self.P, self.Q)

    @property
    def output_pixels(self) -> int:
        return self.O * self.P * self.Q

    @property
    def column_size(self) -> int:
        """Length of a column: the rows of one group's filter matrix."""
        return self.T * self.R * self.S * (self.C // self.groups)

    @property
    def x_size(self) -> int:
        return self.N * self.D * self.H * self.W * self.C

    @property
    def y_size(self) -> int:
        return self.N * self.output_pixels * self.K

    @property
    def w_size(self) -> int:
        return self.column_size * self.K

    def _each_axis(self) -> Iterator[tuple[int, int, int, int, int, int, int]]:
        """Of each spatial axis the fields that have it, x's size first."""
        return zip(
            self.inputs,
            self.taps,
            self.outputs,
            self.stride,
            self.pad,
            self.input_dilation,
            self.filter_dilation,
            strict=True,
        )

    @property
    def flops(self) -> int:
        """Two for each product of the sum's definition that meets a value of x."""
        products = self.N * self.K * (self.C // self.groups)
        for size, taps, outputs, stride, low, in_dil, f_dil in self._each_axis():
            first = np.arange(outputs) * stride - low
            met = 0
            for tap in range(taps):
                at, rest = np.divmod(first + tap * f_dil, in_dil)
                met += int(np.count_nonzero((rest == 0) & (at >= 0) & (at < size)))
            products *= met
        return 2 * products

    @property
    def is_pointwise(self) -> bool:
        """Whether a sample is its own columns: a 1x1 filter on every pixel once."""
        ones = (1, 1, 1)
        return (
            self.taps == ones
            and self.stride == ones
            and self.pad == (0, 0, 0)
            and self.input_dilation == ones
            and self.outputs == self.inputs
        )

    @property
    def pad_high(self) -> Axes:
        """The high padding that makes `jax.lax` compute the same outputs."""
        high = []
        for size, tap, out, stride, low, in_dil, f_dil in self._each_axis():
            window = _dilated(tap, f_dil)
            padded = (out - 1) * stride + window if out else 0
            high.append(padded - low - _dilated(size, in_dil))
        return high[0], high[1], high[2]

    def attribute(self) -> dict[str, np.int64]:
        """This geometry as the FFI attribute that the handlers decode."""
        fields: dict[str, np.int64] = {}
        for name, value in self._asdict().items():
            if isinstance(value, tuple):
                for axis, v in zip("dhw", value, strict=True):
                    fields[f"{name}_{axis}"] = np.int64(v)
            else:
                fields[name] = np.int64(value)
        return fields

    def describe(self, dimension_numbers: ConvDimensionNumbers) -> str:
        """A line such as "8x56x56x64 * 3x3x64x64 -> 8x56x56x64, stride 2"."""
        rank = spatial_rank(dimension_numbers)
        sizes = [
            (self.N, *self.inputs[MAX_SPATIAL - rank :], self.C),
            (*self.taps[MAX_SPATIAL - rank :], self.C // self.groups, self.K),
            (self.N, *self.outputs[MAX_SPATIAL - rank :], self.K),
        ]
        x, w, y = ("x".join(map(str, s)) for s in sizes)
        parts = [f"{x} * {w} -> {y}"]
        # The high side only where it shows: less than a stride makes no output.
        pads = tuple(
            str(low) if low - stride < high <= low else f"{low}:{high}"
            for low, high, stride in zip(
                self.pad, self.pad_high, self.stride, strict=True
            )
        )
        for name, values, plain in (
            ("stride", self.stride, 1),
            ("pad", pads, "0"),
            ("input dilation", self.input_dilation, 1),
            ("filter dilation", self.filter_dilation, 1),
        ):
            own = values[MAX_SPATIAL - rank :]
            if any(v != plain for v in own):
                same = len(set(own)) == 1
                parts.append(f"{name} {own[0] if same else 'x'.join(map(str, own))}")
        if self.groups > 1:
            parts.append(f"groups {self.groups}")
        return ", ".join(parts)


def accumulator(dtype: DTypeLike) -> np.dtype:
    """What sums and derivatives of a floating dtype are formed in, offsets too."""
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def _dilated(size: int, dilation: int) -> int:
    return (size - 1) * dilation + 1 if size else 0


def spatial_rank(dimension_numbers: ConvDimensionNumbers) -> int:
    return len(dimension_numbers.lhs_spec) - 2


def from_lax(
    lhs_shape: tuple[int, ...],
    rhs_shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    *,
    window_strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
) -> ConvGeometry:
    """The geometry of a `jax.lax` convolution, from its canonical parameters."""
    x, w, y = dimension_numbers

    def axes(values: Any, fill: int) -> Axes:
        values = (*(fill,) * (MAX_SPATIAL - len(values)), *map(int, values))
        return values[0], values[1], values[2]

    return ConvGeometry(
        lhs_shape[x[0]],
        *axes([lhs_shape[i] for i in x[2:]], 1),
        lhs_shape[x[1]],
        rhs_shape[w[0]],
        *axes([rhs_shape[i] for i in w[2:]], 1),
        *axes([out_shape[i] for i in y[2:]], 1),
        feature_group_count,
        axes(window_strides, 1),
        axes([low for low, _ in padding], 0),
        axes(lhs_dilation, 1),
        axes(rhs_dilation, 1),
    )


def to_lax(
    geometry: ConvGeometry, dimension_numbers: ConvDimensionNumbers
) -> dict[str, Any]:
    """Keyword arguments with which `jax.lax` computes this geometry."""
    own = slice(MAX_SPATIAL - spatial_rank(dimension_numbers), None)
    padding = tuple(zip(geometry.pad, geometry.pad_high, strict=True))
    return {
        "window_strides": geometry.stride[own],
        "padding": padding[own],
        "lhs_dilation": geometry.input_dilation[own],
        "rhs_dilation": geometry.filter_dilation[own],
        "dimension_numbers": dimension_numbers,
        "feature_group_count": geometry.groups,
    }


# The three arrays of a convolution by role, and where `dimension_numbers` puts
# them: each spec lists (first, second, spatial axes...), and LETTERS says what
# the first two are.
ROLES = {"x": "lhs_spec", "w": "rhs_spec", "y": "out_spec"}
LETTERS = {"x": ("N", "C"), "w": ("K", "C"), "y": ("N", "K")}


def spec_of(role: str, dimension_numbers: ConvDimensionNumbers) -> tuple[int, ...]:
    return tuple(getattr(dimension_numbers, ROLES[role]))


def axis_of(role: str, letter: str, dimension_numbers: ConvDimensionNumbers) -> int:
    """The axis of array `role` that carries `letter`: "N", "C", "K", or of rows "0"."""
    at = 2 + int(letter) if letter.isdecimal() else LETTERS[role].index(letter)
    return spec_of(role, dimension_numbers)[at]


def layout(
    role: str, dimension_numbers: ConvDimensionNumbers, engine: str = ""
) -> tuple[int, ...]:
    """Major-to-minor order of `role`'s axes that the native code wants.

    Channels last for x and y; for w spatial axes, C, K, and for cuDNN K first.
    """
    first, second, *spatial = spec_of(role, dimension_numbers)
    if role == "w" and engine != "cudnn":
        return (*spatial, second, first)
    return (first, *spatial, second)


def layouts(
    dimension_numbers: ConvDimensionNumbers, engine: str = ""
) -> dict[str, tuple[int, ...]]:
    """`layout` of x, w and y."""
    return {role: layout(role, dimension_numbers, engine) for role in ROLES}


def shape(
    role: str, geometry: ConvGeometry, dimension_numbers: ConvDimensionNumbers
) -> tuple[int, ...]:
    """The shape of array `role` in the order the user keeps it."""
    g = geometry
    first, second, spatial = {
        "x": (g.N, g.C, g.inputs),
        "w": (g.K, g.C // g.groups, g.taps),
        "y": (g.N, g.K, g.outputs),
    }[role]
    rank = spatial_rank(dimension_numbers)
    sizes = (first, second, *spatial[MAX_SPATIAL - rank :])
    result = [0] * len(sizes)
    for axis, size in zip(spec_of(role, dimension_numbers), sizes, strict=True):
        result[axis] = size
    return tuple(result)
