# SPDX-License-Identifier: Apache-2.0
"""The bits that are recorded for a GPU are those that it computes today."""

import json
import random

import bits
import jax
import numpy as np
import plan_dump
import pytest

from jax_convbatch._native import targets


def some(count=8):
    """Layers small enough for a CPU."""
    rng = random.Random(1)
    drawn = (bits.smaller(plan_dump.geometry_of(rng)) for _ in range(100))
    small = [g for g in drawn if g and g.flops < 1e7][:count]
    kinds = zip(small, 3 * bits.DTYPES, 3 * bits.ACTIVATIONS, strict=False)
    return [*(bits.Case(*each) for each in kinds), *deformable()]


def deformable():
    rank_2 = dict(D=1, T=1, O=1, N=2, H=6, W=5, C=4, K=8, R=3, S=3, P=6, Q=5, groups=1)
    ones = dict.fromkeys(("stride", "input_dilation", "filter_dilation"), (1, 1, 1))
    g = bits.ConvGeometry(**rank_2, **ones, pad=(0, 1, 1))
    return [bits.Case(g, "float32", offset_groups=2)]


@pytest.mark.gpu
def test_results_have_the_bits_that_are_recorded():
    path = bits.path_of("cuda")
    if not path.exists():
        pytest.skip(f"no bits are recorded in {path.name}: python tests/bits.py write")
    found = bits.digests(bits.load_cases(), jax.devices("cuda")[0])
    changed = bits.changes(bits.load(path), found)
    assert not changed, "\n".join(changed)


def test_the_same_layers_have_the_same_bits_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bits, "CASES", tmp_path / "cases.json")
    monkeypatch.setattr(bits, "load_cases", lambda: some())
    monkeypatch.setattr(bits, "BLOCK", 5)
    path = tmp_path / "found" / "cpu.json"
    for command in ("write", "compare"):
        assert bits.main([command, str(path), "--platform", "cpu"]) == 0
    content = json.loads(path.read_text())
    assert content["key"] == f"cpu-{targets.instruction_set()}"
    words = [each.split() for each in content["digests"].values()]
    assert [len(each) for each in words] == [4] * 8 + [6]
    assert len({word for each in words for word in each}) == 4 * 8 + 6
    name, last = list(content["digests"].items())[-1]
    content["digests"][name] = last[:-1] + ("0" if last[-1] != "0" else "1")
    path.write_text(json.dumps(content))
    assert bits.main(["compare", str(path), "--platform", "cpu"]) == 1
    assert f"dmask: {name}\n1 of 9 layers differ" in capsys.readouterr().out


def test_one_bit_of_a_result_is_seen():
    a = np.ones((3, 4), "float32")
    b = a.copy()
    b.view("uint32")[2, 3] ^= 1
    assert bits.digest(a) != bits.digest(b)
    assert bits.digest(a) == bits.digest(a.T.copy().T)


def test_what_changed_is_named():
    old = {"a": "1 2 3 4", "b": "1 2 3 4", "c": "1 2 3 4"}
    new = {"a": "1 2 9 4", "b": "refused: why", "c": "1 2 3 4", "d": "1 2 3 4"}
    assert bits.changes(old, old) == []
    assert bits.changes(old, new) == ["dw: a", "1 2 3 4: b", "not recorded: d"]


def test_layers_are_kept_as_they_are(tmp_path):
    cases = some()
    bits.save_cases(cases, tmp_path / "cases.json")
    assert bits.load_cases(tmp_path / "cases.json") == cases
    assert len({case.name for case in cases}) == len(cases)


def test_the_layers_are_many_small_and_of_every_kind():
    cases = bits.load_cases()
    assert 250 <= len({case.name for case in cases}) == len(cases) <= 320
    for kind in (
        lambda c: c.offset_groups,
        lambda c: c.geometry.groups == c.geometry.C > 1,
        lambda c: 1 < c.geometry.groups < c.geometry.C,
        lambda c: c.geometry.T > 1,
        lambda c: max(c.geometry.stride) > 1,
        lambda c: max(c.geometry.input_dilation) > 1,
        lambda c: c.geometry.C <= 4,
        lambda c: c.activation == "relu",
        lambda c: c.precision == "highest",
        *(lambda c, d=d: c.dtype == d for d in bits.DTYPES),
    ):
        assert sum(map(bool, map(kind, cases))) > 5
    for case in cases:
        sizes = [np.prod(s.shape) for s in case.shapes]
        assert max(sizes) <= bits.MOST_VALUES


def test_what_shows_most_new_ways_is_chosen_first(monkeypatch, capsys):
    shown = {"a": {1}, "b": {1}, "c": {1, 2}, "d": {2}, "e": {3}}
    monkeypatch.setattr(bits, "ways", shown.__getitem__)
    assert bits.choose(iter("abcdea"), 4) == ["c", "e", "a", "b"]
    assert "4 layers show 3 of 3 ways" in capsys.readouterr().out
    assert bits.choose(iter("abcde"), 1) == ["c"]
    assert "1 layers show 2 of 3 ways" in capsys.readouterr().out
