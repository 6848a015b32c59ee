# SPDX-License-Identifier: Apache-2.0
"""`profile`: what Nsight Compute writes is read, and what it says is passed on.

`data/ncu.csv` is what it wrote on an H200, without columns that nobody asked for.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks import cases, ncu, profile, profiled

CSV = Path(__file__).parent / "data" / "ncu.csv"
ENVIRONMENT = {"platform": "gpu", "device": "NVIDIA H200", "commit": "0", "date": "1"}
# What a program says and writes in place of Nsight Compute and what it profiles.
STUB = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
log = pathlib.Path(arguments[arguments.index("--log-file") + 1])
log.write_text(pathlib.Path({csv!r}).read_text())
wanted = json.loads(pathlib.Path(arguments[-2]).read_text())
chosen = [{{"engine": "e"}}] * len(wanted["cases"])
made = {{"environment": {environment}, "chosen": chosen}}
pathlib.Path(arguments[-1]).write_text(json.dumps(made))
sys.exit({code})
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Puts an `ncu` on the PATH that writes this text and ends with this code."""

    def put(text, code=0):
        csv, program = tmp_path / "written.csv", tmp_path / "ncu"
        csv.write_text(text)
        program.write_text(
            STUB.format(
                python=sys.executable, csv=str(csv), code=code, environment=ENVIRONMENT
            )
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put


def command(tmp_path, *more):
    rows = "14_1x1_256_1024,14_3x3s2_512_512"
    options = (
        f"--table resnet50 --rows {rows} --op wgrad --batch 256 --sides ours,torch"
    )
    profile.main([*options.split(), "--out", str(tmp_path / "p"), *more])


def test_kernels_are_told_apart_by_case_and_side(tmp_path, stub, capsys):
    stub(CSV.read_text())
    command(tmp_path)
    result = json.loads((tmp_path / "p.json").read_text())
    assert result["environment"] == ENVIRONMENT
    assert [row["name"] for row in result["rows"]] == [
        "14_1x1_256_1024",
        "14_3x3s2_512_512",
    ]
    tile = result["rows"][1]["sides"]["ours"]
    assert tile["engine"] == "e"
    assert [k["name"].split("<")[0] for k in tile["kernels"]] == [
        "WgradKernel",
        "AddPieces",
    ]
    assert tile["us"] == pytest.approx(sum(k["us"] for k in tile["kernels"]), abs=0.01)
    text = capsys.readouterr().out
    assert "WgradKernel" in text and "tensor" in text


def test_figures_are_in_their_units():
    kernels = ncu.parse(CSV.read_text())
    (kernel,) = (k for k in kernels if k["name"].startswith("WgradKernel"))
    assert kernel == {
        "name": "WgradKernel<WgradConfig<__nv_bfloat16, 256, 128, 4, 1, 2, 0>>",
        "grid": 132,
        "block": 384,
        "us": 86.05,
        "sm_ghz": 1.592,
        "tensor_pct": 79.93,
        "issue_pct": 11.97,
        "shared_pct": 49.98,
        "l2_pct": 59.76,
        "dram_pct": 18.38,
        "l2_to_sm_mb": 693.6,
        "read_mb": 67.18,
        "written_mb": 8.891,
        "registers": 168,
        "shared_kb": 194.1,
        "waves": 1,
    }


def test_a_counter_that_a_gpu_lacks_is_left_out():
    text = CSV.read_text().replace('"79.93"', '"n/a"')
    (kernel,) = (k for k in ncu.parse(text) if k["name"].startswith("WgradKernel"))
    assert "tensor_pct" not in kernel and kernel["issue_pct"] == 11.97


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have", 1, "may not read"),
        ("==ERROR== The application returned an error code", 3, "ended with 3"),
        ("==WARNING== No kernels were profiled.", 0, "no kernel was profiled"),
    ],
)
def test_what_keeps_it_from_profiling_is_said(tmp_path, stub, text, code, message):
    stub(text, code)
    with pytest.raises(SystemExit, match=message):
        command(tmp_path)
    assert not (tmp_path / "p.json").exists()


def test_runs_that_are_not_all_there_are_refused(tmp_path, stub):
    stub(CSV.read_text())
    with pytest.raises(SystemExit, match="kernels of 4 runs, not of 8"):
        command(tmp_path, "--runs", "2")


def test_it_has_to_be_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="Nsight Compute is not installed"):
        command(tmp_path)


def test_medians_are_of_the_same_kernels():
    runs = [[{"name": "a", "us": us, "grid": 1}] for us in (3.0, 1.0, 2.0)]
    assert ncu.medians(runs) == [{"name": "a", "us": 2.0, "grid": 1}]
    with pytest.raises(ncu.NoProfile, match="other kernels"):
        ncu.medians([*runs, [{"name": "b", "us": 1.0}]])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "void jax_convbatch::hopper::ConvKernel<jax_convbatch::hopper::ConvConfig"
            "<__nv_bfloat16, (int)128>, (int)1>(ConvProblem<T2>, T3)",
            "ConvKernel<ConvConfig<__nv_bfloat16, 128>, 1>",
        ),
        ("nvjet_tst_64x8_64x16_1x2_h_bz_TNT", "nvjet_tst_64x8_64x16_1x2_h_bz_TNT"),
        ("void a::(anonymous namespace)::Add<float>(float *)", "Add<float>"),
    ],
)
def test_names_are_short(name, wanted):
    assert ncu.short(name) == wanted


class Notes:
    """In place of CUDA's driver."""

    def __init__(self):
        self.calls = []

    def start(self, run):
        self.calls.append(run)

    def stop(self):
        self.calls.append("stop")


def test_each_run_is_profiled_alone(monkeypatch):
    wanted = cases.cases("tiny", ["wgrad"], rows=["tiny_3x3", "tiny_s2_g2"])
    driver, made = Notes(), profiled.program

    def noted(side, case, pool):
        once = made(side, case, pool)
        return lambda: (once(), driver.calls.append((side, case.name)))

    monkeypatch.setattr(profiled, "program", noted)
    sides = ["ours", "xla", "gemm"]
    profiled.run(wanted, sides, 2, driver)
    number = iter(range(12))
    warm, runs = profiled.WARM, 2
    assert driver.calls == [
        call
        for case in wanted
        for side in sides
        for call in [
            *[(side, case.name)] * warm,
            *[
                part
                for _ in range(runs)
                for part in (next(number), (side, case.name), "stop")
            ],
        ]
    ]


def test_it_needs_a_gpu(tmp_path):
    spec = tmp_path / "spec"
    described = [dataclasses.asdict(cases.cases("tiny", ["fprop"])[0])]
    spec.write_text(json.dumps({"cases": described, "sides": ["ours"], "runs": 1}))
    with pytest.raises(SystemExit, match="needs a GPU"):
        profiled.main([str(spec), str(tmp_path / "made")])
