# SPDX-License-Identifier: Apache-2.0
"""Learns to align a stereo pair: where in the right image is each pixel of the left?

    python examples/align_stereo.py

A small network sees both images and predicts an offset for every pixel.
`jax_convbatch.deform_conv` with a 1x1 filter reads the right image there. The network
is trained on this one pair, from coarse to fine, to reproduce the left image. It is not
given the disparity. The program writes a picture of the images, of the error before and
after, and of the learned offsets.

Needs `pip install 'jax_convbatch[examples]'`. The pair, a motorcycle from the
Middlebury data set, comes with scikit-image.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from flax import nnx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from skimage.data import stereo_motorcycle

from jax_convbatch import deform_conv
from jax_convbatch.flax.nnx import Conv

LEVELS = (16, 8, 4)  # each image is smaller than the original by this
SMOOTHNESS = 0.05
CHANNELS = 32


class Refine(nnx.Module):
    """Offsets [N, H, W, 2] that improve on those given, (rows, columns) in pixels."""

    def __init__(self, rngs: nnx.Rngs):
        zeros = nnx.initializers.zeros_init()
        # Both images and the offsets so far.
        self.conv1 = Conv(8, CHANNELS, (5, 5), activation="relu", rngs=rngs)
        self.conv2 = Conv(CHANNELS, CHANNELS, (5, 5), activation="relu", rngs=rngs)
        self.conv3 = Conv(CHANNELS, 2, (5, 5), kernel_init=zeros, rngs=rngs)

    def __call__(self, left, right, offset):
        seen = jnp.concatenate([left, warp(right, offset), offset / 8], -1)
        return offset + self.conv3(self.conv2(self.conv1(seen)))


def warp(image, offset):
    """`image` [N, H, W, 3], read at each pixel's place plus its offset."""
    channels = image.shape[-1]
    same = jnp.ones((1, 1, 1, channels), image.dtype)
    return deform_conv(image, offset, same, groups=channels)


def loss_of(model, left, right, offset):
    offset = model(left, right, offset)
    difference = jnp.sqrt((warp(right, offset) - left) ** 2 + 1e-4).mean()
    rough = sum(jnp.abs(jnp.diff(offset, axis=axis)).mean() for axis in (1, 2))
    return difference + SMOOTHNESS * rough


@nnx.jit
def train_step(model, optimizer, left, right, offset):
    loss, grads = nnx.value_and_grad(loss_of)(model, left, right, offset)
    optimizer.update(model, grads)
    return loss


def shrunk(image, factor: int):
    """Means of squares of pixels: [H, W, C] to [1, H / factor, W / factor, C]."""
    rows, columns = (n // factor for n in image.shape[:2])
    blocks = image[: rows * factor, : columns * factor]
    blocks = blocks.reshape(rows, factor, columns, factor, -1).mean((1, 3))
    return blocks[None].astype(np.float32)


def grown(offset, shape):
    """Offsets of a level at the size of the next, in its pixels."""
    size = (1, *shape[1:3], 2)
    scale = np.array([n / o for n, o in zip(size[1:3], offset.shape[1:3], strict=True)])
    return jax.image.resize(offset, size, "linear") * scale.astype(np.float32)


def align(left, right, steps: int, seed: int, progress):
    """The finest level's images and offsets."""
    offset = None
    for factor in LEVELS:
        small = shrunk(left, factor), shrunk(right, factor)
        if offset is None:
            offset = jnp.zeros((*small[0].shape[:3], 2))
        offset = grown(offset, small[0].shape)
        model = Refine(nnx.Rngs(seed))
        optimizer = nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param)
        size = "x".join(map(str, small[0].shape[1:3]))
        bar = progress.add_task(size, total=steps, note="compiling")
        for _ in range(steps):
            loss = train_step(model, optimizer, *small, offset)
            progress.update(bar, advance=1, note=f"loss {float(loss):.4f}")
        offset = model(*small, offset)
    return *small, offset


def draw(path: Path, left, right, warped, offset, errors) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 7.5), layout="constrained")
    top, bottom = axes
    for ax, image, title in zip(
        top,
        (left, right, warped),
        ("left", "right", "right, read at the learned offsets"),
        strict=True,
    ):
        ax.imshow(np.clip(image, 0, 1))
        ax.set_title(title)
    for ax, image, name, error in zip(
        bottom, (right, warped), ("before", "after"), errors, strict=False
    ):
        ax.imshow(np.abs(image - left).mean(-1), cmap="magma", vmin=0, vmax=0.4)
        ax.set_title(f"error {name}: {error:.4f}")
    step = 8
    rows, columns = np.mgrid[: left.shape[0] : step, : left.shape[1] : step]
    arrows = offset[::step, ::step]
    bottom[2].imshow(np.clip(left, 0, 1), alpha=0.4)
    bottom[2].quiver(
        columns,
        rows,
        arrows[..., 1],
        arrows[..., 0],
        np.hypot(arrows[..., 0], arrows[..., 1]),
        angles="xy",
        scale_units="xy",
        scale=1,
        cmap="viridis",
    )
    bottom[2].set_title("learned offsets")
    for ax in axes.flat:
        ax.axis("off")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200, help="at each of 3 sizes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/align_stereo.png"))
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, got {args.steps}")
    if args.out.suffix != ".png":
        parser.error(f"--out must end in .png, got {args.out}")
    return args


def main() -> None:
    args = arguments()
    console = Console(soft_wrap=True)
    left, right, disparity = stereo_motorcycle()
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        small_left, small_right, offset = align(
            left / 255, right / 255, args.steps, args.seed, progress
        )
    warped = np.asarray(warp(small_right, offset))
    errors = [
        float(np.abs(image - small_left).mean()) for image in (small_right, warped)
    ]
    known = shrunk(np.where(np.isfinite(disparity), disparity, np.nan)[..., None], 4)
    off = np.abs(np.asarray(offset)[..., 1] + known[..., 0] / 4)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    one = (a[0] for a in (small_left, small_right, warped, np.asarray(offset)))
    draw(args.out, *one, errors)
    console.print(
        f"Half of the offsets are within {np.nanmedian(off):.2f} pixels of the "
        "measured disparity, which was not used."
    )
    console.print(
        f"align_stereo: error {errors[0]:.4f} before, {errors[1]:.4f} after; "
        f"wrote {args.out}"
    )


if __name__ == "__main__":
    main()
