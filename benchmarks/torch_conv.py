# SPDX-License-Identifier: Apache-2.0
"""A convolution in PyTorch's words, one to three spatial axes, channels last.

A convolution of one axis is one of two axes, the first of size 1, as PyTorch has no
channels-last format for three dimensions. Padding that differs between the sides of
an axis is a call of its own. One with zeros between inputs is a transposed one, whose
filter is stored the other way round: that is done before anything is timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from benchmarks.window import Window


class Inexpressible(Exception):
    """PyTorch has no such convolution."""


@dataclass(frozen=True)
class TorchConv:
    """Fprop, dgrad and wgrad of a convolution, and its tensors.

    Args:
      window, shape: of the convolution; `shape` of x, w and y, channels last.

    Raises:
      Inexpressible: see the message.
    """

    window: Window
    shape: dict[str, tuple[int, ...]]

    def __post_init__(self):
        window = self.window
        if not self.transposed:
            return
        if window.groups > 1 or max(window.strides) > 1:
            raise Inexpressible("input dilation with groups or strides")
        if min(self.padding) < 0:
            raise Inexpressible("input dilation with padding of more than the filter")
        limits = zip(self.output_padding, self.stride, self.dilation, strict=True)
        if any(not 0 <= more < max(s, d) for more, s, d in limits):
            raise Inexpressible("input dilation with more padding on one side")

    @cached_property
    def transposed(self) -> bool:
        return max(self.window.lhs_dilation) > 1

    @cached_property
    def _line(self) -> bool:
        return self.window.rank == 1

    def _axes(self, values, of_added) -> list:
        return [of_added, *values] if self._line else list(values)

    @cached_property
    def stride(self) -> list[int]:
        window = self.window
        return self._axes(window.lhs_dilation if self.transposed else window.strides, 1)

    @cached_property
    def dilation(self) -> list[int]:
        return self._axes(self.window.rhs_dilation, 1)

    @cached_property
    def _around(self) -> list[tuple[int, int]]:
        return self._axes(self.window.padding, (0, 0))

    @cached_property
    def padding(self) -> list[int]:
        """What the call itself pads on both sides of each axis."""
        if self.transposed:
            taps = self._axes(self.shape["w"][:-2], 1)
            spans = (d * (tap - 1) for d, tap in zip(self.dilation, taps, strict=True))
            return [
                span - low for span, (low, _) in zip(spans, self._around, strict=True)
            ]
        return [low if low == high else 0 for low, high in self._around]

    @cached_property
    def output_padding(self) -> list[int]:
        if self.transposed:
            return [high - low for low, high in self._around]
        return [0] * len(self._around)

    @cached_property
    def uneven(self) -> list[tuple[int, int]] | None:
        """What is padded before the call, where it cannot do it."""
        if self.transposed or all(low == high for low, high in self._around):
            return None
        return [(0, 0) if low == high else (low, high) for low, high in self._around]

    # The tensors.

    @cached_property
    def format(self):
        import torch

        three = self.window.rank == 3
        return torch.channels_last_3d if three else torch.channels_last

    def tensor(self, role: str, array):
        """`array`, a tensor of JAX's axes, as PyTorch computes with it."""
        rank = len(self._around)
        spatial = list(range(rank))
        if self._line:
            array = array.unsqueeze(0 if role == "w" else 1)
        if role != "w":
            array = array.permute(0, rank + 1, *(1 + axis for axis in spatial))
        elif self.transposed:
            array = array.flip(spatial).permute(rank, rank + 1, *spatial)
        else:
            array = array.permute(rank + 1, rank, *spatial)
        return array.contiguous(memory_format=self.format)

    def array(self, role: str, tensor):
        """The other way: a tensor of PyTorch's in JAX's axes."""
        rank = len(self._around)
        spatial = [2 + axis for axis in range(rank)]
        if role != "w":
            tensor = tensor.permute(0, *spatial, 1)
        elif self.transposed:
            tensor = tensor.permute(*spatial, 0, 1).flip(list(range(rank)))
        else:
            tensor = tensor.permute(*spatial, 1, 0)
        if self._line:
            tensor = tensor.squeeze(0 if role == "w" else 1)
        # Viewed anew, as PyTorch may keep any stride of an axis of size 1.
        return tensor.contiguous().reshape(-1).view(tensor.shape)

    def unread(self, op: str, dtype, device):
        """What the operand that `op` does not read looks like."""
        import torch

        role = {"dgrad": "x", "wgrad": "w"}[op]
        blank = torch.empty(self.shape[role], dtype=dtype, device=device)
        tensor = self.tensor(role, blank)
        if role == "x" and self.uneven:
            tensor = self._padded(tensor)
        return tensor

    # The calls.

    def fprop(self, x, w):
        import torch

        options = self._options()
        return torch.ops.aten.convolution(self._padded(x), w, None, *options)

    def dgrad(self, dy, w, like):
        dx = self._backward(dy, like, w, [True, False, False])[0]
        for axis, (low, high) in enumerate(self.uneven or (), 2):
            dx = dx.narrow(axis, low, dx.shape[axis] - low - high)
        return dx

    def wgrad(self, x, dy, like):
        return self._backward(dy, self._padded(x), like, [False, True, False])[1]

    def _padded(self, x):
        import torch

        if self.uneven is None:
            return x
        # From the last axis to the first.
        flat = [number for pair in reversed(self.uneven) for number in pair]
        return torch.nn.functional.pad(x, flat)

    def _options(self) -> tuple:
        return (
            *(self.stride, self.padding, self.dilation),
            *(self.transposed, self.output_padding, self.window.groups),
        )

    def _backward(self, dy, x, w, mask):
        import torch

        backward = torch.ops.aten.convolution_backward
        return backward(dy, x, w, None, *self._options(), mask)
