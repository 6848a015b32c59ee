# SPDX-License-Identifier: Apache-2.0
"""`compare`: turns, ratios, what is measured again, and two modules on the CPU."""

import contextlib
import importlib.util
import json
import math
from argparse import Namespace
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks import compare, compare_side, workloads
from jax_convbatch._tune import timing

OPTIONS = Namespace(limit=math.inf, repeats=3)


class Fake:
    """A side with times of its own by row, those of the first measurement first."""

    def __init__(self, name, log, times, plans=("", ""), failing=()):
        self.name, self.log, self.failing = name, log, failing
        self.times = {i: list(each) for i, each in times.items()}
        self.plans, self.measured = plans, -1

    def send(self, *request):
        self.request = request

    def receive(self):
        what, *rest = self.request
        self.log.append((self.name, what, *rest))
        if what == "prepare":
            return {"plans": {str(i): self.plans[i] for i in rest[0]}}
        if what == "ready":
            self.row = rest[0]
            if self.row in self.failing:
                return {"failed": "ValueError: no"}
            self.us = self.times[self.row].pop(0)
        if what == "time":
            return {"us": self.us}
        return {}

    def ask(self, *request):
        self.send(*request)
        return self.receive()


def sides(old, new, **options):
    log = []
    return log, {"old": Fake("old", log, old), "new": Fake("new", log, new, **options)}


KNOWN = [["tiny", "first"], ["tiny", "second"]]


def compared(both, rows=None, options=OPTIONS):
    rows = [] if rows is None else rows
    with Progress(disable=True) as progress:
        compare.compare(both, rows, KNOWN, options, progress)
    return rows


def test_the_two_take_turns_and_neither_always_begins():
    log, both = sides({0: [2.0], 1: [3.0]}, {0: [1.0], 1: [3.0]})
    rows = compared(both)
    assert [row["ratio"] for row in rows] == [2.0, 1.0]
    of_first = log[: log.index(("new", "drop", 0))]
    turns = [name for name, what, *_ in of_first if what == "time"]
    assert turns == ["old", "new", "new", "old", "old", "new"]
    # Nothing is compiled while anything is timed.
    assert [what for _, what, *_ in log].index("time") > 1
    assert compare.summary(rows)["passes"]


def test_a_slow_row_is_measured_again_for_longer_and_that_counts():
    log, both = sides({0: [1.0, 1.0], 1: [1.0, 1.0]}, {0: [2.0, 1.0], 1: [2.0, 1.5]})
    first, second = compared(both)
    assert (first["first_ratio"], first["ratio"]) == (0.5, 1.0)
    assert (second["first_ratio"], second["ratio"]) == (0.5, 0.6667)
    last = log[log.index(("old", "ready", 1)) :]
    assert sum(what == "time" for _, what, *_ in last) > 2 * OPTIONS.repeats
    found = compare.summary([first, second])
    assert not found["passes"]
    assert "1 rows are below 0.97" in found["faults"]
    assert compare.slow([first, second]) == [second]
    # What was measured again already is not measured a third time.
    assert compared(both, [first, second]) == [first, second]


def test_the_mean_of_rows_that_are_each_fast_enough_may_be_too_small():
    rows = [{"table": "a", "name": str(i), "ratio": 0.98} for i in range(5)]
    found = compare.summary(rows)
    assert found["mean"] == 0.98
    assert found["faults"] == ["the mean of 5 rows is 0.9800"]
    rows = [dict(row, ratio=ratio) for row, ratio in zip(rows, [1.0] * 5, strict=True)]
    assert compare.summary([*rows, {"table": "b", "name": "x", "ratio": 0.98}])[
        "passes"
    ]


def test_what_fails_by_the_new_build_alone_is_a_fault(capsys):
    _, both = sides({0: [1.0], 1: [1.0]}, {1: [1.0]}, failing=[0])
    rows = compared(both)
    assert rows[0]["failed"] == {"new": "ValueError: no"}
    found = compare.summary(rows)
    assert found["faults"] == ["1 rows fail by the new build alone"]
    assert (found["rows"], found["failed"]) == (1, 1)
    rows[0]["failed"]["old"] = "ValueError: no"
    assert compare.summary(rows)["passes"]
    compare.show(Console(width=150), {"summary": found, "rows": rows})
    assert "failed by new: tiny first: ValueError: no" in capsys.readouterr().out


def test_plans_that_differ_are_shown_beside_slow_rows(capsys):
    _, both = sides(
        {0: [1.0] * 2, 1: [1.0]}, {0: [2.0] * 2, 1: [1.0]}, plans=("128x64", "")
    )
    rows = compared(both)
    assert rows[0]["plans"] == {"old": "", "new": "128x64"}
    assert rows[1]["plans"] == {}
    compare.show(Console(width=150), {"summary": compare.summary(rows), "rows": rows})
    out = capsys.readouterr().out
    assert "0.500, first 0.500: tiny first, 1.0 us before, 2.0 after" in out
    assert "new 128x64" in out


def test_no_block_begins_after_the_limit():
    _, both = sides({}, {})
    assert compared(both, options=Namespace(limit=-1, repeats=1)) == []


def test_a_folder_brings_its_own_package(tmp_path):
    package = tmp_path / "jax_convbatch"
    package.mkdir()
    (package / "__init__.py").touch()
    finder = compare_side.Finder(tmp_path, "cuda")
    assert finder.find_spec("jax_convbatch").origin == str(package / "__init__.py")
    module = finder.find_spec("jax_convbatch._cuda")
    assert module.origin == str(package / "_cuda.abi3.so")
    alone = compare_side.Finder(Path("old.so"), "cuda")
    assert alone.find_spec("jax_convbatch") is None
    assert alone.find_spec("jax_convbatch._cpu") is None


def test_layers_and_deformable_convolutions_are_sides_too(monkeypatch):
    from benchmarks import compare_rows

    row = (5, 6, 8, 4, 3, 3, 1, 1, 1, 1)
    monkeypatch.setattr(workloads, "DEFORM", {"tiny": (3, row, 2, "float32")})
    monkeypatch.setattr(compare_rows, "LAYERS", [("tiny", "float32")])
    rows = compare_rows.rows(
        Namespace(tables=["layer", "deform"], rows=["tiny"], engine="auto")
    )
    assert len(rows) == len(workloads.TINY) + 2
    assert len({(row.table, row.name) for row in rows}) == len(rows)
    for row in rows:
        assert timing.elapsed(row.prepare()(), 1) > 0


def test_the_tables_are_those_of_the_bar():
    from benchmarks import compare_rows

    drawn = {"seed": 0, "count": 1, "largest": 2e9}
    of = Namespace(tables=compare.TABLES, rows=[], engine="auto", dtypes=None, **drawn)
    rows = compare_rows.rows(of)
    assert len({(row.table, row.name) for row in rows}) == len(rows) > 300
    assert {row.table for row in rows} == set(compare.TABLES)


def test_two_builds_on_the_cpu(tmp_path, capsys):
    module = importlib.util.find_spec("jax_convbatch._cpu").origin
    builds = [tmp_path / "old.so", tmp_path / "new.so"]
    for build in builds:
        build.write_bytes(Path(module).read_bytes())
    of = "--platform cpu --tables tiny,deform --rows tiny_1x1d --repeats 1"
    out = ["--out", str(tmp_path / "c"), "--seconds", "0.001"]
    arguments = [*map(str, builds), *of.split(), *out]
    with contextlib.suppress(SystemExit):  # so short, one may well be slower
        compare.main(arguments)
    result = json.loads((tmp_path / "c.json").read_text())
    assert [row["table"] for row in result["rows"]] == ["tiny"] * 3
    assert all(row["ratio"] > 0 and row["plans"] == {} for row in result["rows"])
    assert result["modules"]["old"] == result["modules"]["new"]
    assert result["environment"]["platform"] == "cpu"
    assert "old time / new time" in capsys.readouterr().out
    (tmp_path / "old.so").write_bytes(b"other")
    with pytest.raises(SystemExit, match="of other modules"):
        compare.main([*arguments, "--resume"])


def test_a_build_that_does_not_load_is_an_error(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no module")
    of = f"{broken} {broken} --platform cpu --tables tiny --out {tmp_path / 'c'}"
    with pytest.raises(SystemExit, match="no rows; a side has ended"):
        compare.main(of.split())
