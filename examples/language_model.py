# SPDX-License-Identifier: Apache-2.0
"""Trains a small Mamba-2 language model on Python's own manual, and decodes with it.

    python examples/language_model.py              with causal_conv1d
    python examples/language_model.py --conv jnp   with sums of shifted copies
    python examples/language_model.py --compare    with these and jax.lax, side by side

Needs `pip install 'jax_convbatch[examples]'`. The text, some 400 kB, is that of
`help()`. Tokens are bytes. The model is in mamba2.py.
"""

import argparse
import os
import re
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.causal_convolutions import CONVOLUTIONS
from examples.mamba2 import LanguageModel

BYTES = 256
TEMPERATURE = 0.7  # of the decoded text
CHECKED = 100  # positions that are computed both in parallel and by steps


class Result(NamedTuple):
    losses: list[float]  # bits a byte, of each step
    held_out: float  # bits a byte of text that was not trained on
    first_step: float  # seconds, with compilation
    trained: float  # tokens a second, by the median of the other steps
    decoded: float  # tokens a second, one sample
    difference: float  # between the logits in parallel and by steps, at most
    text: str


def load_text():
    """Text to train on, and a tenth held out, in which no paragraph is repeated."""
    paragraphs = (p for t in topics.values() for p in re.split("\n\n+", t.strip()))
    text = "\n\n".join(dict.fromkeys(paragraphs)).encode()
    tokens = np.frombuffer(text, np.uint8).astype(np.int32)
    return np.split(tokens, [len(tokens) * 9 // 10])


def unigram_entropy(tokens) -> float:
    """Bits a byte of a model that knows how often each byte occurs."""
    p = np.bincount(tokens) / len(tokens)
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


def bits_and_states(model, tokens, states):
    logits, states = model(tokens[:, :-1], states)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return nats.mean() / jnp.log(2), states


@nnx.jit
def train_step(model, optimizer, tokens):
    gradient = nnx.value_and_grad(bits_and_states, has_aux=True)
    (bits, _), grads = gradient(model, tokens, model.start(len(tokens)))
    optimizer.update(model, grads)
    return bits


read = nnx.jit(bits_and_states)


def evaluate(model, tokens, args) -> float:
    """Bits a byte of a text, read in parts, each with the state of the one before."""
    parts = (len(tokens) - 1) // (args.batch * args.length)
    size = parts * args.length
    starts = size * np.arange(args.batch)[:, None]
    states, found = model.start(args.batch), []
    for at in range(0, size, args.length):
        part = tokens[starts + at + np.arange(args.length + 1)]
        bits, states = read(model, part, states)
        found.append(float(bits))
    return float(np.mean(found))


@nnx.jit
def prefill(model, tokens):
    """Logits of the token after these and the states there, for `decode`."""
    logits, states = model(tokens, model.start(len(tokens)))
    return logits[:, -1], states


# States are donated: those that follow take their memory.
@nnx.jit(static_argnames="count", donate_argnames="states")
def decode(model, logits, states, key, count):
    """Draws `count` tokens, each from the logits that the one before gave."""

    def step(carry, key):
        logits, states = carry
        token = jax.random.categorical(key, logits / TEMPERATURE)
        return model.step(token, states), token

    keys = jax.random.split(key, count)
    (_, states), tokens = jax.lax.scan(step, (logits, states), keys)
    return tokens.T, states


@nnx.jit
def difference(model, tokens):
    """Between the logits of all positions in parallel and one by one, at most."""
    start = model.start(len(tokens))

    def step(states, token):
        logits, states = model.step(token, states)
        return states, logits

    _, steps = jax.lax.scan(step, start, tokens.T)
    return jnp.abs(model(tokens, start)[0] - steps.swapaxes(0, 1)).max()


def make_optimizer(model, args):
    warmup = max(1, args.steps // 10)
    rate = optax.warmup_cosine_decay_schedule(0, args.rate, warmup, args.steps)
    # Matrices decay; norms, biases and what the heads forget do not.
    matrices = partial(jax.tree.map, lambda p: p.ndim > 1)
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(rate, weight_decay=0.1, mask=matrices),
    )
    return nnx.Optimizer(model, rule, wrt=nnx.Param)


def run(name, args, data, progress) -> Result:
    text, held_out = data
    bar = progress.add_task(name, total=args.steps, note="compiling")
    model = LanguageModel(
        BYTES,
        args.width,
        args.blocks,
        conv=CONVOLUTIONS[name],
        rngs=nnx.Rngs(args.seed),
    )
    optimizer = make_optimizer(model, args)
    rng = np.random.default_rng(args.seed)
    window = np.arange(args.length + 1)
    losses, seconds = [], []
    for _ in range(args.steps):
        begin = time.perf_counter()
        starts = rng.integers(0, len(text) - args.length, (args.batch, 1))
        losses.append(float(train_step(model, optimizer, text[starts + window])))
        seconds.append(time.perf_counter() - begin)
        progress.update(bar, advance=1, note=f"{losses[-1]:.2f} bits a byte")

    prompt = np.frombuffer(args.prompt.encode(), np.uint8)[None].astype(np.int32)
    key = jax.random.key(args.seed)
    decoding = []
    for _ in range(6):  # the first one compiles
        state = jax.block_until_ready(prefill(model, prompt))
        begin = time.perf_counter()
        drawn, _ = decode(model, *state, key, args.tokens)
        drawn.block_until_ready()
        decoding.append(time.perf_counter() - begin)
    return Result(
        losses,
        evaluate(model, held_out, args),
        seconds[0],
        args.batch * args.length / statistics.median(seconds[1:]),
        args.tokens / statistics.median(decoding[1:]),
        float(difference(model, held_out[None, :CHECKED])),
        bytes(np.asarray(drawn[0], np.uint8)).decode(errors="replace"),
    )


def table(results) -> Table:
    view = Table(title=f"On {jax.devices()[0].device_kind}")
    view.add_column("")
    for name in results:
        view.add_column(name, justify="right")

    def row(heading, cell):
        view.add_row(heading, *map(cell, results.values()))

    row("bits a byte, last steps", lambda r: f"{np.mean(r.losses[-20:]):.3f}")
    row("bits a byte, held out", lambda r: f"{r.held_out:.3f}")
    row("first step, compiles", lambda r: f"{r.first_step:.1f} s")
    row("training, tokens a second", lambda r: f"{r.trained:,.0f}")
    row("decoding, tokens a second", lambda r: f"{r.decoded:,.0f}")
    row("parallel - step by step", lambda r: f"{r.difference:.1e}")
    return view


def draw(results, unigram, path) -> None:
    """The loss of every run, and its tokens a second."""
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, (loss, training, decoding) = plt.subplots(
        1, 3, figsize=(11, 5), layout="constrained", width_ratios=[3, 1, 1]
    )
    for (name, result), style in zip(results.items(), ("-", "--", ":"), strict=False):
        steps = range(1, len(result.losses) + 1)
        label = f"{name}: {result.held_out:.2f} held out"
        loss.plot(steps, result.losses, ls=style, lw=1.2, label=label)
    loss.axhline(unigram, color="gray", ls="-.", label=f"unigrams: {unigram:.2f}")
    loss.set(title="loss, bits a byte", xlabel="step")
    loss.set_ylim(bottom=0)
    loss.grid(alpha=0.3)
    loss.legend()
    colors = [f"C{i}" for i in range(len(results))]
    for axes, part in ((training, "trained"), (decoding, "decoded")):
        values = [getattr(r, part) for r in results.values()]
        bars = axes.bar(list(results), values, color=colors)
        axes.bar_label(bars, [f"{v:,.0f}" for v in values])
        axes.set(title=f"tokens/s {part}")
    figure.savefig(path, dpi=120)


def parse_arguments(held_out: int):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--conv", choices=CONVOLUTIONS, default="ours", help="which convolution")
    add("--compare", action="store_true", help="train with each of them")
    add("--steps", type=int, default=300)
    add("--batch", type=int, default=16, help="windows of text in a training step")
    add("--length", type=int, default=256, help="tokens of a window")
    add("--width", type=int, default=128, help="of the model, a multiple of 32")
    add("--blocks", type=int, default=2)
    add("--rate", type=float, default=5e-3, help="highest learning rate")
    add("--prompt", default="The statement ", help="what the decoded text continues")
    add("--tokens", type=int, default=500, help="to decode")
    add("--seed", type=int, default=0, help="of the first weights and the draws")
    add("--out", type=Path, default=Path("out/language_model.png"), help="the picture")
    args = parser.parse_args()
    for name in ("batch", "length", "width", "blocks", "tokens"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.steps < 2:
        parser.error(f"--steps must be at least 2, got {args.steps}")
    if args.batch * args.length >= held_out:
        parser.error(f"--batch times --length must be below {held_out}")
    if args.width % 32:
        parser.error(f"--width must be a multiple of 32, got {args.width}")
    if not args.prompt:
        parser.error("--prompt must not be empty")
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
    data = load_text()
    args = parse_arguments(len(data[1]))
    unigram = unigram_entropy(np.concatenate(data))
    console = Console()
    columns = (
        TextColumn("{task.description:>4}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[note]}"),
    )
    names = list(CONVOLUTIONS) if args.compare else [args.conv]
    with Progress(*columns, console=console) as progress:
        results = {name: run(name, args, data, progress) for name in names}
    text = results[names[0]].text
    console.print(args.prompt + text, markup=False, highlight=False)
    console.print(table(results))
    draw(results, unigram, args.out)
    scores = " and ".join(
        f"{r.held_out:.2f} bits a byte with {name}" for name, r in results.items()
    )
    print(
        f"language_model: {args.steps} steps on {len(data[0]):,} bytes; of "
        f"{len(data[1]):,} others {scores}, {unigram:.2f} by their frequencies; "
        f"picture in {args.out}"
    )


if __name__ == "__main__":
    main()
