# SPDX-License-Identifier: Apache-2.0
"""JAX_CONVBATCH_LOG=1 writes a line for each convolution that is planned."""

import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jax_convbatch as jc

X, W, B = jnp.ones((2, 6, 6, 3)), jnp.ones((3, 3, 3, 5)), jnp.ones(5)


@pytest.fixture
def lines(caplog):
    """What is logged so far."""
    caplog.set_level(logging.INFO, "jax_convbatch")
    jax.clear_caches()
    return lambda: [r.getMessage() for r in caplog.records if r.name == "jax_convbatch"]


def test_a_line_has_what_explain_says(lines):
    jax.jit(jc.conv).lower(X, W)
    (row,) = jc.explain(jc.conv, X, W)
    (line,) = lines()
    assert line.startswith(f"fprop {row.geometry}, float32: {row.engine} by rule")
    assert line.endswith(row.reason)


def test_every_convolution_of_a_program_has_one(lines):
    def loss(x, w, b):
        y = jc.conv_bias_act(x, w, b, activation="relu")
        y = jc.conv(y, jnp.ones((1, 1, 5, 4)), algorithm="im2col_gemm")
        offset = jnp.zeros((2, 6, 6, 18))
        return (jc.deform_conv(y, offset, jnp.ones((3, 3, 4, 2))) ** 2).sum()

    step = jax.grad(loss, (0, 1, 2))
    jax.jit(step).lower(X, W, B)
    wanted = [f"{row.op} {row.geometry}, " for row in jc.explain(step, X, W, B)]
    assert len(wanted) > 7
    assert sorted(line.split("float32")[0] for line in lines()) == sorted(wanted)


def test_what_runs_in_jax_lax_has_one(lines):
    whole = X.astype("int8"), W.astype("int8")
    jax.jit(jc.conv).lower(*whole)
    jax.jit(lambda x, w: jc.conv(x, w, algorithm="xla")).lower(X, W)
    first, second = lines()
    assert first.startswith("fprop 2x6x6x3 * 3x3x3x5, int8: xla; ")
    assert second == "fprop 2x6x6x3 * 3x3x3x5, float32: xla; asked for by name"


def test_a_program_that_jax_knows_is_not_planned_again(lines):
    for _ in range(3):
        jc.conv(X, W)
    assert len(lines()) == 1


def test_nothing_is_said_unless_asked_for(caplog):
    jax.clear_caches()
    jc.conv(X, W)
    assert not [r for r in caplog.records if r.name == "jax_convbatch"]


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("0", 0), ("", 0), (None, 0)])
def test_the_environment_has_them_written_to_stderr(value, count):
    program = (
        "import logging; logging.basicConfig()\n"
        "import jax.numpy as jnp, jax_convbatch as jc\n"
        "jc.conv(jnp.ones((2, 6, 6, 3)), jnp.ones((3, 3, 3, 5)))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAX_CONVBATCH_LOG"}
    if value is not None:
        environment["JAX_CONVBATCH_LOG"] = value
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    written = [s for s in run.stderr.splitlines() if "jax_convbatch" in s]
    assert len(written) == count, run.stderr
    assert run.stdout == ""
    for line in written:
        assert line.startswith("jax_convbatch: fprop 2x6x6x3 * 3x3x3x5")
