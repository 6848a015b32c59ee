# SPDX-License-Identifier: Apache-2.0
"""Whole networks: training and inference steps with our layers and with Flax's.

    python -m benchmarks models [--model resnet50,unet] [--mode train,infer]
                                [--batch 8,64,256] [--engine auto] [--devices 1]
                                [--small] [--curves 200]

A training step is loss, gradients, batch statistics and the optimizer, jitted, its
state donated, so that steps follow each other as in training. Both sides start from
the same parameters, and their losses of the first steps are compared before anything
is timed. `--devices` that share each batch make a data-parallel program, with ours and
with Flax's layers. Writes STEM.json and prints a table; interrupted, of the rows that
are done. `--curves` trains both sides on the same batches instead, and draws their
losses.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import model_curves, record
from benchmarks.jax_side import compiled
from benchmarks.model_list import MODELS, SMALL, Model, State
from benchmarks.networks import layers
from jax_convbatch._select import plan
from jax_convbatch._tune import timing

CHECKED_STEPS = 3


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
        made_of: layers.Layers,
        batch: int,
        mode: str,
        state: State,
        places: Places,
    ):
        self.name, self._model, self._batch = name, model, batch
        self._state, self._out, self._places = None, None, places
        network = model.network(made_of, mode)
        shapes = jax.eval_shape(partial(model.batch, size=batch), _key())
        inputs, targets = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=places.batch),
            shapes,
        )
        self.trains = mode == "train"
        if self.trains:
            step = jax.jit(partial(_train, network, model), donate_argnums=0)
            self._step = step.lower(state, inputs, targets).compile()
        else:
            step = jax.jit(network.apply)
            self._step = step.lower(state.variables, *inputs).compile()

    def start(self, state: State) -> None:
        draw = jax.jit(partial(self._model.batch, size=self._batch))
        self.take(draw(_key()))
        self._state = _copied(state) if self.trains else state.variables

    def take(self, batch: tuple[tuple, Any]) -> None:
        """Inputs and targets of the next steps."""
        self._inputs, self._targets = jax.device_put(batch, self._places.batch)

    def release(self) -> None:
        self._state = self._out = self._inputs = self._targets = None

    def queue(self) -> None:
        if not self.trains:
            self._out = None
            self._out = self._step(self._state, *self._inputs)
            return
        self._state, self._out = self._step(self._state, self._inputs, self._targets)

    def wait(self) -> None:
        timing.wait_for((self._state, self._out))

    def result(self) -> np.ndarray:
        """The loss of the last step, or what the network gave."""
        return np.asarray(self._out, np.float64)

    def first(self) -> np.ndarray:
        """The results of the first steps."""
        results = []
        for _ in range(CHECKED_STEPS):
            self.queue()
            results.append(self.result())
        return np.stack(results)

    def memory(self) -> int | None:
        """Bytes of temporaries that XLA planned, where it says so."""
        analysis = self._step.memory_analysis()
        return getattr(analysis, "temp_size_in_bytes", None)


def _key() -> jax.Array:
    return jax.random.key(0, impl="rbg")


@jax.jit
def _copied(state):
    """As a step overwrites its state."""
    return jax.tree.map(jnp.copy, state)


def _train(network, model: Model, state: State, inputs: tuple, targets):
    variables, moments = state
    params = variables["params"]
    rest = {k: v for k, v in variables.items() if k != "params"}

    def loss_of(params):
        outputs, updated = network.apply(
            {"params": params, **rest}, *inputs, mutable=list(rest)
        )
        return model.task.loss(outputs, targets), updated

    (loss, updated), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    updates, moments = model.optimizer.update(grads, moments, params)
    params = optax.apply_updates(params, updates)
    return State({"params": params, **updated}, moments), loss


class Case(NamedTuple):
    """A row of the result."""

    name: str
    model: Model
    mode: str
    batch: int
    engine: str


def prepare(
    case: Case, states: dict[str, State], places: Places, stock: Executor
) -> list[Steps]:
    """Both sides of a row, compiled."""
    rest = (case.batch, case.mode, states[case.name], places)
    theirs = stock.submit(Steps, "stock", case.model, layers.STOCK, *rest)
    ours = Steps("ours", case.model, layers.ours(case.engine), *rest)
    return [ours, theirs.result()]


def measure(case: Case, sides: list[Steps], state: State) -> dict:
    """One row of the result.

    Raises:
      SystemExit: the sides' losses or results differ.
    """
    name, model, mode, batch, engine = case
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
    parser.add_argument(
        "--model", default="resnet50,mnist", help=f"of {', '.join(MODELS)}"
    )
    parser.add_argument("--mode", help="train, infer (default: each model's own)")
    parser.add_argument("--batch", help="batch sizes (default: each model's own)")
    parser.add_argument("--engine", default="auto", choices=plan.ALGORITHMS)
    parser.add_argument("--devices", type=int, default=1, help="that share a batch")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument(
        "--curves", type=int, metavar="STEPS", help="train, and draw the losses"
    )
    parser.add_argument(
        "--out", type=Path, help="path without suffix (default: benchmarks/results/...)"
    )
    options = parser.parse_args(arguments)
    models = SMALL if options.small else MODELS
    names = options.model.split(",")
    modes = options.mode.split(",") if options.mode else []
    if options.curves:
        modes = ["train"]
    if unknown := (set(names) - set(models)) | (set(modes) - {"train", "infer"}):
        parser.error(f"no {', '.join(sorted(unknown))}")
    if not 1 <= options.devices <= jax.device_count():
        parser.error(f"there are {jax.device_count()} devices")
    own = options.batch and [int(n) for n in options.batch.split(",")]
    todo = [
        Case(name, models[name], mode, batch, options.engine)
        for name in names
        for mode in (modes or models[name].modes)
        for batch in (own or models[name].batches)
    ]
    if any(case.batch % options.devices for case in todo):
        parser.error(f"{options.devices} devices cannot share such a batch evenly")
    places = Places.over(options.devices)
    environment = record.environment() | {"devices": str(options.devices)}
    console = Console(width=None if Console().is_terminal else 120, soft_wrap=True)
    rows = []
    work = measure
    if options.curves:
        work = partial(model_curves.train, steps=options.curves)
    progress = Progress(console=console, transient=True)
    with progress, contextlib.suppress(KeyboardInterrupt):
        states = {
            name: jax.device_put(State.of(models[name]), places.state) for name in names
        }
        ready = compiled(partial(prepare, states=states, places=places), todo, progress)
        todo = list(zip(todo, ready, strict=True))
        for case, sides in progress.track(todo, description="running"):
            rows.append(work(case, sides, states[case.name]))
    several = f"-{options.devices}-devices" if options.devices > 1 else ""
    kind = "curves" if options.curves else "models"
    name = f"{kind}{several}-{record.slug(environment)}"
    stem = options.out or record.RESULTS / name
    path = record.save({"environment": environment, "rows": rows}, stem)
    console.print(", ".join(f"{k} {v}" for k, v in environment.items()))
    console.print(model_curves.table(rows) if options.curves else table(rows))
    if options.curves:
        console.print(f"wrote {model_curves.draw(rows, environment, stem)}")
    console.print(f"wrote {path}")
