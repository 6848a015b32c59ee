# SPDX-License-Identifier: Apache-2.0
"""The wheel of pure Python: everything runs in jax.lax, and says so.

`make pure-wheel` runs this on that wheel; elsewhere on a copy of the sources.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import jax_convbatch
from jax_convbatch._native import built

PACKAGE = Path(jax_convbatch.__file__).parent
FACTS = '"""By a test."""\n\nPURE_PYTHON = True\n'


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What to put before sys.path."""
    if built.is_pure():
        return []
    copies = tmp_path_factory.mktemp("pure")
    for source in PACKAGE.rglob("*.py"):
        copy = copies / "jax_convbatch" / source.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(source.read_text())
    (copies / "jax_convbatch" / "_build.py").write_text(FACTS)
    return [str(copies), *{sysconfig.get_path(k) for k in ("purelib", "platlib")}]


@pytest.fixture
def run(folders, tmp_path):
    def run(code):
        # -S keeps out the import hook of an editable installation.
        flags = ["-S"] if folders else []
        code = f"import sys; sys.path[:0] = {folders!r}\n{code}"
        return subprocess.run(
            [sys.executable, *flags, "-c", code],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=240,
        )

    return run


def test_the_import_warns_once_and_says_what_is_served(run):
    result = run("import jax_convbatch")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("RuntimeWarning") == 1
    assert built.PURE in result.stderr
    assert "Linux on x86-64 with glibc 2.28" in result.stderr


def test_values_and_gradients_are_those_of_jax_lax(run):
    result = run("""
import jax, jax.numpy as jnp, numpy as np
import jax_convbatch as jcb
x = jnp.arange(2 * 9 * 9 * 4.0).reshape(2, 9, 9, 4) % 7
w = jnp.arange(3 * 3 * 4 * 6.0).reshape(3, 3, 4, 6) % 5
numbers = ("NHWC", "HWIO", "NHWC")
def loss(conv):
    return lambda x, w: (conv(x, w, (2, 2), "SAME", dimension_numbers=numbers)**2).sum()
for ours, theirs in zip(
    jax.value_and_grad(loss(jcb.conv_general_dilated), (0, 1))(x, w),
    jax.value_and_grad(loss(jax.lax.conv_general_dilated), (0, 1))(x, w),
):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
layer = jcb.conv_bias_act(x, w, bias=jnp.ones(6), activation="relu")
plain = jax.nn.relu(jcb.conv(x, w) + 1)
np.testing.assert_array_equal(layer, plain)
offset = jnp.zeros((2, 9, 9, 18))
np.testing.assert_allclose(jcb.deform_conv(x, offset, w), jcb.conv(x, w), rtol=1e-6)
""")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_explain_says_why_everything_runs_in_jax_lax(run, platform):
    result = run(f"""
import jax, jax.numpy as jnp
import jax_convbatch as jcb
x, w = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 6))
fn = jax.grad(lambda x, w: jcb.conv(x, w).sum(), (0, 1))
for row in jcb.explain(fn, x, w, platform={platform!r}):
    print(row.op, row.engine, row.reason)
""")
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    assert [line.split()[:2] for line in lines] == [["dgrad", "xla"], ["wgrad", "xla"]]
    assert all(built.PURE in line for line in lines)


def test_an_engine_that_is_asked_for_by_name_is_refused(run):
    result = run("""
import jax.numpy as jnp
import jax_convbatch as jcb
jcb.conv(jnp.ones((1, 5, 5, 2)), jnp.ones((3, 3, 2, 2)), algorithm="im2col_gemm")
""")
    assert result.returncode == 1
    assert "ValueError" in result.stderr and built.PURE in result.stderr


def test_the_command_line_says_it(run):
    result = run("from jax_convbatch.__main__ import main; main()")
    assert result.returncode == 0, result.stderr
    for platform in ("cpu", "cuda"):
        assert f"  {platform:<14} {built.PURE}\n" in result.stdout
    assert built.SERVED in result.stdout
    assert "xla            every platform (jax.lax)" in result.stdout
