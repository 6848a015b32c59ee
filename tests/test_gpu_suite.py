# SPDX-License-Identifier: Apache-2.0
"""The summary of a run says what pytest reported, and the README what summaries say."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_suite
import pytest

TESTS = Path(__file__).parent
EACH = """
import pytest

def test_passes(): pass
def test_fails(): assert False
def test_skips(): pytest.skip("one GPU")
@pytest.mark.skipif(True, reason="one GPU")
def test_is_skipped(): pass
@pytest.mark.xfail
def test_fails_as_expected(): assert False
@pytest.mark.xfail
def test_passes_by_surprise(): pass
@pytest.fixture
def broken(): raise RuntimeError
def test_has_no_fixture(broken): pass
@pytest.fixture
def breaks():
    yield
    raise RuntimeError
def test_breaks_afterwards(breaks): pass
@pytest.mark.parametrize("i", range(5))
def test_of_parameters(i): pass
"""
GPU = {
    "date": "2026-11-24",
    "platform": "gpu",
    "device": "NVIDIA H200",
    "jax": "0.11.2",
}
ONE_PROCESS_OR_TWO = pytest.mark.parametrize(
    "workers", [(), ("-n", "2")], ids=["one", "two"]
)


def python(folder, *arguments):
    """Runs Python there, not as a part of the run that this test is in."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=kept | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def run(tmp_path):
    """The summary of a run of files, given by their names and text, or None."""
    stub = f"import gpu_suite\ngpu_suite.environment = lambda: {GPU}\n"
    (tmp_path / "conftest.py").write_text(stub)

    def summary(*options, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        plugins = ["-p", "gpu_suite", "-p", "no:cacheprovider"]
        done = python(
            tmp_path, "-m", "pytest", *plugins, "--summary=out/it.json", *options
        )
        print(done.stdout, done.stderr)
        path = tmp_path / "out" / "it.json"
        return json.loads(path.read_text()) if path.exists() else None

    return summary


def counts(summary):
    return {o: summary[o] for o in gpu_suite.OUTCOMES if summary[o]}


@ONE_PROCESS_OR_TWO
def test_every_test_has_one_outcome(run, workers):
    found = run(*workers, test_each=EACH, test_more="def test_passes(): pass")
    assert counts(found) == {
        "passed": 7,
        "xpassed": 1,
        "xfailed": 1,
        "skipped": 2,
        "failed": 1,
        "errors": 2,
    }
    assert found["files"]["test_more.py"] == {"passed": 1}
    assert found["failures"] == [
        f"test_each.py::test_{name}"
        for name in ("breaks_afterwards", "fails", "has_no_fixture")
    ]
    assert found["reasons"] == {"one GPU": 2}
    assert found["finished"]
    assert found["environment"].items() >= GPU.items()
    assert [*workers] == found["runs"][0]["arguments"][5:]
    assert found["seconds"] > 0


@ONE_PROCESS_OR_TWO
def test_a_file_that_is_not_collected_is_one_error(run, workers):
    passes = "def test_passes(): pass"  # pytest-xdist runs it all the same
    found = run(*workers, test_a="import nothing_of_this_name", test_b=passes)
    assert found["errors"] == 1
    assert found["failures"] == ["test_a.py"]
    assert not found["finished"]


@ONE_PROCESS_OR_TWO
def test_a_file_that_skips_itself_is_named_but_is_no_test(run, workers):
    skipped = "import pytest; pytest.importorskip('nothing_of_this_name')"
    found = run(*workers, test_a=skipped, test_b="def test_passes(): pass")
    assert counts(found) == {"passed": 1}
    assert found["left_out"] == ["test_a.py"]
    assert found["finished"]


@ONE_PROCESS_OR_TWO
@pytest.mark.parametrize(
    ("option", "body"), [("-x", "assert False"), ("-v", "raise KeyboardInterrupt")]
)
def test_a_run_that_stops_early_is_not_finished(run, workers, option, body):
    stops = "\n".join(f"def test_{i}():\n    {body}" for i in range(20))
    found = run(*workers, option, test_stops=stops)
    assert not found["finished"]
    assert sum(counts(found).values()) < 20


def test_a_test_that_kills_its_worker_has_failed(run):
    kills = "import os\ndef test_kills(): os._exit(1)\ndef test_passes(): pass"
    found = run("-n", "2", test_kills=kills)
    assert counts(found) == {"passed": 1, "failed": 1}
    assert found["failures"] == ["test_kills.py::test_kills"]


def test_a_run_that_is_killed_leaves_no_summary(run):
    assert run(test_a="def test_passes(): pass")
    assert run(test_b="import os\ndef test_kills(): os._exit(1)") is None


def test_nothing_is_written_without_the_option(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_passes(): pass")
    done = python(tmp_path, "-m", "pytest", "-p", "gpu_suite", "-q")
    assert done.returncode == 0
    assert "summary" not in done.stdout


def test_the_environment_names_device_and_versions():
    found = gpu_suite.environment()
    assert {"date", "platform", "device", "jax", "jaxlib", "python"} <= set(found)
    if found["platform"] != "cpu":
        assert {"compute_capability", "driver", "devices"} <= set(found)


def test_a_tree_is_clean_without_changes_and_new_files(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_CONVBATCH_COMMIT", raising=False)

    def git(*words):
        me = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
        subprocess.run(["git", "-C", str(tmp_path), *me, *words], check=True)

    git("init", "-q")
    (tmp_path / ".gitignore").write_text("/out/\n")
    (tmp_path / "a").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "of no account").touch()
    found = gpu_suite.source(tmp_path)
    assert found["clean"] and len(found["commit"]) == 12
    (tmp_path / "new").touch()
    assert gpu_suite.source(tmp_path) == {**found, "clean": False}
    (tmp_path / "new").unlink()
    (tmp_path / "a").write_text("2")
    assert gpu_suite.source(tmp_path) == {**found, "clean": False}


def test_variables_name_the_commit_where_git_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("JAX_CONVBATCH_COMMIT", raising=False)
    monkeypatch.delenv("JAX_CONVBATCH_CLEAN", raising=False)
    assert gpu_suite.source(tmp_path) == {"commit": "unknown", "clean": False}
    monkeypatch.setenv("JAX_CONVBATCH_COMMIT", "0123456789abcdef")
    assert gpu_suite.source(tmp_path) == {"commit": "0123456789ab", "clean": False}
    monkeypatch.setenv("JAX_CONVBATCH_CLEAN", "1")
    assert gpu_suite.source(tmp_path) == {"commit": "0123456789ab", "clean": True}


def part(**tests):
    """A summary of tests of one file, of a clean tree."""
    outcomes = {f"tests/test_a.py::test_{k}": outcome for k, outcome in tests.items()}
    one = {"arguments": ["-q"], "finished": True, "seconds": 1.5}
    return {
        "environment": GPU | {"commit": "0123456789ab", "clean": True},
        "markers": "gpu",
        **gpu_suite.totals([one], outcomes),
        "reasons": {"one GPU": sum(o == "skipped" for o in outcomes.values())},
        "left_out": [],
        "tests": outcomes,
    }


PARTS = part(a="passed", b="skipped"), part(c="passed")
SUITE = {f"tests/test_a.py::test_{k}" for k in "abc"}


def changed(summary, **environment):
    other = copy.deepcopy(summary)
    other["environment"] |= environment
    return other


def test_parts_give_the_summary_of_the_suite():
    later = changed(PARTS[1], date="2026-11-25")
    whole = gpu_suite.merge([PARTS[0], later], SUITE)
    assert counts(whole) == {"passed": 2, "skipped": 1}
    assert whole["files"] == {"tests/test_a.py": {"passed": 2, "skipped": 1}}
    assert (whole["suite"], whole["missing"], whole["seconds"]) == (3, [], 3)
    assert (len(whole["runs"]), whole["reasons"]) == (2, {"one GPU": 1})
    assert whole["environment"]["date"] == "2026-11-25"
    assert gpu_suite.objections(whole) == []


def test_parts_may_have_had_several_gpus():
    several = changed(PARTS[1], devices=2)
    whole = gpu_suite.merge([PARTS[0], several], SUITE)
    assert whole["environment"]["devices"] == 2
    assert not gpu_suite.objections(whole)


def test_what_did_not_run_is_missing():
    some = gpu_suite.merge([PARTS[0]], SUITE)
    assert some["missing"] == ["tests/test_a.py::test_c"]
    assert gpu_suite.objections(some) == ["a part of the suite"]
    assert "a part of the suite" in gpu_suite.objections(PARTS[0])


def test_a_part_that_stopped_or_failed_spoils_the_whole(run):
    lost = part(c="passed")
    lost["runs"][0]["finished"] = False
    assert not gpu_suite.merge([PARTS[0], lost], SUITE)["finished"]
    lost = part(c="failed")
    whole = gpu_suite.merge([PARTS[0], lost], SUITE)
    assert whole["failures"] == ["tests/test_a.py::test_c"]
    broken = run(test_a="import nothing_of_this_name")
    assert gpu_suite.merge([broken], set())["failures"] == ["test_a.py"]


@pytest.mark.parametrize(
    "other",
    [
        part(b="passed"),
        {**PARTS[1], "markers": "not gpu"},
        {k: v for k, v in PARTS[1].items() if k != "tests"},
        changed(PARTS[1], commit="123456789abc"),
        changed(PARTS[1], clean=False),
        changed(PARTS[1], device="NVIDIA H100 80GB HBM3"),
        changed(PARTS[1], jax="0.12.0"),
        changed(PARTS[1], driver="580.1"),
    ],
)
def test_parts_of_different_suites_are_refused(other):
    with pytest.raises(SystemExit, match="error"):
        gpu_suite.merge([PARTS[0], other], SUITE)


def merged(**changes):
    return gpu_suite.merge(list(PARTS), SUITE) | changes


@pytest.mark.parametrize(
    "spoilt",
    [
        changed(merged(), clean=False),
        changed(merged(), commit="unknown"),
        changed(merged(), commit="0123456 with changes"),
        changed(merged(), platform="cpu"),
        merged(failed=1),
        merged(errors=1),
        merged(xpassed=1),
        merged(finished=False),
        merged(markers="gpu and not slow"),
        merged(passed=0),
        merged(passed=1),
        merged(suite=4),
        merged(missing=["tests/test_a.py::test_d"]),
    ],
)
def test_only_a_whole_suite_of_a_clean_tree_is_a_claim(spoilt):
    assert gpu_suite.objections(merged()) == []
    assert gpu_suite.objections(spoilt)


def test_the_command_writes_one_file_for_the_device(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_suite, "collected", lambda markers: SUITE)
    monkeypatch.setattr(gpu_suite, "source", lambda: {"commit": "0123456789ab"})
    paths = [tmp_path / f"{i}.json" for i in range(2)]
    for path, one in zip(paths, PARTS, strict=True):
        path.write_text(json.dumps(one))
    name = "gpu-suite-{}.json"
    gpu_suite.main(
        ["merge", *map(str, paths), "-o", f"{tmp_path / name}".format("DEVICE")]
    )
    (found,) = tmp_path.glob("gpu-suite-*.json")
    assert found.name == name.format("nvidia-h200")
    assert json.loads(found.read_text()) == merged()
    assert "2 passed, 1 skipped, of 3 tests" in capsys.readouterr().out
    monkeypatch.setattr(gpu_suite, "source", lambda: {"commit": "123456789abc"})
    with pytest.raises(SystemExit, match="check out 0123456789ab"):
        gpu_suite.main(["merge", str(paths[0]), "-o", str(found)])


def test_the_suite_is_what_the_markers_take(tmp_path):
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers = gpu\naddopts = -m 'not gpu'"
    )
    text = "import pytest\n@pytest.mark.gpu\ndef test_a(): pass\ndef test_b(): pass"
    (tmp_path / "test_a.py").write_text(text)
    program = (
        "import gpu_suite, pathlib; gpu_suite.ROOT = pathlib.Path().resolve(); "
        "print(gpu_suite.collected('gpu'))"
    )
    assert python(tmp_path, "-c", program).stdout == "{'test_a.py::test_a'}\n"


def test_the_readme_says_what_the_files_say(tmp_path, monkeypatch):
    readme = tmp_path / "README.md"
    text = "Passed on:\n  <!-- gpu-suite -->\n{}  <!-- /gpu-suite -->\nThe rest.\n"
    readme.write_text(text.format("  - an abacus\n"))
    monkeypatch.setattr(gpu_suite, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_suite, "recorded", dict)
    gpu_suite.main(["readme"])
    assert readme.read_text() == text.format("  - none recorded yet\n")
    both = {"2": merged(), "1": changed(merged(), device="NVIDIA H100 80GB HBM3")}
    monkeypatch.setattr(gpu_suite, "recorded", lambda: both)
    gpu_suite.main(["readme"])
    rest = "2 passed, 1 skipped (commit 0123456, 2026-11-24)\n"
    lines = f"  - NVIDIA H100 80GB HBM3: {rest}  - NVIDIA H200: {rest}"
    assert readme.read_text() == text.format(lines)
    monkeypatch.setattr(
        gpu_suite, "recorded", lambda: {"1": changed(merged(), clean=0)}
    )
    with pytest.raises(SystemExit, match="the tree had changes"):
        gpu_suite.main(["readme"])
