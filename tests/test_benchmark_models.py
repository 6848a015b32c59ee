# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks models`: its networks are the same with both sides' layers."""

import json
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from benchmarks import models
from benchmarks.model_list import MODELS, SMALL, Model, State
from benchmarks.networks import layers
from benchmarks.networks.layers import Layers
from benchmarks.networks.tasks import Classification


class OneLayer(nn.Module):
    """Stands in for a network: those of the benchmark take long to compile."""

    layers: Layers
    dtype: Any
    train: bool

    @nn.compact
    def __call__(self, x):
        return self.layers.conv(4, (3, 3), (2, 2), dtype=self.dtype)(x).mean((1, 2))


@pytest.fixture
def one_layer(monkeypatch):
    task = Classification((6, 6, 3), 4)
    model = Model(OneLayer, "float32", task, (2,), optax.sgd(0.1))
    monkeypatch.setattr(models, "MODELS", {"one": model})


@pytest.mark.parametrize("devices", [1, 2])
def test_models_times_steps_with_our_layers_and_stock_ones(
    one_layer, tmp_path, capsys, devices
):
    options = f"--model one --devices {devices} --out {tmp_path / 'models'}"
    models.main(options.split())
    result = json.loads((tmp_path / "models.json").read_text())
    assert [row["mode"] for row in result["rows"]] == ["train", "infer"]
    assert result["environment"]["devices"] == str(devices)
    for row in result["rows"]:
        ours, stock = (row[side]["median_us"] for side in ("ours", "stock"))
        assert row["over_stock"] == pytest.approx(stock / ours, abs=1e-3)
    assert "whole steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("devices", "words"), [(3, "cannot share"), (99, "there are 8 devices")]
)
def test_models_refuses_devices_that_cannot_share_a_batch(
    one_layer, capsys, devices, words
):
    with pytest.raises(SystemExit):
        models.main(["--model", "one", "--devices", str(devices)])
    assert words in capsys.readouterr().err


def test_models_refuses_a_network_that_differs(one_layer, monkeypatch):
    first = models.Steps.first
    monkeypatch.setattr(
        models.Steps, "first", lambda self: first(self) + (self.name == "ours")
    )
    with pytest.raises(SystemExit, match="ours and stock differ"):
        models.main(["--model", "one", "--mode", "infer"])


SIZES = {
    "resnet50": 25_557_032,
    "mnist": 824_458,
    # What Stable Diffusion 1 has, less the attention.
    "unet": 859_520_964 - 267_239_360,
    "decoder": 49_490_179 - 1_051_648 + 20,
    "efficientnet": 5_288_548,
}


def shapes(model, made_of=layers.STOCK):
    inputs, _ = jax.eval_shape(partial(model.batch, size=2), jax.random.key(0))
    init = model.network(made_of, "train").init
    return jax.eval_shape(init, jax.random.key(0), *inputs)


@pytest.mark.parametrize("name", SIZES)
def test_the_networks_have_the_sizes_of_the_originals(name):
    sizes = [a.size for a in jax.tree.leaves(shapes(MODELS[name])["params"])]
    assert sum(sizes) == SIZES[name]


@pytest.mark.parametrize("name", MODELS)
def test_both_sides_have_the_same_variables(name):
    assert shapes(MODELS[name], layers.ours()) == shapes(MODELS[name])


@pytest.mark.parametrize("name", SMALL)
def test_both_sides_have_the_same_loss_and_gradients(name):
    model = SMALL[name]
    state = State.of(model)
    inputs, targets = model.batch(jax.random.key(1), model.batches[0])
    params = state.variables["params"]
    rest = {k: v for k, v in state.variables.items() if k != "params"}

    def step(made_of):
        network = model.network(made_of, "train")

        def loss(params):
            variables = {"params": params, **rest}
            outputs, updated = network.apply(variables, *inputs, mutable=list(rest))
            return model.task.loss(outputs, targets), updated

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    (got, updated), grads = step(layers.ours())
    (want, stock_updated), stock_grads = step(layers.STOCK)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    pairs = (grads, stock_grads), (updated, stock_updated)
    for mine, theirs in pairs:
        assert jax.tree.structure(mine) == jax.tree.structure(theirs)
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
            scale = max(1e-3, float(abs(b).max()))
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("name", SMALL)
def test_both_sides_infer_the_same(name):
    model = SMALL[name]
    variables = State.of(model).variables
    inputs, _ = model.batch(jax.random.key(1), model.batches[0])
    got, want = (
        jax.jit(model.network(made_of, "infer").apply)(variables, *inputs)
        for made_of in (layers.ours(), layers.STOCK)
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_losses_are_drawn_one_over_the_other(tmp_path, capsys):
    stem = tmp_path / "curves"
    models.main(f"--small --model mnist --curves 3 --out {stem}".split())
    (row,) = json.loads(stem.with_suffix(".json").read_text())["rows"]
    assert len(row["ours"]) == len(row["stock"]) == 3
    apart = np.abs(np.subtract(row["ours"], row["stock"]))
    assert row["largest_difference"] == apart.max() < 1e-3
    assert len(set(row["stock"])) == 3
    assert stem.with_suffix(".png").stat().st_size > 1000
    assert "largest difference" in capsys.readouterr().out


def test_the_small_networks_are_timed(tmp_path):
    stem = tmp_path / "models"
    models.main(f"--small --model decoder --out {stem}".split())
    (row,) = json.loads(stem.with_suffix(".json").read_text())["rows"]
    assert row["mode"] == "infer" and row["ours"]["median_us"] > 0
