# SPDX-License-Identifier: Apache-2.0
"""Convolutions for JAX: differentiable in every mode, reproducible to the bit.

    conv_general_dilated  a drop-in for `jax.lax.conv_general_dilated`
    conv, conv_transpose  for channels-last arrays, with a bias
    conv_bias_act         a layer: convolution, scale, bias, residual and activation
    causal_conv1d         a short causal convolution, as Mamba's; _update decodes
    norm_act_conv         norm and activation before a convolution; see also `norms`
    deform_conv           deformable convolution; `deform.from_torch` moves axes
    explain               which engine runs each convolution of a function, and why
    tune                  times the engines on this device and keeps the fastest
    convs_saveable        a policy for `jax.checkpoint` that keeps the results
    export_checks         the checks that `jax.export` has to disable
    ops                   fprop, dgrad, wgrad, ...: for your own derivative rules
    install, uninstall    replace the convolutions of `jax.lax`; restore them

Layers for Flax are in `jax_convbatch.flax.linen` and `jax_convbatch.flax.nnx`.
`python -m jax_convbatch` prints what is installed.
"""

from jax_convbatch import _register, deform, norms, ops
from jax_convbatch._api.checkpoint import convs_saveable
from jax_convbatch._api.conv import conv, conv_general_dilated, conv_transpose
from jax_convbatch._api.export import export_checks
from jax_convbatch._api.install import Installation, install, uninstall
from jax_convbatch._api.layer import conv_bias_act
from jax_convbatch._version import __version__ as __version__
from jax_convbatch.causal import causal_conv1d, causal_conv1d_update
from jax_convbatch.deform import deform_conv
from jax_convbatch.explain import explain
from jax_convbatch.norms import norm_act_conv
from jax_convbatch.tune import tune

_register.everything()

__all__ = [
    "Installation",
    "causal_conv1d",
    "causal_conv1d_update",
    "conv",
    "conv_bias_act",
    "conv_general_dilated",
    "conv_transpose",
    "convs_saveable",
    "deform",
    "deform_conv",
    "explain",
    "export_checks",
    "install",
    "norm_act_conv",
    "norms",
    "ops",
    "tune",
    "uninstall",
]


def __dir__() -> list[str]:
    """Only the public names."""
    return sorted([*__all__, "__version__"])
