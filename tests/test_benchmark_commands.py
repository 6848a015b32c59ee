# SPDX-License-Identifier: Apache-2.0
"""The benchmarks besides `layers`, on rows small enough for a CPU."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks import (
    cases,
    check,
    deform,
    jax_side,
    layer,
    layers,
    markdown,
    plans,
    sofie,
    transposed,
    workloads,
)
from jax_convbatch._native import targets
from jax_convbatch._select import choices
from jax_convbatch._tune import tune

TINY = cases.cases("tiny", cases.OPS)


def test_layer_times_forward_and_backward(tmp_path, capsys):
    name = next(iter(workloads.TINY))
    options = f"--table tiny --rows {name} --batch 3 --parts --out {tmp_path / 'l'}"
    layer.main(options.split())
    (row,) = json.loads((tmp_path / "l.json").read_text())["rows"]
    us = {side: v["median_us"] for side, v in row.items() if isinstance(v, dict)}
    assert row["over_stock"] == pytest.approx(us["stock"] / us["ours"], abs=1e-3)
    assert row["forward_over_fprop"] == pytest.approx(
        us["forward"] / us["fprop"], abs=1e-3
    )
    backward = us["ours"] - us["forward"]
    rest = 1 - (us["dgrad"] + us["wgrad"]) / backward
    assert row["rest_of_backward"] == pytest.approx(rest, abs=1e-3)
    text = capsys.readouterr().out
    assert "conv + bias + relu, forward and backward" in text
    assert "the parts of ours, batch 3, copy rate" in text


def test_layer_begins_no_row_after_its_limit(tmp_path, capsys):
    layer.main(f"--table tiny --limit -1 --out {tmp_path / 'l'}".split())
    assert json.loads((tmp_path / "l.json").read_text())["rows"] == []


def test_layer_refuses_results_that_differ(monkeypatch):
    once = layer.LayerSide.once
    monkeypatch.setattr(
        layer.LayerSide,
        "once",
        lambda self: [a * (1.1 if self.name == "stock" else 1) for a in once(self)],
    )
    with ThreadPoolExecutor(1) as stock:
        pool = cases.Pool(TINY)
        prepared = layer.Prepared(TINY[0], "relu", "auto", False, pool, stock)
    with pytest.raises(SystemExit, match="differ from stock's by"):
        layer.measure(prepared)


def test_sofie_times_stacks(tmp_path, capsys, monkeypatch):
    row = (4, 4, 8, 8, 3, 3, 1, 1, 1, 1)
    monkeypatch.setattr(sofie, "SOFIE_STACK", row)
    monkeypatch.setattr(sofie, "SOFIE_BATCHES", (2,))
    monkeypatch.setattr(sofie, "SOFIE_SINGLE", {})
    monkeypatch.setattr(sofie, "SOFIE_LAYERS", 2)
    sofie.main(f"--engine per_sample,im2col_gemm --out {tmp_path / 'sofie'}".split())
    (stack,) = json.loads((tmp_path / "sofie.json").read_text())["stack"]
    for engine in ("per_sample", "im2col_gemm", "xla"):
        assert stack[engine]["median_us"] > 0
    assert "2 layers in a row" in capsys.readouterr().out


def test_transposed_times_value_and_gradients(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(transposed, "ROWS", {"tiny": (5, 4, 3, 2, 4, 4, 2)})
    transposed.main(f"--batch 2 --out {tmp_path / 'transposed'}".split())
    rows = json.loads((tmp_path / "transposed.json").read_text())["rows"]
    assert [row["what"] for row in rows] == ["value", "gradients"]
    assert all(row["ours"]["median_us"] > 0 for row in rows)
    assert "batch 2" in capsys.readouterr().out

    stock = transposed.SIDES["xla"]
    monkeypatch.setitem(transposed.SIDES, "ours", lambda *a, **k: 1.1 * stock(*a, **k))
    with pytest.raises(SystemExit, match="the results differ by"):
        transposed.measure("tiny", 2, "float32", "value")


TINY_DEFORM = {"tiny": (3, (5, 6, 8, 4, 3, 3, 1, 1, 1, 1), 2, "float32")}


def test_deform_times_both_passes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(deform, "DEFORM", TINY_DEFORM)
    command = "--peers none --engine auto,auto:loop --repeats 2 --seconds 0.001"
    deform.main([*command.split(), "--out", str(tmp_path / "deform")])
    rows = json.loads((tmp_path / "deform.json").read_text())["rows"]
    assert [row["pass"] for row in rows] == ["forward", "forward+backward"]
    for row in rows:
        assert row["sides"].keys() == {"auto", "auto:loop"}
        assert all(side["median_us"] > 0 for side in row["sides"].values())
    assert "forward+backward" in capsys.readouterr().out
    for wrong in (["--rows", "tiny,other"], ["--op", "sideways"]):
        with pytest.raises(SystemExit):
            deform.main(wrong)


def test_deform_refuses_a_wrong_gradient(monkeypatch):
    monkeypatch.setattr(deform, "DEFORM", TINY_DEFORM)
    right = deform.OurSide.once

    def wrong(self, operands):
        results = right(self, operands)
        if self.name == "auto" and len(results) > 1:
            results[2] = results[2] + np.eye(1, results[2].shape[-1])
        return results

    monkeypatch.setattr(deform.OurSide, "once", wrong)
    with pytest.raises(check.WrongResult, match="auto: doffset"):
        list(deform.measure(("tiny", None, None), ["auto"], False, deform.PASSES, 0, 1))


def test_plans_writes_the_table_of_this_device(tmp_path, monkeypatch, capsys):
    tables = tmp_path / "tables"
    command = f"--table tiny --dtype f32 --into {tables} --out {tmp_path / 'log'}"

    def measured(candidates, operands, seconds, repeats):
        assert [len(sets) for sets in operands] == candidates.counts
        slow, fast = candidates.sides()
        assert slow == ("implicit_gemm", "")
        return {slow: tune.Time(2, 2, 2), fast: tune.Time(1, 1, 1)}

    monkeypatch.setattr(plans, "measure", measured)
    plans.main(f"{command} --op fprop".split())
    assert "0 convolutions" in capsys.readouterr().out  # their columns are left out
    plans.main(f"{command} --op fprop --columns".split())
    plans.main(f"{command} --op wgrad --columns".split())
    device = targets.device_name("cpu")
    path = tables / f"{choices.slug(device)}.json"
    loaded = choices.load(path, device)
    assert len(loaded) == 2 * len(workloads.TINY)  # what was there stays
    assert {entry["engine"] for entry in loaded.values()} == {"im2col_gemm"}
    log = json.loads((tmp_path / "log.json").read_text())
    assert log["rows"][0]["us"] == {"implicit_gemm": [2, 2, 2], "im2col_gemm": [1] * 3}
    assert "than the rule's is faster for 3" in capsys.readouterr().out
    monkeypatch.setattr(choices, "TABLES", tables)
    choices.forget()
    case = next(case for case in TINY if case.op == "fprop")
    assert layers.chosen("auto", case)["source"] == "table"
    assert layers.chosen("rule", case)["source"] == "rule"
    for engine, name in ("auto", "im2col_gemm"), ("rule", "implicit_gemm"):
        assert name in jax_side.JaxSide(engine, case).program.as_text()


def test_markdown_has_a_line_for_each_row_and_marks_what_is_behind(tmp_path, capsys):
    def row(name, op, ours, peer):
        sides = {"auto": {"median_us": ours}, "xla": {"median_us": peer, "peer": True}}
        shape = {"name": name, "batch": 8, "dtype": "bfloat16", "op": op}
        return {**shape, "roof_us": 1.0, "sides": sides}

    rows = [row("one", "fprop", 2.0, 4.0), row("one", "dgrad", 5.0, 4.0)]
    rows.append(row("two", "fprop", 3.0, 3.0))
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": rows}))
    markdown.main([str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert "| layer | batch | fprop | dgrad |" in lines
    assert "| one | 8 | 2.0 / 4.0 | **5.0 / 4.0** |" in lines
    assert "| two | 8 | 3.0 / 3.0 | - |" in lines
    assert any(line.startswith("- ") and "fprop" in line for line in lines)
