# SPDX-License-Identifier: Apache-2.0
"""The meshes in which shardings are read and written where a call is partitioned.

Within a `shard_map` over some of a mesh's axes, the others are cut by the partitioner
as ever, in every group of devices that the manual axes set apart. Its shardings name
the devices of one group by numbers of their own, in an order that nobody tells. So
there a call is cut over all devices of a group or not at all: what all of them add up
needs no order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jax_convbatch import _compat


def fine_mesh(mesh: Mesh) -> Mesh:
    """`mesh` with each of its axes split into the prime factors of its size.

    XLA also shards by a part of an axis, as where a sharded batch is cut into
    microbatches. No PartitionSpec of the user's mesh says that; one of this does.
    """
    manual = mesh.abstract_mesh.manual_axes
    sizes, types = {}, []
    for name, size in mesh.shape.items():
        for i, prime in enumerate(_primes(size)):
            sizes[f"{name}:{i}"] = prime
            types.append(AxisType.Manual if name in manual else AxisType.Auto)
    devices = mesh.devices.reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=tuple(types))


def _primes(n: int) -> list[int]:
    factors, p = [], 2
    while n > 1:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return factors


def in_groups(mesh: Mesh) -> bool:
    """Whether some of its axes are manual."""
    return AxisType.Manual in mesh.axis_types


def _group(mesh: Mesh) -> Mesh:
    """A mesh of the axes that are not manual."""
    free = [t != AxisType.Manual for t in mesh.axis_types]
    names = tuple(n for n, f in zip(mesh.axis_names, free, strict=True) if f)
    return Mesh(mesh.devices[tuple(slice(None) if f else 0 for f in free)], names)


def axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def read(array: Any, mesh: Mesh) -> list[Any]:
    """How `array` is sharded by the axes of `mesh`, an entry for each axis."""
    group = _group(mesh) if in_groups(mesh) else mesh
    spec = [*_compat.decode_sharding(array.sharding, group)]
    if in_groups(mesh):
        whole = {*group.axis_names}
        spec = [entry if whole == {*axes_of(entry)} else None for entry in spec]
    return [*spec, *[None] * (len(array.shape) - len(spec))]


def place(mesh: Mesh, spec: Sequence[Any]) -> NamedSharding:
    """The sharding by entries for the axes of an array, as `read` gives them."""
    group = _group(mesh) if in_groups(mesh) else mesh
    return NamedSharding(group, PartitionSpec(*spec))


def parts(mesh: Mesh, axes: Sequence[str]) -> int:
    """How many parts mesh `axes` make."""
    return math.prod(mesh.shape[a] for a in axes)
