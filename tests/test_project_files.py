# SPDX-License-Identifier: Apache-2.0
"""Workflows, hooks and citation agree with the Makefile and pyproject.toml."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent  # also where files are linked to
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", " ")
WORKFLOWS = {p.stem: p for p in (ROOT / ".github" / "workflows").glob("*")}
HOOKS = ROOT / ".pre-commit-config.yaml"

# "quoted", [a, list] or plain, which has no ": " and no " #".
SCALAR = re.compile(
    r""""[^"\\]*"|\[(?:"[^"\\]*"|[^\[\]"'])*\]"""
    r"""|[^"'\[\]{}>|*&!%#`@,?-](?:(?!: | #).)*(?<!:)"""
)

in_repository = pytest.mark.skipif(
    (ROOT / "PKG-INFO").exists(), reason="the sdist has none of these files"
)


def entries(text: str) -> list[tuple[str, str]]:
    """(path of keys, value) of each line of YAML in the plain style of our files.

    Mappings, lists, and scalars or lists of one line: no blocks, anchors or tabs.
    """
    found, parents, seen = [], [], set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = re.fullmatch(r"( *)(- )?(?:([\w-]+):(?!\S))?(?: ?(\S.*))?", line)
        assert match and (match[2] or match[3]), f"line {number}: {line}"
        spaces, dash, key, value = match.groups(default="")
        indent = len(spaces)
        while parents and parents[-1][0] >= indent:
            parents.pop()
        assert indent == (parents[-1][0] + parents[-1][1] if parents else 0), (
            f"line {number}: indented by {indent}"
        )
        if dash:  # each entry of a list has keys of its own
            parents.append((indent + 1, 1, f"-{number}"))
            indent += 2
        path = "/".join([*(name for *_, name in parents), key])
        assert path not in seen, f"line {number}: {key} twice"
        seen.add(path)
        assert not value or SCALAR.fullmatch(value), f"line {number}: {value}"
        bare = value[1:-1] if value.startswith('"') else value
        found.append((re.sub(r"-\d+", "-", path), bare))
        if key and not value:
            parents.append((indent, 2, key))
    return found


def commands(text: str) -> list[str]:
    return [v for path, v in entries(text) if path.endswith("steps/-/run")]


@pytest.mark.parametrize(
    "text",
    ["a:\n\tb: 1", "a: b: 1", "a: [1", 'a: "1', "a: 1\na: 2", "a: 1\n  b: 2", "a"],
)
def test_what_is_no_yaml_is_refused(text):
    with pytest.raises(AssertionError):
        entries(text)


@in_repository
@pytest.mark.parametrize("name", ["ci", "docs", "gpu", "release"])
def test_workflows_are_yaml_with_jobs_that_end(name):
    assert WORKFLOWS[name].suffix == ".yml"
    found = entries(WORKFLOWS[name].read_text())
    assert {"name", "on", "permissions", "jobs"} <= {path for path, _ in found}
    jobs = [path for path, _ in found if re.fullmatch(r"jobs/[\w-]+", path)]
    assert jobs
    for job in jobs:
        keys = {path.removeprefix(f"{job}/") for path, _ in found}
        assert {"runs-on", "timeout-minutes", "steps"} <= keys


@in_repository
@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_workflows_call_targets_of_the_makefile(name):
    phony = " ".join(re.findall(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE)).split()
    variables = set(re.findall(r"^(\w+) \?=", MAKEFILE, re.MULTILINE))
    found = commands(WORKFLOWS[name].read_text())
    assert found
    for command in found:
        if name == "release" and command.startswith("gh release create "):
            continue
        match = re.fullmatch(r"make ([\w-]+)((?: \w+=(?:\$\{\{.*?\}\}|\S)+)*)", command)
        assert match, command
        assert match[1] in phony, command
        assert set(re.findall(r" (\w+)=", match[2])) <= variables, command


@in_repository
def test_ci_has_both_processors_and_the_oldest_and_newest_python():
    found = dict(entries(WORKFLOWS["ci"].read_text()))
    matrix = "jobs/test/strategy/matrix"
    assert found[f"{matrix}/runner"] == "[ubuntu-24.04, ubuntu-24.04-arm]"
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    newest = re.search(r"for python in python(\S+)", (ROOT / ".ci/run").read_text())[1]
    assert found[f"{matrix}/python"] == f'["{oldest}", "{newest}"]'


@in_repository
def test_ci_runs_the_targets_of_ci_run():
    local = re.findall(r"^make ([\w-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    hosted = (c for n in ("ci", "docs") for c in commands(WORKFLOWS[n].read_text()))
    # AArch64 itself runs the tests there.
    assert {*local} - {"aarch64"} == {command.split()[1] for command in hosted}


@in_repository
def test_hooks_have_the_versions_of_the_extra_lint():
    found = entries(HOOKS.read_text())
    pins = [v for path, v in found if path.endswith("/additional_dependencies")]
    pinned = {re.fullmatch(r'\["(\S+)"\]', each)[1] for each in pins}
    lint = PYPROJECT["project"]["optional-dependencies"]["lint"]
    assert pinned == {each for each in lint if not each.startswith("mypy")}
    tools = [v.split()[0] for path, v in found if path.endswith("/entry")]
    assert tools == [re.split("==", pin.strip('["]'))[0] for pin in pins]


def test_the_citation_is_of_this_version():
    found = dict(entries((ROOT / "CITATION.cff").read_text()))
    project = PYPROJECT["project"]
    assert found["version"] == project["version"]
    assert found["license"] == project["license"]
    assert found["abstract"] == project["description"]
    # Either both have an address or neither.
    assert found.get("repository-code") == project.get("urls", {}).get("Repository")


def test_the_changelog_has_this_version_and_its_date():
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if sections[0] == "Unreleased":
        sections = sections[1:]
    version = re.escape(PYPROJECT["project"]["version"])
    assert re.fullmatch(rf"{version} \(\d\d? [A-Z][a-z]+ \d{{4}}\)", sections[0])


@in_repository
def test_ci_run_fails_where_the_newest_jax_cannot_be_tested(tmp_path):
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = subprocess.run(
        [tmp_path / "bash", ROOT / ".ci" / "run"],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: the newest jax cannot be tested: no python")
