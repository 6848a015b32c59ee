# SPDX-License-Identifier: Apache-2.0
"""Losses of a network that is trained with our layers and with Flax's.

Both sides start from the same parameters and see the same batches, a new one at each
step.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

# Losses of the last steps, whose mean is shown.
LAST = 10


def train(case: Any, sides: list[Any], state: Any, steps: int) -> dict:
    """A row of the result: the losses of `steps` steps of both sides."""
    draw = jax.jit(partial(case.model.batch, size=case.batch))
    key = jax.random.key(1, impl="rbg")
    row = {"model": case.name, "batch": case.batch, "engine": case.engine}
    for side in sides:
        side.start(state)
        losses = []
        for step in range(steps):
            side.take(draw(jax.random.fold_in(key, step)))
            side.queue()
            losses.append(float(side.result()))
        row[side.name] = losses
        side.release()
    return row | difference(row)


def difference(row: dict) -> dict:
    """The largest difference of the two, and the step that has it."""
    apart = np.abs(np.subtract(row["ours"], row["stock"]))
    step = int(apart.argmax())
    return {"largest_difference": float(apart[step]), "at_step": step}


def table(rows: list[dict]) -> Table:
    view = Table(title="losses")
    view.add_column("model")
    for heading in ("batch", "steps", "first", "ours", "stock", "largest difference"):
        view.add_column(heading, justify="right")
    for row in rows:
        ours, stock = row["ours"], row["stock"]
        cells = [row["model"], str(row["batch"]), str(len(ours)), f"{stock[0]:.4f}"]
        cells += [f"{np.mean(losses[-LAST:]):.4f}" for losses in (ours, stock)]
        cells.append(f"{row['largest_difference']:.2e} at step {row['at_step']}")
        view.add_row(*cells)
    return view


def draw(rows: list[dict], environment: dict[str, str], stem: Path) -> Path:
    """Writes STEM.png: a panel for each row, both curves in it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(rows), figsize=(5 * len(rows), 4), squeeze=False, layout="constrained"
    )
    for row, ax in zip(rows, axes[0], strict=True):
        ax.plot(row["stock"], color="#999999", linewidth=3, label="Flax's layers")
        ax.plot(row["ours"], color="#c0392b", linewidth=1, label="ours")
        ax.set_title(
            f"{row['model']}, batch {row['batch']}: "
            f"differs by {row['largest_difference']:.1e} at the most",
            fontsize=9,
        )
        ax.set_xlabel("step")
        ax.set_ylabel("loss")
        ax.legend()
    figure.suptitle(f"{environment['device']}, jax {environment['jax']}", fontsize=9)
    path = stem.with_name(stem.name + ".png")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
