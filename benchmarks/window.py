# SPDX-License-Identifier: Apache-2.0
"""How a convolution's filter moves over its input: what every side is told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Channels last, by the number of spatial axes.
DIMENSION_NUMBERS = {
    1: ("NHC", "HIO", "NHC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NDHWC", "DHWIO", "NDHWC"),
}


@dataclass(frozen=True)
class Window:
    """The arguments of `jax.lax.conv_general_dilated`, one of each an axis."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    groups: int = 1

    @classmethod
    def of_row(cls, row) -> Window:
        """That of a row of `workloads`."""
        *_, stride, pad, dilation, groups = row
        return cls((stride,) * 2, ((pad, pad),) * 2, (1, 1), (dilation,) * 2, groups)

    @property
    def rank(self) -> int:
        return len(self.strides)

    def arguments(self) -> dict:
        return {
            "window_strides": self.strides,
            "padding": self.padding,
            "lhs_dilation": self.lhs_dilation,
            "rhs_dilation": self.rhs_dilation,
            "feature_group_count": self.groups,
            "dimension_numbers": DIMENSION_NUMBERS[self.rank],
        }

    def _axes(self):
        return zip(
            self.strides,
            self.padding,
            self.lhs_dilation,
            self.rhs_dilation,
            strict=True,
        )

    def outputs(self, inputs, taps) -> tuple[int, ...]:
        """Sizes of the output."""
        return tuple(
            ((size - 1) * spread + 1 + low + high - (tap - 1) * dilation - 1) // stride
            + 1
            for size, tap, (stride, (low, high), spread, dilation) in zip(
                inputs, taps, self._axes(), strict=True
            )
        )

    def products(self, inputs, taps) -> int:
        """How often a tap meets an input, over all outputs of one channel.

        Padding, and zeros between inputs, meet none.
        """
        found = 1
        outputs = self.outputs(inputs, taps)
        for size, tap, count, axis in zip(
            inputs, taps, outputs, self._axes(), strict=True
        ):
            stride, (low, _), spread, dilation = axis
            first = np.arange(count) * stride - low
            at = [first + t * dilation for t in range(tap)]
            last = (size - 1) * spread
            found *= sum(
                int(((u >= 0) & (u <= last) & (u % spread == 0)).sum()) for u in at
            )
        return found
