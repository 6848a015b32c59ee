# SPDX-License-Identifier: Apache-2.0
"""Whole networks: training and inference steps with our layers and with Flax's.

    python -m benchmarks models [--model resnet50,mnist] [--mode train,infer]
                                [--batch 8,64,256] [--engine auto] [--devices 1]

A training step is loss, gradients, batch statistics and SGD with momentum, jitted,
its state donated, so that steps follow each other as in training. Both sides start
from the same parameters, and their losses of the first steps are compared before
anything is timed. `--devices` that share each batch make a data-parallel program, with
ours and with Flax's layers. Writes STEM.json and prints a table; interrupted, of the
rows that are done.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch.flax.linen as jcb_linen
from benchmarks import record
from benchmarks.jax_side import compiled
from examples.networks import MnistCnn, ResNet
from jax_convbatch._select import plan
from jax_convbatch._tune import timing

CHECKED_STEPS = 3


class Model(NamedTuple):
    make: type
    dtype: str
    image: tuple[int, int, int]
    classes: int
    batches: tuple[int, ...]
    options: dict


MODELS = {
    "resnet50": Model(
        ResNet, "bfloat16", (224, 224, 3), 1000, (8, 64, 256), {"classes": 1000}
    ),
    "mnist": Model(MnistCnn, "float32", (28, 28, 1), 10, (8, 128, 1024), {}),
}


class State(NamedTuple):
    """What the steps of a model start from, one for all sides and batches."""

    variables: dict
    moments: tuple

    @classmethod
    def of(cls, model: Model) -> State:
        network = _network(model, nn.Conv, "train")
        keys = jax.random.split(jax.random.key(0, impl="rbg"), 2)
        x = jnp.ones((1, *model.image), model.dtype)
        variables = jax.jit(network.init)(keys[0], x)
        moments = jax.jit(_optimizer(model).init)(variables["params"])
        return cls(variables, moments)


def _network(model: Model, conv, mode: str):
    dtype = jnp.dtype(model.dtype)
    return model.make(conv=conv, dtype=dtype, train=mode == "train", **model.options)


def _optimizer(model: Model):
    return optax.sgd(0.01 if model.make is ResNet else 0.1, momentum=0.9)


class Places(NamedTuple):
    """Where a batch and the state are: None for the default device."""

    batch: NamedSharding | None
    state: NamedSharding | None

    @classmethod
    def over(cls, devices: int) -> Places:
        if devices == 1:
            return cls(None, None)
        found = jax.devices()[:devices]
        mesh = jax.make_mesh(
            (devices,), ("data",), axis_types=(AxisType.Auto,), devices=found
        )
        return cls(NamedSharding(mesh, P("data")), NamedSharding(mesh, P()))


class Steps(timing.Side):
    """Steps of a network as a side of a measurement, compiled; `start` comes next."""

    def __init__(
        self,
        name: str,
        model: Model,
        conv,
        batch: int,
        mode: str,
        state: State,
        places: Places,
    ):
        self.name, self._model, self._batch = name, model, batch
        self._state, self._out, self._places = None, None, places
        network = _network(model, conv, mode)
        of_batch = partial(jax.ShapeDtypeStruct, sharding=places.batch)
        x = of_batch((batch, *model.image), model.dtype)
        self._trains = mode == "train"
        if self._trains:
            step = jax.jit(
                partial(_train, network, _optimizer(model)), donate_argnums=0
            )
            labels = of_batch((batch,), "int32")
            self._step = step.lower(state, x, labels).compile()
        else:
            self._step = jax.jit(network.apply).lower(state.variables, x).compile()

    def start(self, state: State) -> None:
        keys = jax.random.split(jax.random.key(0, impl="rbg"))
        shape = (self._batch, *self._model.image)
        x = jax.random.normal(keys[0], shape, self._model.dtype)
        labels = jax.random.randint(
            keys[1], (self._batch,), 0, self._model.classes, "int32"
        )
        self._x, self._labels = jax.device_put((x, labels), self._places.batch)
        self._state = _copied(state) if self._trains else state.variables

    def release(self) -> None:
        self._state = self._out = self._x = None

    def queue(self) -> None:
        if not self._trains:
            self._out = None
            self._out = self._step(self._state, self._x)
            return
        self._state, self._out = self._step(self._state, self._x, self._labels)

    def wait(self) -> None:
        timing.wait_for((self._state, self._out))

    def first(self) -> np.ndarray:
        """The logits, or the losses of the first steps."""
        results = []
        for _ in range(CHECKED_STEPS):
            self.queue()
            results.append(np.asarray(self._out, np.float64))
        return np.stack(results)

    def memory(self) -> int | None:
        """Bytes of temporaries that XLA planned, where it says so."""
        analysis = self._step.memory_analysis()
        return getattr(analysis, "temp_size_in_bytes", None)


@jax.jit
def _copied(state):
    """As a step overwrites its state."""
    return jax.tree.map(jnp.copy, state)


def _train(network, optimizer, state: State, x, labels):
    variables, moments = state
    params = variables["params"]
    rest = {k: v for k, v in variables.items() if k != "params"}

    def loss_of(params):
        logits, updated = network.apply(
            {"params": params, **rest}, x, mutable=list(rest)
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return loss.mean(), updated

    (loss, updated), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    updates, moments = optimizer.update(grads, moments)
    params = optax.apply_updates(params, updates)
    return State({"params": params, **updated}, moments), loss


def prepare(
    case, states: dict[str, State], places: Places, stock: Executor
) -> list[Steps]:
    """Both sides of a (model, mode, batch, engine), compiled."""
    name, mode, batch, engine = case
    model, state = MODELS[name], states[name]
    conv = partial(jcb_linen.Conv, algorithm=engine)
    rest = (batch, mode, state, places)
    theirs = stock.submit(Steps, "stock", model, nn.Conv, *rest)
    return [Steps("ours", model, conv, *rest), theirs.result()]


def measure(case, sides: list[Steps], state: State) -> dict:
    """One row of the result.

    Raises:
      SystemExit: the sides' losses or logits differ.
    """
    name, mode, batch, engine = case
    model = MODELS[name]
    for side in sides:
        side.start(state)
    outputs = [side.first() for side in sides]
    # bf16 rounds at different places in both; three steps apart at the most.
    tolerance = 0.05 if model.dtype == "bfloat16" else 2e-3
    scale = max(1.0, float(np.abs(outputs[1]).max()))
    worst = float(np.abs(outputs[0] - outputs[1]).max()) / scale
    if not worst < tolerance:
        sys.exit(f"{name}, {mode}, batch {batch}: ours and stock differ by {worst}")
    times = timing.microseconds(sides, seconds=0.1)
    result = {"model": name, "mode": mode, "batch": batch, "engine": engine}
    for side in sides:
        figures = timing.summary(times[side.name])
        result[side.name] = figures | {"temporary_bytes": side.memory()}
        side.release()
    ours_us, stock_us = (result[s.name]["median_us"] for s in sides)
    result["images_per_s"] = round(batch / ours_us * 1e6)
    result["over_stock"] = round(stock_us / ours_us, 3)
    return result


def table(rows: list[dict]) -> Table:
    view = Table(title="whole steps")
    view.add_column("model")
    view.add_column("step")
    for heading in (
        "batch",
        "ours, ms",
        "stock, ms",
        "stock / ours",
        "images/s",
        "ours, GB",
        "stock, GB",
    ):
        view.add_column(heading, justify="right")
    for row in rows:
        cells = [row["model"], row["mode"], str(row["batch"])]
        for side in ("ours", "stock"):
            figures = row[side]
            cells.append(
                f"{figures['median_us'] / 1e3:.2f} ±{figures['spread_us'] / 2e3:.2f}"
            )
        cells += [f"{row['over_stock']:.2f}", str(row["images_per_s"])]
        for side in ("ours", "stock"):
            memory = row[side]["temporary_bytes"]
            cells.append("" if memory is None else f"{memory / 1e9:.2f}")
        view.add_row(*cells)
    return view


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="resnet50,mnist")
    parser.add_argument("--mode", default="train,infer")
    parser.add_argument("--batch", help="batch sizes (default: each model's own)")
    parser.add_argument("--engine", default="auto", choices=plan.ALGORITHMS)
    parser.add_argument("--devices", type=int, default=1, help="that share a batch")
    parser.add_argument(
        "--out", type=Path, help="path without suffix (default: benchmarks/results/...)"
    )
    options = parser.parse_args(arguments)
    names, modes = options.model.split(","), options.mode.split(",")
    if unknown := (set(names) - set(MODELS)) | (set(modes) - {"train", "infer"}):
        parser.error(f"no {', '.join(sorted(unknown))}")
    if not 1 <= options.devices <= jax.device_count():
        parser.error(f"there are {jax.device_count()} devices")
    own = options.batch and [int(n) for n in options.batch.split(",")]
    todo = [
        (name, mode, batch, options.engine)
        for name in names
        for mode in modes
        for batch in (own or MODELS[name].batches)
    ]
    if any(batch % options.devices for _, _, batch, _ in todo):
        parser.error(f"{options.devices} devices cannot share such a batch evenly")
    places = Places.over(options.devices)
    environment = record.environment() | {"devices": str(options.devices)}
    console = Console(width=None if Console().is_terminal else 120, soft_wrap=True)
    rows = []
    progress = Progress(console=console, transient=True)
    with progress, contextlib.suppress(KeyboardInterrupt):
        states = {
            name: jax.device_put(State.of(MODELS[name]), places.state) for name in names
        }
        ready = compiled(partial(prepare, states=states, places=places), todo, progress)
        todo = list(zip(todo, ready, strict=True))
        for case, sides in progress.track(todo, description="timing"):
            rows.append(measure(case, sides, states[case[0]]))
    several = f"-{options.devices}-devices" if options.devices > 1 else ""
    name = f"models{several}-{record.slug(environment)}"
    stem = options.out or record.RESULTS / name
    path = record.save({"environment": environment, "rows": rows}, stem)
    console.print(", ".join(f"{k} {v}" for k, v in environment.items()))
    console.print(table(rows))
    console.print(f"wrote {path}")
