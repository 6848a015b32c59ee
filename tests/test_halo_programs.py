# SPDX-License-Identifier: Apache-2.0
"""Images that are cut over devices inside programs: constraints, scans, second order.

8 virtual devices. Whole numbers make every order of summation exact.
"""

import functools

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from problems import whole
from sharded import assert_same, assert_spec, collectives, compiled_and_result, put

import jax_convbatch as jc

ROWS = P(None, "data")
SMALL = functools.partial(whole, most=1)


def operands(x, w, make=whole):
    return make(0, x, "float32"), make(1, w, "float32")


def test_a_constraint_inside_a_program_cuts_images(mesh):
    args = operands((2, 16, 5, 3), (3, 3, 3, 4))

    @jax.jit
    def step(x, w):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, ROWS))
        return jc.conv(x * 2, w)

    found = step(*args)
    assert_spec(found, *ROWS)
    assert_same(found, jc.conv(args[0] * 2, args[1]))


def test_images_cut_inside_a_scan(mesh):
    x, w = operands((2, 16, 5, 4), (3, 3, 3, 4, 4), SMALL)

    def step(x, w):
        def stack(x, w):
            return jax.lax.scan(lambda x, w: (jc.conv(x, w), None), x, w)[0]

        y, pullback = jax.vjp(stack, x, w)
        return y, *pullback(SMALL(3, y.shape, "float32"))

    compiled, found = compiled_and_result(step, put(mesh, (x, w), ROWS, P()))
    assert collectives(compiled) == {"collective-permute", "all-reduce"}
    assert_same(found, jax.jit(step)(x, w))


def test_second_order(mesh):
    """The derivative of the derivative exchanges rows, too."""
    args = operands((1, 16, 3, 2), (3, 3, 2, 2), SMALL)

    def loss(x, w):
        return (jc.conv(x, w) ** 2).sum()

    def step(x, w):
        return jax.jvp(jax.grad(loss, argnums=(0, 1)), (x, w), (x, w))

    compiled, found = compiled_and_result(step, put(mesh, args, ROWS, P()))
    assert "all-gather" not in collectives(compiled)
    assert_same(jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(*args)))
