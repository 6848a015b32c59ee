# SPDX-License-Identifier: Apache-2.0
"""The convolutions of Enformer (Avsec et al., 2021): its stem and its tower.

Pools take the largest of two, where Enformer weighs them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from benchmarks.networks.layers import STOCK, Layers

FEATURES = (768, 896, 1024, 1152, 1280, 1536)


class Enformer(nn.Module):
    """Rates [N, L / 2^(1 + stages), 1] along sequences [N, L, 4].

    Attributes:
      layers: what it is made of.
      stem: channels of the first convolution.
      features: channels of each stage.
      dtype: to compute in; parameters are f32.
      train: whether batch statistics are those of the batch, and kept.
    """

    layers: Layers = STOCK
    stem: int = FEATURES[0]
    features: tuple[int, ...] = FEATURES
    dtype: Any = jnp.bfloat16
    train: bool = True

    @nn.compact
    def __call__(self, x):
        block = partial(
            self.layers.norm_act_conv,
            norm="batch",
            momentum=0.9,
            epsilon=1e-5,
            activation="gelu",
            dtype=self.dtype,
            use_running_average=not self.train,
        )
        x = self.layers.conv(self.stem, (15,), dtype=self.dtype)(x.astype(self.dtype))
        x = _pooled(block(self.stem, (1,))(x, x))
        for features in self.features:
            x, sums = block(features, (5,))(x, return_statistics="channels")
            x = _pooled(block(features, (1,))(x, x, statistics=sums))
        x = nn.softplus(block(1, (1,))(x).astype(jnp.float32))
        return x


def _pooled(x):
    return nn.max_pool(x, (2,), (2,))
