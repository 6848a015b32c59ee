# SPDX-License-Identifier: Apache-2.0
"""Results of `causal` for people: tables, means, and a picture of all ratios."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.range_report import failures, short
from benchmarks.report import PALETTE, geometric_mean, timed

# Ratios, what they are called, and whether they are shares of a pass.
HEADS = {
    "forward_of_copy": ("forward, of a copy", True),
    "backward_of_add": ("backward, of x + dy", True),
    "over_jnp": ("jax.numpy / ours", False),
    "over_lax": ("jax.lax / ours", False),
    "update_of_copy": ("update, of a copy", True),
    "update_over_jnp": ("update, jax.numpy / ours", False),
}
# Columns of a table: a heading, and of which side or ratio.
SEQUENCES = {
    "forward\nµs": "forward",
    "of a\ncopy": "forward_of_copy",
    "backward\nµs": "backward",
    "of\nx + dy": "backward_of_add",
    "both\nµs": "ours",
    "jnp\nµs": "jnp",
    "jax.lax\nµs": "lax",
    "jnp /\nours": "over_jnp",
    "jax.lax\n/ ours": "over_lax",
}
UPDATES = {
    "ours\nµs": "update",
    "copy\nµs": "copy",
    "jnp\nµs": "jnp",
    "of a\ncopy": "update_of_copy",
    "jnp /\nours": "update_over_jnp",
}
TICKS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def layer(row: dict) -> str:
    """Its sizes in a few words."""
    sizes = [row[key] for key in ("n", "length", "c") if key in row]
    text = "x".join(map(str, sizes)) + f" {row['taps']} taps"
    if row.get("dilation", 1) > 1:
        text += f" d{row['dilation']}"
    if row.get("segments"):
        text += f" {row['segments']} segments"
    return text


def _of(row: dict, key: str) -> str:
    """A cell."""
    if key in HEADS:
        ratio = row["ratios"].get(key)
        share = HEADS[key][1]
        return "" if ratio is None else f"{ratio:.0%}" if share else f"{ratio:.2f}"
    if key in timed(row):
        return f"{row['sides'][key]['median_us']:.1f}"
    side = row["sides"].get(key, {})
    return "failed" if "failed" in side or "failed" in row else "-"


def summary(rows: list[dict]) -> dict[str, dict]:
    """By group, and of all: the mean and the worst row of each ratio."""
    found = {}
    for group in (*dict.fromkeys(row["group"] for row in rows), "all"):
        own = [row for row in rows if group in (row["group"], "all")]
        found[group] = {
            "rows": len(own),
            "failed": sum(bool(failures(row)) for row in own),
            **{ratio: _summed(own, ratio) for ratio in HEADS},
        }
    return found


def _summed(rows: list[dict], ratio: str) -> dict | None:
    ran = [row for row in rows if ratio in row["ratios"]]
    if not ran:
        return None
    worst = min(ran, key=lambda row: row["ratios"][ratio])
    return {
        "rows": len(ran),
        "geometric_mean": round(geometric_mean(r["ratios"][ratio] for r in ran), 4),
        "worst": worst["ratios"][ratio],
        "worst_row": worst["name"],
    }


def show(console: Console, result: dict) -> None:
    """Prints a table for each group, the means, the worst rows and what failed."""
    for key, value in result["environment"].items():
        console.print(f"{key} {value}", end=", ")
    console.print(f"{result['seconds_taken']} s")
    rows = result["rows"]
    for group in dict.fromkeys(row["group"] for row in rows):
        columns = UPDATES if group == "updates" else SEQUENCES
        own = [row for row in rows if row["group"] == group]
        view = Table(title=group, title_justify="left")
        for heading in ("name", "layer", "dtype"):
            view.add_column(heading, no_wrap=True)
        for heading in columns:
            view.add_column(heading, justify="right", no_wrap=True)
        for row in own:
            cells = [_of(row, key) for key in columns.values()]
            view.add_row(row["name"], layer(row), row["dtype"], *cells)
        console.print(view)
    for group, part in result["summary"].items():
        for ratio, (head, _) in HEADS.items():
            if part[ratio] and (group != "all" or "update" not in ratio):
                found = part[ratio]
                console.print(
                    f"{group}, {found['rows']} rows: {head}: geometric mean "
                    f"{found['geometric_mean']:.3f}, worst {found['worst']:.3f} "
                    f"({found['worst_row']})",
                    highlight=False,
                )
    for row in rows:
        notes = {n: s["left_out"] for n, s in row["sides"].items() if "left_out" in s}
        for side, text in (failures(row) | notes).items():
            console.print(f"{row['name']} {side}: {text}", markup=False)


def draw(result: dict, stem: Path) -> Path:
    """Shares of a pass on the left, speed-ups on the right; a line for each row."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["rows"]
    figure, axes = plt.subplots(
        1, 2, sharey=True, figsize=(10, 2.2 + 0.28 * max(len(rows), 1))
    )
    for axis, shares in zip(axes, (True, False), strict=True):
        heads = {key: head for key, (head, share) in HEADS.items() if share is shares}
        for color, (key, head) in zip(PALETTE, heads.items(), strict=False):
            at = [
                (r["ratios"][key], i) for i, r in enumerate(rows) if key in r["ratios"]
            ]
            if at:
                x, y = zip(*at, strict=True)
                axis.plot(x, y, "o", color=color, markersize=5, label=head)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.tick_params(labelsize=7)
        axis.grid(linewidth=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1))
    labels = [
        f"{row['name']}: {layer(row)}" if row["group"] == "draws" else layer(row)
        for row in rows
    ]
    axes[0].set_yticks(range(len(rows)), labels, fontsize=7)
    axes[0].invert_yaxis()
    axes[0].set_xlim(left=0)
    axes[0].set_xlabel("share: a plain pass's time over ours", fontsize=8)
    axes[1].set_xscale("log")
    axes[1].set_xticks(TICKS, TICKS)
    axes[1].minorticks_off()
    speeds = [r["ratios"][k] for r in rows for k in r["ratios"] if not HEADS[k][1]]
    axes[1].set_xlim(min(speeds, default=1) / 1.2, max(speeds, default=1) * 1.2)
    axes[1].set_xlabel("speed-up: the other's time over ours", fontsize=8)
    info = result["environment"]
    figure.suptitle(
        f"causal_conv1d, bias and SiLU: {info['device']}, jax {info['jax']}, "
        f"{info['date']}, commit {short(info['commit'])}",
        fontsize=8,
    )
    figure.tight_layout()
    path = stem.with_name(stem.name + ".png")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
