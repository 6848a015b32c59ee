# SPDX-License-Identifier: Apache-2.0
"""What a plan is: what runs, with how much workspace, and how it is lowered.

Each kind of plan is a class. Here are the two that are one operation; those that put a
convolution together from others, each by a plan of its own, are in the other files of
this folder.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._native import native
from jax_convbatch._plans.params import OPS, ConvParams, Op
from jax_convbatch._shapes import geometry as geo


@dataclass(frozen=True)
class Plan(ABC):
    """What will run, and how.

    Attributes:
      engine: a name of `ALGORITHMS` other than "auto".
      reason: why this engine, in words.
      slice: samples that are unrolled, or copied, at a time, 0 for all of them; of
        wgrad by implicit_gemm on the CPU the parts that its pixels are summed in.
      workspace_bytes: size of the workspace, copies of slices, channels and padding
        included.
      by_name_only: "auto" leaves it to the next engine, which is faster here.
      config: name of the engine's configuration, where it has several.
      source: who chose: "name" (the caller), "tuned" (the user's file), "table" (of
        this package) or "rule".
    """

    engine: str
    reason: str
    slice: int = 0
    workspace_bytes: int = 0
    by_name_only: bool = False
    config: str = ""
    source: str = "rule"

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The plans that it is put together from."""
        return ()

    @property
    def epilogue(self) -> bool:
        """Whether its kernel can form what follows a convolution, if the engine is in
        `EPILOGUES`."""
        return False

    @property
    def signs(self) -> bool:
        """Whether that can also keep the signs of y, `activations.signs_of`."""
        return False

    @classmethod
    def like(cls, other: Plan, **changes: Any) -> Self:
        """One of this kind with the attributes of `Plan` that another one has."""
        same = {each.name: getattr(other, each.name) for each in fields(Plan)}
        return cls(**{**same, **changes})

    def run(
        self,
        op: Op,
        a: jax.Array,
        b: jax.Array,
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        """The result of `op` on its operands.

        A sum of nothing is no call. XLA's layout copies of empty arrays divide by zero
        on the CPU (jaxlib 0.10.2), so they must not reach one.
        """
        shape = params.shape(op.result)
        if 0 in (a.size, b.size, math.prod(shape)):
            return jnp.zeros(shape, out_dtype)
        return self.lower(op, (a, b), params, out_dtype)

    @abstractmethod
    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        """`run`, of arrays that are not empty."""


@dataclass(frozen=True)
class OfAnother(Plan):
    """A convolution by another one; `of` is the plan of that."""

    of: Plan = field(kw_only=True)

    @property
    def parts(self) -> tuple[Plan, ...]:
        return (self.of,)


@dataclass(frozen=True)
class OneCall(Plan):
    """One call of native code; attributes as the properties of `Plan` say."""

    epilogue: bool = True
    signs: bool = False

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        """The result, and a workspace that XLA plans."""
        layouts = geo.layouts(params.dimension_numbers, self.engine)
        call = native.ffi_call(
            params.name(f"conv_{op.name}", operands[0].dtype),
            f"jax_convbatch_{self.engine}_{op.name}",
            (
                jax.ShapeDtypeStruct(params.shape(op.result), out_dtype),
                jax.ShapeDtypeStruct((self.workspace_bytes,), np.uint8),
            ),
            input_layouts=[layouts[role] for role in op.operands],
            output_layouts=[layouts[op.result], (0,)],
        )
        out, _ = call(*operands, **attributes(params, self.slice, self.config))
        return out


@dataclass(frozen=True)
class InXla(Plan):
    """The operation by `jax.lax`."""

    engine: str = "xla"
    reason: str = ""

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        return xla_call(op.name, *operands, params, out_dtype)


def attributes(params: ConvParams, slice: int, config: str) -> dict[str, Any]:
    """What every handler of a convolution decodes."""
    # Engines that have one configuration do not ask for its name.
    named = {"config": config} if config else {}
    return dict(
        geometry=params.geometry.attribute(),
        slice=np.int64(slice),
        precision=np.int64(params.precision_level),
        **named,
    )


def xla_call(
    name: str, a: jax.Array, b: jax.Array, params: ConvParams, out_dtype: DTypeLike
) -> jax.Array:
    """An operation by `jax.lax`, its gradients by transposing its fprop."""
    kwargs = geo.to_lax(params.geometry, params.dimension_numbers)
    kwargs["precision"] = params.precision

    def conv(x: jax.Array, w: jax.Array) -> jax.Array:
        wide = None if out_dtype == a.dtype else out_dtype
        return _compat.lax_conv(x, w, **kwargs, preferred_element_type=wide)

    if name == "fprop":
        return conv(a, b)
    result = jax.ShapeDtypeStruct(params.shape(OPS[name].result), out_dtype)
    if name == "dgrad":
        return jax.linear_transpose(lambda x: conv(x, b), result)(a)[0]
    return jax.linear_transpose(lambda w: conv(a, w), result)(b)[0]
