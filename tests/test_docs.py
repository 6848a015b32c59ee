# SPDX-License-Identifier: Apache-2.0
"""What the documents show runs and prints what they say; their links lead somewhere.

The `python` blocks of a page run one after another. Where a `text` block with an error
follows one, it raises that error; "..." there stands for anything.
"""

import re
from pathlib import Path

import pytest

import jax_convbatch
from benchmarks.__main__ import COMMANDS
from jax_convbatch import deform, norms, ops

ROOT = Path(__file__).resolve().parent.parent  # also where files are linked to
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(
    r"^```python\n(.*?)^```$(?:\n\n^```text\n(\w*Error: .*?)\n^```$)?",
    re.MULTILINE | re.DOTALL,
)
# Of what `explain` prints the first columns; the others depend on the processor.
TABLE = re.compile(r"^```\n(op .*?)^```", re.MULTILINE | re.DOTALL)

# Classes whose objects functions return.
RESULTS_OF_CALLS = {"Installation", "Statistics"}

each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda p: str(p.relative_to(ROOT))
)


def slugs(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MyST name them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", each.strip().lower()) for each in headings)
    return {each.replace(" ", "-") for each in plain}


@each_page
def test_links_lead_somewhere(page):
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if path.startswith("benchmarks/results") and not RESULTS.exists():
            continue  # the sdist has none
        assert found.exists(), target
        assert not anchor or anchor in slugs(found), target


def test_options_are_those_of_old_pips():
    """Debian 12 has pip 23.0, which has no -C for --config-settings."""
    for page in PAGES:
        assert not re.search(r"-C cmake\.define", page.read_text()), page


def test_the_page_of_benchmarks_has_every_command():
    """And what is run in the root folder is installed so that it is found there."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    told = re.findall(r"^\| `(\w+)\b.*` \|", page, re.MULTILINE)
    assert {*COMMANDS} - {*told} == set()
    for each in (page, (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.findall(r"^    pip install (\S+)", each, re.MULTILINE) == ["-e"]


def test_the_api_reference_has_every_public_name_and_calls_every_function():
    flax = pytest.importorskip("jax_convbatch.flax")
    reference = "\n".join(p.read_text() for p in ROOT.glob("docs/api/*.md"))
    examples = "\n".join(code for code, _ in BLOCK.findall(reference))
    names = {jax_convbatch: jax_convbatch.__all__}
    for module in (deform, norms, ops, flax.linen, flax.nnx):
        names[module] = [n for n in module.__all__ if n not in jax_convbatch.__all__]
    for module, public in names.items():
        for name in (each for each in public if not each.startswith("_")):
            full = f"{module.__name__}.{name}"
            assert re.search(rf":: {re.escape(full)}\b", reference), full
            if callable(getattr(module, name)) and name not in RESULTS_OF_CALLS:
                # Or passes it on, as in `jcb.explain(jcb.conv, x, w)`.
                assert re.search(rf"\.{name}\b", examples), full


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.parent != ROOT and BLOCK.search(p.read_text())],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_run(page, capsys):
    pytest.importorskip("flax")
    names = {}
    for code, error in BLOCK.findall(page.read_text()):
        if not error:
            exec(code, names)
            continue
        with pytest.raises(Exception) as caught:
            exec(code, names)
        got = f"{caught.type.__name__}: {caught.value}"
        want = ".*".join(map(re.escape, error.split("...")))
        assert re.fullmatch(want, got, re.DOTALL), got
    printed = capsys.readouterr().out.splitlines()
    for table in TABLE.findall(page.read_text()):
        for line in table.splitlines():
            assert any(each.startswith(line) for each in printed), line
