# SPDX-License-Identifier: Apache-2.0
"""What the README says first about speed is what `benchmarks/results` has."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.report import geometric_mean, ratio, timed

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
STEM = "stem_224_7x7s2_3_64"


def rows(name):
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def layers(batch, peer):
    """Of conv + bias + relu with gradients: a peer's time over ours, the mean."""
    of = rows(f"layer-resnet50_v1-batch{batch}-bf16-nvidia-h200")
    return geometric_mean(r[peer]["median_us"] / r["ours"]["median_us"] for r in of)


def model(batch, mode):
    (row,) = (
        r
        for r in rows("models-nvidia-h200")
        if (r["model"], r["mode"], r["batch"]) == ("resnet50", mode, batch)
    )
    return row["over_stock"]


def operations(name, batch, layer=None):
    """`jax.lax`'s time over ours in fprop, dgrad and wgrad, the means."""
    of = [r for r in rows(name) if r["batch"] == batch and layer in (None, r["name"])]
    return [
        geometric_mean(ratio(r, timed(r)["auto"], "xla") for r in of if r["op"] == op)
        for op in ("fprop", "dgrad", "wgrad")
    ]


def stem(batch):
    return operations(f"resnet50-batch{batch}-bfloat16-nvidia-h200", batch, STEM)


# Of each line of the table: how it begins, and the figures at batch 8 and 256.
FIGURES = {
    "conv + bias + relu": lambda batch: [layers(batch, "stock")],
    "the same; baseline PyTorch": lambda batch: [layers(batch, "torch")],
    "a training step": lambda batch: [model(batch, "train")],
    "inference with the same network": lambda batch: [model(batch, "infer")],
    "ResNet-50's stem": stem,
    "ResNet-50's 23 layers, f32": lambda batch: (
        operations("layers-float32-cpu", 8) if batch == 8 else []
    ),
}


@pytest.mark.parametrize("line", FIGURES)
def test_the_first_table_is_what_was_measured(line):
    readme = (ROOT / "README.md").read_text()
    (found,) = re.findall(rf"^\| {re.escape(line)}.*$", readme, re.MULTILINE)[:1]
    cells = found.strip("| ").split(" | ")[1:]
    for batch, cell in zip((8, 256), [*cells, ""], strict=False):
        shown = re.findall(r"\d+\.\d+", cell)
        digits = [len(each.partition(".")[2]) for each in shown]
        want = FIGURES[line](batch)
        assert len(shown) == len(want), (batch, cell)
        for text, number, places in zip(shown, want, digits, strict=True):
            assert text == f"{number:.{places}f}", (batch, cell)


def test_the_unet_is_as_measured():
    text = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"U-Net without attention\]\S+ trains (\d\.\d\d) times", text)
    (row,) = (r for r in rows("models-diffusion-nvidia-h200") if r["model"] == "unet")
    assert row["mode"] == "train" and shown == f"{row['over_stock']:.2f}"


RANGE = "range-seeds456-459-nvidia-h200"
# Where random operations are told of: a sentence, and a line of a table.
TOLD = {
    "README.md": (
        r"On one H200, for (\d+) random operations that nothing was\s+tuned on, the "
        r"mean speed-up over the faster of `jax\.lax` and PyTorch's cuDNN is "
        r"(\d\.\d\d) \(commit (\w{7})\)\. (\d+) of them are behind by more than\s+5%\. "
        r"The worst speed-up is (\d\.\d\d) [\s\S]*?Of (\d+) random ones (\d+) are "
        r"behind by\s+"
        r"more\s+than 5%, (\w+) by more than 20%",
        (
            *("compared", "geometric_mean", "commit", "below_0.95", "worst"),
            *("compared", "below_0.95", "below_0.80"),
        ),
    ),
    "docs/performance.md": (
        r"\| 456 to 459 \| (\d+) \| (\d\.\d\d) \| (\d+) \| (\d+) "
        rf"\| (\w{{7}}) .*{RANGE}",
        ("compared", "geometric_mean", "below_0.95", "below_0.80", "commit"),
    ),
    "docs/limits.md": (
        r"H200: (\d+) operations of seeds 456 to 459 .*?\(commit (\w{7})\) "
        r"\| (\d\.\d\d) times .*? but (\d+) operations .*? and (\w+) by more than 20%",
        ("compared", "commit", "geometric_mean", "below_0.95", "below_0.80"),
    ),
}


@pytest.mark.parametrize("page", TOLD)
def test_random_operations_are_told_of_as_measured(page):
    result = json.loads((RESULTS / f"{RANGE}.json").read_text())
    figures = result["summary"]["all"] | {"commit": result["environment"]["commit"][:7]}
    figures["geometric_mean"] = f"{figures['geometric_mean']:.2f}"
    figures["worst"] = figures["worst"].partition(" ")[0]
    pattern, names = TOLD[page]
    (shown,) = re.findall(pattern, (ROOT / page).read_text())
    numbers = ["0" if each == "none" else each for each in shown]
    assert numbers == [str(figures[name]) for name in names]
