"""Whole networks: training and inference steps with our layers and with Flax's.

    python -m benchmarks models [--model resnet50,mnist] [--mode train,infer]
                                [--batch 8,64,256] [--engine auto]

A training step is loss, gradients, batch statistics and SGD with momentum, jitted,
its state donated, so that steps follow each other as in training. Both sides start
from the same parameters, and their losses of the first steps are compared before
anything is timed. Writes STEM.json and prints a table; interrupted, of the rows that
are done.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch.flax.linen as jcb_linen
from benchmarks import record, timing
from examples.networks import MnistCnn, ResNet
from jax_convbatch import plan

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


class Steps:
    """Steps of a network as a side of a measurement."""

    calls = 1

    def __init__(self, name: str, model: Model, conv, batch: int, mode: str):
        self.name = name
        network = model.make(
            conv=conv,
            dtype=jnp.dtype(model.dtype),
            train=mode == "train",
            **model.options,
        )
        keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
        self._x = jax.random.normal(keys[0], (batch, *model.image), model.dtype)
        self._labels = jax.random.randint(keys[1], (batch,), 0, model.classes)
        self._state = jax.jit(network.init)(keys[2], self._x)
        self._out = None
        if mode == "infer":
            self._step = jax.jit(network.apply).lower(self._state, self._x).compile()
            return
        optimizer = optax.sgd(0.01 if model.make is ResNet else 0.1, momentum=0.9)
        state = (self._state, jax.jit(optimizer.init)(self._state["params"]))
        self._state = state
        step = jax.jit(partial(_train, network, optimizer), donate_argnums=0)
        self._step = step.lower(state, self._x, self._labels).compile()

    def queue(self) -> None:
        if not isinstance(self._state, tuple):
            self._out = None
            self._out = self._step(self._state, self._x)
            return
        self._state, self._out = self._step(self._state, self._x, self._labels)

    def wait(self) -> None:
        jax.block_until_ready((self._state, self._out))

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


def _train(network, optimizer, state, x, labels):
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
    return ({"params": params, **updated}, moments), loss


def measure(name: str, mode: str, batch: int, engine: str) -> dict:
    model = MODELS[name]
    ours = partial(jcb_linen.Conv, algorithm=engine)
    with ThreadPoolExecutor() as pool:  # they compile at once
        made = [
            pool.submit(Steps, side, model, conv, batch, mode)
            for side, conv in (("ours", ours), ("stock", nn.Conv))
        ]
    sides = [side.result() for side in made]
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
    parser.add_argument(
        "--out", type=Path, help="path without suffix (default: benchmarks/results/...)"
    )
    options = parser.parse_args(arguments)
    names, modes = options.model.split(","), options.mode.split(",")
    if unknown := (set(names) - set(MODELS)) | (set(modes) - {"train", "infer"}):
        parser.error(f"no {', '.join(sorted(unknown))}")
    own = options.batch and [int(n) for n in options.batch.split(",")]
    todo = [
        (name, mode, batch, options.engine)
        for name in names
        for mode in modes
        for batch in (own or MODELS[name].batches)
    ]
    environment = record.environment()
    console = Console(width=None if Console().is_terminal else 120, soft_wrap=True)
    rows = []
    progress = Progress(console=console, transient=True)
    with progress, contextlib.suppress(KeyboardInterrupt):
        for case in progress.track(todo, description="timing"):
            rows.append(measure(*case))
    stem = options.out or record.RESULTS / f"models-{record.slug(environment)}"
    path = record.save({"environment": environment, "rows": rows}, stem)
    console.print(", ".join(f"{k} {v}" for k, v in environment.items()))
    console.print(table(rows))
    console.print(f"wrote {path}")
