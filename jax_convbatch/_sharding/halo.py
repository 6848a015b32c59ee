# SPDX-License-Identifier: Apache-2.0
"""Images cut over devices: what a device needs of its neighbours' rows.

x and y are cut into as many parts, and a device forms its own rows of the result.
What a filter reads beyond a device's part, its halo, the two neighbours send; beyond
the image's edge nobody sends anything, which is zeros like the padding. Where x has
not stride times as many rows as y (`VALID` padding), parts of the two drift apart: the
rows that a device reads begin farther from its part's with each device. Parts are of
one size, so that the last may hang over; what lies there is taken for zeros. "Rows"
are pixels along any spatial axis.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jax_convbatch._plans.params import ConvParams
from jax_convbatch._shapes import geometry as geo


class Reads(NamedTuple):
    """What a device reads of the rows of x, or of y.

    Attributes:
      before, behind: rows beyond a device's part that any device reads, at most.
      first: where they begin for the first device, counted from the row `before` its
        part's first.
      step: how many rows farther for each next device.
      rows: how many rows a device reads.
    """

    before: int
    behind: int
    first: int
    step: int
    rows: int


class Part(NamedTuple):
    """A device's part of one spatial axis.

    Attributes:
      x, y: rows of the part.
      of_x: of x, by its rows of y.
      of_y: of y, by its rows of x.
      hangs: whether the last part has rows that are not there.
    """

    x: int
    y: int
    of_x: Reads
    of_y: Reads
    hangs: bool


# Mesh axes, and the number of parts that they cut a spatial axis into, by its letter:
# "0" for the first spatial axis.
Cuts = Mapping[str, tuple[tuple[str, ...], int]]


def letters(params: ConvParams) -> dict[str, tuple[int, int]]:
    """Spatial axes that can be cut: rows of x and of y that lie side by side.

    One and one where these are not all rows, and then of x without dilation.
    """
    g, rank = params.geometry, geo.spatial_rank(params.dimension_numbers)
    found = {}
    for i in range(rank):
        axis = geo.MAX_SPATIAL - rank + i
        s, d = g.stride[axis], g.input_dilation[axis]
        if g.outputs[axis] < 1 or g.inputs[axis] < 1:
            continue
        if 1 in (s, d) and s * g.outputs[axis] == d * g.inputs[axis]:
            found[str(i)] = (s, d)
        elif d == 1:
            found[str(i)] = (1, 1)
    return found


def part(params: ConvParams, letter: str, parts: int) -> Part | None:
    """What a device has of an axis in `parts`; None if filters reach too far."""
    g = params.geometry
    axis = _axis(params, letter)
    s, d, pad = g.stride[axis], g.input_dilation[axis], g.pad[axis]
    x, y = (-(-n // parts) for n in (g.inputs[axis], g.outputs[axis]))
    hangs = x * parts > g.inputs[axis] or y * parts > g.outputs[axis]
    # The phase of a stride is to be the same in all parts, and so that of a dilation.
    if x % s or (d > 1 and (hangs or y % d)):
        return None
    reach = (g.taps[axis] - 1) * g.filter_dilation[axis]
    # Row j of y reads row i of x where s j - pad + (tap) = d i.
    of_x = _reads(
        pad // d,
        (s * (y - 1) - pad + reach) // d - (x - 1),
        (s * y - d * x) // d,
        x,
        -(-g.outputs[axis] // y),
    )
    of_y = _reads(
        (reach - pad) // s,
        (d * (x - 1) + pad) // s - (y - 1),
        (d * x - s * y) // s,
        y,
        -(-g.inputs[axis] // x),
    )
    return Part(x, y, of_x, of_y, hangs) if of_x and of_y else None


def _reads(before: int, behind: int, step: int, size: int, parts: int) -> Reads | None:
    """Of parts of `size` rows, the first of which reads `before` and `behind` it."""
    last = (parts - 1) * step
    rows = before + size + behind
    most = max(before, before - last), max(behind, behind + last)
    if max(most) > size or rows < 1:
        return None
    # Rows that are there and not needed stay: they cost nothing.
    most = max(most[0], 0), max(most[1], 0)
    return Reads(*most, most[0] - before, step, rows)


def _axis(params: ConvParams, letter: str) -> int:
    rank = geo.spatial_rank(params.dimension_numbers)
    return geo.MAX_SPATIAL - rank + int(letter)


def cuts(
    params: ConvParams, assigned: Mapping[str, tuple[str, ...]], mesh: Mesh
) -> Cuts:
    """The spatial ones of `assigned`, mesh axes by letter."""
    return {
        letter: (axes, math.prod(mesh.shape[a] for a in axes))
        for letter, axes in assigned.items()
        if letter in letters(params)
    }


def inside(params: ConvParams, role: str, cut: Cuts, array: jax.Array) -> jax.Array:
    """A device's part of `array`, x or y, with zeros where the image has no rows."""
    whole = params.shape(role)
    for letter, (axes, parts) in cut.items():
        axis = params.axis(role, letter)
        if whole[axis] % parts:
            array = within(array, axis, whole[axis], axes)
    return array


def within(array: jax.Array, axis: int, size: int, axes: tuple[str, ...]) -> jax.Array:
    """A device's part, of `size` rows cut by mesh `axes`, with zeros past the last."""
    first = jax.lax.axis_index(axes) * array.shape[axis]
    at = first + jax.lax.broadcasted_iota(np.int32, array.shape, axis)
    return jnp.where(at < size, array, jnp.zeros_like(array))


def extended(
    params: ConvParams, role: str, cut: Cuts, array: jax.Array
) -> tuple[ConvParams, jax.Array]:
    """`array`, x or y of a device, with its halo; and the convolution that is left.

    Args:
      params: the convolution of all devices.
      role: "x" where y or dw is formed of it, "y" where dx is.
      cut: of spatial axes.
      array: the device's part, within a function that runs on each device.

    Returns:
      (params, array): of a device; only N, C and K of the sizes are still all devices'.
    """
    g = params.geometry
    sizes, out, pad = list(g.inputs), list(g.outputs), list(g.pad)
    array = inside(params, role, cut, array)
    for letter, (axes, parts) in cut.items():
        i, at = _axis(params, letter), params.axis(role, letter)
        p = part(params, letter, parts)
        assert p is not None
        reads = p.of_x if role == "x" else p.of_y
        array = exchange(array, at, reads.before, reads.behind, axes, parts)
        begin = reads.before
        if reads.step:
            start = reads.first + jax.lax.axis_index(axes) * reads.step
            array = jax.lax.dynamic_slice_in_dim(array, start, reads.rows, at)
            begin -= reads.first
        sizes[i], out[i] = p.x, p.y
        if role == "x":
            sizes[i] = array.shape[at]
            pad[i] -= g.input_dilation[i] * begin
        else:
            out[i] = array.shape[at]
            pad[i] += g.stride[i] * begin
    fields: dict[str, Any] = dict(zip("DHWOPQ", (*sizes, *out), strict=True))
    g = g._replace(**fields, pad=(pad[0], pad[1], pad[2]))
    return dataclasses.replace(params, geometry=g), array


def exchange(
    array: jax.Array,
    axis: int,
    before: int,
    behind: int,
    axes: tuple[str, ...],
    parts: int,
) -> jax.Array:
    """`array` with rows of the devices before and behind, zeros at both ends."""

    def rows(start: int, stop: int) -> jax.Array:
        return jax.lax.slice_in_dim(array, start, stop, axis=axis)

    order, numbers = _in_mesh_order(axes)

    def sent(a: jax.Array, pairs: Iterable[tuple[int, int]]) -> jax.Array:
        pairs = [(numbers[i], numbers[j]) for i, j in pairs]
        return jax.lax.ppermute(a, order, pairs)

    size, devices = array.shape[axis], range(parts - 1)
    pieces = [array]
    if before:
        last = rows(size - before, size)
        pieces.insert(0, sent(last, ((i, i + 1) for i in devices)))
    if behind:
        pieces.append(sent(rows(0, behind), ((i + 1, i) for i in devices)))
    return jax.lax.concatenate(pieces, axis) if len(pieces) > 1 else array


def _in_mesh_order(axes: tuple[str, ...]) -> tuple[tuple[str, ...], list[int]]:
    """`axes` in the mesh's order, and the number there of each device along `axes`.

    `ppermute` numbers devices in the mesh's order, whatever that of its axes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    order = tuple(a for a in mesh.axis_names if a in axes)
    numbers = np.arange(math.prod(mesh.shape[a] for a in order))
    numbers = numbers.reshape([mesh.shape[a] for a in order])
    return order, numbers.transpose([order.index(a) for a in axes]).ravel().tolist()
