# SPDX-License-Identifier: Apache-2.0
"""jax.checkpoint keeps of our convolutions what it keeps of jax.lax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import print_saved_residuals

import jax_convbatch as jc

POLICIES = jax.checkpoint_policies
X = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3, 3, 3, 8)).astype(np.float32)


def stock(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)


def layer(x, w):
    return jc.conv_bias_act(x, w, jnp.zeros(w.shape[-1]), activation="gelu")


def deformed(x, w):
    return jc.deform_conv(x, jnp.full((2, 6, 6, 18), 0.25), w)


def saved(capsys, conv, policy):
    """Lines about arrays of y's shape that backward is given."""

    def loss(w):
        return jnp.sin(conv(X, w)).sum()

    kept = jax.checkpoint(loss, policy=policy)
    np.testing.assert_allclose(jax.grad(kept)(W), jax.grad(loss)(W), rtol=1e-5)
    capsys.readouterr()
    print_saved_residuals(kept, W)
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("f32[2,6,6,8]")]


@pytest.mark.parametrize("conv", [jc.conv, layer, deformed])
def test_convs_saveable_keeps_results(capsys, conv):
    assert saved(capsys, conv, None) == []
    assert saved(capsys, conv, POLICIES.dots_saveable) == []
    assert len(saved(capsys, conv, jc.convs_saveable)) >= 1


def test_with_dots_saveable_it_is_as_for_stock(capsys):
    both = POLICIES.save_from_both_policies(POLICIES.dots_saveable, jc.convs_saveable)
    assert len(saved(capsys, jc.conv, both)) == 1
    assert len(saved(capsys, stock, POLICIES.dots_saveable)) == 1
    assert saved(capsys, stock, jc.convs_saveable) == []
