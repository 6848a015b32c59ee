# SPDX-License-Identifier: Apache-2.0
"""The canonical form of a call: what `jax.lax` makes of it, as a geometry."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import ConvDimensionNumbers
from jax.typing import ArrayLike, DTypeLike

from jax_convbatch import _compat
from jax_convbatch._plans.params import ConvParams
from jax_convbatch._select import plan
from jax_convbatch._shapes import folding
from jax_convbatch._shapes import geometry as geo

_HALF = ("float16", "bfloat16")
_REFUSED = "jax.lax refuses it"  # called with the real operands, it says how


class _Refused(Exception):
    """`jax.lax` refuses a call."""


class Call(NamedTuple):
    """A convolution in canonical form, ready for the primitives."""

    x: jax.Array
    w: jax.Array
    params: ConvParams
    out_dtype: np.dtype


def resolve(
    lhs: Any,
    rhs: Any,
    precision: Any,
    algorithm: str,
    workspace_limit: int | None,
    *,
    op: str = "fprop",
    **kwargs: Any,
) -> Call | str:
    """The canonical form of a `jax.lax` call, or why it goes to `jax.lax`.

    Args:
      lhs, rhs, precision, algorithm, workspace_limit: of `conv_general_dilated`; of
        what `op` computes the shape and dtype are enough.
      op: which operation will run: "fprop", "dgrad" or "wgrad".
      **kwargs: its other arguments, all of them but out_sharding.
    """
    plan.check_options(algorithm, workspace_limit)
    if algorithm == "xla":
        return "asked for by name"
    problem = _not_arrays(lhs, rhs)
    if problem:
        return problem
    if workspace_limit is not None:
        workspace_limit = int(workspace_limit)
    try:
        lhs, rhs = canonical_dtype(lhs), canonical_dtype(rhs)
        precision = _compat.canonicalize_precision(precision)
    except Exception:
        return _REFUSED
    options = precision, algorithm, workspace_limit
    try:
        found = _cached(_native, lhs, rhs, kwargs, *options)
    except _Refused:
        return _REFUSED
    if isinstance(found, str):
        return found
    params, dtype, out_dtype = found
    if lhs.dtype != dtype:
        lhs, rhs = lhs.astype(dtype), rhs.astype(dtype)
    if kwargs["batch_group_count"] > 1:
        count = params.geometry.groups
        lhs = _batch_groups_to_channels(lhs, params.dimension_numbers, count)
    if algorithm != "auto" or workspace_limit is not None:
        plan.check_somewhere(
            op,
            params.geometry,
            dtype,
            out_dtype,
            algorithm,
            workspace_limit,
            params.precision_level,
        )
    return Call(lhs, rhs, params, out_dtype)


@functools.lru_cache(maxsize=4096)
def _native(
    lhs_shape: Any,
    lhs_dtype: DTypeLike,
    rhs_shape: Any,
    rhs_dtype: DTypeLike,
    x64: bool,
    precision: Any,
    algorithm: str,
    workspace_limit: int | None,
    **kwargs: Any,
) -> tuple[ConvParams, np.dtype, np.dtype] | str:
    """What `resolve` says of operands by their shapes: the dtype of the operands of
    the primitive, and its result's."""
    lhs = jax.ShapeDtypeStruct(lhs_shape, lhs_dtype)
    rhs = jax.ShapeDtypeStruct(rhs_shape, rhs_dtype)
    try:
        canonical, out = traced(_compat.lax_conv, lhs, rhs, kwargs)
    except Exception as error:
        raise _Refused from error  # which no cache keeps
    problem = plan.unsupported(lhs_dtype, out.dtype, len(out.shape) - 2)
    problem = problem or _beyond_the_primitives(rhs_shape, precision, **canonical)
    if problem:
        return problem
    # Else preferred_element_type asks for accumulation in the wider type.
    narrow = np.dtype(lhs_dtype).name in _HALF and out.dtype == np.float32
    numbers = canonical["dimension_numbers"]
    if kwargs["batch_group_count"] > 1:
        count = canonical["feature_group_count"] = kwargs["batch_group_count"]
        lhs = jax.eval_shape(
            lambda a: _batch_groups_to_channels(a, numbers, count), lhs
        )
    geometry = geo.from_lax(lhs.shape, rhs_shape, out.shape, **canonical)
    params = ConvParams(geometry, numbers, precision, algorithm, workspace_limit)
    return params, np.dtype(lhs_dtype) if narrow else out.dtype, out.dtype


def _not_arrays(lhs: Any, rhs: Any) -> str | None:
    """Why these operands have no static geometry, or None."""
    for a in (lhs, rhs):
        if not (hasattr(a, "shape") and hasattr(a, "dtype")):
            return f"an operand is a {type(a).__name__}, not an array"
        if jnp.issubdtype(a.dtype, jax.dtypes.extended):
            return f"dtype {a.dtype}"
        if not _compat.is_constant_shape(a.shape):
            return "symbolic sizes"
    return None


@overload
def operand(a: None) -> None: ...
@overload
def operand(a: ArrayLike) -> jax.Array: ...
def operand(a: Any) -> Any:
    """An array as `jax.numpy` takes it: what an object's `__jax_array__` gives, too."""
    if not isinstance(a, jax.Array) and hasattr(a, "__jax_array__"):
        a = a.__jax_array__()
    return canonical_dtype(a)


def canonical_dtype(a: Any) -> Any:
    """A numpy array in the dtype JAX gives it: without x64, float64 is float32."""
    if not isinstance(a, (np.ndarray, np.generic)):
        return a
    dtype = jax.dtypes.canonicalize_dtype(a.dtype)
    return a if a.dtype == dtype else a.astype(dtype)


def _beyond_the_primitives(
    rhs_shape: Any,
    precision: Any,
    *,
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    dimension_numbers: Any,
    **_: Any,
) -> str | None:
    """What of a call that `jax.lax` traces is only for XLA to run or refuse."""
    if problem := precision_problem(precision):
        return problem
    if any(sorted(spec) != [*range(len(spec))] for spec in dimension_numbers):
        return "dimension numbers that are no permutation"
    taps = [rhs_shape[i] for i in dimension_numbers.rhs_spec[2:]]
    per_axis = (window_strides, padding, lhs_dilation, rhs_dilation)
    if any(len(values) != len(taps) for values in per_axis):
        return "not one stride, padding and dilation for each spatial axis"
    if min((*taps, *window_strides, *lhs_dilation, *rhs_dilation), default=1) < 1:
        return "a stride, a dilation or a side of the filter is below 1"
    return None


def precision_problem(precision: Any) -> str | None:
    """Why only XLA can have such a precision (names of algorithms), or None."""
    pair = precision if isinstance(precision, tuple) else (precision,)
    if all(p is None or isinstance(p, jax.lax.Precision) for p in pair):
        return None
    return f"precision {precision}"


def traced(
    function: Any, lhs: Any, rhs: Any, kwargs: dict[str, Any]
) -> tuple[dict[str, Any], jax.ShapeDtypeStruct]:
    """Canonical parameters and result of a `jax.lax` function's convolution.

    `jax.lax` itself traces the call, so that whatever it refuses is refused with its
    exception and its words.

    Args:
      function: `conv_general_dilated` or `conv_transpose`.
      lhs, rhs, kwargs: its arguments.
    """
    params, out = _cached(_trace, lhs, rhs, kwargs, function)
    return dict(params), out


def _cached(
    function: Any,
    lhs: Any,
    rhs: Any,
    kwargs: dict[str, Any],
    *options: Any,
) -> Any:
    """An `lru_cache` function of shapes, dtypes, options and keywords.

    The function itself where sizes are symbolic or a keyword is none to look up.
    """
    x64 = jax.config.read("jax_enable_x64")
    key = (lhs.shape, lhs.dtype, rhs.shape, rhs.dtype, x64, *options)
    known = _compat.is_constant_shape((*lhs.shape, *rhs.shape))
    try:
        frozen = {name: _hashable(value) for name, value in kwargs.items()}
        hash(tuple(frozen.values()))
    except TypeError:
        known = False
    if not known:
        return function.__wrapped__(*key, **kwargs)
    return function(*key, **frozen)


def _hashable(value: Any) -> Any:
    """Lists as tuples, as far down as they go; jax.lax takes either.

    Raises:
      TypeError: a float; 1.0 is equal to 1, and jax.lax may take one alone.
    """
    if type(value) in (list, tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, ConvDimensionNumbers):
        return ConvDimensionNumbers(*map(tuple, value))
    if isinstance(value, (float, np.floating)):
        raise TypeError
    return value


@functools.lru_cache(maxsize=4096)
def _trace(
    lhs_shape: Any,
    lhs_dtype: DTypeLike,
    rhs_shape: Any,
    rhs_dtype: DTypeLike,
    x64: bool,
    function: Callable[..., Any],
    **kwargs: Any,
) -> tuple[Any, ...]:
    jaxpr = jax.make_jaxpr(functools.partial(function, **kwargs))(
        jax.ShapeDtypeStruct(lhs_shape, lhs_dtype),
        jax.ShapeDtypeStruct(rhs_shape, rhs_dtype),
    )
    (eqn,) = (e for e in jaxpr.eqns if e.primitive is _compat.lax_conv_p)
    names = (
        "window_strides",
        "padding",
        "lhs_dilation",
        "rhs_dilation",
        "dimension_numbers",
        "feature_group_count",
    )
    (out,) = jaxpr.out_avals
    numbers = ConvDimensionNumbers(*map(tuple, eqn.params["dimension_numbers"]))
    params = {name: eqn.params[name] for name in names}
    params["dimension_numbers"] = numbers
    return params, jax.ShapeDtypeStruct(out.shape, out.dtype)


def _batch_groups_to_channels(
    lhs: jax.Array, numbers: ConvDimensionNumbers, count: int
) -> jax.Array:
    """Batch groups are channel groups whose samples stand in the batch."""
    batch, feature = numbers.lhs_spec[:2]
    size = lhs.shape[batch] // count
    split = (*lhs.shape[:batch], count, size, *lhs.shape[batch + 1 :])
    return folding.fold_axis(lhs.reshape(split), batch, feature, 1)


def geometry_of(
    lhs: jax.Array, rhs: jax.Array, **kwargs: Any
) -> tuple[geo.ConvGeometry, ConvDimensionNumbers, np.dtype]:
    """Geometry, order of axes and result dtype of a `jax.lax` convolution.

    Raises:
      TypeError, ValueError: as `jax.lax.conv_general_dilated`, in its words.
    """
    canonical, out = traced(_compat.lax_conv, lhs, rhs, kwargs)
    geometry = geo.from_lax(lhs.shape, rhs.shape, out.shape, **canonical)
    return geometry, canonical["dimension_numbers"], np.dtype(out.dtype)
