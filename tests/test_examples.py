# SPDX-License-Identifier: Apache-2.0
"""The examples do what their last lines say."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jax_convbatch

for _needed in ("flax", "matplotlib", "optax", "rich", "sklearn"):
    pytest.importorskip(_needed)

EXAMPLES = Path(__file__).parent.parent / "examples"
NUMBERS = re.compile(r"│ +\d+ │(.*)│ +[\d.]+ │$", re.MULTILINE)


@pytest.fixture(scope="module")
def train_digits():
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location(
        "train_digits", EXAMPLES / "train_digits.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(train_digits, monkeypatch, capsys, tmp_path):
    """Runs it with these arguments; returns what it prints and the picture."""

    def call(*arguments):
        path = tmp_path / "new" / "digits.png"
        argv = ["train_digits.py", "--out", str(path), *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        train_digits.main()
        return capsys.readouterr().out, path

    return call


def assert_is_a_picture(path):
    from matplotlib import image

    pixels = image.imread(path)
    assert min(pixels.shape[:2]) > 500
    assert pixels.std() > 0.05


def accuracies(output):
    """The last line's accuracy, by the name of the convolution."""
    last = output.splitlines()[-1]
    return {name: float(a) for a, name in re.findall(r"([\d.]+)% with (\w+)", last)}


def test_train_digits_reaches_97_percent(tmp_path):
    result = subprocess.run(
        [sys.executable, EXAMPLES / "train_digits.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert accuracies(result.stdout)["ours"] >= 97
    assert len(NUMBERS.findall(result.stdout)) == 30
    assert_is_a_picture(tmp_path / "out" / "digits.png")


def test_train_digits_compares_and_repeats_itself(run):
    both, path = run("--compare", "--epochs", "2", "--seed", "3")
    assert_is_a_picture(path)
    assert accuracies(both).keys() == {"ours", "lax"}
    # Guessing is right one time in ten.
    assert min(accuracies(both).values()) > 50
    assert "Side by side" in both
    again, _ = run("--epochs", "2", "--seed", "3")
    rows = NUMBERS.findall(both)
    assert len(rows) == 4
    assert NUMBERS.findall(again) == rows[:2]
    other, _ = run("--epochs", "2", "--seed", "4")
    assert NUMBERS.findall(other) != rows[:2]


@pytest.mark.parametrize("name", ["ours", "lax"])
def test_train_digits_runs_the_convolution_it_names(train_digits, name):
    nnx = train_digits.nnx
    model = train_digits.Net(train_digits.CONVOLUTIONS[name], nnx.Rngs(0))
    graph, state = nnx.split(model)
    images, labels = np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, np.int32)

    def loss(state):
        return train_digits.loss_and_hits(nnx.merge(graph, state), images, labels)[0]

    rows = jax_convbatch.explain(jax.grad(loss), state)
    assert len(rows) >= 8
    assert {row.engine == "xla" for row in rows} == {name == "lax"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epochs", "0"), "--epochs must be at least 1, got 0"),
        (("--batch", "1438"), "--batch must be between 1 and the 1437 training"),
        (("--seed", "-1"), "--seed must be between 0"),
        (("--out", "digits.jpg"), "--out must end in .png, got digits.jpg"),
        (("--out", f"{__file__}/digits.png"), "--out cannot be written"),
        (("--conv", "cudnn"), "invalid choice: 'cudnn'"),
    ],
)
def test_train_digits_refuses(run, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_align_stereo_finds_the_disparity(tmp_path):
    pytest.importorskip("skimage")
    result = subprocess.run(
        [sys.executable, EXAMPLES / "align_stereo.py", "--steps", "25"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    before, after = map(float, re.findall(r"([\d.]+) before, ([\d.]+) after", last)[0])
    assert after < 0.6 * before
    (off,) = re.findall(r"within ([\d.]+) pixels", result.stdout)
    assert float(off) < 4
    assert_is_a_picture(tmp_path / "out" / "align_stereo.png")


def test_gradient_check():
    result = subprocess.run(
        [sys.executable, EXAMPLES / "gradient_check.py"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "orders 1 and 2 agree, in the modes fwd, rev" in result.stdout
    for op in ("fprop", "dgrad", "wgrad", "act_bgrad"):
        assert re.search(
            rf"^{op} .*(implicit_gemm|kernel)", result.stdout, re.MULTILINE
        )
    assert result.stdout.splitlines()[-1].startswith("gradient_check: ")


@pytest.fixture
def run_resnet(monkeypatch, capsys, tmp_path):
    """Runs train_resnet.py with a network of one unit; its rows and last line."""
    for needed in ("orbax.checkpoint", "PIL"):
        pytest.importorskip(needed)
    spec = importlib.util.spec_from_file_location(
        "train_resnet", EXAMPLES / "train_resnet.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    unit = module.DEPTHS[18][0]
    monkeypatch.setitem(module.DEPTHS, 18, (unit, (1,)))

    def call(*arguments):
        sizes = ["--width", "8", "--size", "8", "--batch", "64", "--rate", "0.02"]
        kept = ["--checkpoints", str(tmp_path / "kept")]
        argv = ["train_resnet.py", *sizes, *kept, *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        module.main()
        return capsys.readouterr().out

    return call


def test_train_resnet_goes_on_where_it_stopped(run_resnet, tmp_path):
    output = run_resnet("--epochs", "3", "--compare")
    ours, lax = map(float, re.findall(r"([\d.]+)% with", output.splitlines()[-1]))
    assert ours > 25 and abs(ours - lax) < 15  # chance is 10
    # As if it had been stopped in the last epoch.
    shutil.rmtree(tmp_path / "kept" / "ours-resnet18-float32" / "3")
    again = run_resnet("--epochs", "3")
    assert "from 2" in again or "66/66" in again
    row = r"ours │ +3 │ +([\d.]+) │ +([\d.]+)% │ +([\d.]+)%"
    assert re.search(row, again).groups() == re.search(row, output).groups()


def test_train_resnet_on_a_folder_of_pictures(run_resnet, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 128)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(20):
            pixels = np.uint8(low + rng.integers(0, 100, (12, 10, 3)))
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i}.png")
    folder = str(tmp_path / "pictures")
    output = run_resnet(
        *("--images", folder, "--epochs", "2", "--batch", "16", "--dtype", "bfloat16")
    )
    assert "bfloat16, 32 images, 2 epochs; of 8 others" in output.splitlines()[-1]
    with pytest.raises(SystemExit, match="two folders or more"):
        run_resnet("--images", str(tmp_path / "pictures" / "dark"))
