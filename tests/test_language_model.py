# SPDX-License-Identifier: Apache-2.0
"""examples/language_model.py learns, and decodes what its parallel form computes."""

import re
import sys
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_convbatch

for _needed in ("flax", "matplotlib", "optax", "rich"):
    pytest.importorskip(_needed)

language_model = import_module("examples.language_model")
mamba2 = import_module("examples.mamba2")
nnx = mamba2.nnx
CONVOLUTIONS = language_model.CONVOLUTIONS
SMALL = ["--width=32", "--blocks=1", "--batch=8", "--length=64", "--tokens=20"]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs it with a small model; returns what it prints and the picture."""

    def call(*arguments):
        path = tmp_path / "new" / "language_model.png"
        argv = ["language_model.py", *SMALL, "--out", str(path), *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        language_model.main()
        return capsys.readouterr().out, path

    return call


def scores(output):
    """The last line's bits a byte, by the name of the convolution."""
    last = output.splitlines()[-1]
    return {
        n: float(b) for b, n in re.findall(r"([\d.]+) bits a byte with (\w+)", last)
    }


def test_it_learns_and_compares(run, monkeypatch):
    monkeypatch.delitem(CONVOLUTIONS, "lax")  # one less to compile
    output, path = run("--steps", "60", "--compare")
    found = scores(output)
    assert found.keys() == {"ours", "jnp"}
    # Bytes of equal probability have 8, and those of their frequencies 4.7.
    assert max(found.values()) < 4.2
    assert max(found.values()) - min(found.values()) < 0.1
    (differences,) = re.findall(r"parallel - step by step(.*)", output)
    assert all(float(d) < 1e-4 for d in re.findall(r"[\d.]+e[-+]\d+", differences))
    from matplotlib import image

    pixels = image.imread(path)
    assert min(pixels.shape[:2]) > 500
    assert pixels.std() > 0.05


def test_held_out_text_is_not_in_the_other():
    text, held_out = (bytes(np.uint8(t)).decode() for t in language_model.load_text())
    assert len(text) > 200_000 and len(held_out) > 20_000
    paragraphs = held_out.split("\n\n")[1:]  # the first one is cut
    assert not {*paragraphs} & {*text.split("\n\n")}


def make_model(conv="ours", chunk=8):
    return mamba2.LanguageModel(
        50, 32, 2, conv=CONVOLUTIONS[conv], chunk=chunk, head=16, rngs=nnx.Rngs(0)
    )


@pytest.fixture(scope="module")
def tokens():
    return jax.random.randint(jax.random.key(1), (2, 19), 0, 50)


def assert_close(got, wanted):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, wanted
    )


@nnx.jit
def in_parallel(model, tokens):
    return model(tokens, model.start(len(tokens)))


@nnx.jit
def in_parts(model, tokens):
    first, states = in_parallel(model, tokens[:, :13])
    second, states = model(tokens[:, 13:], states)
    return jnp.concatenate([first, second], axis=1), states


@nnx.jit
def by_steps(model, tokens):
    def step(states, token):
        logits, states = model.step(token, states)
        return states, logits

    states, logits = jax.lax.scan(step, model.start(len(tokens)), tokens.T)
    return logits.swapaxes(0, 1), states


@pytest.fixture(scope="module")
def wanted(tokens):
    """Of each position as a chunk of its own."""
    return in_parallel(make_model(chunk=1), tokens)


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_steps_and_parts_are_the_whole(conv, tokens, wanted):
    for function in (in_parallel, in_parts, by_steps):
        assert_close(function(make_model(conv), tokens), wanted)


@pytest.mark.parametrize("chunk", [7, 32])
def test_chunks_do_not_matter(chunk, tokens, wanted):
    assert_close(in_parallel(make_model(chunk=chunk), tokens), wanted)


def test_ssd_is_its_recurrence():
    rng = np.random.default_rng(0)
    x, dt, b, c = (
        rng.normal(size=s) for s in ((2, 9, 3, 4), (2, 9, 3), (2, 9, 5), (2, 9, 5))
    )
    dt, a, h = abs(dt), -abs(rng.normal(size=3)), rng.normal(size=(2, 3, 5, 4))
    y, after = jax.jit(mamba2.ssd, static_argnums=6)(x, dt, a, b, c, h, 4)
    for l in range(9):
        written = dt[:, l, :, None, None] * b[:, l, None, :, None] * x[:, l, :, None]
        h = np.exp(dt[:, l] * a)[..., None, None] * h + written
        expected = (c[:, l, None, :, None] * h).sum(2)
        np.testing.assert_allclose(y[:, l], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after, h, rtol=1e-4, atol=1e-4)


def test_it_runs_the_convolution_it_names(tokens):
    def loss(model):
        logits, _ = model(tokens, model.start(2))
        return (logits**2).sum()

    def operations(conv):
        graph, state = nnx.split(make_model(conv))
        gradient = jax.grad(lambda state: loss(nnx.merge(graph, state)))
        return {row.op for row in jax_convbatch.explain(gradient, state)}

    assert operations("jnp") == set()
    assert "causal_conv1d" in str(operations("ours"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "1"), "--steps must be at least 2, got 1"),
        (("--batch", "0"), "--batch must be at least 1, got 0"),
        (("--length", "100000"), "--batch times --length must be below"),
        (("--width", "48"), "--width must be a multiple of 32, got 48"),
        (("--prompt", ""), "--prompt must not be empty"),
        (("--out", "loss.jpg"), "--out must end in .png, got loss.jpg"),
        (("--out", f"{__file__}/loss.png"), "--out cannot be written"),
        (("--conv", "cudnn"), "invalid choice: 'cudnn'"),
    ],
)
def test_it_refuses(run, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
