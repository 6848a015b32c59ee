# SPDX-License-Identifier: Apache-2.0
"""What a run of the tests reported, as JSON: `pytest -m gpu --summary=FILE`.

A part of the suite is a run, too. All parts together give the file that says on which
GPU the suite has passed, and the README says what those files say:

    python tests/gpu_suite.py merge PART.json ... -o out/gpu-suite-DEVICE.json
    python tests/gpu_suite.py readme
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# One of them a test, the last of those that its phases report.
OUTCOMES = ("passed", "xpassed", "xfailed", "skipped", "failed", "errors")
UNKNOWN = {"date": "unknown", "platform": "unknown", "device": "unknown"}
# What the README shows between these lines is written by `readme`.
BLOCK = re.compile(r"(?<=<!-- gpu-suite -->\n).*?(?= *<!-- /gpu-suite -->)", re.DOTALL)


def pytest_addoption(parser):
    # As one word: pytest takes the FILE of `--summary FILE` for a folder of tests
    # while it looks for this plugin.
    parser.addoption(
        "--summary", metavar="FILE", help="what the run reported, as JSON; write =FILE"
    )


def pytest_configure(config):
    path = config.getoption("summary")
    if path:
        worker = hasattr(config, "workerinput")
        plugin = Worker(config) if worker else Summary(config, Path(path))
        config.pluginmanager.register(plugin, "summary-of-tests")


class Worker:
    """In a process of pytest-xdist: tells the one that writes where its tests ran."""

    def __init__(self, config):
        self.output = config.workeroutput

    def pytest_sessionfinish(self):
        self.output["environment"] = environment()


class Summary:
    """Writes the file when the session ends."""

    def __init__(self, config, path: Path):
        self.path = config.invocation_params.dir / path
        # That of another run would be taken for this one's, should it be killed.
        self.path.unlink(missing_ok=True)
        self.arguments = list(map(str, config.invocation_params.args))
        self.markers = config.option.markexpr
        self.source = source()
        self.start = time.monotonic()
        self.tests: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.broken: set[str] = set()
        self.left_out: set[str] = set()
        self.environments: list[dict] = []

    def pytest_runtest_logreport(self, report):
        outcome = outcome_of(report)
        known = self.tests.get(report.nodeid, outcome)
        if outcome:
            self.tests[report.nodeid] = max(known, outcome, key=OUTCOMES.index)
        if outcome == "skipped":
            self.reasons[report.nodeid] = report.longrepr[-1].removeprefix("Skipped: ")

    def pytest_collectreport(self, report):
        # Each worker of pytest-xdist reports them.
        if report.failed:
            self.broken.add(report.nodeid)
        elif report.skipped:
            self.left_out.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        told = getattr(node, "workeroutput", {}).get("environment")
        if told and told not in self.environments:
            self.environments.append(told)

    @pytest.hookimpl(trylast=True)  # pytest-xdist ends its workers here
    def pytest_sessionfinish(self, session, exitstatus):
        if not session.config.pluginmanager.has_plugin("dsession"):
            self.environments = [environment()]
        codes = pytest.ExitCode
        finished = (
            exitstatus in (codes.OK, codes.TESTS_FAILED, codes.NO_TESTS_COLLECTED)
            and len(self.tests) == session.testscollected
            and not self.broken
            and len(self.environments) == 1
        )
        run = {
            "arguments": self.arguments,
            "finished": finished,
            "seconds": round(time.monotonic() - self.start, 3),
        }
        reasons = {i: r for i, r in self.reasons.items() if self.tests[i] == "skipped"}
        result = {
            "environment": (self.environments or [UNKNOWN])[0] | self.source,
            "markers": self.markers,
            **totals([run], self.tests | dict.fromkeys(self.broken, "errors")),
            "reasons": dict(collections.Counter(reasons.values())),
            "left_out": sorted(self.left_out),
            "tests": self.tests,
        }
        write(result, self.path)

    def pytest_terminal_summary(self, terminalreporter):
        if self.path.exists():
            terminalreporter.write_line(f"summary: {self.path}")


def outcome_of(report) -> str | None:
    """What one phase of a test says of it: nothing where others decide."""
    if report.failed:  # xdist names no phase where a worker died
        return "errors" if report.when in ("setup", "teardown") else "failed"
    expected = hasattr(report, "wasxfail")
    if report.skipped:
        return "xfailed" if expected else "skipped"
    if report.when != "call":
        return None
    return "xpassed" if expected else "passed"


def totals(runs: list[dict], tests: dict[str, str]) -> dict:
    """What follows from the outcomes of the tests alone."""
    files: dict[str, dict[str, int]] = {}
    for test, outcome in sorted(tests.items()):
        of = files.setdefault(test.split("::")[0], {})
        of[outcome] = of.get(outcome, 0) + 1
    bad = [t for t, outcome in tests.items() if outcome in ("failed", "errors")]
    return {
        "finished": all(run["finished"] for run in runs),
        "seconds": round(sum(run["seconds"] for run in runs), 3),
        **{o: sum(of.get(o, 0) for of in files.values()) for o in OUTCOMES},
        "failures": sorted(bad),
        "runs": runs,
        "files": files,
    }


def source(root: Path = ROOT) -> dict:
    """The commit, and whether the tree has nothing else.

    JAX_CONVBATCH_COMMIT and JAX_CONVBATCH_CLEAN=1 say it for a copy whose git does not
    know.
    """
    named = os.environ.get("JAX_CONVBATCH_COMMIT")
    if named:
        clean = os.environ.get("JAX_CONVBATCH_CLEAN") == "1"
        return {"commit": named[:12], "clean": clean}
    git = ["git", "-C", str(root)]
    status = [*git, "status", "--porcelain", "--untracked-files=normal"]
    try:
        head = subprocess.check_output(
            [*git, "rev-parse", "--short=12", "HEAD"], stderr=subprocess.DEVNULL
        )
        changed = subprocess.check_output(status)
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "clean": False}
    return {"commit": head.decode().strip(), "clean": not changed.strip()}


def environment() -> dict:
    """Date, device and versions."""
    import jax
    import jaxlib

    from benchmarks import record

    try:
        found: dict = record.environment()
    except RuntimeError as error:  # from jax, of a GPU that it cannot start
        return UNKNOWN | {"error": str(error)}
    found["jaxlib"] = jaxlib.__version__
    device = jax.devices()[0]
    if device.platform != "cpu":
        found["devices"] = len(jax.devices())
        found["compute_capability"] = str(device.compute_capability)
        found["driver"] = driver()
    return found


def driver() -> str:
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.check_output(ask, text=True).split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def merge(parts: list[dict], suite: set[str]) -> dict:
    """The summary of several runs, no two of them of the same test.

    Args:
      parts: of one commit, kind of GPU and marker expression, with the same versions;
        each may have had several GPUs.
      suite: the tests that the expression takes of that commit.
    """
    first = parts[0]
    runs: list[dict] = []
    tests: dict[str, str] = {}
    broken: set[str] = set()
    reasons: collections.Counter[str] = collections.Counter()
    for part in parts:
        if "tests" not in part:
            raise SystemExit("error: a merged summary names no tests; give its parts")
        for key in ("environment", "markers"):
            of, other = first[key], part[key]
            if key == "environment":
                own = {"date": None, "devices": None}
                of, other = ({**e, **own} for e in (of, other))
            if of != other:
                raise SystemExit(f"error: parts differ in {key}: {of} and {other}")
        twice = tests.keys() & part["tests"].keys()
        if twice:
            raise SystemExit(f"error: {len(twice)} tests ran twice: {min(twice)}")
        runs += part["runs"]
        tests |= part["tests"]
        broken |= {*part["failures"]} - part["tests"].keys()
        reasons.update(part["reasons"])
    most = {
        key: max(part["environment"].get(key, 1) for part in parts)
        for key in ("date", "devices")
    }
    return {
        "environment": first["environment"] | most,
        "markers": first["markers"],
        "suite": len(suite),
        "missing": sorted(suite - tests.keys()),
        **totals(runs, tests | dict.fromkeys(broken, "errors")),
        "reasons": dict(reasons.most_common()),
        "left_out": sorted({name for part in parts for name in part["left_out"]}),
    }


def collected(markers: str) -> set[str]:
    """The tests of this tree that a marker expression takes."""

    class Ids:
        def pytest_collection_finish(self, session):
            self.found = {item.nodeid for item in session.items}

    ids, output = Ids(), io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(output):
        status = pytest.main(["--collect-only", "-qq", "-m", markers], plugins=[ids])
    if status != pytest.ExitCode.OK:
        raise SystemExit(f"{output.getvalue()}\nerror: the tests are not collected")
    return ids.found


def objections(result: dict) -> list[str]:
    """Why nobody may say that the suite has passed there."""
    n = {outcome: result[outcome] for outcome in OUTCOMES}
    bad = [f"{n[o]} {o}" for o in ("failed", "errors", "xpassed") if n[o]]
    if not result["environment"]["clean"]:
        bad.append("the tree had changes")
    if not re.fullmatch("[0-9a-f]{7,40}", result["environment"]["commit"]):
        bad.append("no commit is named")
    if result["environment"]["platform"] in ("cpu", "unknown"):
        bad.append("no GPU")
    if result["markers"] != "gpu":
        bad.append(f"-m {result['markers']!r}")
    if not result["finished"]:
        bad.append("not finished")
    if not n["passed"]:
        bad.append("nothing passed")
    if result.get("missing", ["all"]) or sum(n.values()) != result["suite"]:
        bad.append("a part of the suite")
    return bad


def claims(results: list[dict]) -> str:
    """What the README says of the suite."""
    lines = []
    for result in sorted(results, key=lambda r: r["environment"]["device"]):
        at = result["environment"]
        counts = [f"{result['passed']} passed", f"{result['skipped']} skipped"]
        if result["xfailed"]:
            counts.append(f"{result['xfailed']} failed as expected")
        which = f"commit {at['commit'][:7]}, {at['date']}"
        lines.append(f"  - {at['device']}: {', '.join(counts)} ({which})\n")
    return "".join(lines) or "  - none recorded yet\n"


def recorded(folder: Path = RESULTS) -> dict[str, dict]:
    """The committed summaries, by file name."""
    paths = sorted(folder.glob("gpu-suite-*.json"))
    return {path.name: json.loads(path.read_text()) for path in paths}


def file_name(result: dict) -> str:
    from benchmarks import record

    return f"gpu-suite-{record.slug(result['environment'])}.json"


def write(result: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def merge_command(paths: list[Path], output: str) -> None:
    parts = [json.loads(path.read_text()) for path in paths]
    commit, here = parts[0]["environment"]["commit"], source()["commit"]
    if not here.startswith(commit):
        raise SystemExit(f"error: check out {commit}: the tests of {here} are others")
    result = merge(parts, collected(parts[0]["markers"]))
    name = file_name(result).removeprefix("gpu-suite-").removesuffix(".json")
    path = Path(output.replace("DEVICE", name))
    write(result, path)
    said = [f"{result[o]} {o}" for o in OUTCOMES if result[o]]
    print(f"{path}: {', '.join(said)}, of {result['suite']} tests")
    for test in result["missing"][:10]:
        print("did not run:", test)
    for objection in objections(result):
        print("not to be recorded:", objection)


def readme_command() -> None:
    found = recorded()
    for name, result in found.items():
        if bad := objections(result):
            raise SystemExit(f"error: {name}: {', '.join(bad)}")
    path = ROOT / "README.md"
    path.write_text(BLOCK.sub(lambda _: claims([*found.values()]), path.read_text()))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    merging = commands.add_parser("merge", help="parts of the suite into one summary")
    merging.add_argument("parts", nargs="+", type=Path)
    merging.add_argument(
        "-o", required=True, help="DEVICE in it becomes the GPU's name"
    )
    commands.add_parser("readme", help="writes into README.md which suites have passed")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))  # for `benchmarks`
    if options.command == "merge":
        merge_command(options.parts, options.o)
    else:
        readme_command()


if __name__ == "__main__":
    main()
