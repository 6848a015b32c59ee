# SPDX-License-Identifier: Apache-2.0
"""Trains a ResNet-18 or -50 on real images, on CPU or GPU, and can be interrupted.

    python examples/train_resnet.py                    handwritten digits
    python examples/train_resnet.py --images FOLDER    a folder for each class
    python examples/train_resnet.py --conv lax         with JAX's own convolution
    python examples/train_resnet.py --compare          with both, side by side

Needs `pip install 'jax_convbatch[examples]'`. The digits come with scikit-learn. Every
epoch is saved under --checkpoints. A run with the same folder continues where the last
one stopped.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.networks import DEPTHS, ResNet
from jax_convbatch.flax import linen

CONVOLUTIONS = {"ours": linen.Conv, "lax": nn.Conv}
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


class Data(NamedTuple):
    """Images [count, size, size, channels] of mean 0 and size 1, and labels."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    classes: tuple[str, ...]


class Epoch(NamedTuple):
    loss: float
    accuracy: float
    test_accuracy: float
    seconds: float


def load(folder: Path | None, size: int) -> Data:
    """The digits, or the pictures of a folder with one subfolder a class."""
    if folder is None:
        digits = load_digits()
        pictures = [
            Image.fromarray(np.uint8(16 * i.clip(0, 15))) for i in digits.images
        ]
        labels, classes = digits.target, tuple(map(str, range(10)))
    else:
        classes = tuple(sorted(p.name for p in folder.iterdir() if p.is_dir()))
        files = [
            (path, label)
            for label, name in enumerate(classes)
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in SUFFIXES
        ]
        if len(classes) < 2 or len(files) < 8:
            raise SystemExit(
                f"train_resnet: {folder} needs two folders or more with pictures "
                f"({', '.join(SUFFIXES)}), and has {len(classes)} with {len(files)}"
            )
        pictures = [Image.open(path).convert("RGB") for path, _ in files]
        labels = [label for _, label in files]
    images = np.stack([np.asarray(square(p, size)) for p in pictures])
    images = images.astype(np.float32)
    images = images[..., None] if images.ndim == 3 else images
    images = (images - images.mean()) / images.std()
    parts = train_test_split(
        images, np.int32(labels), test_size=0.2, random_state=0, stratify=labels
    )
    return Data(tuple(parts[::2]), tuple(parts[1::2]), classes)


def square(picture, size: int):
    """The middle of a picture, size x size."""
    side = min(picture.size)
    left, top = ((n - side) // 2 for n in picture.size)
    return picture.crop((left, top, left + side, top + side)).resize((size, size))


def shifted(images, rng):
    """Each image moved by up to an eighth, which is the same thing."""
    count, size = images.shape[:2]
    most = max(1, size // 8)
    padded = np.pad(images, [(0, 0), (most, most), (most, most), (0, 0)], mode="edge")
    top, left = rng.integers(0, 2 * most + 1, (2, count, 1, 1))
    rows, columns = np.arange(size)[:, None], np.arange(size)
    return padded[np.arange(count)[:, None, None], rows + top, columns + left]


def make_steps(args, conv, classes: int, steps: int):
    """Functions of the state: its start, a training step, a number of hits."""
    options = dict(
        conv=conv,
        depth=args.depth,
        width=args.width,
        classes=classes,
        dtype=jnp.dtype(args.dtype),
        small=args.size <= 64,
    )
    learner, reader = ResNet(**options, train=True), ResNet(**options, train=False)
    rate = optax.cosine_decay_schedule(args.rate, steps)
    optimizer = optax.adam(rate)

    @jax.jit
    def start(image):
        variables = learner.init(jax.random.key(args.seed), image)
        return variables, optimizer.init(variables["params"])

    @partial(jax.jit, donate_argnums=0)
    def train_step(state, images, labels):
        variables, moments = state
        rest = {k: v for k, v in variables.items() if k != "params"}

        def loss_of(params):
            scores, updated = learner.apply(
                {"params": params, **rest}, images, mutable=list(rest)
            )
            loss = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            return loss.mean(), (updated, (scores.argmax(-1) == labels).sum())

        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (updated, hits)), grads = gradient(variables["params"])
        updates, moments = optimizer.update(grads, moments)
        params = optax.apply_updates(variables["params"], updates)
        return ({"params": params, **updated}, moments), loss, hits

    @jax.jit
    def count_hits(state, images, labels):
        return (reader.apply(state[0], images).argmax(-1) == labels).sum()

    return start, train_step, count_hits


def train(name: str, args, data: Data, progress) -> list[Epoch]:
    """The epochs that were missing, after those of the checkpoint."""
    images, labels = data.train
    steps = len(images) // args.batch
    start, train_step, count_hits = make_steps(
        args, CONVOLUTIONS[name], len(data.classes), args.epochs * steps
    )
    state = start(images[:1])
    folder = args.checkpoints.resolve() / f"{name}-resnet{args.depth}-{args.dtype}"
    epochs: list[Epoch] = []
    with ocp.CheckpointManager(
        folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)
    ) as manager:
        done = manager.latest_step() or 0
        if done:
            kept = manager.restore(
                done,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(state), epochs=ocp.args.JsonRestore()
                ),
            )
            state, epochs = kept["state"], [Epoch(*e) for e in kept["epochs"]]
        task = progress.add_task(
            name, total=args.epochs * steps, completed=done * steps, note=f"from {done}"
        )
        for epoch in range(done, args.epochs):
            begin = time.perf_counter()
            # By seed and epoch: a run that goes on sees what it would have seen.
            rng = np.random.default_rng((args.seed, epoch))
            order = rng.permutation(len(images))[: steps * args.batch]
            losses, hits = [], []
            for chosen in order.reshape(steps, args.batch):
                batch = shifted(images[chosen], rng)
                state, loss, hit = train_step(state, batch, labels[chosen])
                losses.append(loss)
                hits.append(hit)
                progress.advance(task)
            right = sum(
                int(count_hits(state, *(a[i : i + args.batch] for a in data.test)))
                for i in range(0, len(data.test[1]), args.batch)
            )
            epochs.append(
                Epoch(
                    float(np.mean(losses)),
                    float(np.sum(hits)) / len(order),
                    right / len(data.test[1]),
                    time.perf_counter() - begin,
                )
            )
            progress.update(task, note=f"{epochs[-1].test_accuracy:.1%} of test images")
            manager.save(
                epoch + 1,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state),
                    epochs=ocp.args.JsonSave([list(e) for e in epochs]),
                ),
            )
    return epochs


def table(results: dict[str, list[Epoch]]) -> Table:
    view = Table(title=f"On {jax.devices()[0].device_kind}")
    for heading in ("conv", "epochs", "loss", "train acc.", "test acc.", "s an epoch"):
        view.add_column(heading, justify="right")
    for name, epochs in results.items():
        last = epochs[-1]
        # The first epoch compiles.
        seconds = statistics.median(e.seconds for e in epochs[1:] or epochs)
        view.add_row(
            name,
            str(len(epochs)),
            f"{last.loss:.4f}",
            f"{last.accuracy:.2%}",
            f"{last.test_accuracy:.2%}",
            f"{seconds:.2f}",
        )
    return view


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--conv", choices=CONVOLUTIONS, default="ours", help="which convolution")
    add("--compare", action="store_true", help="train with each of them")
    add("--images", type=Path, help="a folder with one folder of pictures a class")
    add("--depth", type=int, choices=DEPTHS, default=18)
    add("--width", type=int, default=64, help="channels of the first stage")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--size", type=int, default=32, help="pixels of an image's side")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=64, help="images in a training step")
    add("--rate", type=float, default=1e-3, help="first learning rate")
    add("--seed", type=int, default=0, help="of the first weights and the order")
    add("--checkpoints", type=Path, default=Path("out/resnet"), help="folder to keep")
    args = parser.parse_args()
    for name in ("width", "size", "epochs", "batch"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.images is not None and not args.images.is_dir():
        parser.error(f"--images must be a folder, got {args.images}")
    return args


def main() -> None:
    args = parse_arguments()
    data = load(args.images, args.size)
    if args.batch > len(data.train[0]):
        raise SystemExit(
            f"train_resnet: --batch {args.batch} is more than the "
            f"{len(data.train[0])} images to train on"
        )
    console = Console()
    columns = (
        TextColumn("{task.description:>4}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[note]}"),
    )
    names = list(CONVOLUTIONS) if args.compare else [args.conv]
    with Progress(*columns, console=console) as progress:
        results = {name: train(name, args, data, progress) for name in names}
    console.print(table(results))
    scores = " and ".join(
        f"{epochs[-1].test_accuracy:.2%} with {name}"
        for name, epochs in results.items()
    )
    print(
        f"train_resnet: ResNet-{args.depth}, {args.dtype}, {len(data.train[0])} "
        f"images, {args.epochs} epochs; of {len(data.test[0])} others read {scores}"
    )


if __name__ == "__main__":
    main()
