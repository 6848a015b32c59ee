"""Images cut over devices: what a device needs of its neighbours' rows.

Where x has stride times as many rows as y, both are cut into as many parts, and a
device forms its own rows of the result. What a filter reads beyond a device's part, its
halo, the two neighbours send; beyond the image's edge nobody sends anything, which is
zeros like the padding. "Rows" are pixels along any spatial axis.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax

from jax_convbatch import geometry as geo


class Part(NamedTuple):
    """A device's part of one spatial axis.

    Attributes:
      x, y: rows of the part.
      x_halo: rows of x before it and behind it that its rows of y read.
      y_halo: rows of y before it and behind it that read its rows of x.
    """

    x: int
    y: int
    x_halo: tuple[int, int]
    y_halo: tuple[int, int]


# Mesh axes, and the number of parts that they cut a spatial axis into, by its letter:
# "0" for the first spatial axis.
Cuts = Mapping[str, tuple[tuple[str, ...], int]]


def letters(params) -> dict[str, tuple[int, int]]:
    """Spatial axes that can be cut: rows of x and of y that lie side by side."""
    g, rank = params.geometry, geo.spatial_rank(params.dimension_numbers)
    found = {}
    for i in range(rank):
        axis = geo.MAX_SPATIAL - rank + i
        s, d = g.stride[axis], g.input_dilation[axis]
        if 1 in (s, d) and s * g.outputs[axis] == d * g.inputs[axis] > 0:
            found[str(i)] = (s, d)
    return found


def part(params, letter: str, parts: int) -> Part | None:
    """What a device has of an axis in `parts`; None if filters reach too far."""
    g = params.geometry
    axis = _axis(params, letter)
    s, d, pad = g.stride[axis], g.input_dilation[axis], g.pad[axis]
    x, rest = divmod(g.inputs[axis], s * parts)
    y = g.outputs[axis] // (d * parts)
    if rest or g.outputs[axis] % (d * parts):
        return None
    x, y = x * s, y * d
    reach = (g.taps[axis] - 1) * g.filter_dilation[axis]
    # Row j of y reads row i of x where s j - pad + (tap) = d i.
    x_halo = pad // d, (s * (y - 1) - pad + reach) // d - (x - 1)
    y_halo = (reach - pad) // s, (d * (x - 1) + pad) // s - (y - 1)
    if max(x_halo) > x or max(y_halo) > y:
        return None
    return Part(x, y, _positive(x_halo), _positive(y_halo))


def _positive(halo: tuple[int, int]) -> tuple[int, int]:
    """Rows that are there and not needed stay: they cost nothing."""
    return max(halo[0], 0), max(halo[1], 0)


def _axis(params, letter: str) -> int:
    rank = geo.spatial_rank(params.dimension_numbers)
    return geo.MAX_SPATIAL - rank + int(letter)


def cuts(params, assigned: Mapping[str, tuple[str, ...]], mesh) -> Cuts:
    """The spatial ones of `assigned`, mesh axes by letter."""
    return {
        letter: (axes, math.prod(mesh.shape[a] for a in axes))
        for letter, axes in assigned.items()
        if letter in letters(params)
    }


def needed(params, cut: Cuts) -> bool:
    """Whether a device needs anything of its neighbours, forward or backward."""
    found = [part(params, letter, parts) for letter, (_, parts) in cut.items()]
    return any(sum(p.x_halo + p.y_halo) for p in found if p)


def extended(params, role: str, cut: Cuts, array: jax.Array):
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
    for letter, (axes, parts) in cut.items():
        i = _axis(params, letter)
        p = part(params, letter, parts)
        assert p is not None
        before, behind = p.x_halo if role == "x" else p.y_halo
        array = _exchange(array, params.axis(role, letter), before, behind, axes, parts)
        sizes[i], out[i] = p.x, p.y
        if role == "x":
            sizes[i] += before + behind
            pad[i] -= g.input_dilation[i] * before
        else:
            out[i] += before + behind
            pad[i] += g.stride[i] * before
    g = g._replace(
        **dict(zip("DHW", sizes, strict=True)),
        **dict(zip("OPQ", out, strict=True)),
        pad=(pad[0], pad[1], pad[2]),
    )
    return dataclasses.replace(params, geometry=g), array


def _exchange(array, axis: int, before: int, behind: int, axes, parts: int):
    """`array` with rows of the devices before and behind, zeros at both ends."""

    def rows(start: int, stop: int) -> jax.Array:
        return jax.lax.slice_in_dim(array, start, stop, axis=axis)

    def sent(a, pairs: Iterable[tuple[int, int]]) -> jax.Array:
        return jax.lax.ppermute(a, axes, list(pairs))

    size, devices = array.shape[axis], range(parts - 1)
    pieces = [array]
    if before:
        last = rows(size - before, size)
        pieces.insert(0, sent(last, ((i, i + 1) for i in devices)))
    if behind:
        pieces.append(sent(rows(0, behind), ((i + 1, i) for i in devices)))
    return jax.lax.concatenate(pieces, axis) if len(pieces) > 1 else array
