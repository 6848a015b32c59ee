# SPDX-License-Identifier: Apache-2.0
"""What tiles are reckoned to take: C++ and the fit have one formula, and the plan is
the tile that takes the least. Needs the CUDA module and no GPU."""

import numpy as np
import pytest
from fake_gpus import geometries, on

from benchmarks import fit, tile_model
from jax_convbatch._native import targets
from jax_convbatch._shapes.geometry import ConvGeometry

SINGLE_WAVE = tile_model.KERNELS.index("kSingleWave")


@pytest.fixture
def module(native, monkeypatch):
    on(monkeypatch, "9.0")
    return targets._natives["cuda"].module


def tiles_of(op, dtype):
    """Of all geometries that have some, with the geometry."""
    found = [
        (g, targets.implicit_gemm_tiles(op, g, dtype, fit.MULTIPROCESSORS))
        for g in geometries().values()
    ]
    return [(g, tiles) for g, tiles in found if tiles]


@pytest.mark.parametrize("name", fit.MODELS)
def test_the_fit_has_the_formula_of_the_module(module, name):
    _, dtypes, ops = fit.MODELS[name]
    theta, factors = fit.read(name)
    theta = np.append(theta, 0.0)  # of tiles that have no factor
    for op in ops:
        work, us = [], []
        for _, tiles in tiles_of(op, dtypes[0]):
            for each in tiles:
                tile = fit.tile_of(op, each)
                place = factors.index(tile) if tile in factors else len(factors)
                work.append([*(each[key] for key in fit.WORK), place])
                us.append(each["us"])
        model = np.exp(tile_model.times(theta, np.array(work).T, fit.MULTIPROCESSORS))
        np.testing.assert_allclose(model, us, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_the_plan_is_the_tile_that_takes_the_least(module, op, dtype):
    """Where it is one of these: row bands and the like have conditions of their own."""
    compared = 0
    for g, tiles in tiles_of(op, dtype):
        plans = targets.implicit_gemm_plans(op, g, dtype)
        names = [each["config"] for each in tiles]
        if isinstance(plans, str) or len(plans) < 3 or plans[0]["config"] not in names:
            continue
        compared += 1
        # Of tiles half of which lie beyond the channels, none is chosen, but where
        # their weights stay in shared memory.
        inputs, outputs = (g.C, g.K) if op == "fprop" else (g.K, g.C)
        most = max(65, -(-outputs // 32) * 64)
        kept = g.taps == (1, 1, 1) and dtype == "bfloat16" and inputs <= 256
        some = [(64, 128)] if kept and 32 < outputs < 64 else []
        enough = 2 * fit.MULTIPROCESSORS
        tiles = [
            each
            for each in tiles
            if each["n"] < most
            or ((each["m"], each["n"]) in some and each["tiles"] >= enough)
        ]
        best = tiles[0]
        # Of tiles that are as many, one of fewer pixels is less work.
        smaller = [
            each
            for each in tiles
            if each["kernel"] == best["kernel"] == SINGLE_WAVE
            and (each["n"], each["tiles"]) == (best["n"], best["tiles"])
        ]
        want = min(smaller or [best], key=lambda each: each["m"])
        assert plans[0]["config"] == want["config"], g
        assert best["us"] == min(each["us"] for each in tiles)
    assert compared > 50


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_tile_has_work(module, dtype):
    for op in ("fprop", "dgrad"):
        for _, tiles in tiles_of(op, dtype):
            for each in tiles:
                assert min(each[key] for key in ("products", "boxes", "bytes")) > 0
                assert each["tiles"] >= 1
                assert each["stages"] <= each["longest"] * (1 + 1e-12)
                assert np.isfinite(each["us"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_taps_of_padding_are_not_counted(module, dtype):
    """Of a causal volume of three frames two thirds are left in tiles that lie in one
    frame: in those that fill it, and halo tiles."""

    def tiles(rows, pad_d):
        g = ConvGeometry(
            *(1, 3, rows, 24, 128, 128, 3, 3, 3, pad_d + 1, rows, 24, 1),
            stride=(1, 1, 1),
            pad=(pad_d, 1, 1),
            input_dilation=(1, 1, 1),
            filter_dilation=(1, 1, 1),
        )
        found = targets.implicit_gemm_tiles("fprop", g, dtype, fit.MULTIPROCESSORS)
        return {each["config"]: each for each in found}

    def left(tile):
        return tile["stages"] / tile["longest"]

    filled, other = tiles(64, 2), tiles(28, 2)
    for config in ("64x64", "128x64h"):
        assert left(filled[config]) == pytest.approx(2 / 3)
        assert left(tiles(64, 0)[config]) == 1
    assert left(other["128x64h"]) == pytest.approx(2 / 3)
    assert 2 / 3 < left(other["64x64"]) < left(other["256x64"]) < 1


def test_what_has_no_such_tiles(module):
    g = next(iter(geometries().values()))
    assert targets.implicit_gemm_tiles("wgrad", g, "float32", fit.MULTIPROCESSORS) == []


def test_a_fit_finds_the_constants_again():
    """Of times that the model made, with noise."""
    rng = np.random.default_rng(0)
    count, each = 40, 6
    tiles = rng.choice([64, 128, 256], (each, 2))
    rows = []
    for _ in range(count):
        stages, outputs = rng.uniform(4, 200), 2 ** rng.uniform(16, 26)
        for place, (m, n) in enumerate(tiles):
            work = (m * n / 16384, (m + n) / 256, np.ceil(outputs / m / n))
            rows.append([place % 3, *work, stages, stages, 1e6, 0.0, 0.0, place])
    work = np.array(rows).T
    constants = [*np.ravel(tile_model.KERNEL_START), *tile_model.SHARED_START]
    theta = tile_model.packed(constants, rng.uniform(0.7, 1.4, each))
    times = tile_model.times(theta, work, 132) + rng.normal(0, 0.01, count * each)
    samples = tile_model.Samples(work, times, np.repeat(np.arange(count), each))
    found = tile_model.fit(samples, each, 132)
    excess = samples.excess()
    loss = excess[tile_model.chosen(found, samples, 132)].mean()
    before = excess[tile_model.chosen(tile_model.start(each), samples, 132)].mean()
    assert loss < 0.02
    assert loss < before / 2


def test_constants_are_read_as_they_were_written(tmp_path, monkeypatch):
    file = tmp_path / "constants.cc"
    file.write_text("begin\n// Fitted.\nold\n// Up to here.\nend\n")
    monkeypatch.setattr(fit, "FILE", file)
    constants = [*np.ravel(tile_model.KERNEL_START), *tile_model.SHARED_START]
    tiles = [(64, 128, "kPingPong", True), (256, 64, "kTransposed", False)]
    theta = tile_model.packed(constants, [0.75, 1.25])
    fit.write({name: fit.text_of(name, theta, tiles) for name in fit.MODELS})
    assert file.read_text().startswith("begin\n")
    assert file.read_text().endswith("end\n")
    for name in fit.MODELS:
        found, there = fit.read(name)
        assert there == tiles
        np.testing.assert_allclose(found, theta, rtol=1e-3)
