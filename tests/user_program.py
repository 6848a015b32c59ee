# SPDX-License-Identifier: Apache-2.0
"""A user's program, which `mypy --strict` passes: `make lint`, test_public.py."""

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

import jax_convbatch as jcb
from jax_convbatch import deform, norms, ops
from jax_convbatch.flax import linen as jlinen
from jax_convbatch.flax import nnx as jnnx

Params = tuple[jax.Array, jax.Array]

x = jnp.ones((2, 8, 8, 3))
w = np.ones((3, 3, 3, 4), np.float32)  # any jax.typing.ArrayLike


def loss(params: Params, x: jax.Array) -> jax.Array:
    kernel, bias = params
    y = jcb.conv(x, kernel, bias, strides=2, padding=[(1, 0), 1])
    y = jcb.conv_bias_act(y, kernel[..., :4, :], activation=jax.nn.relu, groups=1)
    y = jcb.conv_transpose(y, kernel, strides=(2, 2), precision="highest")
    return jnp.sum(y)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = jnnx.Conv(3, 4, (3, 3), activation="gelu", rngs=rngs)
        self.mix = jnnx.CausalConv1D(4, activation="silu", rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        self.mix.init_cache((2, 8, 8, 4), jnp.float32)
        return self.mix(self.conv(x, residual=None), decode=True)


class Block(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = jlinen.Conv(4, (3, 3), strides=2, activation="gelu")(x)
        y = jlinen.ConvTranspose(4, (3, 3), activation=jax.nn.relu)(y)
        y = jlinen.ConvBlock(4, (3, 3))(y, residual=y)
        y = jlinen.NormActConv(4, (3, 3), norm="group", num_groups=2)(y, residual=y)
        y = jlinen.CausalConv1D(4, activation="silu")(y, segment_ids=None)
        return jlinen.DeformConv(features=3, kernel_size=3)(y)


@jax.custom_vjp
def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return ops.fprop(x, w)


def forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, Params]:
    return layer(x, w), (x, w)


def backward(kept: Params, dy: jax.Array) -> Params:
    x, w = kept
    return ops.dgrad(dy, w, x.shape), ops.wgrad(x, dy, w.shape)


layer.defvjp(forward, backward)


def main() -> None:
    numbers = ("NHWC", "HWIO", "NHWC")
    y = jcb.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=numbers, algorithm="auto"
    )
    assert_type(y, jax.Array)
    y = jcb.conv(x, w, padding=("CAUSAL", ("EDGE", (1, 1))))
    y, state = jcb.conv(x, w, padding=["CAUSAL", "SAME"], return_final_state=True)
    assert_type(state, jax.Array)
    offset, mask = jnp.zeros((2, 8, 8, 18)), jnp.ones((2, 8, 8, 9))
    assert_type(jcb.deform_conv(x, offset, w, mask=mask), jax.Array)
    sums = norms.statistics_of(x, "channels")
    assert_type(sums, norms.Statistics)
    scale, shift = norms.scale_and_shift(sums, x.shape)
    assert_type(scale, jax.Array)
    y = jcb.norm_act_conv(x, w, scale=scale, shift=shift)
    y, sums = jcb.norm_act_conv(y, w, statistics="channels")
    moved, *_ = deform.from_torch(jnp.ones((2, 3, 8, 8)))
    params = (jnp.ones((3, 3, 4, 4)), jnp.zeros(4))
    table = jcb.explain(jax.grad(loss), params, moved)
    assert_type(table.flops, int)
    assert_type([row.engine for row in table], list[str])
    assert_type(jcb.tune(layer, x, w)[0].microseconds, float)
    assert_type(ops.bias_grad(y), jax.Array)
    with jcb.install() as installed:
        assert_type(installed.replaced, tuple[str, ...])
    jcb.uninstall()
    jax.checkpoint(loss, policy=jcb.convs_saveable)
    jax.export.export(jax.jit(loss), disabled_checks=jcb.export_checks())
    assert_type(Net(nnx.Rngs(0))(x), jax.Array)
