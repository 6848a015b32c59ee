# SPDX-License-Identifier: Apache-2.0
"""The tools that show what a refactoring changed: plans, kernels, compilation."""

import json
import random
import sys

import compilation
import kernel_hashes
import plan_dump
import pytest
import shown
from kernel_hashes import Kernel

SASS = """
\t.headerflags\t@"EF_CUDA_SM90"
arch = sm_90a
\t\tFunction : _Z5firstPf
        /*0000*/              MOV R1, c[0x0][0x28] ;        /* 0x00000a0000017a02 */
                                                            /* 0x000fe40000000f00 */
        /*0010*/              EXIT ;                        /* 0x000000000000794d */
\t\tFunction : _Z6secondPf
        /*0000*/              EXIT ;                        /* 0x000000000000794d */
arch = sm_80
\t\tFunction : _Z5firstPf
        /*0000*/              EXIT ;                        /* 0x000000000000794d */
"""


USAGE = """
arch = sm_90a
Resource usage:
 Common:
  GLOBAL:0
 Function _Z5firstPf:
  REG:128 STACK:16 SHARED:1024 LOCAL:0 CONSTANT[0]:656 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z6secondPf:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
arch = sm_80
 Function _Z5firstPf:
  REG:10 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def kernels(sass):
    return kernel_hashes.kernels(sass.splitlines(), USAGE.splitlines())


def test_kernels_are_known_by_their_instructions():
    first, second, other = kernels(SASS)
    assert first[1:] == (2, 128, 16, "sm_90a", "_Z5firstPf")
    assert other[1:] == (1, 10, 0, "sm_80", "_Z5firstPf")
    assert second.digest == other.digest != first.digest
    # Neither an address nor an encoding is an instruction.
    moved = SASS.replace("/*0010*/", "/*0020*/").replace("0x00000a00", "0x00000b00")
    assert next(kernels(moved)) == first
    changed = SASS.replace("c[0x0][0x28]", "c[0x0][0x2c]")
    assert next(kernels(changed)).digest != first.digest


def test_what_a_refactoring_did_to_kernels(tmp_path, capsys):
    old = [Kernel("a", 10, 32, 0, "sm_90a", "f"), Kernel("b", 20, 64, 0, "sm_90a", "g")]
    renamed = [old[0], old[1]._replace(name="h")]
    other = [old[0], Kernel("c", 21, 64, 8, "sm_90a", "g")]
    none = {"gone": [], "new": [], "renamed": [], "spilling": []}
    assert kernel_hashes.changes(old, old) == none
    assert kernel_hashes.changes(old, renamed) == none | {"renamed": renamed[1:]}
    assert kernel_hashes.changes(old, other) == none | {
        "gone": old[1:],
        "new": other[1:],
        "spilling": other[1:],
    }
    paths = []
    for name, some in (("old", old), ("renamed", renamed), ("other", other)):
        paths.append(tmp_path / name)
        lines = ("\t".join(map(str, kernel)) for kernel in some)
        paths[-1].write_text("".join(f"{line}\n" for line in lines))
        assert kernel_hashes.load(paths[-1]) == some
    assert kernel_hashes.main(["compare", *map(str, paths[:2])]) == 0
    assert kernel_hashes.main(["compare", str(paths[0]), str(paths[2])]) == 1
    assert "1 gone" in capsys.readouterr().out


def test_what_a_source_takes_is_read_of_the_log_and_of_its_object():
    log = "# ninja log v7\n0\t900\t1\ta.o\tx\n900\t65400\t2\ta.o\tx\n"
    assert compilation.times(log) == {"a.o": 64.5}
    names = {"_Z5firstPf": "void space::first<half, 3>(float*)"}
    found = compilation.kernels(USAGE, names)
    assert found[0] == compilation.Kernel("first", "sm_90a", 128, 16)
    assert [kernel.name for kernel in found] == ["first", "_Z6secondPf", "first"]
    assert compilation.function("(anonymous namespace)::f(int)") == "f"
    unit = compilation.Unit("a.cu", 64.5, found)
    assert compilation.measured([unit, unit]) == {
        "seconds": {"a.cu": 64.5},
        "stack": {"sm_90a first": {"kernels": 2, "bytes": 16}},
    }


def exceptions(seconds=None, **stack):
    """Kernels of sm_90a, each (how many, bytes)."""
    named = {
        f"sm_90a {k}": dict(zip(("kernels", "bytes"), v, strict=True))
        for k, v in stack.items()
    }
    return {"seconds": seconds or {}, "stack": named}


def test_exceptions_only_shrink():
    allowed = exceptions({"a.cu": 100.0, "b.cu": 70.0}, f=(3, 40), g=(1, 8))
    assert compilation.faults(allowed, allowed) == []
    # A machine is not always as fast.
    assert (
        compilation.faults(
            allowed | {"seconds": {"a.cu": 105.0, "b.cu": 66.0}}, allowed
        )
        == []
    )
    worse = exceptions(
        {"a.cu": 120.0, "b.cu": 70.0, "c.cu": 61.0}, f=(3, 48), g=(2, 8), h=(1, 8)
    )
    assert [fault.split()[:2] for fault in compilation.faults(worse, allowed)] == [
        ["a.cu", "takes"],
        ["c.cu", "takes"],
        *(["sm_90a", name] for name in "fgh"),
    ]
    assert compilation.shrunk(worse, allowed) == allowed
    better = exceptions({"a.cu": 80.0}, f=(2, 40))
    assert len(compilation.faults(better, allowed)) == 2
    assert compilation.shrunk(better, allowed) == better
    assert compilation.faults(better, better) == []
    # What a build has nothing of stays.
    other = allowed["stack"] | {"sm_80 f": {"kernels": 1, "bytes": 8}}
    assert compilation.faults(allowed, allowed | {"stack": other}) == []


def test_a_build_is_measured_and_its_exceptions_recorded(tmp_path, monkeypatch, capsys):
    output = "CMakeFiles/hopper.dir/ffi/cuda/hopper/a.cu.o"
    (tmp_path / output).parent.mkdir(parents=True)
    (tmp_path / output).touch()
    log = tmp_path / ".ninja_log"
    log.write_text(f"# ninja log v7\n0\t70000\t1\t{output}\tx\n")
    rules = tmp_path / "build.ninja"
    rules.write_text(f"build {output}: CUDA_COMPILER\nbuild b.cu.o: CUDA_COMPILER\n")
    with pytest.raises(SystemExit, match=r"1 sources of .* are not compiled"):
        compilation.main([str(tmp_path), "--record"])
    rules.write_text(f"build {output}: CUDA_COMPILER\n")
    said = {"cuobjdump": USAGE, "c++filt": "first\nsecond\nfirst\n"}
    monkeypatch.setattr(compilation, "_run", lambda command, given="": said[command[0]])
    monkeypatch.setattr(compilation, "EXCEPTIONS", tmp_path / "exceptions.json")
    assert compilation.main([str(tmp_path), "--record"]) == 0
    found = json.loads((tmp_path / "exceptions.json").read_text())
    assert found == exceptions({"hopper/a.cu": 70.0}, first=(1, 16))
    said["cuobjdump"] = USAGE.replace("STACK:16", "STACK:24")
    assert compilation.main([str(tmp_path), "--record"]) == 1
    said["cuobjdump"] = USAGE.replace("STACK:16", "STACK:8")
    assert compilation.main([str(tmp_path)]) == 1
    assert compilation.main([str(tmp_path), "--record"]) == 0
    out = capsys.readouterr().out
    assert "1 sources, 70 s, 3 kernels, 1 with a stack" in out
    assert "1 with a stack, of up to 24 bytes; allowed are 1 with" in out
    with pytest.raises(SystemExit, match=r"has no \.ninja_log"):
        compilation.main([str(tmp_path / "absent")])


def test_drawn_geometries_are_the_same_and_of_every_kind():
    some = [plan_dump.geometry_of(random.Random(i)) for i in range(300)]
    assert some == [plan_dump.geometry_of(random.Random(i)) for i in range(300)]
    assert len(set(some)) == 300
    for g in some:
        assert g.C % g.groups == g.K % g.groups == 0
        assert min(g.outputs) > 0
    for kind in (
        lambda g: g.groups == g.C > 1,
        lambda g: 1 < g.groups < g.C,
        lambda g: g.T > 1,
        lambda g: max(g.stride) > 1,
        lambda g: max(g.input_dilation) > 1,
        lambda g: max(g.filter_dilation) > 1,
        lambda g: min(g.pad) < 0,
        lambda g: g.C % 8 != 0,
    ):
        assert 3 < sum(map(kind, some)) < 297


def test_what_a_change_did_to_plans():
    old = {"a": ["plan 1", "x"], "b": ["plan 2", "y"], "c": ["plan 3", "z"]}
    new = {"a": ["plan 1", "x"], "b": ["plan 9", "y"], "c": ["plan 3", "w"]}
    assert plan_dump.differences(old, old) == []
    assert plan_dump.differences(old, new) == [
        ("b", "plan 2", "plan 9"),
        ("c", "candidates", "other candidates"),
    ]
    del new["a"]
    assert plan_dump.differences(old, new)[0] == ("a", "plan 1", "nothing")


@pytest.mark.usefixtures("native")
def test_a_dump_is_the_same_twice(tmp_path, monkeypatch, capsys):
    for name in ("_gpu", "cudnn_problem", "cudnn_version", "cudnn_plans"):
        monkeypatch.setattr(plan_dump.targets, name, getattr(plan_dump.targets, name))
    monkeypatch.setattr(plan_dump.choices, "measured", plan_dump.choices.measured)
    monkeypatch.setattr(plan_dump.fake_gpus, "geometries", dict)
    paths = [str(tmp_path / name) for name in ("old.gz", "new.gz", "other.gz")]
    for path in paths[:2]:
        assert plan_dump.main(["write", path, "--count", "20"]) == 0
    assert plan_dump.main(["write", paths[2], "--count", "21"]) == 0
    assert plan_dump.main(["compare", *paths[:2]]) == 0
    assert plan_dump.main(["compare", paths[0], paths[2]]) == 1
    out = capsys.readouterr().out
    assert "0 of 240 plans differ" in out
    assert "before nothing" in out


def test_a_bar_passes_its_values_on_and_leaves_stdout_alone(capsys, monkeypatch):
    assert list(shown.bar(range(3), "some")) == [0, 1, 2]
    assert list(shown.bar(iter("ab"), "some", total=2)) == ["a", "b"]
    assert list(shown.bar(iter("ab"), "some of unknown number")) == ["a", "b"]
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert list(shown.bar(range(3), "without rich")) == [0, 1, 2]
    assert capsys.readouterr().out == ""
