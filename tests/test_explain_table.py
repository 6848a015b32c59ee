# SPDX-License-Identifier: Apache-2.0
"""What explain gives as plain values, as a notebook's table, and without a GPU."""

import dataclasses
import functools
import json
import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest
from test_choices import WB, XB, Native, W, X, gpu, step

import jax_convbatch as jc
from jax_convbatch._explain.table import HEADINGS, Explanation, Row


def test_to_dict_is_the_rows_and_survives_json():
    table = jc.explain(step, X, W)
    found = table.to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["flops"] == table.flops > 0
    assert [Row(**row) for row in found["rows"]] == list(table)
    names = {field.name for field in dataclasses.fields(Row)}
    assert all(row.keys() == names for row in found["rows"])
    assert jc.explain(jnp.sin, 1.0).to_dict() == {"flops": 0, "rows": []}


class Cells(HTMLParser):
    """The texts of a table, row by row."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        assert self.open[-1] in ("th", "td")
        self.rows[-1].append(data)


def test_a_notebook_shows_the_printed_table():
    table = jc.explain(step, X, W)
    head, *rows = Cells(table._repr_html_()).rows
    assert head == list(HEADINGS)
    assert len(rows) == len(table) == 3
    lines = str(table).splitlines()
    assert lines[0].split() == head
    for row, line in zip(rows, lines[2:], strict=True):
        assert re.split("  +", line) == row
    assert "no convolutions" in jc.explain(jnp.sin, 1.0)._repr_html_()


def test_a_notebooks_table_is_escaped():
    row = Row("fprop", "1x1 <b>", "float32", "xla", "a & b; lambda <x>", 0, 0, "rule")
    text = Explanation([row])._repr_html_()
    assert "<b>" not in text and "<x>" not in text and "a &amp; b" in text
    assert Cells(text).rows[1][-1] == row.reason


# --- CUDA where there is no GPU -----------------------------------------------------

CAVEAT = "planned without a GPU (with one, another engine may run); "


@pytest.fixture
def no_gpu(monkeypatch):
    """The CUDA module is there, and JAX sees no GPU."""
    gpu(monkeypatch, "unknown", "unknown")
    monkeypatch.setattr(Native, "no_cudnn", "")


@pytest.mark.parametrize("precision", ["default", "highest"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_without_a_gpu_no_reason_is_about_one(no_gpu, dtype, precision):
    conv = functools.partial(jc.conv, precision=precision)
    grad = jax.value_and_grad(lambda x, w: conv(x, w).sum(), argnums=(0, 1))
    rows = jc.explain(grad, XB.astype(dtype), WB.astype(dtype), platform="cuda")
    assert len(rows) == 3
    for row in rows:
        assert row.reason.startswith(CAVEAT), row.reason
        assert "unknown" not in row.reason and "Hopper" not in row.reason
        assert (
            "implicit_gemm does not cover this without a GPU to plan for" in row.reason
        )


def test_groups_and_deformable_convolutions_too(no_gpu):
    depthwise = functools.partial(jc.conv, groups=4)
    (row,) = jc.explain(depthwise, X, jnp.ones((3, 3, 1, 4)), platform="cuda")
    assert row.reason.startswith(CAVEAT) and "unknown" not in row.reason
    offset = jnp.zeros((2, 6, 5, 18))
    (row,) = jc.explain(jc.deform_conv, X, offset, W, platform="cuda")
    assert row.reason.startswith(CAVEAT) and "unknown" not in row.reason


def test_what_does_not_depend_on_the_gpu_has_no_caveat(no_gpu):
    named = functools.partial(jc.conv, algorithm="im2col_gemm")
    stock = functools.partial(jc.conv, algorithm="xla")
    for conv, reason in ((named, "asked for by name"), (stock, "algorithm='xla'")):
        (row,) = jc.explain(conv, X, W, platform="cuda")
        assert row.reason.startswith(reason)
    ints = jnp.ones(X.shape, int), jnp.ones(W.shape, int)
    (row,) = jc.explain(jc.conv, *ints, platform="cuda")
    assert row.reason.startswith("dtype int")


def test_the_cpus_rows_have_no_caveat():
    assert CAVEAT not in str(jc.explain(step, X, W, platform="cpu"))


def test_with_a_gpu_reasons_are_about_it(monkeypatch):
    gpu(monkeypatch, "NVIDIA A100-SXM4-80GB", "8.0")
    rows = jc.explain(step, XB, WB, platform="cuda")
    assert CAVEAT not in str(rows)
    assert all("compute capability 8.0 (it needs 9.0" in row.reason for row in rows)
