"""What the README shows runs, one block after another, and prints what it says."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flax")

README = Path(__file__).parent.parent.joinpath("README.md").read_text()


def test_the_blocks_of_the_readme_run(capsys, own_choices):
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    names = {}
    printed = []
    for block in blocks:
        exec(block, names)
        printed.append(capsys.readouterr().out)
    # The table of the fourth, but for what depends on processor and threads.
    shown = re.search(r"^```\n(op .*?)^```", README, re.MULTILINE | re.DOTALL)[1]
    columns = slice(0, shown.index("by"))
    want = [line[columns] for line in shown.splitlines()]
    assert [line[columns] for line in printed[3].splitlines()] == want
    assert own_choices.exists()
