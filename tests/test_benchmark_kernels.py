# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks kernels`: families of kernels, and plans without them."""

from __future__ import annotations

import json

import pytest

from benchmarks import kernels, markdown
from jax_convbatch._native import targets
from jax_convbatch._shapes.geometry import ConvGeometry

ONES = (1, 1, 1)


@pytest.fixture
def leave_out(native):
    yield targets.leave_out
    targets.leave_out([])


def test_every_family_has_files_and_no_file_has_two():
    found = {
        family: {path for start in starts for path in kernels.files_of(start)}
        for family, starts in kernels.FILES.items()
    }
    assert all(found.values())
    every = [path for files in found.values() for path in files]
    assert len(every) == len(set(every))
    assert all(kernels.lines_of(family) > 50 for family in found)


def test_the_module_knows_these_families_and_no_other(leave_out):
    leave_out(list(kernels.FILES))
    with pytest.raises(ValueError, match="no family hallo"):
        leave_out(["hallo"])
    source = (kernels.CUDA / "common" / "left_out.h").read_text()
    names = source.split("enum class Family {")[1].split("}")[0].split(",")
    assert len([name for name in names if name.strip()]) == len(kernels.FILES)


@pytest.mark.parametrize(
    "family, op, batch, size, c, k",
    [
        ("halo", "fprop", 128, 32, 160, 160),
        ("row_band", "fprop", 64, 56, 64, 64),
        ("wgrad_halo", "wgrad", 64, 56, 64, 64),
        ("row_streaming", "fprop", 2, 128, 128, 3),
    ],
)
def test_plans_do_without_a_family(native, leave_out, family, op, batch, size, c, k):
    image = (1, size, size)
    g = ConvGeometry(
        *(batch, *image, c, k, 1, 3, 3, *image, 1, ONES, (0, 1, 1), ONES, ONES)
    )
    fields = {name: int(value) for name, value in g.attribute().items()}

    def plan():
        return native(op, fields, "bfloat16", 132)

    whole = plan()
    leave_out([family])
    without = plan()
    leave_out([])
    assert without != whole == plan()


def test_rows_are_taken_evenly():
    assert kernels.evenly([1, 2, 3], 3) == [1, 2, 3]
    assert kernels.evenly(list(range(101)), 5) == [0, 25, 50, 75, 100]
    assert kernels.evenly([4, 5, 6], 1) == [4]


def test_a_loss_is_that_of_the_better_of_the_others():
    lines = kernels.summary(
        [
            {"family": "halo", "table": "t", "name": "a", "loss": 1.21},
            {"family": "halo", "table": "t", "name": "b", "loss": 1.0},
            {"family": "halo", "table": "t", "name": "c", "failed": {}},
        ],
        {"halo": [1, 2, 3, 4], "skinny": []},
    )
    by = {line["family"]: line for line in lines}
    assert by["halo"]["rows"] == 4 and by["halo"]["timed"] == 2
    assert by["halo"]["mean"] == 1.1 and by["halo"]["over"] == 1
    assert by["halo"]["worst"] == "t a"
    assert by["skinny"]["timed"] == 0 and by["skinny"]["mean"] is None


def test_results_are_a_table(tmp_path, capsys):
    row = {"family": "halo", "table": "t", "name": "a", "loss": 1.21}
    summary = kernels.summary([row], {"halo": [1, 2], "skinny": []})
    gone = {"family": "gone since", "rows": 3}
    result = {"table": "kernels", "rows": [row], "summary": [*summary, gone]}
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(result))
    markdown.main([str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    lines = capsys.readouterr().out.splitlines()
    halo = kernels.lines_of("halo")
    assert f"| halo | {halo} | 4 | 2 | 1.21 | 2 | 1.21: t a |" in lines
    assert f"| skinny | {kernels.lines_of('skinny')} | 0 | 0 | - | 0 | - |" in lines
    assert "gone since" not in "".join(lines)


class Fake:
    """A side that takes as long, or says why it cannot run."""

    def __init__(self, us, failed=None, takers=None):
        self.us, self.failed, self.asked = us, failed, []
        self.takers = takers

    def send(self, *request):
        self.asked.append(request)

    def receive(self):
        return self.takers

    def ask(self, *request):
        self.asked.append(request)
        if request[0] == "ready" and self.failed:
            return {"failed": self.failed}
        return {"us": self.us} if request[0] == "time" else {}


def test_a_row_is_timed_by_all_that_can_run_it():
    sides = {"with": Fake(2.0), "without": Fake(5.0), "cudnn": Fake(3.0)}
    row = kernels.timed(sides, "halo", 7, 3)
    assert row["us"] == {"with": 2.0, "without": 5.0, "cudnn": 3.0}
    assert row["loss"] == 1.5
    assert all(side.asked[-1] == ("drop", 7) for side in sides.values())
    sides["cudnn"] = Fake(3.0, "no")
    row = kernels.timed(sides, "halo", 7, 3)
    assert row["loss"] == 2.5 and row["failed"] == {"cudnn": "no"}


def test_both_sides_find_who_takes_a_family():
    halves = {"takers": {"0": ["halo"], "1": []}}, {"takers": {"2": ["halo", "small"]}}
    sides = {
        name: Fake(1.0, takers=half)
        for name, half in zip(("with", "without"), halves, strict=True)
    }
    families = ["halo", "small", "skinny"]
    found = kernels.takers(sides, 3, families)
    assert found == {"halo": [0, 2], "small": [2], "skinny": []}
    asked = [number for side in sides.values() for number in side.asked[0][1]]
    assert asked == [0, 1, 2]
    sides["with"] = Fake(1.0, takers={"failed": "no GPU"})
    with pytest.raises(SystemExit, match="no GPU"):
        kernels.takers(sides, 3, families)
