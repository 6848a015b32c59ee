# SPDX-License-Identifier: Apache-2.0
"""What was measured: which engine and configuration runs a convolution fastest.

Two places say so: the tables of this package, `tables/DEVICE.json`, written by
`python -m benchmarks plans`, and the user's own file, written by
`jax_convbatch.tune`. Both have the same form:

    {"format": 1, "device": "NVIDIA H200", "made": {...}, "choices": {
      "fprop bfloat16 default 1x56x56x64 ...": {
        "engine": "implicit_gemm", "configs": {"8": "64x64", "256": "256x64"}}}}

A key of fprop or dgrad has no batch size, so that the engine, and with it the bits
of a sample, is the same in every batch; configurations of one engine differ in speed
alone there. A key of wgrad begins with the batch size. A choice is a function of
the key and the device: nothing is measured while a program is compiled.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from jax_convbatch._native import targets
from jax_convbatch._shapes.geometry import ConvGeometry
from jax_convbatch._version import __version__

FORMAT = 1
FOLDER = "JAX_CONVBATCH_TUNE_DIR"  # the variable of the environment
TABLES = Path(__file__).parent / "tables"
PRECISIONS = ("default", "high", "highest")


_left_out: ContextVar[bool] = ContextVar("left_out", default=False)


class Choice(NamedTuple):
    """An engine, the name of its configuration ("" for its rule's), who says so."""

    engine: str
    config: str
    source: str


def key(op: str, g: ConvGeometry, dtype: str, out_dtype: str, precision: int) -> str:
    """What a choice depends on besides the device, and for fprop and dgrad N."""

    def x(values: Any) -> str:
        return "x".join(map(str, values))

    parts = [
        op,
        dtype if out_dtype == dtype else f"{dtype}->{out_dtype}",
        PRECISIONS[precision],
        *([f"N{g.N}"] if op == "wgrad" else []),
        f"{x(g.inputs)}x{g.C}",
        f"{x(g.taps)}x{g.K}",
        x(g.outputs),
        f"s{x(g.stride)}",
        f"p{x(g.pad)}",
    ]
    for letter, dilation in (("i", g.input_dilation), ("f", g.filter_dilation)):
        if dilation != (1, 1, 1):
            parts.append(letter + x(dilation))
    if g.groups != 1:
        parts.append(f"g{g.groups}")
    return " ".join(parts)


def measured(
    op: str, g: ConvGeometry, dtype: str, out_dtype: str, precision: int, platform: str
) -> Iterator[Choice]:
    """What was measured for a convolution, the user's own first."""
    if _left_out.get():
        return
    wanted = key(op, g, dtype, out_dtype, precision)
    device = targets.device_name(platform)
    for source, choices in (("tuned", _tuned(device)), ("table", _table(device))):
        entry = choices.get(wanted)
        if entry:
            yield Choice(entry["engine"], entry["configs"].get(str(g.N), ""), source)


@contextlib.contextmanager
def left_out(really: bool = True) -> Iterator[None]:
    """Within it plans follow the rule alone, to measure that."""
    token = _left_out.set(really)
    try:
        yield
    finally:
        _left_out.reset(token)


def tuned_folder() -> Path:
    """Where `tune` keeps what it measured."""
    folder = os.environ.get(FOLDER)
    if not folder:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = os.path.join(cache, "jax_convbatch")
    # Unlike Path.expanduser, this does without a home directory.
    return Path(os.path.expanduser(folder))


def tuned_file(device: str) -> Path:
    """Its file for devices of this name."""
    return tuned_folder() / f"{slug(device)}.json"


def writable_file(device: str) -> Path:
    """`tuned_file`, in a folder that is there and can be written.

    Raises:
      OSError: it cannot; the message says what to set.
    """
    path = tuned_file(device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise OSError(
            error.errno,
            f"tune cannot write {path} ({error.strerror}); set {FOLDER} to a folder "
            "that can be written",
        ) from None


def slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def keep(device: str, new: dict[str, dict[str, Any]]) -> Path:
    """Adds choices to the user's file; what is there for other keys stays.

    Raises:
      OSError: the file cannot be written.
    """
    path = writable_file(device)
    choices = merged(_read(path, device), new)
    write(path, device, choices)
    forget()
    return path


def digest() -> str:
    """Of the user's files, of which a plan is a function."""
    return _digest(tuned_folder())


@functools.cache
def _digest(folder: Path) -> str:
    devices = [targets.device_name(p) for p in ("cpu", "cuda") if targets.available(p)]
    text = json.dumps([_tuned(device) for device in devices], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def forget() -> None:
    """Drops what was read of the files, so that the next plan reads them again."""
    _digest.cache_clear()
    _read_once.cache_clear()
    _table.cache_clear()
    _warn.cache_clear()
    warn_of_engine.cache_clear()


def merged(
    old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """`new` over `old`; configurations of the same engine are kept together."""
    result = dict(old)
    for name, entry in new.items():
        configs = dict(entry["configs"])
        if name in old and old[name]["engine"] == entry["engine"]:
            configs = {**old[name]["configs"], **configs}
        result[name] = {"engine": entry["engine"], "configs": configs}
    return result


def write(
    path: Path, device: str, choices: dict[str, dict[str, Any]], **made: Any
) -> None:
    """Writes a file of choices at once: a reader sees the old one or the new one."""
    content = {
        "format": FORMAT,
        "device": device,
        "made": {"jax_convbatch": __version__, **made},
        "choices": dict(sorted(choices.items())),
    }
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".json.new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@functools.cache
def _table(device: str) -> dict[str, dict[str, Any]]:
    path = TABLES / f"{slug(device)}.json"
    return load(path, device) if path.exists() else {}


def _tuned(device: str) -> dict[str, dict[str, Any]]:
    return _read_once(tuned_file(device), device)


@functools.cache
def _read_once(path: Path, device: str) -> dict[str, dict[str, Any]]:
    return _read(path, device)


def _read(path: Path, device: str) -> dict[str, dict[str, Any]]:
    """The user's file; nothing, and one warning, where it is damaged."""
    try:
        return load(path, device)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        _warn(str(path), str(error))
        return {}


@functools.cache
def _warn(path: str, error: str) -> None:
    warnings.warn(
        f"jax_convbatch: {path} is ignored: {error}. jax_convbatch.tune writes it "
        "anew.",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def warn_of_engine(engine: str, platform: str) -> None:
    """Says once that a choice names an engine that is unknown, as one of another
    version may be."""
    path = tuned_file(targets.device_name(platform))
    warnings.warn(
        f"jax_convbatch: {path} names the engine {engine!r}, which this version does "
        "not have. Such choices are left out; jax_convbatch.tune makes them anew.",
        RuntimeWarning,
        stacklevel=2,
    )


def load(path: Path, device: str) -> dict[str, dict[str, Any]]:
    """Raises ValueError where the content is not what `write` writes."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it does not have format {FORMAT}")
    if content.get("device") != device:
        raise ValueError(f"it was measured on {content.get('device')!r}")
    choices = content.get("choices")
    if not isinstance(choices, dict) or not all(map(_is_entry, choices.values())):
        raise ValueError("its choices are not engines and configurations")
    return choices


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("engine"), str)
        and isinstance(entry.get("configs"), dict)
        and all(isinstance(name, str) for name in entry["configs"].values())
    )
