# SPDX-License-Identifier: Apache-2.0
"""The short causal convolution on several devices.

Sets of weights, samples and channels stay where they are. Where the sequence is cut, a
device takes the last inputs of the device before it for its state; in backward, it
forms the gradients of its own last inputs once more, with the first rows of the device
behind it. So every bit is that of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jax_convbatch._causal.composed import Causal
from jax_convbatch._sharding import halo, meshes, partition
from jax_convbatch._sharding.partitioned_call import partitioned_call

# Axes of arrays: sets of weights, samples, sequence, channels; taps, rows of a state,
# and of ids, which have both.
_AXES = {"x": "gnlc", "w": "gtc", "bias": "gc", "state": "gnsc", "ids": "gnm"}
_CUT = "gnlc"


class Local(NamedTuple):
    """What one device runs.

    Attributes:
      fun: of what is static and arrays.
      static: of the call.
      op: "fprop", "cotangent" or "update".
    """

    fun: Callable[..., Any]
    static: Causal
    op: str

    @property
    def operands(self) -> list[str]:
        """The axes of each."""
        if self.op == "update":
            return ["gnsc", "gnc", "gtc", "gc"]
        roles = ["x", "w", "bias"]
        roles += ["state"] * self.static.state + ["ids"] * self.static.segments
        return [_AXES[r] for r in roles] + ["gnlc"] * (self.op == "cotangent")

    @property
    def results(self) -> list[str]:
        if self.op == "update":
            return ["gnc", "gnsc"]
        found = self.operands[: self.static.linear]
        return found if self.op == "cotangent" else ["gnlc"]


Cut = dict[str, tuple[str, ...]]  # mesh axes by letter


def partitioned(local: Local) -> Callable[..., Any]:
    """What `local` runs, with a partitioning rule."""

    def spaced(axes: Sequence[str]) -> str:
        return ", ".join(" ".join(each) for each in axes)

    def split(mesh: Mesh, arg_shapes: Any, result_shapes: Any) -> tuple[Any, ...]:
        return _split(local, mesh, arg_shapes, result_shapes)

    rule = f"{spaced(local.operands)} -> {spaced(local.results)}"
    letters = dict.fromkeys("".join((*local.operands, *local.results)))
    return partitioned_call(
        partial(local.fun, local.static),
        split,
        rule,
        local,
        # In the order of the rule, as Shardy wants them.
        need_replication_factors=tuple(a for a in letters if a not in _CUT),
    )


def _split(
    local: Local, mesh: Mesh, arg_shapes: Any, result_shapes: Any
) -> tuple[Any, ...]:
    mesh = meshes.fine_mesh(mesh)
    several = isinstance(result_shapes, (list, tuple))
    outs = list(result_shapes) if several else [result_shapes]
    axes = [*local.operands, *local.results]
    cut = _assigned(local, mesh, list(zip(axes, [*arg_shapes, *outs], strict=True)))

    def place(axes: str) -> NamedSharding:
        return meshes.place(mesh, [cut.get(letter) for letter in axes])

    def lower(*arrays: Any) -> Any:
        run = partition.per_device(lambda *a: _run(local, cut, mesh, *a), mesh, ())
        return run(*arrays)

    results = [place(a) for a in local.results]
    operands = tuple(place(a) for a in local.operands)
    return mesh, lower, results if several else results[0], operands


def _assigned(local: Local, mesh: Mesh, arrays: Sequence[tuple[str, Any]]) -> Cut:
    """Mesh axes for the letters by which an array is cut, into equal parts."""
    cut: Cut = {}
    for axes, array in arrays:
        spec = meshes.read(array, mesh)
        for letter, entry, size in zip(axes, spec, array.shape, strict=True):
            if letter in cut or letter not in _CUT:
                continue
            found = meshes.axes_of(entry)
            count = meshes.parts(mesh, found)
            taken = {a for other in cut.values() for a in other}
            if not found or size % count or taken & {*found}:
                continue
            if letter != "l" or _reaches(local, arrays, mesh, size // count):
                cut[letter] = found
    return cut


def _reaches(local: Local, arrays: Any, mesh: Mesh, part: int) -> bool:
    """Whether a device needs rows of its neighbours alone."""
    return not meshes.in_groups(mesh) and _reach(local, arrays[1][1]) <= part


def _reach(local: Local, w: Any) -> int:
    return (w.shape[1] - 1) * local.static.dilation


def _run(local: Local, cut: Cut, mesh: Mesh, *arrays: jax.Array) -> Any:
    """A device's results of its parts."""
    sequence = cut.get("l", ())
    if local.op != "update" and sequence and _reach(local, arrays[1]):
        parts = meshes.parts(mesh, sequence)
        out = _with_neighbours(local, sequence, parts, *arrays)
    else:
        out = local.fun(local.static, *arrays)
    if local.op != "cotangent":
        return out
    summed = tuple(a for letter in "nl" for a in cut.get(letter, ()))
    dx, dw, dbias, *dstate = out
    if summed:
        dw, dbias = (jax.lax.psum(a, summed) for a in (dw, dbias))
    if dstate and sequence:
        is_first = jax.lax.axis_index(sequence) == 0
        mine = jnp.where(is_first, dstate[0], jnp.zeros_like(dstate[0]))
        dstate = [jax.lax.psum(mine, sequence)]
    return [dx, dw, dbias, *dstate]


def _with_neighbours(
    local: Local,
    axes: tuple[str, ...],
    parts: int,
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array,
    *rest: jax.Array,
) -> Any:
    """`local.fun` of a device's part of the sequence, cut by mesh `axes`."""
    count, reach, length = local.static.linear - 3, _reach(local, w), x.shape[2]
    state, ids = local.static.named(rest)
    fun = partial(local.fun, local.static._replace(state=True))
    index = jax.lax.axis_index(axes)

    def ids_of(first: int, rows: int) -> list[jax.Array]:
        """Of rows from `first` on, counted from this device's first, and before."""
        if ids is None:
            return []
        padded = jnp.pad(ids, ((0, 0), (0, 0), (0, reach)), mode="edge")
        start = index * length + first
        return [jax.lax.dynamic_slice_in_dim(padded, start, reach + rows, 2)]

    before = halo.exchange(x, 2, reach, 0, axes, parts)[:, :, :reach]
    if state is not None:
        before = jnp.where(index == 0, state, before)
    if local.op == "fprop":
        return fun(x, w, bias, before, *ids_of(0, length))
    dy = rest[-1]
    dx, dw, dbias, dstate = fun(x, w, bias, before, *ids_of(0, length), dy)
    # What the device behind reads of this one's last rows.
    first = length - reach
    ends = [halo.exchange(a, 2, 0, reach, axes, parts)[:, :, first:] for a in (x, dy)]
    earlier = jnp.concatenate([before, x], 2)[:, :, first:length]
    last = fun(ends[0], w, bias, earlier, *ids_of(first, 2 * reach), ends[1])[0]
    dx = jnp.concatenate([dx[:, :, :first], last[:, :, :reach]], 2)
    return [dx, dw, dbias, *[dstate] * count]
