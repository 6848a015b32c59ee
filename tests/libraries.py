# SPDX-License-Identifier: Apache-2.0
"""Layers of other libraries, imported before or after `jax_convbatch.install()`.

    python tests/libraries.py before|after

prints, for each library that is there, which primitives its layers run before
`install`, under it and after `uninstall`, and what was replaced, as JSON.
"""

import importlib
import json
import sys

import jax
import jax.numpy as jnp

import jax_convbatch

X = jnp.ones((1, 6, 6, 3))
NCHW = jnp.ones((3, 6, 6))


def linen():
    from flax import linen as nn

    for layer in (
        nn.Conv(4, (3, 3)),
        nn.Conv(3, (3, 3), feature_group_count=3, padding="CIRCULAR"),
        nn.ConvTranspose(4, (3, 3), strides=(2, 2)),
        nn.ConvTranspose(4, (3, 3), strides=(2, 2), padding="CIRCULAR"),
        nn.ConvTranspose(4, (3, 3), transpose_kernel=True),
    ):
        variables = layer.init(jax.random.key(0), X)
        yield lambda x, f=layer.apply, v=variables: f(v, x), X


def nnx():
    from flax import nnx

    rngs = nnx.Rngs(0)
    for layer in (
        nnx.Conv(3, 4, (3, 3), rngs=rngs),
        nnx.ConvTranspose(3, 4, (3, 3), strides=(2, 2), rngs=rngs),
        nnx.ConvTranspose(3, 4, (3, 3), transpose_kernel=True, rngs=rngs),
    ):
        yield layer, X


def equinox():
    import equinox as eqx

    key = jax.random.key(0)
    yield eqx.nn.Conv2d(3, 4, 3, key=key), NCHW
    yield eqx.nn.ConvTranspose2d(3, 4, 3, stride=2, key=key), NCHW


def haiku():
    import haiku as hk

    for layer in (
        lambda x: hk.Conv2D(4, 3)(x),
        lambda x: hk.DepthwiseConv2D(2, 3)(x),
        lambda x: hk.Conv2DTranspose(4, 3, stride=2)(x),
        lambda x: hk.Conv2DTranspose(4, 3, stride=2, output_shape=(12, 12))(x),
    ):
        layer = hk.without_apply_rng(hk.transform(layer))
        variables = layer.init(jax.random.key(0), X)
        yield lambda x, f=layer.apply, v=variables: f(v, x), X


LIBRARIES = {"flax.linen": linen, "flax.nnx": nnx, "equinox": equinox, "haiku": haiku}


def is_there(name: str) -> bool:
    return importlib.util.find_spec(name.split(".")[0]) is not None


def runs(layer, *args) -> list[str]:
    """Which convolutions a layer runs: names of primitives."""
    found = []

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            if "conv_" in eqn.primitive.name:
                found.append(eqn.primitive.name)
            for inner in jax.tree.leaves(
                [*eqn.params.values()], is_leaf=lambda p: hasattr(p, "jaxpr")
            ):
                if hasattr(inner, "jaxpr"):
                    look(inner.jaxpr)

    look(jax.make_jaxpr(layer)(*args).jaxpr)
    return found


def main(order: str):
    there = {name: make for name, make in LIBRARIES.items() if is_there(name)}
    result = {name: {} for name in there}
    old = {}
    if order == "before":
        for name, make in there.items():
            importlib.import_module(name)
            result[name]["stock"] = [runs(*case) for case in make()]
    replaced = jax_convbatch.install().replaced
    if order == "after":
        loaded = {name.split(".")[0] for name in sys.modules}
        assert not loaded & {name.split(".")[0] for name in there}
    for name, make in there.items():
        old[name] = list(make())
        result[name]["installed"] = [runs(*case) for case in old[name]]
    jax_convbatch.uninstall()
    for name, make in there.items():
        result[name]["uninstalled"] = [runs(*case) for case in (*make(), *old[name])]
    print(json.dumps({"replaced": replaced, "runs": result}))


if __name__ == "__main__":
    main(sys.argv[1])
