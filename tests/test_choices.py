# SPDX-License-Identifier: Apache-2.0
"""What was measured: its keys, its file, and the plans that follow it."""

import functools
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._primitives import primitives
from jax_convbatch._select import choices, plan, rules
from jax_convbatch._shapes.geometry import ConvGeometry

X, W = jnp.ones((2, 6, 5, 4)), jnp.ones((3, 3, 4, 8))
ONES = (1, 1, 1)
G = ConvGeometry(2, 1, 6, 5, 4, 8, 1, 3, 3, 1, 6, 5, 1, ONES, (0, 1, 1), ONES, ONES)


def key(op, g=G, dtype="float32", out_dtype="float32", precision=0):
    return choices.key(op, g, dtype, out_dtype, precision)


def kept(path, entries, platform="cpu", **other):
    """Writes the user's file."""
    path.parent.mkdir(exist_ok=True)
    device = targets.device_name(platform)
    content = {"format": 1, "device": device, "choices": entries} | other
    path.write_text(json.dumps(content))
    choices.forget()


def entry(engine, **configs):
    return {"engine": engine, "configs": configs}


def step(x, w):
    return jax.value_and_grad(lambda x, w: jc.conv(x, w).sum(), argnums=(0, 1))(x, w)


def by_op(rows):
    return {row.op: (row.engine, row.source) for row in rows}


RULE = {op: ("implicit_gemm", "rule") for op in ("fprop", "dgrad", "wgrad")}


# --- keys ---------------------------------------------------------------------


@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
def test_a_key_tells_all_that_a_choice_may_depend_on(op):
    keys = [key(op), key(op, precision=1), key(op, out_dtype="float64")]
    keys.append(key(op, dtype="bfloat16"))
    for name, value in G._asdict().items():
        if isinstance(value, tuple):
            for axis in range(3):
                moved = [v + (i == axis) for i, v in enumerate(value)]
                keys.append(key(op, G._replace(**{name: tuple(moved)})))
        elif name != "N":
            keys.append(key(op, G._replace(**{name: value + 3})))
    assert len(set(keys)) == len(keys)


def test_only_a_gradient_of_filters_may_be_run_by_another_engine_in_another_batch():
    larger = G._replace(N=256)
    assert key("fprop") == key("fprop", larger)
    assert key("dgrad") == key("dgrad", larger)
    assert key("wgrad") != key("wgrad", larger)


# --- what is chosen -----------------------------------------------------------


def test_what_was_tuned_is_taken_and_said(own_choices):
    assert by_op(jc.explain(step, X, W)) == RULE
    kept(own_choices, {key("fprop"): entry("im2col_gemm")})
    rows = jc.explain(step, X, W)
    assert by_op(rows) == RULE | {"fprop": ("im2col_gemm", "tuned")}
    line = next(line for line in str(rows).splitlines() if line.startswith("fprop"))
    assert "im2col_gemm    tuned" in line
    text = jax.jit(step).lower(X, W).as_text()
    assert "jax_convbatch_im2col_gemm_fprop" in text
    assert "jax_convbatch_implicit_gemm_dgrad" in text


def test_a_tuned_engine_serves_every_batch_size_but_in_wgrad(own_choices):
    entries = {key(op): entry("im2col_gemm") for op in RULE}
    kept(own_choices, entries)
    tuned = ("im2col_gemm", "tuned")
    for n in (1, 2, 3, 8, 33, 256):
        rows = by_op(jc.explain(step, jnp.ones((n, *X.shape[1:])), W))
        assert rows["fprop"] == rows["dgrad"] == tuned
        assert rows["wgrad"] == (tuned if n == 2 else RULE["wgrad"])


def test_the_table_of_the_package_stands_behind_the_users_file(
    own_choices, tmp_path, monkeypatch
):
    device = targets.device_name("cpu")
    monkeypatch.setattr(choices, "TABLES", tmp_path)
    table = {key("fprop"): entry("per_sample"), key("dgrad"): entry("im2col_gemm")}
    choices.write(tmp_path / f"{choices.slug(device)}.json", device, table)
    choices.forget()
    want = RULE | {"fprop": ("per_sample", "table"), "dgrad": ("im2col_gemm", "table")}
    assert by_op(jc.explain(step, X, W)) == want
    kept(own_choices, {key("fprop"): entry("im2col_gemm")})
    want["fprop"] = ("im2col_gemm", "tuned")
    assert by_op(jc.explain(step, X, W)) == want


def test_what_is_asked_for_by_name_runs(own_choices):
    kept(own_choices, {key(op): entry("im2col_gemm") for op in RULE})
    for name in ("implicit_gemm", "per_sample", "im2col_gemm", "xla"):
        call = functools.partial(jc.conv, algorithm=name)
        (row,) = jc.explain(call, X, W)
        assert (row.engine, row.source) == (name, "name")


def test_a_choice_that_this_version_does_not_have_is_passed_over(own_choices):
    entries = {
        key("fprop"): entry("no_such_engine"),
        key("dgrad"): entry("im2col_gemm", **{"2": "no such configuration"}),
    }
    kept(own_choices, entries)
    rows = by_op(jc.explain(step, X, W))
    assert rows["fprop"] == ("implicit_gemm", "rule")
    # The engine stays the one of the other batch sizes.
    assert rows["dgrad"] == ("im2col_gemm", "tuned")
    np.testing.assert_array_equal(jc.conv(X, W)[0, 2, 2], 36)


def test_configurations_are_kept_with_those_of_the_same_engine_alone():
    old = {"a": entry("one", **{"2": "x", "8": "y"}), "b": entry("one", **{"2": "x"})}
    new = {"a": entry("one", **{"8": "z"}), "b": entry("other", **{"8": "z"})}
    assert choices.merged(old, new) == {
        "a": entry("one", **{"2": "x", "8": "z"}),
        "b": entry("other", **{"8": "z"}),
    }


def test_an_unknown_engine_is_left_out_and_said_once(own_choices):
    kept(own_choices, {key("fprop"): entry("of a later version")})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in (2, 3):
            rows = jc.explain(step, jnp.ones((n, *X.shape[1:])), W)
            assert by_op(rows) == RULE
    (message,) = (str(each.message) for each in said)
    assert "engine 'of a later version'" in message and str(own_choices) in message


def test_a_limit_too_small_for_the_choice_passes_it_over(own_choices):
    kept(own_choices, {key("fprop"): entry("im2col_gemm")})
    call = functools.partial(jc.conv, workspace_limit=16)
    (row,) = jc.explain(call, X, W)
    assert (row.engine, row.source) == ("implicit_gemm", "rule")


def test_a_configuration_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="configuration 'none'"):
        plan.make_plan(
            "fprop", G, "float32", "float32", "cpu", "im2col_gemm", config="none"
        )


# --- on GPUs, planned without one ----------------------------------------------


class Native:
    """Stands in for the CUDA module: three configurations of fprop and dgrad.

    Without cuDNN, unless `no_cudnn` is empty.
    """

    @staticmethod
    def implicit_gemm_plans(op, fields, dtype, multiprocessors, hopper, exact):
        names = ["64x64", "128x128", "256x64"] if op != "wgrad" else ["128x64/132"]
        rest = {"workspace": 0, "path": "tiles", "preferred": Native.preferred}
        rest |= {"epilogue": True, "signs": True}
        return [{"config": name, **rest} for name in names]

    @staticmethod
    def load_cudnn(path):
        return Native.no_cudnn

    @staticmethod
    def cudnn_version():
        return "9.19.0"

    @staticmethod
    def cudnn_plans(*args):
        rest = {"workspace": 0, "compiled": False, "depends_on_batch": False}
        return [{"config": name, **rest} for name in ("eng1", "eng2")]

    preferred = True
    no_cudnn = "no library of this name"


def gpu(monkeypatch, name, capability):
    """A GPU with this order of engines, whatever the rule's is."""
    native = targets._Native(Native())
    monkeypatch.setitem(targets._natives, "cuda", native)
    order = ("implicit_gemm", "cudnn", "im2col_gemm")
    monkeypatch.setattr(rules, "engines", lambda _: order)
    monkeypatch.setattr(targets, "cudnn_plans", targets.cudnn_plans.__wrapped__)
    monkeypatch.setattr(targets, "_gpu", lambda: targets.Gpu(name, capability, 132))


XB, WB = X.astype("bfloat16"), W.astype("bfloat16")
LOW_HIGH = "default", "highest"


def test_true_f32_runs_on_gpus_other_than_hopper(monkeypatch):
    gpu(monkeypatch, "NVIDIA A100-SXM4-40GB", "8.0")
    rows = {
        precision: jc.explain(
            functools.partial(jc.conv, precision=precision), X, W, platform="cuda"
        )[0]
        for precision in ("default", "high", "highest", LOW_HIGH, LOW_HIGH[::-1])
    }
    assert {precision: row.engine for precision, row in rows.items()} == {
        "default": "im2col_gemm",
        "high": "im2col_gemm",
        "highest": "implicit_gemm",
        # Of a pair the higher.
        LOW_HIGH: "implicit_gemm",
        LOW_HIGH[::-1]: "implicit_gemm",
    }
    assert "as TF32" in rows["default"].reason
    assert "in true float32" in rows["high"].reason


def on_cuda(x=XB):
    return jc.explain(step, x, WB, platform="cuda")


def test_what_refused_before_is_named(monkeypatch):
    gpu(monkeypatch, "NVIDIA A100-SXM4-80GB", "8.0")
    for row in on_cuda():
        assert (row.engine, row.source) == ("im2col_gemm", "rule")
        assert "compute capability 8.0 (it needs 9.0, Hopper)" in row.reason
        assert "cudnn does not cover this: no library of this name" in row.reason
    monkeypatch.setattr(Native, "no_cudnn", "")
    for row in on_cuda():
        assert (row.engine, row.source) == ("cudnn", "rule")
        assert "cuDNN 9.19.0, eng1" in row.reason
        assert "; implicit_gemm does not cover" in row.reason


def test_a_configuration_is_taken_for_its_batch_size_alone(own_choices, monkeypatch):
    gpu(monkeypatch, "NVIDIA H200", "9.0")
    name = choices.key("fprop", G, "bfloat16", "bfloat16", 0)
    kept(own_choices, {name: entry("implicit_gemm", **{"2": "256x64"})}, "cuda")
    assert [row.reason for row in on_cuda() if row.op == "fprop"] == ["tiles of 256x64"]
    other = [row for row in on_cuda(jnp.ones((9, *X.shape[1:]), "bfloat16"))]
    fprop = next(row for row in other if row.op == "fprop")
    assert (fprop.engine, fprop.source) == ("implicit_gemm", "tuned")
    assert fprop.reason == "tiles of 64x64"
    kept(own_choices, {name: entry("implicit_gemm", **{"2": "512x8"})}, "cuda")
    assert next(r.reason for r in on_cuda() if r.op == "fprop") == "tiles of 64x64"


def test_the_configuration_reaches_the_native_call(own_choices, monkeypatch):
    gpu(monkeypatch, "NVIDIA H200", "9.0")
    name = choices.key("dgrad", G, "bfloat16", "bfloat16", 0)
    kept(own_choices, {name: entry("implicit_gemm", **{"2": "128x128"})}, "cuda")
    jax.clear_caches()  # of the same step on another GPU
    traced = jax.jit(step).trace(XB, WB)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    lines = [line for line in text.splitlines() if "jax_convbatch_implicit" in line]
    found = {op: line for line in lines for op in RULE if f"gemm_{op}" in line}
    for op, config in {
        "fprop": "64x64",
        "dgrad": "128x128",
        "wgrad": "128x64/132",
    }.items():
        assert f'config = "{config}"' in found[op]


def test_what_was_measured_overrules_what_the_rule_leaves_alone(
    own_choices, monkeypatch
):
    gpu(monkeypatch, "NVIDIA H200", "9.0")
    monkeypatch.setattr(Native, "preferred", False)
    assert {row.engine for row in on_cuda()} == {"im2col_gemm"}
    name = choices.key("fprop", G, "bfloat16", "bfloat16", 0)
    kept(own_choices, {name: entry("implicit_gemm")}, "cuda")
    assert by_op(on_cuda()) == {
        "fprop": ("implicit_gemm", "tuned"),
        "dgrad": ("im2col_gemm", "rule"),
        "wgrad": ("im2col_gemm", "rule"),
    }


# --- the file -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "Expecting value"),
        ('{"format": 1, "dev', "Unterminated string"),
        ("[]", "format 1"),
        ('{"format": 2}', "format 1"),
        ('{"format": 1, "device": "another"}', "measured on 'another'"),
        ({"choices": []}, "not engines and configurations"),
        ({"choices": {"a": {"engine": 3, "configs": {}}}}, "not engines"),
        ({"choices": {"a": {"engine": "b", "configs": {"8": 1}}}}, "not engines"),
        (b"\xff\xfe\x00", "utf-8"),
    ],
)
def test_a_damaged_file_is_one_warning_and_ignored(own_choices, content, why):
    own_choices.parent.mkdir()
    if isinstance(content, dict):
        kept(own_choices, None, **content)
    elif isinstance(content, bytes):
        own_choices.write_bytes(content)
    else:
        own_choices.write_text(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert by_op(jc.explain(step, X, W)) == RULE
    (warning,) = [w for w in caught if "jax_convbatch" in str(w.message)]
    assert warning.category is RuntimeWarning
    assert why in str(warning.message)
    assert str(own_choices) in str(warning.message)


def test_a_file_that_is_not_there_says_nothing(own_choices):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert by_op(jc.explain(step, X, W)) == RULE


def test_the_file_is_written_at_once_or_not_at_all(own_choices, monkeypatch):
    device = targets.device_name("cpu")
    choices.keep(device, {"a": entry("im2col_gemm")})
    before = own_choices.read_text()

    def fails(content, file, **_):
        file.write('{"format"')
        raise OSError("disk full")

    monkeypatch.setattr(json, "dump", fails)
    with pytest.raises(OSError, match="disk full"):
        choices.keep(device, {"b": entry("im2col_gemm")})
    assert own_choices.read_text() == before
    assert list(own_choices.parent.iterdir()) == [own_choices]


def test_what_was_kept_before_stays(own_choices):
    device = targets.device_name("cpu")
    choices.keep(device, {"a": entry("x", **{"8": "s"}), "b": entry("y")})
    choices.keep(device, {"a": entry("x", **{"16": "t"})})
    choices.keep(device, {"b": entry("z", **{"1": "u"})})
    content = json.loads(own_choices.read_text())
    assert content["choices"] == {
        "a": entry("x", **{"8": "s", "16": "t"}),
        "b": entry("z", **{"1": "u"}),
    }
    assert content["device"] == device


def test_the_file_lies_in_the_users_cache(monkeypatch):
    monkeypatch.undo()  # of the fixture that keeps the tests out of it
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    path = choices.tuned_file("NVIDIA H200")
    assert str(path) == "/some/cache/jax_convbatch/nvidia-h200.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    path = choices.tuned_file("Intel(R) Xeon(R), 2 cores")
    assert str(path) == (
        "/home/somebody/.cache/jax_convbatch/intel-r-xeon-r-2-cores.json"
    )
    # A user without a home directory, as in some containers.
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}[0])
    assert choices.tuned_file("NVIDIA H200").name == "nvidia-h200.json"


def test_the_package_has_tables():
    assert (choices.TABLES / "nvidia-h200.json").exists()


@pytest.mark.parametrize("path", sorted(choices.TABLES.glob("*.json")), ids=str)
def test_the_tables_of_this_package_are_whole(path):
    content = json.loads(path.read_text())
    assert path.stem == choices.slug(content["device"])
    loaded = choices.load(path, content["device"])
    assert loaded
    for name, each in loaded.items():
        assert name.split()[0] in primitives.OPS, name
        assert each["engine"] in plan.ENGINES
        assert each["engine"] != "xla"
