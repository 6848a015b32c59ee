# SPDX-License-Identifier: Apache-2.0
"""EfficientNet-B0 (Tan and Le, 2019), without its dropout."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from benchmarks.networks.layers import STOCK, Layers
from jax_convbatch.flax.linen import ConvBlock

# Expansion, kernel size, stride, channels, blocks.
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class MBConv(nn.Module):
    """1x1, depthwise, squeeze and excite, 1x1, and a shortcut where sizes agree."""

    expansion: int
    size: int
    stride: int
    features: int
    layers: Layers
    block: Any
    dtype: Any

    @nn.compact
    def __call__(self, x):
        channels = x.shape[-1]
        wide = channels * self.expansion
        y = x if self.expansion == 1 else self.block(wide, (1, 1))(x)
        depthwise = partial(self.layers.conv, feature_group_count=wide)
        size = (self.size, self.size)
        y = self.block(wide, size, self.stride, conv=depthwise)(y)
        gate = y.mean((1, 2))
        gate = nn.silu(nn.Dense(max(1, channels // 4), dtype=self.dtype)(gate))
        gate = nn.sigmoid(nn.Dense(wide, dtype=self.dtype)(gate))
        y = y * gate[:, None, None, :]
        same = self.stride == 1 and channels == self.features
        return self.block(self.features, (1, 1), activation=None)(
            y, x if same else None
        )


class EfficientNet(nn.Module):
    """Logits [N, classes] of images [N, H, W, 3].

    Attributes:
      layers: what it is made of.
      stages: rows as in `STAGES`.
      stem, head: channels of the first and of the last convolution.
      classes: number of logits.
      dtype: to compute in; parameters are f32.
      train: whether batch statistics are those of the batch, and kept.
    """

    layers: Layers = STOCK
    stages: tuple[tuple[int, ...], ...] = STAGES
    stem: int = 32
    head: int = 1280
    classes: int = 1000
    dtype: Any = jnp.bfloat16
    train: bool = True

    @nn.compact
    def __call__(self, x):
        block = partial(
            ConvBlock,
            conv=self.layers.conv,
            activation="silu",
            dtype=self.dtype,
            use_running_average=not self.train,
        )
        x = block(self.stem, (3, 3), 2)(x.astype(self.dtype))
        for expansion, size, stride, features, count in self.stages:
            for i in range(count):
                x = MBConv(
                    *(expansion, size, stride if i == 0 else 1, features),
                    layers=self.layers,
                    block=block,
                    dtype=self.dtype,
                )(x)
        x = block(self.head, (1, 1))(x)
        x = nn.Dense(self.classes, dtype=self.dtype)(x.mean((1, 2)))
        return x.astype(jnp.float32)
