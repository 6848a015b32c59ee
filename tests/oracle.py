# SPDX-License-Identifier: Apache-2.0
"""The float64 reference: convolution as a sum over filter taps, in plain numpy.

Everything here is channels last: x[N, *spatial, C], w[*taps, C / groups, K],
y[N, *outputs, K], for any number of spatial axes. `dgrad` and `wgrad` are written
down on their own rather than derived from `fprop` (test_oracle.py checks that
they are its adjoints).
"""

import itertools
from typing import NamedTuple

import ml_dtypes
import numpy as np


class Conv(NamedTuple):
    """How a filter moves over the input; one number (or pair) a spatial axis."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    input_dilation: tuple[int, ...]
    filter_dilation: tuple[int, ...]
    groups: int = 1

    @property
    def rank(self):
        return len(self.strides)

    def padded_sizes(self, inputs):
        dilated = (
            dilate(n, d) for n, d in zip(inputs, self.input_dilation, strict=True)
        )
        return tuple(n + sum(p) for n, p in zip(dilated, self.padding, strict=True))

    def outputs(self, inputs, taps):
        windows = (
            dilate(n, d) for n, d in zip(taps, self.filter_dilation, strict=True)
        )
        sizes = zip(self.padded_sizes(inputs), windows, self.strides, strict=True)
        return tuple(max((n - window) // s + 1, 0) for n, window, s in sizes)


def dilate(size, dilation):
    return (size - 1) * dilation + 1 if size else 0


def _dilated(x, conv):
    """x with zeros between its pixels."""
    sizes = (
        dilate(n, d) for n, d in zip(x.shape[1:-1], conv.input_dilation, strict=True)
    )
    out = np.zeros((x.shape[0], *sizes, x.shape[-1]), x.dtype)
    out[(slice(None), *(slice(None, None, d) for d in conv.input_dilation))] = x
    return out


def _padded(x, conv):
    """x with zeros around it; negative padding takes pixels away."""
    for axis, (low, high) in enumerate(conv.padding, start=1):
        more = [(0, 0)] * x.ndim
        more[axis] = (max(low, 0), max(high, 0))
        x = np.pad(x, more)
        begin, end = max(-low, 0), x.shape[axis] - max(-high, 0)
        x = x[(slice(None),) * axis + (slice(begin, max(begin, end)),)]
    return x


def _taps(shape, outputs, conv):
    """For each tap: its index, and the padded pixels that it meets."""
    for tap in itertools.product(*map(range, shape)):
        pixels = tuple(
            slice(t * d, t * d + s * n, s) if n else slice(0, 0)
            for t, d, s, n in zip(
                tap, conv.filter_dilation, conv.strides, outputs, strict=True
            )
        )
        yield tap, (slice(None), *pixels)


def _groups(a, conv):
    """Splits the last axis into [groups, channels of one]."""
    return a.reshape(*a.shape[:-1], conv.groups, a.shape[-1] // conv.groups)


def _group_first(a):
    """a[..., groups, channels] as [groups, pixels, channels]."""
    pixels = np.prod(a.shape[:-2], dtype=int)
    return np.moveaxis(a, -2, 0).reshape(a.shape[-2], pixels, a.shape[-1])


def _products(a, w):
    """a[..., groups, from] times w[groups, from, to], as [..., groups, to]."""
    found = _group_first(a) @ w
    return np.moveaxis(found, 0, 1).reshape(*a.shape[:-1], w.shape[-1])


def fprop(x, w, conv):
    """y[N, *outputs, K]."""
    outputs = conv.outputs(x.shape[1:-1], w.shape[:-2])
    source = _groups(_padded(_dilated(x, conv), conv), conv)
    w = _groups(w, conv)
    y = np.zeros((x.shape[0], *outputs, *w.shape[-2:]))
    for tap, pixels in _taps(w.shape[: conv.rank], outputs, conv):
        y += _products(source[pixels], np.moveaxis(w[tap], 1, 0))
    return y.reshape(*y.shape[:-2], _last(y))


def dgrad(dy, w, conv, inputs):
    """dx[N, *inputs, C]: what each input pixel contributed to."""
    w, dy = _groups(w, conv), _groups(dy, conv)
    channels = w.shape[-3] * conv.groups
    index = np.arange(np.prod(inputs, dtype=int)).reshape(1, *inputs, 1)
    index = _padded(_dilated(index + 1, conv), conv)[0, ..., 0]  # 0 is padding
    dx = np.zeros((dy.shape[0], 1 + np.prod(inputs, dtype=int), channels))
    outputs = dy.shape[1 : 1 + conv.rank]
    for tap, (_, *pixels) in _taps(w.shape[: conv.rank], outputs, conv):
        part = _products(dy, np.moveaxis(w[tap], 0, 2))
        at = index[tuple(pixels)]
        flat = part.reshape(dy.shape[0], at.size, channels)
        for n in range(dy.shape[0]):
            np.add.at(dx[n], at.ravel(), flat[n])
    return dx[:, 1:].reshape(dy.shape[0], *inputs, channels)


def wgrad(x, dy, conv, taps):
    """dw[*taps, C / groups, K]."""
    source = _groups(_padded(_dilated(x, conv), conv), conv)
    dy = _groups(dy, conv)
    dw = np.zeros((*taps, source.shape[-1], *dy.shape[-2:]))
    for tap, pixels in _taps(taps, dy.shape[1 : 1 + conv.rank], conv):
        met = _group_first(source[pixels])
        of_groups = met.transpose(0, 2, 1) @ _group_first(dy)
        dw[tap] = np.moveaxis(of_groups, 0, 1)
    return dw.reshape(*dw.shape[:-2], _last(dw))


def bgrad(dy):
    """db[K]."""
    return dy.sum(axis=tuple(range(dy.ndim - 1)))


def _last(a):
    return a.shape[-2] * a.shape[-1]


# --- how far a correct result may be from it ----------------------------------

UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}


def float64(a):
    return np.asarray(a).astype(np.float64)


def accumulator(dtype):
    return "float64" if np.dtype(dtype).name == "float64" else "float32"


def assert_within_bound(actual, exact, magnitude, terms, accumulate=None):
    """`actual` is what rounding at every step can make of `exact`.

    A sum of n products formed in any order, each operation rounding by at most
    u, is off by at most n u / (1 - n u) times the same sum of absolute values
    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1);
    rounding it to the result's dtype adds that dtype's u.

    Args:
      actual: the result, in its own dtype.
      exact: the oracle's.
      magnitude: the oracle's, of the absolute values of the operands.
      terms: how many products an element sums, at most.
      accumulate: name of the dtype that sums; by default that of `actual`'s.
    """
    actual = np.asarray(actual)
    assert actual.shape == exact.shape
    if not actual.size:
        return
    summing = UNIT_ROUNDOFF[accumulate or accumulator(actual.dtype)]
    error = terms * summing / (1 - terms * summing) * magnitude
    rounding = UNIT_ROUNDOFF[actual.dtype.name]
    # The oracle's own rounding, and half the spacing of subnormal numbers.
    own = terms * 2.0**-53 * magnitude
    tiny = float(ml_dtypes.finfo(actual.dtype).smallest_subnormal)
    bound = error + rounding * (abs(exact) + error) + own + tiny
    off = abs(float64(actual) - exact)
    worst = np.unravel_index(np.argmax(off - bound), off.shape)
    assert (off <= bound).all(), (
        f"{actual.dtype}{list(actual.shape)} at {worst}: {actual[worst]} where "
        f"{exact[worst]} +- {bound[worst]:.3g} is right ({terms} terms)"
    )
