"""Convolutions for JAX: differentiable in every mode, reproducible to the bit."""

from jax_convbatch.checkpoint import convs_saveable
from jax_convbatch.conv import conv, conv_general_dilated, conv_transpose
from jax_convbatch.deform import deform_conv
from jax_convbatch.explain import explain
from jax_convbatch.export import export_checks
from jax_convbatch.layer import conv_bias_act
from jax_convbatch.tune import tune

__version__ = "0.1.0"

__all__ = [
    "conv",
    "conv_bias_act",
    "conv_general_dilated",
    "conv_transpose",
    "convs_saveable",
    "deform_conv",
    "explain",
    "export_checks",
    "tune",
]
