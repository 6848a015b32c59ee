# SPDX-License-Identifier: Apache-2.0
"""Flax layers with the convolution, bias and activation of this package.

`jax_convbatch.flax.linen` and `jax_convbatch.flax.nnx` hold `Conv` and
`ConvTranspose`. Each takes the arguments of Flax's layer of the same name and
has the same parameters, so that a checkpoint of Flax's layer loads. `ConvBlock` is a
convolution with its norm, a residual and an activation, `NormActConv` a norm and an
activation before a convolution, `DeformConv` a deformable convolution that predicts its
offsets, `CausalConv1D` the short causal convolution of Mamba, with a cache for
decoding. Needs Flax: `pip install 'jax_convbatch[flax]'`.
"""

try:
    import flax as _flax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "flax":
        raise
    raise ModuleNotFoundError(
        "jax_convbatch.flax needs Flax, which is not installed: "
        "pip install 'jax_convbatch[flax]'",
        name="flax",
    ) from None

from jax_convbatch.flax import linen, nnx
from jax_convbatch.flax._deform import params_from_mmcv

__all__ = ["linen", "nnx", "params_from_mmcv"]


def __dir__() -> list[str]:
    return sorted(__all__)
