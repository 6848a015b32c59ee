# SPDX-License-Identifier: Apache-2.0
"""Results of `range` for people: tables by family, and a picture of all ratios."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.report import PALETTE, geometric_mean, timed

LEVEL, FAR = 0.95, 0.80  # ratios below which a row is behind, and far behind
MORE_BYTES = 64 << 20  # of temporary memory than jax.lax's
HEADS = {"ours": "ours", "xla": "jax.lax", "torch": "cuDNN", "onednn": "oneDNN"}


def failures(row: dict) -> dict[str, str]:
    """What failed, by side; "" is the row itself."""
    found = {"": row["failed"]} if "failed" in row else {}
    for name, side in row["sides"].items():
        if "failed" in side:
            found[name] = side["failed"]
    return found


def hungry(row: dict) -> bool:
    """Whether ours takes much more temporary memory than jax.lax."""
    ours, theirs = (
        row["sides"].get(name, {}).get("temp_bytes") for name in ("ours", "xla")
    )
    return None not in (ours, theirs) and ours - theirs > MORE_BYTES


def _summed(rows: list[dict]) -> dict:
    ran = [row for row in rows if row["ratio"] is not None]
    worst = min(ran, key=lambda row: row["ratio"], default=None)
    mean = geometric_mean(row["ratio"] for row in ran)
    return {
        "rows": len(rows),
        "compared": len(ran),
        "failed": sum(bool(failures(row)) for row in rows),
        "geometric_mean": round(mean, 4) if ran else None,
        "below_0.95": sum(row["ratio"] < LEVEL for row in ran),
        "below_0.80": sum(row["ratio"] < FAR for row in ran),
        "more_memory": sum(map(hungry, rows)),
        "worst": worst and f"{worst['ratio']:.2f} {worst['op']} {worst['name']}",
    }


def summary(rows: list[dict]) -> dict[str, dict]:
    """Means and counts by family, and of all."""
    names = dict.fromkeys(row["family"] for row in rows)
    found = {
        name: _summed([row for row in rows if row["family"] == name]) for name in names
    }
    return {**found, "all": _summed(rows)}


def layer(row: dict) -> str:
    """The convolution in a few words."""

    def x(values) -> str:
        alike = len(set(values)) == 1
        return str(values[0]) if alike else "x".join(map(str, values))

    sizes = "x".join(map(str, row["inputs"]))
    taps = "x".join(map(str, row["taps"]))
    text = f"{row['batch']}x{sizes} {row['c']}->{row['k']} {taps}"
    for letter, key in (
        *(("s", "strides"), ("i", "lhs_dilation")),
        ("d", "rhs_dilation"),
    ):
        if max(row[key]) > 1:
            text += f" {letter}{x(row[key])}"
    if row["groups"] > 1:
        text += f" g{row['groups']}"
    if any(low != high for low, high in row["padding"]):
        text += " p" + "x".join(f"{low}+{high}" for low, high in row["padding"])
    return text


def show(console: Console, result: dict) -> None:
    """Prints the rows by family, those behind, and the summary."""
    for key, value in (result["environment"] | result["ceilings"]).items():
        console.print(f"{key} {value}", end=", ")
    console.print(f"{result['seconds_taken']} s")
    rows = result["rows"]
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        console.print(_table(own, family))
    behind = [r for r in rows if r["ratio"] is not None and r["ratio"] < LEVEL]
    if behind:
        behind.sort(key=lambda row: row["ratio"])
        console.print(_table(behind, f"rows below {LEVEL}, the worst first"))
    console.print(_summary(result["summary"]))
    total = result["summary"]["all"]
    if total["compared"]:
        share = total["below_0.95"] / total["compared"]
        console.print(
            f"geometric mean {total['geometric_mean']:.3f} of {total['compared']} "
            f"rows; below {LEVEL}: {total['below_0.95']} ({share:.0%}); below "
            f"{FAR:.2f}: {total['below_0.80']}; over {MORE_BYTES >> 20} MiB more "
            f"temporary memory than jax.lax: {total['more_memory']}; with a failure: "
            f"{total['failed']}"
        )
    for row in rows:
        for side, text in failures(row).items():
            console.print(f"{row['name']} {row['op']} {side}: {text}", markup=False)


def _summary(found: dict[str, dict]) -> Table:
    view = Table(title="ratio: the faster peer's time over ours", title_justify="left")
    view.add_column("family")
    for heading in ("rows", "mean", "below 0.95", "below 0.80", "memory", "failed"):
        view.add_column(heading, justify="right")
    view.add_column("worst", no_wrap=True)
    for name, part in found.items():
        mean = part["geometric_mean"]
        counts = ("below_0.95", "below_0.80", "more_memory", "failed")
        view.add_row(
            name,
            str(part["rows"]),
            "" if mean is None else f"{mean:.3f}",
            *(str(part[key]) for key in counts),
            part["worst"] or "",
            end_section=name == list(found)[-2],
        )
    return view


def _table(rows: list[dict], title: str) -> Table:
    view = Table(title=title, title_justify="left")
    view.add_column("name", no_wrap=True)
    view.add_column("layer", no_wrap=True)
    view.add_column("op")
    view.add_column("dtype")
    view.add_column("engine", no_wrap=True)
    sides = [name for name in HEADS if any(name in row["sides"] for row in rows)]
    for name in sides:
        view.add_column(f"{HEADS[name]}\nµs", justify="right", no_wrap=True)
    for heading in ("ratio", "of\nroof", "temporary\nMiB", "first\ns"):
        view.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        view.add_row(*_cells(row, sides))
    return view


def _cells(row: dict, sides: list[str]) -> list[str]:
    ours, ran = row["sides"].get("ours", {}), timed(row)
    cells = [row["name"], layer(row), row["op"], row["dtype"], ours.get("engine", "")]
    for name in sides:
        side = row["sides"].get(name, {})
        if name in ran:
            cells.append(f"{side['median_us']:.1f}")
        else:
            cells.append("failed" if "failed" in side else "-")
    ratio = row["ratio"]
    text = "failed" if "failed" in row else "" if ratio is None else f"{ratio:.2f}"
    cells.append(f"[bold]{text}[/bold]" if ratio and ratio < LEVEL else text)
    share = ours.get("share_of_roof")
    cells.append("" if share is None else f"{share:.0%}")
    both = [row["sides"].get(name, {}) for name in ("ours", "xla")]
    cells.append(_pair([side.get("temp_bytes") for side in both], 1 / (1 << 20), 1))
    cells.append(_pair([side.get("first_s") for side in both], 1, 2))
    return cells


def _pair(values: list, scale: float, digits: int) -> str:
    """Ours / jax.lax's."""
    shown = ["-" if v is None else f"{v * scale:.{digits}f}" for v in values]
    return " / ".join(shown)


def short(commit: str) -> str:
    """Seven of its digits, and what follows them."""
    return re.sub(r"^([0-9a-f]{7})[0-9a-f]+", r"\1", commit)


def draw(result: dict, stem: Path) -> Path:
    """A strip of ratios for each family, coloured by our engine."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    rows = [row for row in result["rows"] if row["ratio"] is not None]
    names = list(dict.fromkeys(row["family"] for row in result["rows"]))
    engines = sorted({row["sides"]["ours"]["engine"] for row in rows})
    figure, axis = plt.subplots(figsize=(9, 1.6 + 0.42 * len(names)))
    apart = random.Random(0)  # so that equal ratios are all seen
    for i, engine in enumerate(engines):
        own = [row for row in rows if row["sides"]["ours"]["engine"] == engine]
        axis.plot(
            [row["ratio"] for row in own],
            [names.index(r["family"]) + apart.uniform(-0.22, 0.22) for r in own],
            "o",
            color=PALETTE[i % len(PALETTE)],
            markersize=5,
            alpha=0.8,
            markeredgewidth=0,
            label=f"{engine} ({len(own)})",
        )
    for name in names:
        mean = result["summary"][name]["geometric_mean"]
        if mean is not None:
            at = names.index(name)
            axis.plot([mean] * 2, [at - 0.35, at + 0.35], color="black", linewidth=1.2)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.axvline(LEVEL, color="black", linewidth=0.6, linestyle=":")
    axis.set_xscale("log")
    least = min((row["ratio"] for row in rows), default=1)
    most = max((row["ratio"] for row in rows), default=1)
    axis.set_xlim(min(least, 0.8) / 1.2, max(most, 1.25) * 1.2)
    axis.set_xticks([t for t in _TICKS if least / 1.2 < t < most * 1.2 or t == 1])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="x", labelsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="x", linewidth=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("speed-up: the faster peer's time over ours (mean: |)", fontsize=8)
    if engines:
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    info, total = result["environment"], result["summary"]["all"]
    mean = total["geometric_mean"] or math.nan
    seeds = ", ".join(map(str, result["seeds"]))
    figure.suptitle(
        f"range, seed {seeds}: {total['compared']} operations, geometric mean "
        f"{mean:.2f}\n{info['device']}, jax {info['jax']}, {info['date']}, "
        f"commit {short(info['commit'])}",
        fontsize=8,
    )
    figure.tight_layout()
    path = stem.with_name(stem.name + ".png")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


_TICKS = (0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100)
