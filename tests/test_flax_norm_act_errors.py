# SPDX-License-Identifier: Apache-2.0
"""What NormActConv refuses, and the argument that it names."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jax_convbatch import norms
from jax_convbatch.flax import linen
from jax_convbatch.flax import nnx as ours_nnx

KEY = jax.random.key(0)
C, K = 8, 6

BAD = {
    "an unknown norm": (dict(norm="layer"), {}, "norm must be one of 'batch', 'group'"),
    "groups that do not divide": (
        dict(norm="group", num_groups=3),
        {},
        "num_groups=3 must divide the 8 features",
    ),
    "groups of the convolution": (
        dict(norm=None, feature_group_count=3),
        {},
        r"group\w*=3 must divide the 8 ",
    ),
    "an unknown activation": (
        dict(norm=None, activation="swish"),
        {},
        "unknown activation 'swish'",
    ),
    "no word of the running average": (
        dict(norm="batch", use_running_average=None),
        {},
        "use_running_average",
    ),
    "statistics by group for a batch norm": (
        dict(norm="batch", use_running_average=False),
        dict(statistics=norms.Statistics(jnp.ones((2, 4)), jnp.ones((2, 4)))),
        r"statistics must be .* \(8,\) or \(2, 8\), for a batch norm.* got \(2, 4\)",
    ),
    "statistics of too few groups": (
        dict(norm="group", num_groups=4),
        dict(statistics=norms.Statistics(jnp.ones((2, 2)), jnp.ones((2, 2)))),
        r"\(2, G\), where G is a multiple of 4 and divides 8, .* got \(2, 2\)",
    ),
    "modulation that is no pair": (
        dict(norm=None),
        dict(modulation=jnp.ones((2, 8))),
        r"modulation must be a pair \(scale, shift\), got an array of shape \(2, 8\)",
    ),
    "modulation of another shape": (
        dict(norm=None),
        dict(modulation=(jnp.ones(8), jnp.ones((2, 1, 1, 8)))),
        r"the shift of modulation must have shape \(8,\) or \(2, 8\), got \(2, 1, 1, 8",
    ),
    "an offset by pixel": (
        dict(norm=None),
        dict(offset=jnp.ones((2, 5, 5, 8))),
        r"offset must have shape \(8,\) or \(2, 8\), got \(2, 5, 5, 8\)",
    ),
    "statistics that an offset cannot be added to": (
        dict(norm="group", num_groups=4),
        dict(
            offset=jnp.ones((2, 8)),
            statistics=norms.Statistics(jnp.ones((2, 4)), jnp.ones((2, 4))),
        ),
        r"of shape \(2, 8\), as there is an offset",
    ),
    "statistics asked by a wrong name": (
        dict(norm=None),
        dict(return_statistics="batch"),
        "statistics must be None",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    options, arguments, words = BAD[name]
    x = jnp.ones((2, 5, 5, C))

    def with_linen():
        linen.NormActConv(K, (3, 3), **options).init(KEY, x, **arguments)

    def with_nnx():
        layer = ours_nnx.NormActConv(C, K, (3, 3), **options, rngs=nnx.Rngs(0))
        layer(x, **arguments)

    for call in (with_linen, with_nnx):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("shape", [(5, 5, C), (2, 2, 5, 5, C)])
def test_a_norm_by_sample_needs_to_know_the_samples(shape):
    with pytest.raises(ValueError, match="with one batch axis and 2 spatial axes"):
        linen.NormActConv(K, (3, 3), norm="group", num_groups=2).init(
            KEY, jnp.ones(shape)
        )
