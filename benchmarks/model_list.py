# SPDX-License-Identifier: Apache-2.0
"""The networks of `python -m benchmarks models`: sizes, data, loss and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.networks.diffusion import Decoder, UNet
from benchmarks.networks.efficientnet import EfficientNet
from benchmarks.networks.enformer import Enformer
from benchmarks.networks.layers import STOCK, Layers
from benchmarks.networks.tasks import (
    Classification,
    Counts,
    Decoding,
    Denoising,
    Task,
)
from examples.networks import MnistCnn, ResNet


class Model(NamedTuple):
    """A network and how it is used.

    Attributes:
      make: the network, of the keywords layers, dtype and train, and of `options`.
      dtype: of its inputs, and to compute in.
      task: the data and the loss.
      batches: the sizes that are measured.
      optimizer: of a training step.
      modes: that are measured, where none is asked for.
      options: sizes of the network.
    """

    make: Callable[..., nn.Module]
    dtype: str
    task: Task
    batches: tuple[int, ...]
    optimizer: optax.GradientTransformation
    modes: tuple[str, ...] = ("train", "infer")
    options: dict[str, Any] = {}  # noqa: RUF012

    def network(self, layers: Layers, mode: str) -> nn.Module:
        return self.make(
            layers=layers,
            dtype=jnp.dtype(self.dtype),
            train=mode == "train",
            **self.options,
        )

    def batch(self, key: jax.Array, size: int) -> tuple[tuple, Any]:
        """Inputs and targets."""
        return self.task.draw(key, size, self.dtype)


class State(NamedTuple):
    """What the steps of a model start from, one for all sides and batches."""

    variables: dict
    moments: Any

    @classmethod
    def of(cls, model: Model) -> State:
        network = model.network(STOCK, "train")
        keys = jax.random.split(jax.random.key(0, impl="rbg"), 2)
        inputs, _ = model.batch(keys[1], 1)
        variables = jax.jit(network.init)(keys[0], *inputs)
        moments = jax.jit(model.optimizer.init)(variables["params"])
        return cls(variables, moments)


def _of_conv(network: type[nn.Module]) -> Callable[..., nn.Module]:
    """A network that is given the convolution alone."""

    def make(layers: Layers, **options: Any) -> nn.Module:
        return network(conv=layers.conv, **options)

    return make


_SGD = partial(optax.sgd, momentum=0.9)

MODELS = {
    "resnet50": Model(
        _of_conv(ResNet),
        "bfloat16",
        Classification((224, 224, 3), 1000),
        (8, 64, 256),
        _SGD(0.01),
        options={"classes": 1000},
    ),
    "mnist": Model(
        _of_conv(MnistCnn),
        "float32",
        Classification((28, 28, 1), 10),
        (8, 128, 1024),
        _SGD(0.1),
    ),
    "unet": Model(
        UNet, "bfloat16", Denoising((64, 64, 4)), (8,), optax.adamw(1e-4), ("train",)
    ),
    "decoder": Model(
        Decoder,
        "bfloat16",
        Decoding((64, 64, 4), 8),
        (2,),
        optax.adamw(1e-4),
        ("infer",),
    ),
    "efficientnet": Model(
        EfficientNet,
        "bfloat16",
        Classification((224, 224, 3), 1000),
        (64,),
        _SGD(0.01),
        ("train",),
    ),
    "enformer": Model(
        Enformer, "bfloat16", Counts(131072, 128), (2,), optax.adamw(1e-4), ("train",)
    ),
}

# The same networks for a CPU: a step takes a moment.
_UNET = dict(width=8, multipliers=(1, 2), blocks=1, groups=4)
SMALL = {
    "resnet50": MODELS["resnet50"]._replace(
        task=Classification((32, 32, 3), 10),
        dtype="float32",
        batches=(4,),
        options=dict(classes=10, stages=(1, 1), width=8),
    ),
    "mnist": MODELS["mnist"]._replace(batches=(8,)),
    "unet": MODELS["unet"]._replace(
        task=Denoising((16, 16, 4)), dtype="float32", batches=(2,), options=_UNET
    ),
    "decoder": MODELS["decoder"]._replace(
        task=Decoding((8, 8, 4), 2), dtype="float32", batches=(2,), options=_UNET
    ),
    "efficientnet": MODELS["efficientnet"]._replace(
        task=Classification((32, 32, 3), 10),
        dtype="float32",
        batches=(4,),
        options=dict(
            stages=((1, 3, 1, 8, 1), (6, 5, 2, 12, 2)), stem=8, head=32, classes=10
        ),
    ),
    "enformer": MODELS["enformer"]._replace(
        task=Counts(256, 8),
        dtype="float32",
        batches=(2,),
        options=dict(stem=8, features=(12, 16)),
    ),
}
