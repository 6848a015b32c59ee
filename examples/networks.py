"""Networks that the examples and the benchmarks share, with the convolution as an
argument: `flax.linen.Conv`, or `jax_convbatch.flax.linen.Conv`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut; the 3x3 has the stride (ResNet v1.5)."""

    features: int
    stride: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x):
        stride = (self.stride, self.stride)
        y = nn.relu(self.norm()(self.conv(self.features, (1, 1))(x)))
        y = nn.relu(self.norm()(self.conv(self.features, (3, 3), stride)(y)))
        y = self.conv(4 * self.features, (1, 1))(y)
        y = self.norm(scale_init=nn.initializers.zeros_init())(y)
        if x.shape != y.shape:
            x = self.norm()(self.conv(4 * self.features, (1, 1), stride)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """ResNet v1.5 of bottlenecks; [N, H, W, 3] -> logits [N, classes] in f32.

    Attributes:
      conv: a layer with the arguments of `flax.linen.Conv`.
      stages: bottlenecks in each; (3, 4, 6, 3) is ResNet-50.
      width: channels of the first stage.
      classes: number of logits.
      dtype: to compute in; parameters are float32.
      train: whether batch statistics are those of the batch, and kept.
    """

    conv: Callable[..., nn.Module] = nn.Conv
    stages: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    dtype: Any = jnp.bfloat16
    train: bool = True

    @nn.compact
    def __call__(self, x):
        conv = partial(self.conv, use_bias=False, dtype=self.dtype)
        norm = partial(
            nn.BatchNorm,
            use_running_average=not self.train,
            momentum=0.9,
            dtype=self.dtype,
        )
        x = conv(self.width, (7, 7), (2, 2), padding=[(3, 3), (3, 3)])(x)
        x = nn.relu(norm()(x))
        x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for i, blocks in enumerate(self.stages):
            for j in range(blocks):
                stride = 2 if i > 0 and j == 0 else 1
                x = Bottleneck(self.width << i, stride, conv, norm)(x)
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
