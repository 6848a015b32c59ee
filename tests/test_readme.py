"""What the README shows runs, one block after another, and prints what it says."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flax")

README = Path(__file__).parent.parent.joinpath("README.md").read_text()


def test_the_blocks_of_the_readme_run(capsys, own_choices):
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    names = {}
    printed = {}
    for block in blocks:
        exec(block, names)
        printed[block] = capsys.readouterr().out
    (table,) = (printed[b] for b in blocks if b.startswith("print(jcb.explain(step"))
    # The columns that depend on processor and threads are the last ones.
    shown = re.search(r"^```\n(op .*?)^```", README, re.MULTILINE | re.DOTALL)[1]
    columns = slice(0, shown.index("by"))
    want = [line[columns] for line in shown.splitlines()]
    assert [line[columns] for line in table.splitlines()] == want
    assert own_choices.exists()
