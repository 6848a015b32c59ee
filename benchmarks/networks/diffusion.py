# SPDX-License-Identifier: Apache-2.0
"""The convolutions of Stable Diffusion 1: its U-Net and the decoder of its latents.

Both without attention, which has no convolution to compare.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.networks.layers import STOCK, Layers
from jax_convbatch.norms import Statistics


class Pixels(NamedTuple):
    """An array, and its statistics by sample and channel, where they are known."""

    array: jax.Array
    sums: Statistics | None


class ResBlock(nn.Module):
    """Norm, SiLU and 3x3, twice, and a shortcut; the time is added between them."""

    features: int
    layers: Layers
    groups: int
    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Pixels, time=None) -> Pixels:
        def layer(name):
            return self.layers.norm_act_conv(
                self.features,
                (3, 3),
                norm="group",
                num_groups=self.groups,
                epsilon=self.epsilon,
                activation="silu",
                dtype=self.dtype,
                name=name,
            )

        shortcut, sums = x
        if time is not None:
            time = nn.Dense(self.features, dtype=self.dtype, name="time")(nn.silu(time))
        y, sums = layer("first")(
            shortcut, statistics=sums, return_statistics=self.features
        )
        if shortcut.shape[-1] != self.features:
            conv = self.layers.conv(
                self.features, (1, 1), dtype=self.dtype, name="shortcut"
            )
            shortcut = conv(shortcut)
        return Pixels(
            *layer("second")(
                y,
                shortcut,
                offset=time,
                statistics=sums,
                return_statistics=self.features,
            )
        )


class UNet(nn.Module):
    """Predicts the noise of latents [N, H, W, channels], at times [N] in [0, 1].

    Attributes:
      layers: what it is made of.
      width: channels of the first level.
      multipliers: channels of each level, in widths.
      blocks: ResBlocks of each level on the way down; one more on the way up.
      groups: of every norm.
      channels: of the latents.
      dtype: to compute in; parameters are f32.
      train: of no effect here.
    """

    layers: Layers = STOCK
    width: int = 320
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    blocks: int = 2
    groups: int = 32
    channels: int = 4
    dtype: Any = jnp.bfloat16
    train: bool = True

    @nn.compact
    def __call__(self, x, time):
        def block(features):
            return ResBlock(features, self.layers, self.groups, 1e-5, self.dtype)

        def conv(x, features, strides=1):
            return _convolved(self, x, features, (3, 3), strides)

        time = _embedding(time * 1000, self.width).astype(self.dtype)
        for activation in (nn.silu, lambda z: z):
            dense = nn.Dense(4 * self.width, dtype=self.dtype)
            time = activation(dense(time))
        widths = [self.width * m for m in self.multipliers]
        x = conv(x.astype(self.dtype), widths[0])
        skips = [x]
        for level, features in enumerate(widths):
            for _ in range(self.blocks):
                x = block(features)(x, time)
                skips.append(x)
            if level + 1 < len(widths):
                x = conv(x.array, features, 2)
                skips.append(x)
        for _ in range(2):
            x = block(widths[-1])(x, time)
        for level, features in reversed(list(enumerate(widths))):
            for _ in range(self.blocks + 1):
                x = _joined(x, skips.pop())
                x = block(features)(x, time)
            if level:
                x = conv(_doubled(x.array), features)
        return _head(self, x, self.channels, 1e-5)


class Decoder(nn.Module):
    """Images [N, 8 H, 8 W, 3] from latents [N, H, W, channels].

    Attributes: as in `UNet`; `multipliers` from the image to the latents.
    """

    layers: Layers = STOCK
    width: int = 128
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    blocks: int = 3
    groups: int = 32
    channels: int = 4
    dtype: Any = jnp.bfloat16
    train: bool = False

    @nn.compact
    def __call__(self, x):
        def block(features):
            return ResBlock(features, self.layers, self.groups, 1e-6, self.dtype)

        widths = [self.width * m for m in self.multipliers]
        x = _convolved(self, x.astype(self.dtype), self.channels, (1, 1))
        x = _convolved(self, x.array, widths[-1])
        for _ in range(2):
            x = block(widths[-1])(x)
        for level, features in reversed(list(enumerate(widths))):
            for _ in range(self.blocks):
                x = block(features)(x)
            if level:
                x = _convolved(self, _doubled(x.array), features)
        return _head(self, x, 3, 1e-6)


def _convolved(
    network: UNet | Decoder, x, features: int, size=(3, 3), strides: int = 1
) -> Pixels:
    """A convolution alone, with the sums for the norm after it."""
    layer = network.layers.norm_act_conv(
        features, size, strides, norm=None, dtype=network.dtype
    )
    return Pixels(*layer(x, return_statistics=features))


def _head(network: UNet | Decoder, x: Pixels, features: int, epsilon: float):
    """Norm, SiLU and 3x3 to the result, in f32."""
    layer = network.layers.norm_act_conv(
        features,
        (3, 3),
        norm="group",
        num_groups=network.groups,
        epsilon=epsilon,
        activation="silu",
        dtype=network.dtype,
        name="head",
    )
    return layer(x.array, statistics=x.sums).astype(jnp.float32)


def _joined(x: Pixels, skip: Pixels) -> Pixels:
    """Their channels one after the other, and so their sums."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], -1), x, skip)


def _doubled(x):
    """Every pixel four times."""
    return x.repeat(2, 1).repeat(2, 2)


def _embedding(time: jax.Array, features: int) -> jax.Array:
    """Cosines and sines of times [N], of wave lengths from 1 to 10000."""
    half = features // 2
    rates = jnp.exp(-math.log(10000) * jnp.arange(half) / half)
    angles = time[:, None] * rates
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1)
