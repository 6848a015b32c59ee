# SPDX-License-Identifier: Apache-2.0
"""What networks are trained on: data that can be learned, and the loss.

A task draws inputs and targets of a batch by a key, and says the loss of what the
network makes of the inputs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax


class Task(Protocol):
    def draw(self, key: jax.Array, batch: int, dtype: str) -> tuple[tuple, Any]:
        """Inputs of the network and targets, each with the batch as first axis."""
        ...

    def loss(self, outputs: jax.Array, targets: Any) -> jax.Array: ...


# Classes that images are drawn of: so few that some hundred steps learn them.
SEEN = 16


class Classification(NamedTuple):
    """Images of a class: a coarse pattern, the same for all of the class, and noise."""

    image: tuple[int, int, int]
    classes: int

    def draw(self, key, batch, dtype):
        height, width, channels = self.image
        keys = jax.random.split(key)
        seen = min(SEEN, self.classes)
        labels = jax.random.randint(keys[0], (batch,), 0, seen, "int32")
        coarse = (seen, -(-height // 8), -(-width // 8), channels)
        pattern = jax.random.normal(_fixed(), coarse, dtype)[labels]
        pattern = pattern.repeat(8, 1).repeat(8, 2)[:, :height, :width]
        noise = jax.random.normal(keys[1], (batch, *self.image), dtype)
        return (pattern + noise,), labels

    def loss(self, outputs, targets):
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, targets)
        return losses.mean()


class Denoising(NamedTuple):
    """Noise in latents that are smooth without it, at a random time."""

    image: tuple[int, int, int]

    def draw(self, key, batch, dtype):
        keys = jax.random.split(key, 3)
        height, width, channels = self.image
        coarse = (batch, -(-height // 8), -(-width // 8), channels)
        clean = jax.random.normal(keys[0], coarse).repeat(8, 1).repeat(8, 2)
        noise = jax.random.normal(keys[1], (batch, *self.image))
        time = jax.random.uniform(keys[2], (batch,))
        angle = time[:, None, None, None] * (math.pi / 2)
        x = jnp.cos(angle) * clean[:, :height, :width] + jnp.sin(angle) * noise
        return (x.astype(dtype), time), noise

    def loss(self, outputs, targets):
        return jnp.square(outputs - targets).mean()


class Decoding(NamedTuple):
    """Images of latents: a fixed mixture of their channels, enlarged."""

    latents: tuple[int, int, int]
    scale: int

    def draw(self, key, batch, dtype):
        x = jax.random.normal(key, (batch, *self.latents))
        mixture = jax.random.normal(_fixed(), (self.latents[-1], 3))
        y = jnp.tanh(x @ mixture).repeat(self.scale, 1).repeat(self.scale, 2)
        return (x.astype(dtype),), y

    def loss(self, outputs, targets):
        return jnp.square(outputs - targets).mean()


class Counts(NamedTuple):
    """Counts along a sequence of letters: as many as two of the four are frequent."""

    length: int
    bin: int

    def draw(self, key, batch, dtype):
        keys = jax.random.split(key)
        # Letters of a bin have a frequency of their own.
        shape = (batch, self.length // self.bin, 1)
        rate = jax.random.uniform(keys[0], shape)
        each = jax.random.uniform(keys[1], (batch, self.length))
        which = each < rate.repeat(self.bin, 1)[..., 0]
        letters = 2 * which.astype("int32") + (each * 1024 % 1 < 0.5)
        return (jax.nn.one_hot(letters, 4, dtype=dtype),), 8 * rate**2

    def loss(self, outputs, targets):
        """Poisson's, without what does not depend on the outputs."""
        return (outputs - targets * jnp.log(outputs + 1e-6)).mean()


def _fixed() -> jax.Array:
    return jax.random.key(7, impl="rbg")
