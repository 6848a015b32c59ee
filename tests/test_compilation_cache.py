# SPDX-License-Identifier: Apache-2.0
"""JAX's persistent compilation cache: the same program is found, another is not."""

import functools

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import PartitionSpec as P
from problems import whole
from sharded import arrays, layer, put, training_step

import jax_convbatch as jc
from jax_convbatch._select import choices
from jax_convbatch._sharding.partitioned_call import partitioned_call

SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
HIT = "/jax/compilation_cache/cache_hits"


@pytest.fixture
def hits(tmp_path):
    """The names of JAX's events, with a compilation cache of this test's own."""
    old = {name: getattr(jax.config, name) for name in SETTINGS}
    events = []
    listener = lambda name, **_: events.append(name)  # noqa: E731
    jax.monitoring.register_event_listener(listener)
    compilation_cache.set_cache_dir(str(tmp_path / "programs"))
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    yield events
    jax.monitoring.unregister_event_listener(listener)
    for name, value in old.items():
        jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


def anew(fun, args):
    """`fun`'s result, compiled (or found in the cache) as in a new process."""
    jax.clear_caches()
    return jax.jit(fun)(*args)


def deform(x, w, bias, **kwargs):
    offset = jax.numpy.zeros((*x.shape[:3], 18))
    return jc.deform_conv(x, offset, w, bias, **kwargs)


@pytest.mark.parametrize("fun", [layer, deform], ids=lambda f: f.__name__)
def test_a_sharded_step_is_found_again(mesh, hits, fun):
    step = training_step(fun)
    args = put(mesh, arrays(), P("data"), P(), P())
    first = anew(step, args)
    assert HIT not in hits
    again = anew(step, args)
    assert HIT in hits
    jax.tree.map(np.testing.assert_array_equal, again, first)


# Pairs of calls with the same sizes: what tells them apart is in no shape.
OTHERS = {
    "dilation": (layer, {}, {"dilation": 2}),
    "padding": (layer, {"padding": 1}, {"padding": ((2, 0), (0, 2))}),
    "workspace": (layer, {}, {"workspace_limit": 100_000, "algorithm": "im2col_gemm"}),
    "deform": (deform, {}, {"workspace_limit": 50_000}),
}


@pytest.mark.parametrize("fun, one, other", OTHERS.values(), ids=OTHERS)
def test_another_sharded_call_of_the_same_sizes_is_not_found(
    mesh, hits, fun, one, other
):
    args = arrays(random=whole)
    sharded = put(mesh, args, P("data"), P(), P())
    anew(training_step(functools.partial(fun, **one)), sharded)
    step = training_step(functools.partial(fun, **other))
    got = anew(step, sharded)
    assert HIT not in hits
    jax.tree.map(np.testing.assert_array_equal, got, jax.jit(step)(*args))


def test_what_was_tuned_since_is_not_found(mesh, hits):
    args = put(mesh, arrays(), P("data"), P(), P())
    step = training_step(layer)
    anew(step, args)
    device = choices.targets.device_name("cpu")
    key = "fprop float32 default 1x1x1x1"
    choices.keep(device, {key: {"engine": "im2col_gemm", "configs": {}}})
    anew(step, args)
    assert HIT not in hits


def test_programs_of_one_device_are_found_by_what_they_do(hits):
    args = arrays()
    for dilation in (1, 2):
        anew(training_step(functools.partial(layer, dilation=dilation)), args)
        assert HIT not in hits
    anew(training_step(layer), args)
    assert HIT in hits


def test_calls_are_told_apart_by_what_their_partition_depends_on():
    """Also where the whole call is the same program."""

    def name(of):
        def partition(mesh, operands, results):
            raise AssertionError("nothing is partitioned here")

        call = partitioned_call(lambda x: -x, partition, "i -> i", of)
        (eqn,) = jax.make_jaxpr(call)(np.ones(3, np.float32)).eqns
        return eqn.params["name"]

    assert name((1, layer)) == name((1, layer))
    assert len({name((1, layer)), name((2, layer)), name((1, deform))}) == 3
