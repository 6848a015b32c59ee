# SPDX-License-Identifier: Apache-2.0
"""The layers that a network is given: Flax's, as people write them, or ours.

Both sides have the same variables, so that one state serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn

import jax_convbatch.flax.linen as jcb_linen

ACTIVATIONS = {None: lambda z: z, "gelu": nn.gelu, "relu": nn.relu, "silu": nn.silu}


class NormActConv(nn.Module):
    """`jax_convbatch.flax.linen.NormActConv` in Flax's own layers.

    It forms statistics again: those it returns are None.
    """

    features: int
    kernel_size: Sequence[int]
    strides: Any = 1
    norm: str | None = "batch"
    num_groups: int = 32
    use_running_average: bool | None = None
    momentum: float = 0.99
    epsilon: float = 1e-5
    activation: str | None = None
    dtype: Any = None

    @nn.compact
    def __call__(
        self, x, residual=None, *, offset=None, statistics=None, return_statistics=None
    ):
        options = dict(epsilon=self.epsilon, dtype=self.dtype, name="norm")
        if offset is not None:
            x = x + offset[:, None, None]
        if self.norm == "batch":
            norm = nn.BatchNorm(
                self.use_running_average, momentum=self.momentum, **options
            )
            x = norm(x)
        elif self.norm == "group":
            x = nn.GroupNorm(self.num_groups, **options)(x)
        x = ACTIVATIONS[self.activation](x)
        y = nn.Conv(
            self.features,
            tuple(self.kernel_size),
            self.strides,
            dtype=self.dtype,
            name="conv",
        )(x)
        y = y if residual is None else y + residual
        return y if return_statistics is None else (y, None)


class Layers(NamedTuple):
    """What networks are made of.

    Attributes:
      conv: a layer with the arguments of `flax.linen.Conv`.
      norm_act_conv: one with those of `NormActConv` above.
    """

    conv: Callable[..., nn.Module]
    norm_act_conv: Callable[..., nn.Module]


STOCK = Layers(nn.Conv, NormActConv)


def ours(engine: str = "auto") -> Layers:
    return Layers(
        partial(jcb_linen.Conv, algorithm=engine),
        partial(jcb_linen.NormActConv, algorithm=engine),
    )
