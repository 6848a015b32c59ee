# SPDX-License-Identifier: Apache-2.0
"""Networks that the examples and the benchmarks share, with the convolution as an
argument: `flax.linen.Conv`, or `jax_convbatch.flax.linen.Conv`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from jax_convbatch.flax.linen import ConvBlock


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut; the 3x3 has the stride (ResNet v1.5)."""

    features: int
    stride: int
    block: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x):
        out = 4 * self.features
        shortcut = _shortcut(self, x, out)
        y = self.block(self.features, (1, 1))(x)
        y = self.block(self.features, (3, 3), self.stride)(y)
        return self.block(out, (1, 1), scale_init=_ZEROS)(y, shortcut)


class BasicBlock(nn.Module):
    """Two 3x3 and a shortcut; the first has the stride."""

    features: int
    stride: int
    block: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x):
        shortcut = _shortcut(self, x, self.features)
        y = self.block(self.features, (3, 3), self.stride)(x)
        return self.block(self.features, (3, 3), scale_init=_ZEROS)(y, shortcut)


_ZEROS = nn.initializers.zeros_init()


def _shortcut(self, x, features: int):
    if self.stride == 1 and x.shape[-1] == features:
        return x
    return self.block(features, (1, 1), self.stride, activation=None)(x)


# Depth: the unit, and how many of them in each stage.
DEPTHS = {18: (BasicBlock, (2, 2, 2, 2)), 50: (Bottleneck, (3, 4, 6, 3))}


class ResNet(nn.Module):
    """ResNet v1.5; [N, H, W, channels] -> logits [N, classes] in f32.

    Attributes:
      conv: a layer with the arguments of `flax.linen.Conv`. Where it is ours and
        `train` is false, every convolution, its norm, the sum with the shortcut and
        the activation are one call.
      depth: of `DEPTHS`.
      stages: units in each stage, if not those of `depth`.
      width: channels of the first stage.
      classes: number of logits.
      dtype: to compute in; parameters are float32.
      train: whether batch statistics are those of the batch, and kept.
      small: for images of some 32 pixels: a 3x3 stem, and no pooling after it.
    """

    conv: Callable[..., nn.Module] = nn.Conv
    depth: int = 50
    stages: tuple[int, ...] | None = None
    width: int = 64
    classes: int = 1000
    dtype: Any = jnp.bfloat16
    train: bool = True
    small: bool = False

    @nn.compact
    def __call__(self, x):
        block = partial(
            ConvBlock,
            conv=self.conv,
            dtype=self.dtype,
            use_running_average=not self.train,
        )
        if self.small:
            x = block(self.width, (3, 3))(x)
        else:
            x = block(self.width, (7, 7), 2, padding=((3, 3), (3, 3)))(x)
            x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        unit, stages = DEPTHS[self.depth]
        for i, count in enumerate(self.stages or stages):
            for j in range(count):
                stride = 2 if i > 0 and j == 0 else 1
                x = unit(self.width << i, stride, block)(x)
        x = nn.Dense(self.classes, dtype=self.dtype)(x.mean((1, 2)))
        return x.astype(jnp.float32)


class MnistCnn(nn.Module):
    """Flax's MNIST example: two 3x3 layers, two dense ones; logits [N, 10].

    Attributes:
      conv: a layer with the arguments of `flax.linen.Conv`.
      dtype: to compute in.
      train: of no effect here.
    """

    conv: Callable[..., nn.Module] = nn.Conv
    dtype: Any = jnp.float32
    train: bool = True

    @nn.compact
    def __call__(self, x):
        for features in (32, 64):
            x = nn.relu(self.conv(features, (3, 3), dtype=self.dtype)(x))
            x = nn.avg_pool(x, (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        x = nn.relu(nn.Dense(256, dtype=self.dtype)(x))
        return nn.Dense(10, dtype=self.dtype)(x).astype(jnp.float32)
