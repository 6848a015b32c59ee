# SPDX-License-Identifier: Apache-2.0
"""Random convolution problems: what hypothesis draws, and its arrays."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from hypothesis import assume
from hypothesis import strategies as st

import jax_convbatch as jc

FLOATS = ("float64", "float32", "float16", "bfloat16")


class Problem(NamedTuple):
    """A convolution in the oracle's channels-last terms, and how a user keeps it.

    Attributes:
      x, w: shapes, [N, *spatial, C] and [*taps, C / groups, K].
      conv: how the filter moves.
      specs: letters of x, w and y in the user's order, as `jax.lax` reads them.
    """

    x: tuple[int, ...]
    w: tuple[int, ...]
    conv: oracle.Conv
    specs: tuple[str, str, str]

    @property
    def y(self):
        outputs = self.conv.outputs(self.x[1:-1], self.w[:-2])
        return (self.x[0], *outputs, self.w[-1])

    @property
    def kwargs(self):
        """For `conv_general_dilated`, which reads the spatial axes in w's order."""
        letters = "DHW"[3 - self.conv.rank :]
        order = [letters.index(c) for c in self.specs[1] if c in letters]

        def axes(values):
            return tuple(values[i] for i in order)

        return dict(
            window_strides=axes(self.conv.strides),
            padding=axes(self.conv.padding),
            lhs_dilation=axes(self.conv.input_dilation),
            rhs_dilation=axes(self.conv.filter_dilation),
            dimension_numbers=self.specs,
            feature_group_count=self.conv.groups,
        )

    def user(self, role, a):
        """A channels-last array as the user keeps it."""
        return a.transpose(self._order(role))

    def canonical(self, role, a):
        """The inverse of `user`, as a numpy array."""
        return np.asarray(a).transpose(np.argsort(self._order(role)))

    def _order(self, role):
        spatial = "DHW"[3 - self.conv.rank :]
        letters = {"x": f"N{spatial}C", "w": f"{spatial}IO", "y": f"N{spatial}C"}[role]
        return [letters.index(c) for c in self.specs["xwy".index(role)]]


CHANNELS_LAST = {
    1: ("NWC", "WIO", "NWC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NDHWC", "DHWIO", "NDHWC"),
}


def layer(n, size, c, k, taps, padding, dilation=1, input_dilation=1):
    """Of one group and single steps; `size` and `taps` of one to three axes."""

    def each(number):
        return (number,) * len(size)

    conv = oracle.Conv(each(1), padding, each(input_dilation), each(dilation), 1)
    return Problem((n, *size, c), (*taps, c, k), conv, CHANNELS_LAST[len(size)])


def of_one_group(case, channels_first):
    """The same of one group, whose last axis is not dilated, and of one layout."""
    spatial = "DHW"[3 - case.conv.rank :]
    last = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    first = (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    dilation = (*case.conv.input_dilation[:-1], 1)
    return case._replace(
        x=(*case.x[:-1], case.w[-2]),
        conv=case.conv._replace(groups=1, input_dilation=dilation),
        specs=first if channels_first else last,
    )


# Channels of a group that reach the main loops of kernels, with some left over.
WIDE = (5, 16, 17, 33, 40, 65)


@st.composite
def problems(draw, ranks=(0, 1, 2, 3), empty=True, wide=True):
    """Problems of every kind, small enough to compile and compare in no time.

    `wide`: one number of channels in six is of those that fill a kernel's tile.
    """
    rank = draw(st.sampled_from(ranks))

    def axes(strategy):
        return draw(st.tuples(*[strategy] * rank))

    def size(most):
        # Zero makes most of a problem trivial, so it should be rare.
        zero = empty and draw(st.integers(0, 24)) == 0
        return 0 if zero else draw(st.integers(1, most))

    batch = size(3)
    inputs = tuple(size(7 if rank < 3 else 4) for _ in range(rank))
    taps = axes(st.integers(1, 3))  # jax.lax refuses an empty filter

    def channels_of_group():
        if wide and draw(st.integers(0, 5)) == 5:
            return draw(st.sampled_from(WIDE))
        return size(5)

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, filters = groups * channels_of_group(), groups * channels_of_group()
    conv = oracle.Conv(
        axes(st.integers(1, 3)),
        axes(st.tuples(st.integers(-2, 3), st.integers(-2, 3))),
        axes(st.integers(1, 3)),
        axes(st.integers(1, 3)),
        groups,
    )
    # jax.lax refuses what takes away more than there is.
    assume(all(n >= 0 for n in conv.padded_sizes(inputs)))
    spatial = "DHW"[3 - rank :]
    specs = tuple(
        "".join(draw(st.permutations(letters)))
        for letters in (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    )
    problem = Problem(
        (batch, *inputs, channels), (*taps, channels // groups, filters), conv, specs
    )
    if not empty:
        assume(np.prod(problem.y) > 0)
    return problem


def normal(seed, shape, dtype="float64"):
    """Numbers of size 1, rounded to `dtype`."""
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return numbers.astype(jnp.dtype(dtype))


def whole(seed, shape, dtype="float64", most=3):
    """Whole numbers between -most and most."""
    numbers = np.random.default_rng(seed).integers(-most, most + 1, shape)
    return numbers.astype(jnp.dtype(dtype))


def tf32(a):
    """f32 rounded to the nearest number of 11 significant bits."""
    return ((a.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


class Results(NamedTuple):
    y: Any
    dx: Any
    dw: Any


def run(problem, x, w, dy, **options) -> Results:
    """y, dx and dw, channels last, computed in the user's layout.

    Their memory is donated and full of nan; on the CPU, where JAX may keep numpy's
    memory, not always.
    """

    def fun(x, w):
        return jc.conv_general_dilated(x, w, **problem.kwargs, **options)

    @functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
    def all_three(places, x, w, dy):
        y, pullback = jax.vjp(fun, x, w)
        return y, *pullback(dy.astype(y.dtype))

    arrays = [problem.user(r, a) for r, a in zip("xwy", (x, w, dy), strict=True)]
    results = all_three(nans(problem, x.dtype), *arrays)
    return Results(
        *(problem.canonical(r, a) for r, a in zip("yxw", results, strict=True))
    )


def nans(problem, dtype) -> list[jax.Array]:
    """Arrays like y, dx and dw in the user's layout."""
    shapes = zip("yxw", (problem.y, problem.x, problem.w), strict=True)
    arrays = [problem.user(r, np.empty(shape, dtype)) for r, shape in shapes]
    return [jax.device_put(np.full(a.shape, np.nan, dtype)) for a in arrays]


def exact(problem, x, w, dy) -> Results:
    """What the oracle says of the same."""
    x, w, dy = (oracle.float64(a) for a in (x, w, dy))
    conv = problem.conv
    return Results(
        oracle.fprop(x, w, conv),
        oracle.dgrad(dy, w, conv, problem.x[1:-1]),
        oracle.wgrad(x, dy, conv, problem.w[:-2]),
    )


def terms(problem) -> Results:
    """How many products each element of y, dx and dw sums, at most."""
    taps = int(np.prod(problem.w[:-2]))
    pixels = int(np.prod(problem.y[:-1]))
    per_group = problem.w[-1] // problem.conv.groups
    return Results(taps * problem.w[-2], taps * per_group, pixels)
