"""What is sharded stays where it is: 8 virtual devices, one kind of collective.

The devices are those of conftest.py. Wherever a result's order of summation does
not depend on the mesh (y and dx) it has to equal a single device's bit for bit;
for dw and db whole numbers make every order exact.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import normal, whole

import jax_convbatch as jc

CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")
CHANNELS_FIRST = ("NCHW", "OIHW", "NCHW")


@pytest.fixture
def mesh():
    return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


@pytest.fixture
def mesh_2d():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture
def explicit_axes():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


@pytest.fixture
def explicit_mesh(explicit_axes):
    with jax.set_mesh(explicit_axes):
        yield explicit_axes


def arrays(random=normal, batch=16, groups=1, layout=CHANNELS_LAST):
    """x, w and bias; K is 4."""
    x = random(0, (batch, 6, 6, 8), "float32")
    w = random(1, (3, 3, 8 // groups, 4), "float32")
    if layout is CHANNELS_FIRST:
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    return x, w, random(2, (4,), "float32")


def layer(x, w, bias, **kwargs):
    return jc.conv_bias_act(x, w, bias, activation="relu", **kwargs)


def training_step(fun):
    """The loss, y, and the gradients of all arguments, of sum(fun(...)^2)."""

    def loss(*args):
        y = fun(*args)
        return (y**2).sum(), y

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)


KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"


def collectives(compiled):
    found = re.findall(rf"\b({KINDS}|collective-broadcast)(?:-start)?\(", compiled.as_text())
    return set(found)


def put(mesh, values, *specs):
    return [
        jax.device_put(v, NamedSharding(mesh, s))
        for v, s in zip(values, specs, strict=True)
    ]


def assert_spec(array, *spec):
    want = NamedSharding(array.sharding.mesh, P(*spec))
    assert array.sharding.is_equivalent_to(want, array.ndim), array.sharding


def assert_same(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


# --- jit on a mesh of automatic axes ------------------------------------------

MODELS = {
    "layer": {},
    "both modes": {"ad": "both"},
    "strided": {"strides": 2, "padding": ((0, 1), (2, 0))},
    "grouped": {"groups": 2},
    "dilated": {"dilation": 2, "input_dilation": (1, 2), "padding": 1},
    "channels first": {"dimension_numbers": CHANNELS_FIRST},
    "sliced": {"workspace_limit": 100_000},
}


@pytest.mark.parametrize("model", MODELS)
def test_a_sharded_batch_needs_all_reduces_only(mesh, model):
    kwargs = MODELS[model]
    layout = kwargs.get("dimension_numbers", CHANNELS_LAST)
    step = training_step(functools.partial(layer, **kwargs))
    args = arrays(groups=kwargs.get("groups", 1), layout=layout)
    sharded = put(mesh, args, P("data"), P(), P())
    compiled = jax.jit(step).lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    assert "dynamic-slice" not in compiled.as_text()
    (loss, y), (dx, dw, db) = compiled(*sharded)
    assert_spec(y, "data")
    assert_spec(dx, "data")
    assert_spec(dw)
    assert_spec(db)
    (want_loss, want_y), (want_dx, want_dw, want_db) = jax.jit(step)(*args)
    assert_same((y, dx), (want_y, want_dx))
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3)
    assert_close(loss, want_loss)
    assert_close(dw, want_dw)
    assert_close(db, want_db)


@pytest.mark.parametrize("model", MODELS)
def test_whole_numbers_are_exact_on_any_number_of_devices(mesh, model):
    kwargs = MODELS[model]
    layout = kwargs.get("dimension_numbers", CHANNELS_LAST)
    step = jax.jit(training_step(functools.partial(layer, **kwargs)))
    args = arrays(whole, groups=kwargs.get("groups", 1), layout=layout)
    assert_same(step(*put(mesh, args, P("data"), P(), P())), step(*args))


def test_the_forward_pass_needs_no_collective(mesh):
    x, w, bias = put(mesh, arrays(), P("data"), P(), P())
    assert collectives(jax.jit(layer).lower(x, w, bias).compile()) == set()


def test_one_call_of_a_sharded_layer_runs_one_custom_call_a_device(mesh):
    """The devices share the work: each one's custom call has an eighth of it."""
    x, w, bias = put(mesh, arrays(), P("data"), P(), P())
    text = jax.jit(layer).lower(x, w, bias).compile().as_text()
    (call,) = re.findall(r".*custom-call.*jax_convbatch_im2col_gemm_fprop.*", text)
    assert "f32[2,6,6,4]" in call


def test_in_shardings_are_kept(mesh):
    shardings = [NamedSharding(mesh, s) for s in (P("data"), P(), P())]
    step = jax.jit(training_step(layer), in_shardings=shardings)
    args = arrays(whole)
    assert collectives(step.lower(*args).compile()) == {"all-reduce"}
    assert_same(step(*args), jax.jit(training_step(layer))(*args))


SPECS_2D = {
    "batch and filters": (P("data"), P(None, None, None, "model"), P("model")),
    "filters": (P(), P(None, None, None, "model"), P("model")),
    "batch over both": (P(("data", "model")), P(), P()),
    "filters over data": (P("model"), P(None, None, None, "data"), P("data")),
    "channels": (P("data", None, None, "model"), P(None, None, "model"), P()),
}


@pytest.mark.parametrize("specs", SPECS_2D)
def test_batch_filters_and_channels_stay_sharded(mesh_2d, specs):
    specs = SPECS_2D[specs]
    step = jax.jit(training_step(layer))
    args = arrays(whole)
    sharded = put(mesh_2d, args, *specs)
    compiled = step.lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    got = compiled(*sharded)
    _, (dx, dw, db) = got
    for array, spec in zip((dx, dw, db), specs, strict=True):
        assert_spec(array, *spec)
    assert_same(got, step(*args))


def test_sharded_filters_give_sharded_channels_without_a_collective(mesh_2d):
    w_spec = P(None, None, None, "model")
    x, w, bias = put(mesh_2d, arrays(), P("data"), w_spec, P("model"))
    compiled = jax.jit(layer).lower(x, w, bias).compile()
    assert collectives(compiled) == set()
    y = compiled(x, w, bias)
    assert_spec(y, "data", None, None, "model")


# Shardings that the rule does not keep must be undone, not miscomputed.
UNKEPT = {
    "rows of the image": (P(None, "model"), P(), P(), 1),
    "taps": (P(), P(None, None, "model", "data"), P(), 1),
    "channels of groups": (P(None, None, None, "data"), P(), P(), 2),
    "filters of groups": (P("data"), P(None, None, None, "model"), P("model"), 2),
    "one axis twice": (P("data"), P(None, None, None, "data"), P("data"), 1),
}


@pytest.mark.parametrize("specs", UNKEPT)
def test_any_other_sharding_gives_the_same_numbers(mesh_2d, specs):
    *specs, groups = UNKEPT[specs]
    step = jax.jit(training_step(functools.partial(layer, groups=groups)))
    args = arrays(whole, groups=groups)
    assert_same(step(*put(mesh_2d, args, *specs)), step(*args))


@pytest.mark.parametrize("batch", [1, 3, 9, 14])
def test_a_batch_that_does_not_divide(mesh, batch):
    """XLA pads the last device's part: a sum must not see the padding."""
    args = arrays(whole, batch)
    sharding = NamedSharding(mesh, P("data"))

    @jax.jit
    def step(x, w, bias):
        def fun(x, w, bias):
            x = jax.lax.with_sharding_constraint(x, sharding)
            y = layer(x + 1, w, bias)
            return jax.lax.with_sharding_constraint(y, sharding)

        return training_step(fun)(x, w, bias)

    want = jax.jit(training_step(lambda x, w, bias: layer(x + 1, w, bias)))(*args)
    assert_same(step(*args), want)


@pytest.mark.parametrize("remat", [False, True])
def test_a_scan_of_layers_needs_all_reduces_only(mesh, remat):
    x = normal(0, (16, 5, 5, 4), "float32")
    w = normal(1, (3, 3, 3, 4, 4), "float32") / 4
    bias = normal(2, (3, 4), "float32")

    def stack(x, w, bias):
        def body(x, parameters):
            return layer(x, *parameters), None

        return jax.lax.scan(jax.remat(body) if remat else body, x, (w, bias))[0]

    step = jax.jit(training_step(stack))
    sharded = put(mesh, (x, w, bias), P("data"), P(), P())
    compiled = step.lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    (_, y), (dx, *_) = compiled(*sharded)
    (_, want_y), (want_dx, *_) = step(x, w, bias)
    assert_spec(dx, "data")
    assert_same((y, dx), (want_y, want_dx))


def test_a_vmapped_layer_keeps_both_batches_sharded(mesh_2d):
    """vmap over models, each with its own filters, models sharded."""
    x = whole(0, (2, 8, 5, 5, 4), "float32")
    w = whole(1, (2, 3, 3, 4, 4), "float32")
    bias = whole(2, (2, 4), "float32")
    step = jax.jit(training_step(jax.vmap(layer)))
    sharded = put(mesh_2d, (x, w, bias), P(None, "data"), P(), P())
    compiled = step.lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    assert_same(compiled(*sharded), step(x, w, bias))


@pytest.mark.parametrize("where", ["x", "all"])
def test_spmd_axis_name_shards_the_mapped_axis(mesh_2d, where):
    x = whole(0, (4, 2, 5, 5, 4), "float32")
    _, w, bias = arrays(whole, groups=2)
    dims = (0, None, None)
    if where == "all":
        w, bias = whole(1, (4, 3, 3, 4, 4), "float32"), whole(2, (4, 4), "float32")
        dims = (0, 0, 0)

    def inner(x, w, bias):
        spec = NamedSharding(mesh_2d, P("model"))
        return jax.lax.with_sharding_constraint(layer(x, w, bias), spec)

    step = training_step(jax.vmap(inner, dims, spmd_axis_name="data"))
    want = training_step(jax.vmap(layer, dims))(x, w, bias)
    assert_same(jax.jit(step)(x, w, bias), want)


# --- shard_map ----------------------------------------------------------------

LAYERS = {
    "reverse": layer,
    "both": functools.partial(layer, ad="both"),
    "general": lambda x, w, bias: bias
    + jc.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST),
}
each_layer = pytest.mark.parametrize("fun", LAYERS.values(), ids=LAYERS.keys())
check_vma = pytest.mark.parametrize("check_vma", [True, False])


@each_layer
@check_vma
def test_the_gradient_of_a_shard_map_is_a_single_devices(mesh, fun, check_vma):
    mapped = jax.shard_map(
        fun,
        mesh=mesh,
        in_specs=(P("data"), P(), P()),
        out_specs=P("data"),
        check_vma=check_vma,
    )
    args = arrays(whole)
    want = jax.jit(training_step(fun))(*args)
    assert_same(jax.jit(training_step(mapped))(*args), want)


@each_layer
def test_a_gradient_inside_a_shard_map_is_summed_over_the_devices(mesh, fun):
    """With check_vma JAX sums the cotangents of replicated operands itself."""

    def step(x, w, bias):
        (loss, y), gradients = training_step(fun)(x, w, bias)
        return (jax.lax.psum(loss, "data"), y), gradients

    data, none = P("data"), P()
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(data, none, none),
        out_specs=((none, data), (data, none, none)),
    )
    args = arrays(whole)
    compiled = jax.jit(mapped).lower(*put(mesh, args, data, none, none)).compile()
    assert collectives(compiled) == {"all-reduce"}
    assert_same(jax.jit(mapped)(*args), jax.jit(training_step(fun))(*args))


@each_layer
def test_without_check_vma_the_user_sums(mesh, fun):
    def step(x, w, bias):
        (loss, y), (dx, *rest) = training_step(fun)(x, w, bias)
        loss, dw, db = jax.lax.psum((loss, *rest), "data")
        return (loss, y), (dx, dw, db)

    data, none = P("data"), P()
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(data, none, none),
        out_specs=((none, data), (data, none, none)),
        check_vma=False,
    )
    args = arrays(whole)
    assert_same(jax.jit(mapped)(*args), jax.jit(training_step(fun))(*args))


@check_vma
def test_a_shard_map_over_filters(mesh_2d, check_vma):
    filters = P(None, None, None, "model")
    mapped = jax.shard_map(
        layer,
        mesh=mesh_2d,
        in_specs=(P("data"), filters, P("model")),
        out_specs=P("data", None, None, "model"),
        check_vma=check_vma,
    )
    args = arrays(whole)
    want = jax.jit(training_step(layer))(*args)
    assert_same(jax.jit(training_step(mapped))(*args), want)


@pytest.mark.parametrize("fun", [LAYERS["both"], LAYERS["general"]])
@check_vma
def test_forward_mode_in_a_shard_map(mesh, fun, check_vma):
    mapped = jax.shard_map(
        fun,
        mesh=mesh,
        in_specs=(P("data"), P(), P()),
        out_specs=P("data"),
        check_vma=check_vma,
    )
    args = arrays(whole)
    want = jax.jvp(fun, args, args)
    assert_same(jax.jvp(jax.jit(mapped), args, args), want)


@check_vma
def test_scan_and_remat_in_a_shard_map(mesh, check_vma):
    x = normal(0, (16, 5, 5, 4), "float32")
    w = normal(1, (3, 3, 3, 4, 4), "float32") / 4

    def stack(x, w):
        @jax.remat
        def body(x, w):
            return jc.conv_bias_act(x, w, activation="tanh"), None

        return jax.lax.scan(body, x, w)[0]

    mapped = jax.shard_map(
        stack,
        mesh=mesh,
        in_specs=(P("data"), P()),
        out_specs=P("data"),
        check_vma=check_vma,
    )
    got, want = (
        jax.jit(jax.grad(lambda x, f=f: (f(x, w) ** 2).sum()))(x) for f in (mapped, stack)
    )
    assert_same(got, want)


def test_pmap_of_a_training_step():
    x, w, bias = arrays(whole)
    x = x.reshape(8, 2, *x.shape[1:])

    def step(x, w, bias):
        (loss, y), (dx, *rest) = training_step(layer)(x, w, bias)
        return (jax.lax.psum(loss, "i"), y), (dx, *jax.lax.psum(rest, "i"))

    (loss, y), (dx, dw, db) = jax.pmap(step, axis_name="i", in_axes=(0, None, None))(
        x, w, bias
    )
    want = jax.jit(training_step(layer))(x.reshape(16, *x.shape[2:]), w, bias)
    got = (loss[0], y.reshape(16, *y.shape[2:])), (dx.reshape(16, *dx.shape[2:]), dw[0], db[0])
    assert_same(got, want)


# --- a mesh of explicit axes ----------------------------------------------------

# Shardings of x and w whose result jax.lax knows without being told.
EXPLICIT = {
    "nothing": (P(), P()),
    "batch": (P("data"), P()),
    "batch over both": (P(("data", "model")), P()),
    "image": (P(None, "model"), P()),
}


@pytest.mark.parametrize("specs", EXPLICIT)
@pytest.mark.parametrize("jit", [False, True])
def test_types_carry_the_shardings_of_jax_lax(explicit_axes, specs, jit):
    def results(function, x, w):
        def fun(x, w):
            return function(x, w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST)

        y, pullback = jax.vjp(fun, x, w)
        out = y, *pullback(2 * y)
        types.append([jax.typeof(a) for a in out])
        return out

    types, values = [], []
    x, w, _ = arrays(whole)
    want = results(jc.conv_general_dilated, x, w)
    types.clear()
    with jax.set_mesh(explicit_axes):
        x, w = put(explicit_axes, (x, w), *EXPLICIT[specs])
        for function in (jc.conv_general_dilated, jax.lax.conv_general_dilated):
            fun = functools.partial(results, function)
            values.append((jax.jit(fun) if jit else fun)(x, w))
    ours, theirs = types
    assert ours == theirs
    # jax.lax's own dw is wrong where the image is sharded.
    assert_same(values[0], want)


@pytest.mark.parametrize("specs", EXPLICIT)
@pytest.mark.parametrize("ad", ["reverse", "both"])
def test_a_layers_gradients_have_the_types_of_its_operands(explicit_axes, specs, ad):
    step = jax.jit(training_step(functools.partial(layer, ad=ad)))
    args = arrays(whole)
    want = step(*args)
    with jax.set_mesh(explicit_axes):
        sharded = put(explicit_axes, args, *EXPLICIT[specs], P())
        got = step(*sharded)
        for gradient, operand in zip(got[1], sharded, strict=True):
            assert jax.typeof(gradient) == jax.typeof(operand)
    assert_same(got, want)


def test_out_sharding_is_that_of_jax_lax(explicit_mesh):
    x, w, _ = arrays(whole)
    x, w = put(explicit_mesh, (x, w), P("data"), P())
    spec = P("data", None, None, "model")
    kwargs = dict(dimension_numbers=CHANNELS_LAST, out_sharding=spec)
    ours, theirs = (
        jax.jit(lambda x, w, f=f: f(x, w, (1, 1), "SAME", **kwargs))(x, w)
        for f in (jc.conv_general_dilated, jax.lax.conv_general_dilated)
    )
    assert jax.typeof(ours) == jax.typeof(theirs)
    assert_same(ours, theirs)


# Shardings of x and w that jax.lax wants an out_sharding for.
AMBIGUOUS = {
    "channels": (P(None, None, None, "data"), P(None, None, "data")),
    "filters": (P(), P(None, None, None, "model")),
}


@pytest.mark.parametrize("specs", AMBIGUOUS)
def test_an_ambiguous_sharding_is_refused_as_by_jax_lax(explicit_mesh, specs):
    x, w, _ = arrays()
    x, w = put(explicit_mesh, (x, w), *AMBIGUOUS[specs])
    errors = []
    for function in (jax.lax.conv_general_dilated, jc.conv_general_dilated):
        with pytest.raises(Exception) as caught:
            function(x, w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST)
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_scan_and_remat_under_an_explicit_mesh(explicit_mesh):
    x = normal(0, (8, 5, 5, 4), "float32")
    w = normal(1, (3, 3, 3, 4, 4), "float32") / 4

    def loss(x, w):
        @jax.remat
        def body(x, w):
            return jc.conv_bias_act(x, w, activation="gelu"), None

        return (jax.lax.scan(body, x, w)[0] ** 2).sum()

    x, w = put(explicit_mesh, (x, w), P("data"), P())
    dx, dw = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, w)
    assert jax.typeof(dx) == jax.typeof(x)
    assert jax.typeof(dw) == jax.typeof(w)


def test_forward_mode_under_an_explicit_mesh(explicit_mesh):
    x, w, bias = arrays(whole)
    x, w, bias = put(explicit_mesh, (x, w, bias), P("data"), P(), P())
    fun = functools.partial(layer, ad="both")
    y, t = jax.jit(lambda *a: jax.jvp(fun, a, a))(x, w, bias)
    assert jax.typeof(t) == jax.typeof(y)
    assert jax.typeof(y).sharding.spec == P("data", None, None, None)
