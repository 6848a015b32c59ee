# SPDX-License-Identifier: Apache-2.0
"""What the tests of sharding share: a layer, its training step, and collectives."""

import re

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import normal

import jax_convbatch as jc

CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")
CHANNELS_FIRST = ("NCHW", "OIHW", "NCHW")


def arrays(random=normal, batch=16, groups=1, layout=CHANNELS_LAST):
    """x, w and bias; K is 4."""
    x = random(0, (batch, 6, 6, 8), "float32")
    w = random(1, (3, 3, 8 // groups, 4), "float32")
    if layout is CHANNELS_FIRST:
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    return x, w, random(2, (4,), "float32")


def layer(x, w, bias, **kwargs):
    return jc.conv_bias_act(x, w, bias, activation="relu", **kwargs)


def training_step(fun):
    """The loss, y, and the gradients of all arguments, of sum(fun(...)^2)."""

    def loss(*args):
        y = fun(*args)
        return (y**2).sum(), y

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)


KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"


def collectives(compiled):
    found = re.findall(
        rf"\b({KINDS}|collective-broadcast)(?:-start)?\(", compiled.as_text()
    )
    return set(found)


def compiled_and_result(fun, args):
    compiled = jax.jit(fun).lower(*args).compile()
    return compiled, compiled(*args)


def put(mesh, values, *specs):
    return [
        jax.device_put(v, NamedSharding(mesh, s))
        for v, s in zip(values, specs, strict=True)
    ]


def assert_spec(array, *spec):
    want = NamedSharding(array.sharding.mesh, P(*spec))
    assert array.sharding.is_equivalent_to(want, array.ndim), array.sharding


def assert_same(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def make_gpu_mesh(gpus):
    """One axis, "data", over all of them."""
    types = (AxisType.Auto,)
    return jax.make_mesh((len(gpus),), ("data",), axis_types=types, devices=gpus)
