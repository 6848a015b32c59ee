# SPDX-License-Identifier: Apache-2.0
"""What the layers `DeformConv` of linen and nnx do alike.

`layer` is the module that is called: the attributes read here have the same names
in both.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_convbatch._api.arguments import per_axis
from jax_convbatch._shapes.geometry import accumulator
from jax_convbatch.deform import deform_conv
from jax_convbatch.flax import _call


def taps(layer: Any) -> int:
    """Positions that an output pixel reads, in all offset groups."""
    rows, columns = per_axis("kernel_size", layer.kernel_size, 2)
    return layer.offset_groups * rows * columns


def predicted(layer: Any) -> int:
    """Features of the predictor: h and w of each tap, then its mask."""
    return (3 if layer.modulated else 2) * taps(layer)


def predictor_options(layer: Any) -> dict[str, Any]:
    """Arguments of the predictor `Conv` besides features and initialisers."""
    return dict(
        kernel_size=per_axis("kernel_size", layer.kernel_size, 2),
        strides=per_axis("strides", layer.strides, 2),
        padding=layer.padding,
        kernel_dilation=per_axis("kernel_dilation", layer.kernel_dilation, 2),
        dtype=layer.dtype,
        param_dtype=layer.param_dtype,
        precision=layer.precision,
        # The predictor is an ordinary convolution: any engine may run it.
        algorithm="xla" if layer.algorithm == "xla" else "auto",
    )


def kernel_shape(layer: Any, channels: int, features: int) -> tuple[int, ...]:
    """[R, S, C / groups, K].

    Raises:
      ValueError: groups that do not divide C.
    """
    size = per_axis("kernel_size", layer.kernel_size, 2)
    return (*size, _call.group_features(layer, channels), features)


def deform(
    layer: Any, predictor: Any, inputs: Any, kernel: Any, bias: jax.Array | None
) -> jax.Array:
    """The value of the layer: [*batch, P, Q, K]."""
    x, batch = _call.one_batch_axis(inputs, 2)
    out = predictor(x)
    count = taps(layer)
    offset, mask = out[..., : 2 * count], None
    if layer.modulated:
        mask = jax.nn.sigmoid(out[..., 2 * count :])
    y = deform_conv(
        x,
        offset.astype(accumulator(x.dtype)),
        kernel,
        bias,
        mask,
        strides=layer.strides,
        padding=layer.padding,
        dilation=layer.kernel_dilation,
        groups=layer.feature_group_count,
        offset_groups=layer.offset_groups,
        activation=layer.activation,
        precision=layer.precision,
        algorithm=layer.algorithm,
        workspace_limit=layer.workspace_limit,
    )
    return y.reshape(*batch, *y.shape[1:])


def params_from_mmcv(state: dict[str, Any]) -> dict[str, Any]:
    """Parameters of `DeformConv` from those of mmcv's `ModulatedDeformConv2dPack`.

    Args:
      state: "weight" [K, C / groups, R, S], "conv_offset.weight" and
        "conv_offset.bias", and "bias" where there is one, as arrays. Also those of
        `DeformConv2dPack`, which has no mask.

    Returns:
      {"kernel", "bias", "offset": {"kernel", "bias"}} as the linen layer names them.
    """

    def kernel(name: Any) -> Any:
        return jnp.transpose(jnp.asarray(state[name]), (2, 3, 1, 0))

    params = {
        "kernel": kernel("weight"),
        "offset": {
            "kernel": kernel("conv_offset.weight"),
            "bias": jnp.asarray(state["conv_offset.bias"]),
        },
    }
    if state.get("bias") is not None:
        params["bias"] = jnp.asarray(state["bias"])
    return params
