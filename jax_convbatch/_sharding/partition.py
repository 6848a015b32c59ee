# SPDX-License-Identifier: Apache-2.0
"""Sharding below the primitives: batch, channels and images stay where they are.

Without a rule XLA gathers a sharded operand of a custom call, silently. With
the one here each device convolves its own part: N and the result's channels pass
through, neighbours exchange rows of an image that is cut (halo.py), and where what is
summed over is sharded (N in wgrad) the partial results are added by one all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._sharding import halo, meshes
from jax_convbatch._sharding.partitioned_call import partitioned_call


def factors(role: str, params: ConvParams) -> list[str]:
    """Factors of `role`'s axes in the user's order, "a b" for an axis of two.

    Rows that x and y share are a factor p0, p1 or p2, those that one of them has for
    each of the other's q0, q1 or q2.
    """
    first, second = geo.LETTERS[role]
    if role == "w" and params.geometry.groups > 1:
        second = "I"  # channels of one group: not a part of C
    names = [first, second]
    alike = halo.letters(params)
    for i in range(geo.spatial_rank(params.dimension_numbers)):
        if role == "w" or str(i) not in alike:
            names.append(f"{role}{i}")
        else:
            several = alike[str(i)]["xy".index(role)] > 1
            names.append(f"p{i} q{i}" if several else f"p{i}")
    result = [""] * len(names)
    spec = geo.spec_of(role, params.dimension_numbers)
    for axis, name in zip(spec, names, strict=True):
        result[axis] = name.lower()
    return result


def _text_of(names: list[str]) -> str:
    """`names` as a rule has them."""
    return " ".join(f"({name})" if " " in name else name for name in names)


def _kinds_of(
    params: ConvParams, names: list[list[str]], reduced: Collection[str]
) -> dict[str, Any]:
    """What a rule says of the factors that `names` has: sizes and kinds."""
    alike = halo.letters(params)
    free = {"n"} if params.geometry.groups > 1 else {"n", "c", "k"}
    free |= {f"p{i}" for i in alike}
    every = dict.fromkeys(f for axes in names for a in axes for f in a.split())
    return {
        "need_replication_factors": tuple(f for f in every if f not in free),
        "reduction_factors": tuple(f for f in every if f in free and f in reduced),
        **{f"q{i}": max(sd) for i, sd in alike.items() if max(sd) > 1},
    }


def sharding_rule(op: Op, params: ConvParams) -> tuple[str, dict[str, Any]]:
    """Shardy's einsum-like rule, its reduction and its replicated factors."""
    names = {role: factors(role, params) for role in (*op.operands, op.result)}
    rule = ", ".join(_text_of(names[role]) for role in op.operands)
    rule += " -> " + _text_of(names[op.result])
    kept = {f for name in names[op.result] for f in name.split()}
    reduced = {f for role in op.operands for a in names[role] for f in a.split()} - kept
    return rule, _kinds_of(params, [*names.values()], reduced)


def eights(channels: int) -> dict[str, int]:
    """Sizes of factors: eight channels make one element of signs."""
    return {"o": 8} if channels > 8 else {}


def by_eights(k: str, rule: str, channels: int) -> str:
    """`rule` with factor `k` for K / 8; Shardy takes no (k o) where that is one."""
    both = f"({k} o)" if channels > 8 else "o"
    return " ".join(
        word.replace(k, both) if word.strip(",") == k else word
        for word in rule.split(" ")
    )


def _even_axes(mesh: Mesh, entry: Any, size: int) -> tuple[str, ...]:
    """Mesh axes that cut `size` into equal parts, or none."""
    axes = meshes.axes_of(entry)
    return () if size % meshes.parts(mesh, axes) else axes


def _cut_of_sum(array: Any, mesh: Mesh, kept: tuple[int, ...]) -> list[Any]:
    """Mesh axes of each axis of `array`, of which all but `kept` are summed.

    Parts of these may be ragged: `_inside` makes zeros of what is in none.
    """
    shape = array.shape
    return [
        (_even_axes(mesh, entry, shape[i]) if i in kept else meshes.axes_of(entry))
        or None
        for i, entry in enumerate(meshes.read(array, mesh))
    ]


def _inside(
    array: jax.Array, shape: Sequence[int], spec: Sequence[Any], mesh: Mesh
) -> Any:
    """A device's part of an array of `shape`, cut as `_cut_of_sum` says."""
    for i, axes in enumerate(spec):
        if axes and shape[i] % meshes.parts(mesh, axes):
            array = halo.within(array, i, shape[i], axes)
    return array


def per_device(
    local: Callable[..., Any], mesh: Mesh, axes: Sequence[str], first: int = 0
) -> Callable[..., Any]:
    """`local`, with its results added over mesh `axes`, as one device runs it.

    Where it has several results, those before number `first` are left alone.
    """
    types = {name: jax.sharding.AxisType.Manual for name in mesh.axis_names}
    manual = mesh.abstract_mesh.update_axis_types(types)

    def lower(*arrays: Any) -> Any:
        # Traced under a mesh with explicit axes, the addition inside psum would
        # be lowered with a sharding, which the partitioner does not take.
        with jax.sharding.use_abstract_mesh(manual):
            out = local(*arrays)
            if not axes:
                return out
            if not isinstance(out, list):
                return jax.lax.psum(out, axes)
            return [*out[:first], *(jax.lax.psum(a, axes) for a in out[first:])]

    return lower


def assigned_axes(
    params: ConvParams,
    mesh: Mesh,
    arrays: Sequence[tuple[str, Any]],
    multiple: dict[str, int] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Mesh axes of N, C and K where one of `arrays`, (role, array), is cut by them.

    `multiple`: what a device's part of a letter has to be a multiple of, if not 1.
    """
    grouped = params.geometry.groups > 1
    assigned: dict[str, tuple[str, ...]] = {}
    for role, array in arrays:
        spec = meshes.read(array, mesh)
        for letter in letters_of(role, params):
            if letter in assigned or (grouped and letter in "CK"):
                continue
            at = params.axis(role, letter)
            size = array.shape[at] // (multiple or {}).get(letter, 1)
            if letter in "NCK":
                axes = _even_axes(mesh, spec[at], size)
            else:
                axes = meshes.axes_of(spec[at])
            taken = {a for other in assigned.values() for a in other}
            if axes and not taken & {*axes} and _reaches(params, letter, axes, mesh):
                assigned[letter] = axes
    return assigned


def letters_of(role: str, params: ConvParams) -> list[str]:
    """Letters of `role`'s axes that may be cut, those of rows included."""
    return [*geo.LETTERS[role], *(halo.letters(params) if role != "w" else ())]


def _reaches(
    params: ConvParams, letter: str, axes: tuple[str, ...], mesh: Mesh
) -> bool:
    """Whether rows, if `letter` is one of rows, are needed of neighbours alone."""
    if letter in "NCK":
        return True
    parts = meshes.parts(mesh, axes)
    return not meshes.in_groups(mesh) and halo.part(params, letter, parts) is not None


def sharding_of(
    role: str, params: ConvParams, assigned: Mapping[str, tuple[str, ...]], mesh: Mesh
) -> NamedSharding:
    """How array `role` lies where `assigned` letters are cut."""
    spec: list[Any] = [None] * len(params.shape(role))
    for letter in letters_of(role, params):
        if letter in assigned:
            spec[params.axis(role, letter)] = assigned[letter]
    return meshes.place(mesh, spec)


def summed_axes(
    role: str, params: ConvParams, assigned: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Mesh axes over which parts of result `role` are to be added."""
    other = [letter for letter in assigned if letter not in letters_of(role, params)]
    return tuple(a for letter in other for a in assigned[letter])


def partition_conv(
    op: Op,
    params: ConvParams,
    local: Callable[..., Any],
    mesh: Mesh,
    arg_shapes: Any,
    result_shape: Any,
) -> tuple[Any, ...]:
    """Assigns mesh axes to N, C, K and rows and builds the per-device function."""
    mesh = meshes.fine_mesh(mesh)
    arrays = zip((*op.operands, op.result), (*arg_shapes, result_shape), strict=True)
    assigned = assigned_axes(params, mesh, list(arrays))
    cut = halo.cuts(params, assigned, mesh)

    def of_device(a: jax.Array, b: jax.Array) -> Any:
        of, a = halo.extended(params, op.operands[0], cut, a)
        if op.operands[1] == "y":
            b = halo.inside(params, "y", cut, b)
        return local(of, a, b)

    lower = per_device(of_device, mesh, summed_axes(op.result, params, assigned))
    place = partial(sharding_of, params=params, assigned=assigned, mesh=mesh)
    return mesh, lower, place(op.result), tuple(map(place, op.operands))


def partitioned(
    local: Callable[..., Any], op: Op, params: ConvParams
) -> Callable[..., Any]:
    """`local(params, a, b)` with a partitioning rule for operation `op`."""
    rule, kinds = sharding_rule(op, params)
    split = partial(partition_conv, op, params, local)
    return partitioned_call(partial(local, params), split, rule, split, **kinds)


def partitioned_sums(
    local: Callable[..., Any], ndim: int, kept: tuple[int, ...], count: int
) -> Callable[..., Any]:
    """`local(*arrays)` with a partitioning rule: `count` sums over the axes not in
    `kept`, of as many arrays of one shape; one sum, not a list, where it is 1.
    """
    names = [f"a{i}" for i in range(ndim)]
    whole, left = " ".join(names), " ".join(names[i] for i in kept)
    summed = [i for i in range(ndim) if i not in kept]

    def partition(mesh: Mesh, arg_shapes: Any, result_shapes: Any) -> tuple[Any, ...]:
        mesh = meshes.fine_mesh(mesh)
        first = arg_shapes[0]
        spec = _cut_of_sum(first, mesh, kept)
        axes = [a for i in summed for a in spec[i] or ()]

        def of_device(*parts: Any) -> Any:
            return local(*(_inside(a, first.shape, spec, mesh) for a in parts))

        lower = per_device(of_device, mesh, axes)
        out = meshes.place(mesh, [spec[i] for i in kept])
        same = meshes.place(mesh, spec)
        return mesh, lower, out if count == 1 else [out] * count, (same,) * count

    rule = f"{', '.join([whole] * count)} -> {', '.join([left] * count)}"
    reduced = tuple(names[i] for i in summed)
    return partitioned_call(
        local, partition, rule, (local, kept, count), reduction_factors=reduced
    )


def partitioned_cotangent(
    local: Callable[..., Any],
    shape: Sequence[int],
    kept: tuple[int, ...],
    bias: bool,
    signs: bool,
) -> Callable[..., Any]:
    """`local(saved, dy)`, [dz] or [dz, db], with a partitioning rule; dy has `shape`.

    Everything is elementwise but db, which sums the axes not in `kept`. Shardy
    takes no factor for a reduction that is an axis of another result, and needs
    not be told: the sum over devices is ours. `signs`: eight channels of dy are one
    element of `saved`.
    """
    ndim, channels = len(shape), shape[kept[-1]]
    names = [f"a{i}" for i in range(ndim)]
    whole = " ".join(names)
    rest = f", {whole} -> {whole}"
    rest += f", {' '.join(names[i] for i in kept)}" if bias else ""
    rule = whole + (by_eights(names[kept[-1]], rest, channels) if signs else rest)
    summed = [i for i in range(ndim) if i not in kept]

    def partition(mesh: Mesh, arg_shapes: Any, result_shape: Any) -> tuple[Any, ...]:
        of_saved, of_dy = arg_shapes
        mesh = meshes.fine_mesh(mesh)
        spec = _cut_of_sum(of_dy, mesh, kept)
        k = kept[-1]
        if signs:  # of which there are fewer
            spec[k] = _even_axes(mesh, spec[k], of_saved.shape[k]) or None
        axes = [a for i in summed for a in spec[i] or ()]

        def of_device(*parts: Any) -> Any:
            return local(*(_inside(a, of_dy.shape, spec, mesh) for a in parts))

        lower = per_device(of_device, mesh, axes, first=1)
        same = meshes.place(mesh, spec)
        out = [same]
        if bias:
            out.append(meshes.place(mesh, [spec[i] for i in kept]))
        return mesh, lower, out, (same, same)

    of = (local, kept, bias, signs)
    sizes = eights(channels) if signs else {}
    return partitioned_call(local, partition, rule, of, **sizes)


def partitioned_samples(
    local: Callable[..., Any], operands: Any, results: Any, of: Any
) -> Callable[..., Any]:
    """`local(*arrays)`, a list or one array, split by samples.

    Args:
      local: works on the samples it is given.
      operands, results: for each array (number of axes, the axis of its samples);
        None for an array without one. Such a result is a sum over samples.
      of: all that `local` depends on besides its arrays.
    """

    def factors(i: int, ndim: int, axis: int | None) -> str:
        names = (f"a{i}_{j}" for j in range(ndim))
        return " ".join("n" if j == axis else name for j, name in enumerate(names))

    arrays = [*operands, *results]
    names = [factors(i, ndim, axis) for i, (ndim, axis) in enumerate(arrays)]
    count = len(operands)
    rule = f"{', '.join(names[:count])} -> {', '.join(names[count:])}"
    whole = dict.fromkeys(f for text in names for f in text.split() if f != "n")

    def partition(mesh: Mesh, arg_shapes: Any, result_shapes: Any) -> tuple[Any, ...]:
        mesh = meshes.fine_mesh(mesh)
        axes: tuple[str, ...] = ()
        several = isinstance(result_shapes, (list, tuple))
        shapes = [*arg_shapes, *(result_shapes if several else [result_shapes])]
        for (_, axis), a in zip(arrays, shapes, strict=True):
            if axis is not None and not axes:
                axes = _even_axes(mesh, meshes.read(a, mesh)[axis], a.shape[axis])

        def sharding(ndim: Any, axis: Any) -> Any:
            spec = [axes or None if j == axis else None for j in range(ndim)]
            return meshes.place(mesh, spec)

        def lower(*arrays: Any) -> Any:
            out = per_device(local, mesh, ())(*arrays)
            if not several or not axes:
                return out
            with_sums = per_device(lambda a: a, mesh, axes)
            return [
                with_sums(a) if axis is None else a
                for a, (_, axis) in zip(out, results, strict=True)
            ]

        out = [sharding(*r) for r in results]
        ins = tuple(sharding(*o) for o in operands)
        return mesh, lower, out if several else out[0], ins

    return partitioned_call(
        local,
        partition,
        rule,
        (operands, results, of),
        need_replication_factors=tuple(whole),
    )
