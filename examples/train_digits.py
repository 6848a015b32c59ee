# SPDX-License-Identifier: Apache-2.0
"""Trains a small convnet on 1,797 handwritten digits, on CPU or GPU.

    python examples/train_digits.py              with jax_convbatch
    python examples/train_digits.py --conv lax   with JAX's own convolution
    python examples/train_digits.py --compare    with both, side by side

Needs `pip install 'jax_convbatch[examples]'`. The digits come with scikit-learn.
"""

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from flax import nnx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jax_convbatch
from jax_convbatch.flax.nnx import Conv

TEST_IMAGES = 360
CONVOLUTIONS = {
    "ours": jax_convbatch.conv_general_dilated,
    "lax": jax.lax.conv_general_dilated,
}


class Net(nnx.Module):
    """8x8 images [N, 8, 8, 1] to scores of the ten digits [N, 10]."""

    def __init__(self, conv, rngs: nnx.Rngs):
        options = dict(activation="relu", conv_general_dilated=conv, rngs=rngs)
        self.conv1 = Conv(1, 32, (3, 3), **options)
        self.conv2 = Conv(32, 64, (3, 3), strides=2, **options)
        self.conv3 = Conv(64, 64, (3, 3), strides=2, **options)
        self.scores = nnx.Linear(2 * 2 * 64, 10, rngs=rngs)

    def __call__(self, images):
        x = self.conv3(self.conv2(self.conv1(images)))
        return self.scores(x.reshape(len(x), -1))


def loss_and_hits(model, images, labels):
    scores = model(images)
    loss = optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
    return loss, jnp.sum(scores.argmax(-1) == labels)


@nnx.jit
def train_step(model, optimizer, images, labels):
    gradient = nnx.value_and_grad(loss_and_hits, has_aux=True)
    (loss, hits), grads = gradient(model, images, labels)
    optimizer.update(model, grads)
    return loss, hits


@nnx.jit
def evaluate(model, images, labels):
    probabilities = nnx.softmax(model(images))
    return *loss_and_hits(model, images, labels), probabilities


class Epoch(NamedTuple):
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    seconds: float


class Result(NamedTuple):
    epochs: list[Epoch]
    probabilities: np.ndarray  # of each digit, for the test images


def load_split():
    """(images, labels) to train on and to test on, always the same ones."""
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    parts = train_test_split(
        images, labels, test_size=TEST_IMAGES, random_state=0, stratify=labels
    )
    return parts[::2], parts[1::2]


def shifted(images, rng):
    """Each image moved by up to one pixel, which is the same digit."""
    count, height, width, _ = images.shape
    padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    top, left = rng.integers(0, 3, (2, count, 1, 1))
    rows, columns = np.arange(height)[:, None], np.arange(width)
    return padded[np.arange(count)[:, None, None], rows + top, columns + left]


def train(name, args, data, progress) -> Result:
    (images, labels), test = data
    steps = len(images) // args.batch
    bar = progress.add_task(name, total=args.epochs * steps, note="compiling")
    model = Net(CONVOLUTIONS[name], nnx.Rngs(args.seed))
    rate = optax.cosine_decay_schedule(3e-3, args.epochs * steps)
    optimizer = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param)
    rng = np.random.default_rng(args.seed)
    epochs = []
    for _ in range(args.epochs):
        start = time.perf_counter()
        losses, hits = [], []
        order = rng.permutation(len(images))[: steps * args.batch]
        for batch in order.reshape(steps, args.batch):
            moved = shifted(images[batch], rng)
            loss, hit = train_step(model, optimizer, moved, labels[batch])
            losses.append(loss)
            hits.append(hit)
            progress.advance(bar)
        test_loss, test_hits, probabilities = evaluate(model, *test)
        epochs.append(
            Epoch(
                float(np.mean(losses)),
                float(np.sum(hits)) / len(order),
                float(test_loss),
                int(test_hits) / len(test[1]),
                time.perf_counter() - start,
            )
        )
        progress.update(bar, note=f"{epochs[-1].test_accuracy:.1%} of test images")
    return Result(epochs, np.asarray(probabilities))


def epochs_table(name, result) -> Table:
    table = Table(title=f"Convolutions: {name}")
    for heading in ("epoch", "train loss", "train acc.", "test loss", "test acc.", "s"):
        table.add_column(heading, justify="right")
    for number, e in enumerate(result.epochs, start=1):
        table.add_row(
            str(number),
            f"{e.train_loss:.4f}",
            f"{e.train_accuracy:.2%}",
            f"{e.test_loss:.4f}",
            f"{e.test_accuracy:.2%}",
            f"{e.seconds:.2f}",
        )
    return table


def comparison_table(results) -> Table:
    table = Table(title=f"Side by side, on {jax.devices()[0].device_kind}")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")

    def row(heading, cell):
        table.add_row(heading, *map(cell, results.values()))

    row("test accuracy", lambda r: f"{r.epochs[-1].test_accuracy:.2%}")
    row("test loss", lambda r: f"{r.epochs[-1].test_loss:.4f}")
    row("first epoch, compiles", lambda r: f"{r.epochs[0].seconds:.2f} s")
    row("later epochs, median", later_epoch)
    row("all epochs", lambda r: f"{sum(e.seconds for e in r.epochs):.2f} s")
    return table


def later_epoch(result) -> str:
    later = [e.seconds for e in result.epochs[1:]]
    return f"{statistics.median(later):.3f} s" if later else "-"


def draw(results, test, path) -> None:
    """Curves of every run, and the test digits that were hardest for the first."""
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(10, 7.2), layout="constrained")
    curves, digits = figure.subfigures(2, 1, height_ratios=[4, 3.2])
    loss, accuracy = curves.subplots(1, 2)
    for (name, result), style in zip(results.items(), ("-", "--"), strict=False):
        at = range(1, len(result.epochs) + 1)
        for part, color in (("train", "tab:blue"), ("test", "tab:orange")):
            look = dict(color=color, ls=style, marker=".", label=f"{part}, {name}")
            values = [getattr(e, f"{part}_loss") for e in result.epochs]
            loss.semilogy(at, values, **look)
            values = [100 * getattr(e, f"{part}_accuracy") for e in result.epochs]
            accuracy.plot(at, values, **look)
    for axes, title in ((loss, "loss"), (accuracy, "accuracy, %")):
        axes.set(title=title, xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()

    images, labels = test
    name, result = next(iter(results.items()))
    read = result.probabilities.argmax(-1)
    right = result.probabilities[np.arange(len(labels)), labels]
    hardest = np.lexsort((right, read == labels))
    cells = digits.subplots(2, 8).ravel()
    for cell, i in zip(cells, hardest, strict=False):
        cell.imshow(images[i, ..., 0], cmap="gray_r")
        cell.axis("off")
        wrong = read[i] != labels[i]
        title = f"{labels[i]} read as {read[i]}" if wrong else f"{labels[i]}"
        cell.set_title(
            f"{title}, {result.probabilities[i, read[i]]:.0%}",
            color="tab:red" if wrong else "black",
            fontsize=9,
        )
    digits.suptitle(
        f"the hardest test digits and how certain the answer was: "
        f"{np.sum(read != labels)} of {len(labels)} misread (red), with {name}"
    )
    figure.savefig(path, dpi=120)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--conv", choices=CONVOLUTIONS, default="ours", help="which convolution")
    add("--compare", action="store_true", help="train with each of them")
    add("--epochs", type=int, default=30)
    add("--batch", type=int, default=64, help="images in a training step")
    add("--seed", type=int, default=0, help="of the first weights and the order")
    add("--out", type=Path, default=Path("out/digits.png"), help="the picture")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {args.epochs}")
    if not 1 <= args.batch <= 1797 - TEST_IMAGES:
        parser.error(
            f"--batch must be between 1 and the {1797 - TEST_IMAGES} training "
            f"images, got {args.batch}"
        )
    if not 0 <= args.seed < 2**32:
        parser.error(f"--seed must be between 0 and 2^32 - 1, got {args.seed}")
    if args.out.suffix.lower() != ".png":
        parser.error(f"--out must end in .png, got {args.out}")
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(args.out.parent, os.W_OK):
            raise PermissionError(f"no permission to write in {args.out.parent}")
    except OSError as error:
        parser.error(f"--out cannot be written: {error}")
    return args


def main() -> None:
    args = parse_arguments()
    console = Console()
    data = load_split()
    names = list(CONVOLUTIONS) if args.compare else [args.conv]
    columns = (
        TextColumn("{task.description:>4}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        results = {name: train(name, args, data, progress) for name in names}
    for name, result in results.items():
        console.print(epochs_table(name, result))
    if args.compare:
        console.print(comparison_table(results))
    draw(results, data[1], args.out)
    scores = " and ".join(
        f"{result.epochs[-1].test_accuracy:.2%} with {name} "
        f"({sum(e.seconds for e in result.epochs):.1f} s)"
        for name, result in results.items()
    )
    print(
        f"train_digits: {len(data[0][1])} digits, {args.epochs} epochs; of "
        f"{TEST_IMAGES} others read {scores}; picture in {args.out}"
    )


if __name__ == "__main__":
    main()
