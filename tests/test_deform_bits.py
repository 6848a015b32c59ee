# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution: the same bits in every slice, batch, thread and run."""

import functools
import glob
import hashlib
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from deform_oracle import PROBLEMS, Gradients, arrays, evaluate, problem, run

import jax_convbatch as jc
from jax_convbatch._plans import planners


def bits(gradients):
    return {
        name: a.view(f"u{a.itemsize}")
        for name, a in gradients._asdict().items()
        if a is not None
    }


def assert_same_bits(got, want, names=None):
    for name in names or want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["torchvision", "many_channels"])
def test_bits_do_not_depend_on_the_slice(platform, name, dtype):
    p = PROBLEMS[name]._replace(x=(7, *PROBLEMS[name].x[1:]))
    a = arrays(p, exact=False).cast(dtype)
    want = bits(run(p, a))
    least = least_workspace(lambda limit: run(p, a, workspace_limit=limit))
    slices = set()
    for times in (1, 1.2, 1.5, 2, 3, 5):
        limit = int(least * times)

        def loss(*args, limit=limit):
            kwargs = dict(p.kwargs, mask=args[3], workspace_limit=limit)
            return jc.deform_conv(*args[:3], **kwargs).sum()

        rows = jc.explain(
            jax.grad(loss, (0, 1, 2, 3)), a.x, a.offset, a.w, a.mask, platform=platform
        )
        slices |= {row.slice for row in rows}
        got = bits(run(p, a, workspace_limit=limit))
        if platform == "cuda" and p.conv.groups == 1:
            # Where chunks of dw do not fit, cuBLAS multiplies in their place.
            del got["dw"]
        assert_same_bits(got, want, got)
    assert 1 in slices
    assert len(slices) > 2


def least_workspace(fun):
    """The smallest limit that every operation of fun(limit) accepts."""
    limit = 1
    for _ in range(5):
        try:
            fun(limit)
        except ValueError as refused:
            limit = int(str(refused).split("needs ")[1].split()[0])
        else:
            return limit
    raise AssertionError("refused again and again")


ONE_GROUP = problem((2, 12, 13, 32), (3, 3, 32, 64))


@pytest.mark.parametrize("batch", [1, 33, 64, 65])
@pytest.mark.parametrize("p", [PROBLEMS["torchvision"], ONE_GROUP], ids=["groups", ""])
def test_a_sample_does_not_depend_on_its_batch(platform, p, batch):
    assert_batch_invariant(p, batch)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [160, 256])
@pytest.mark.parametrize("batch", [1, 33])
def test_a_sample_does_not_depend_on_the_tile_of_its_products(batch, channels):
    """One sample has tiles of 64x64; of 256 channels, pairs of blocks share rows."""
    with jax.default_device(jax.devices("cuda")[0]):
        assert_batch_invariant(problem((2, 12, 13, 32), (3, 3, 32, channels)), batch)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("offset_groups", [1, 2])
def test_a_sample_does_not_depend_on_the_blocks_that_sample_it(batch, offset_groups):
    """65 have more tiles than a GPU holds blocks at once."""
    p = problem((2, 40, 41, 16), (3, 3, 16, 8), offset_groups=offset_groups)
    with jax.default_device(jax.devices("cuda")[0]):
        assert_batch_invariant(p, batch)


def assert_batch_invariant(p, batch):
    """The last samples of 65 have the bits that they have without the others."""
    whole_batch = p._replace(x=(65, *p.x[1:]))
    a = arrays(whole_batch, exact=False).cast("float32")
    want = bits(run(whole_batch, a))
    some = p._replace(x=(batch, *p.x[1:]))
    part = a._replace(
        **{n: getattr(a, n)[-batch:] for n in ("x", "offset", "mask", "dy")}
    )
    got = bits(run(some, part))
    for name in ("y", "dx"):
        np.testing.assert_array_equal(got[name], want[name][-batch:])


PROGRAM = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import jax_convbatch as jc
from jax_convbatch._plans import planners
from deform_oracle import arrays, problem, run
p = problem((3, 20, 21, 96), (3, 3, 96, 32), offset_groups=2)
a = arrays(p, exact=False).cast("float32")
digest = hashlib.sha256()
for grad in run(p, a):
    digest.update(grad.tobytes())
print(digest.hexdigest())
"""


def test_bits_depend_neither_on_threads_nor_on_the_run():
    p = problem((3, 20, 21, 96), (3, 3, 96, 32), offset_groups=2)
    a = arrays(p, exact=False).cast("float32")
    want = bits(run(p, a))
    digest = hashlib.sha256()
    for values in want.values():
        digest.update(values.tobytes())
    for _ in range(20):
        assert_same_bits(bits(run(p, a)), want)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, os.path.dirname(__file__)],
        env={**os.environ, "JAX_CONVBATCH_THREADS": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == digest.hexdigest()


LARGE = problem((5, 20, 21, 96), (3, 3, 48, 32), groups=2, offset_groups=4)


def poisoned(p, a):
    """A function of nothing: all results, in buffers that held nan before."""

    @functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
    def step(nans, x, offset, w, bias, mask, dy):
        def fun(*args):
            return jc.deform_conv(*args, **p.kwargs)

        y, pull = jax.vjp(fun, x, offset, w, bias, mask)
        return y, *pull(dy)

    args = [jax.numpy.asarray(v) for v in a]
    like = jax.eval_shape(step, [], *args)

    def call():
        nans = [jax.numpy.full(s.shape, np.nan, s.dtype) for s in like]
        return Gradients(*map(np.asarray, step(nans, *args)))

    return call


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_result_is_written(platform, dtype):
    p = PROBLEMS["torchvision"]
    a = arrays(p).cast(dtype)
    got, want = poisoned(p, a)(), evaluate(p, a.cast("float64"))
    names = set(got._fields) - ({"y"} if dtype == "bfloat16" else set())
    for name in names:  # y is rounded before the bias
        value = getattr(got, name)
        exact = getattr(want, name).astype(value.dtype)
        np.testing.assert_array_equal(value, exact, err_msg=name)
    assert np.isfinite(got.y.astype("float32")).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hundred_runs_on_cuda_agree(dtype):
    with jax.default_device(jax.devices("cuda")[0]):
        call = poisoned(LARGE, arrays(LARGE, exact=False).cast(dtype))
        want = bits(call())
        for _ in range(100):
            assert_same_bits(bits(call()), want)


def test_every_tap_at_one_position(platform):
    # All terms of dx fall on four pixels.
    p = PROBLEMS["3x3"]
    a = arrays(p)
    rows, columns = np.mgrid[:6, :7]
    taps = np.stack(np.mgrid[:3, :3], axis=-1).reshape(9, 2)
    base = np.stack([rows, columns], axis=-1)[:, :, None] - 1 + taps
    offset = np.broadcast_to(np.array([2.5, 3.25]) - base, (2, 6, 7, 9, 2))
    a = a._replace(offset=offset.reshape(a.offset.shape))
    got, want = run(p, a.cast("float32")), evaluate(p, a)
    for name in ("y", "dx", "dw", "dmask", "doffset"):
        value, exact = getattr(got, name), getattr(want, name)
        np.testing.assert_array_equal(value, exact.astype(value.dtype), err_msg=name)
    assert np.count_nonzero(got.dx.any(axis=-1)) == 8


@pytest.mark.gpu
def test_dw_is_a_sum_over_chunks_of_the_batch(monkeypatch):
    p = ONE_GROUP._replace(x=(5, *ONE_GROUP.x[1:]))
    a = arrays(p)
    columns = 4 * p.y[1] * p.y[2] * 9 * 32
    with jax.default_device(jax.devices("cuda")[0]):
        whole = run(p, a.cast("float32"))
        monkeypatch.setitem(planners.DEFAULT_WORKSPACE, "cuda", 2 * columns + 100)
        options = dict(p.kwargs, mask=a.mask.astype("float32"))

        def loss(w):
            y = jc.deform_conv(*a.cast("float32")[:2], w, **options)
            return (y * a.dy.astype("float32")).sum()

        w = a.w.astype("float32")
        (row,) = jc.explain(jax.grad(loss), w)
        assert (row.op, row.slice) == ("deform_wgrad", 2)
        np.testing.assert_array_equal(jax.grad(loss)(w), whole.dw)
        by_xla = run(p, a.cast("float32"), algorithm="xla")
    np.testing.assert_array_equal(whole.dw, by_xla.dw)


@pytest.mark.gpu
def test_on_cuda_every_call_is_captured(tmp_path):
    p = problem((2, 16, 16, 16), (3, 3, 16, 16))
    with jax.default_device(jax.devices("cuda")[0]):
        a = [jax.numpy.asarray(v) for v in arrays(p).cast("float32")]

        def loss(x, offset, w, mask):
            for _ in range(4):
                x = jc.deform_conv(x, offset, w / 12, mask=mask, **p.kwargs)
            return (x**2).sum()

        step = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
        args = a[0], a[1], a[2], a[4]
        jax.block_until_ready([step(*args) for _ in range(3)])
        with jax.profiler.trace(str(tmp_path)):
            jax.block_until_ready([step(*args) for _ in range(5)])
    (path,) = glob.glob(f"{tmp_path}/**/*.xplane.pb", recursive=True)
    kernels, launched, graphs = [], 0, 0
    for plane in jax.profiler.ProfileData.from_file(path).planes:
        for line in plane.lines:
            names = [event.name for event in line.events]
            if plane.name.startswith("/device:GPU"):
                if line.name.startswith("Stream"):
                    kernels += names
            else:
                graphs += sum(n.startswith("cuGraphLaunch") for n in names)
                launched += sum(n.startswith("cuLaunchKernel") for n in names)
    assert sum("GatherKernel" in name for name in kernels) == 5 * 4
    assert graphs >= 5
    # What XLA launches by itself is little beside what the graphs hold.
    assert launched < len(kernels) / 4, (launched, len(kernels))
