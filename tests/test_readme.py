# SPDX-License-Identifier: Apache-2.0
"""What the README shows runs, one block after another, and prints what it says.

The GPUs that it names are those on which the suite has passed.
"""

import re
from pathlib import Path

import gpu_suite
import pytest

README = Path(__file__).parent.parent.joinpath("README.md").read_text()


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_blocks_of_the_readme_run(capsys, own_choices):
    pytest.importorskip("flax")
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


def test_the_readme_names_the_gpus_on_which_the_suite_has_passed():
    """`python tests/gpu_suite.py readme` writes what is missing here."""
    if not gpu_suite.RESULTS.exists():
        pytest.skip("the sdist has no results")
    found = gpu_suite.recorded()
    for name, result in found.items():
        assert gpu_suite.objections(result) == [], name
        assert gpu_suite.file_name(result) == name
    assert gpu_suite.BLOCK.findall(README) == [gpu_suite.claims([*found.values()])]
    assert README.count("suite (`make gpu-test`)") == 1  # said nowhere else
