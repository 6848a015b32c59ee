# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution in float64 and plain numpy, and problems to try it on.

y and its derivatives are sums over (sample, output, tap, corner) as the definition
has them, each written on its own.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import numpy as np
import oracle

import jax_convbatch as jc


class Deform(NamedTuple):
    """A problem: shapes, and how the filter moves.

    Attributes:
      x, w: shapes, [N, H, W, C] and [R, S, C / groups, K].
      conv: strides, padding, dilation, weight groups.
      offset_groups: of x's channels.
      mask: whether there is one.
    """

    x: tuple[int, ...]
    w: tuple[int, ...]
    conv: oracle.Conv
    offset_groups: int = 1
    mask: bool = True

    @property
    def y(self):
        outputs = self.conv.outputs(self.x[1:-1], self.w[:-2])
        return (self.x[0], *outputs, self.w[-1])

    @property
    def taps(self):
        return self.offset_groups * self.w[0] * self.w[1]

    @property
    def kwargs(self):
        return dict(
            strides=self.conv.strides,
            padding=self.conv.padding,
            dilation=self.conv.filter_dilation,
            groups=self.conv.groups,
            offset_groups=self.offset_groups,
        )


def problem(x, w, *, strides=1, padding=1, dilation=1, groups=1, **rest):
    def axes(value):
        return value if isinstance(value, tuple) else (value, value)

    pads = tuple(p if isinstance(p, tuple) else (p, p) for p in axes(padding))
    conv = oracle.Conv(axes(strides), pads, (1, 1), axes(dilation), groups)
    return Deform(x, w, conv, **rest)


PROBLEMS = {
    "3x3": problem((2, 6, 7, 8), (3, 3, 8, 5)),
    "no_mask": problem((2, 5, 6, 4), (3, 2, 4, 3), mask=False, padding=0),
    "torchvision": problem(
        (3, 5, 4, 6),
        (3, 2, 3, 2),
        strides=(2, 1),
        padding=(1, 0),
        dilation=(2, 1),
        groups=2,
        offset_groups=3,
    ),
    "uneven_pads": problem(
        (1, 6, 5, 6), (2, 3, 6, 4), padding=((2, -1), (0, 3)), offset_groups=2
    ),
    "more_groups": problem((2, 4, 5, 12), (3, 3, 3, 8), groups=4, offset_groups=2),
    "depthwise": problem((2, 5, 5, 6), (3, 3, 1, 6), groups=6, offset_groups=3),
    "many_channels": problem((1, 4, 4, 72), (2, 2, 72, 20), padding=(0, 1)),
}

# With channels that Hopper's tiles take: each size of tile, and what hangs over.
TILED = {
    "64": problem((2, 9, 10, 64), (3, 3, 64, 64)),
    "128": problem((3, 14, 14, 128), (3, 3, 128, 128)),
    "256": problem((2, 28, 28, 256), (3, 3, 256, 256)),
    "few": problem(
        (1, 7, 9, 40), (2, 3, 40, 24), strides=2, padding=((1, 0), (2, 1)), mask=False
    ),
    "one_tap": problem((2, 5, 5, 32), (1, 1, 32, 8), padding=0),
    "groups": problem(
        (3, 13, 11, 256), (3, 3, 128, 320), groups=2, offset_groups=2, dilation=2
    ),
    "offset_groups": problem((1, 20, 19, 256), (5, 5, 256, 520), offset_groups=4),
    "long": problem((2, 6, 7, 512), (3, 3, 512, 264), padding=(0, 2)),
}


class Arrays(NamedTuple):
    """Arguments of `deform_conv`, and the cotangent of y."""

    x: np.ndarray
    offset: np.ndarray
    w: np.ndarray
    bias: np.ndarray
    mask: np.ndarray | None
    dy: np.ndarray

    def cast(self, dtype):
        return Arrays(*(a if a is None else a.astype(dtype) for a in self))


def arrays(p: Deform, seed=0, exact=True, reach=3):
    """Random arrays. Where `exact`, every sum is a small multiple of 1/64.

    Offsets reach over the border of the image.
    """
    rng = np.random.default_rng(seed)

    def draw(shape, most=2):
        if exact:
            return rng.integers(-most, most + 1, shape).astype(np.float64)
        return rng.standard_normal(shape)

    pixels = p.y[:-1]
    offset = rng.integers(-4 * reach, 4 * reach + 1, (*pixels, 2 * p.taps)) / 4
    if not exact:  # away from whole numbers
        offset = np.floor(offset) + rng.uniform(0.1, 0.9, offset.shape)
    mask = draw((*pixels, p.taps), 2) if p.mask else None
    return Arrays(draw(p.x), offset, draw(p.w), draw(p.y[-1:]), mask, draw(p.y))


class Gradients(NamedTuple):
    y: np.ndarray
    dx: np.ndarray
    doffset: np.ndarray
    dw: np.ndarray
    dbias: np.ndarray
    dmask: np.ndarray | None


def evaluate(p: Deform, a: Arrays) -> Gradients:
    """y and the cotangents of every argument for the cotangent a.dy."""
    height, width = p.x[1:3]
    rows, columns = p.w[:2]
    own, out_own = p.w[2], p.w[3] // p.conv.groups
    per_offset = p.x[3] // p.offset_groups
    y = np.zeros(p.y) + a.bias
    dx, dw = np.zeros(p.x), np.zeros(p.w)
    doffset = np.zeros(a.offset.shape)
    mask = np.ones((*p.y[:-1], p.taps)) if a.mask is None else a.mask
    dmask = np.zeros(mask.shape)
    outputs = itertools.product(*map(range, p.y[:-1]))
    for (n, i, j), g, r, s in itertools.product(
        outputs, range(p.offset_groups), range(rows), range(columns)
    ):
        t = (g * rows + r) * columns + s
        at = []
        for axis, out, tap in ((0, i, r), (1, j, s)):
            base = out * p.conv.strides[axis] - p.conv.padding[axis][0]
            base += tap * p.conv.filter_dilation[axis]
            at.append(base + a.offset[n, i, j, 2 * t + axis])
        h, v = at
        if not (-1 <= h < height and -1 <= v < width):
            continue
        m = mask[n, i, j, t]
        for c in range(g * per_offset, (g + 1) * per_offset):
            group = c // own
            ks = slice(group * out_own, (group + 1) * out_own)
            w_row = a.w[r, s, c % own, ks]
            back = float(w_row @ a.dy[n, i, j, ks])
            for up, left in itertools.product((0, 1), (0, 1)):
                row, column = math.floor(h) + up, math.floor(v) + left
                if not (0 <= row < height and 0 <= column < width):
                    continue
                along_h = h - math.floor(h) if up else 1 - h + math.floor(h)
                along_v = v - math.floor(v) if left else 1 - v + math.floor(v)
                pixel = a.x[n, row, column, c]
                y[n, i, j, ks] += m * along_h * along_v * pixel * w_row
                dx[n, row, column, c] += m * along_h * along_v * back
                dw[r, s, c % own, ks] += (
                    m * along_h * along_v * pixel * a.dy[n, i, j, ks]
                )
                dmask[n, i, j, t] += along_h * along_v * pixel * back
                doffset[n, i, j, 2 * t] += m * (2 * up - 1) * along_v * pixel * back
                doffset[n, i, j, 2 * t + 1] += (
                    m * (2 * left - 1) * along_h * pixel * back
                )
    dbias = a.dy.sum(axis=(0, 1, 2))
    return Gradients(y, dx, doffset, dw, dbias, None if a.mask is None else dmask)


@functools.cache
def _compiled(p: Deform, options):
    @jax.jit
    def all_of_it(x, offset, w, bias, mask, dy):
        def fun(x, offset, w, bias, mask):
            return jc.deform_conv(x, offset, w, bias, mask, **p.kwargs, **dict(options))

        y, pull = jax.vjp(fun, x, offset, w, bias, mask)
        return y, *pull(dy)

    return all_of_it


def run(p: Deform, a: Arrays, **options) -> Gradients:
    """The same by `deform_conv`."""
    out = _compiled(p, tuple(options.items()))(*a)
    return Gradients(*(None if g is None else np.asarray(g) for g in out))


@functools.cache
def expected(name):
    """The arrays of a named problem, and what comes of them."""
    p = PROBLEMS[name]
    a = arrays(p)
    return a, evaluate(p, a)
