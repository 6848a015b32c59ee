# SPDX-License-Identifier: Apache-2.0
"""Results of `layers` for people: a table on the terminal and a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

# Shares of a rate that a side may have, and what they are called.
SHARES = {"share_of_gemm": "of GEMM", "share_of_peak": "of peak"}
PALETTE = ("#1b6ca8", "#d1495b", "#edae49", "#66a182", "#6f4e7c", "#8d96a3")


def geometric_mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def timed(row: dict) -> dict[str, dict]:
    """The sides of a row that ran."""
    return {name: side for name, side in row["sides"].items() if "median_us" in side}


def best_peer(row: dict) -> float | None:
    """The time of the fastest that is not ours."""
    peers = [s["median_us"] for s in timed(row).values() if s.get("peer")]
    return min(peers, default=None)


def ratio(row: dict, side: dict, peer: str | None = None) -> float | None:
    """A peer's time (by default the best one's) over that of `side`."""
    other = timed(row)[peer]["median_us"] if peer else best_peer(row)
    return other / side["median_us"] if other else None


def show(console: Console, result: dict) -> None:
    """Prints a table for each batch and dtype, and the means."""
    for key, value in (result["environment"] | result["ceilings"]).items():
        console.print(f"{key} {value}", end=", ")
    console.print(f"{result['seconds_taken']} s")
    for batch, dtype in _parts(result["rows"]):
        rows = [r for r in result["rows"] if (r["batch"], r["dtype"]) == (batch, dtype)]
        console.print(_table(rows, f"batch {batch}, {dtype}"))
        for line in means(rows):
            console.print(line)


def means(rows: list[dict]) -> list[str]:
    """One line for each operation and engine of ours."""
    lines = []
    for op in dict.fromkeys(row["op"] for row in rows):
        same = [row for row in rows if row["op"] == op]
        ours = dict.fromkeys(
            n for row in same for n, side in timed(row).items() if not side.get("peer")
        )
        for name in ours:
            own = [row for row in same if name in timed(row)]
            peers = dict.fromkeys(
                n for row in own for n, side in timed(row).items() if side.get("peer")
            )
            parts = [
                f"{peer} / ours "
                f"{geometric_mean(ratio(r, timed(r)[name], peer) for r in own):.2f}"
                for peer in peers
            ]
            if len(peers) > 1:
                best = [ratio(row, timed(row)[name]) for row in own]
                mean, least = geometric_mean(best), min(best)
                parts.append(f"best peer / ours {mean:.2f} (least {least:.2f})")
            share = geometric_mean(
                timed(r)[name]["median_us"] / r["roof_us"] for r in own
            )
            parts.append(f"ours / roof {share:.2f}")
            for key, text in SHARES.items():
                shares = [
                    side[key]
                    for side in (timed(row)[name] for row in own)
                    if key in side
                ]
                if shares:
                    mean, least = geometric_mean(shares), min(shares)
                    few = f" of {len(shares)} rows" if len(shares) < len(own) else ""
                    parts.append(f"{text}{few} {mean:.0%} (least {least:.0%})")
            lines.append(f"{op} {name}, {len(own)} rows: " + ", ".join(parts))
    return lines


def _parts(rows: list[dict]):
    return dict.fromkeys((row["batch"], row["dtype"]) for row in rows)


def _table(rows: list[dict], title: str) -> Table:
    view = Table(title=title)
    names = dict.fromkeys(name for row in rows for name in timed(row))
    view.add_column("layer", no_wrap=True)
    view.add_column("op")
    view.add_column("ran", no_wrap=True)
    for name in names:
        view.add_column(f"{name}, µs", justify="right", no_wrap=True)
    for heading in ("TFLOP/s", "GB/s", "peer/ours", "ours/roof"):
        view.add_column(heading, justify="right")
    shares = [
        key
        for key in SHARES
        if any(key in side for row in rows for side in timed(row).values())
    ]
    for key in shares:
        view.add_column(SHARES[key], justify="right")
    in_blas = any("blas_share" in row for row in rows)
    if in_blas:
        view.add_column("in BLAS", justify="right")
    for row in rows:
        sides = timed(row)
        ours = [side for side in sides.values() if not side.get("peer")]
        best = min(ours, key=lambda side: side["median_us"]) if ours else None
        cells = [row["name"], row["op"], best["engine"] if best else ""]
        for name in names:
            side = sides.get(name)
            cells.append(
                f"{side['median_us']:.1f} ±{side['spread_us'] / 2:.1f}" if side else "-"
            )
        if best:
            over = ratio(row, best)
            cells += [
                f"{best['tflops']:.1f}",
                f"{best['gb_per_s']:.0f}",
                "" if over is None else f"{over:.2f}",
                f"{best['median_us'] / row['roof_us']:.2f}",
            ]
        else:
            cells += [""] * 4
        for key in shares:
            cells.append(f"{best[key]:.0%}" if best and key in best else "")
        if in_blas:
            cells.append(f"{row['blas_share']:.0%}" if "blas_share" in row else "")
        view.add_row(*cells)
    return view


def draw(result: dict, stem: Path) -> Path:
    """Time over roof for every layer, one panel a batch, dtype and operation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["rows"]
    across = list(dict.fromkeys(row["op"] for row in rows))
    down = list(_parts(rows))
    longest = max(len(dict.fromkeys(row["name"] for row in rows)), 1)
    figure, axes = plt.subplots(
        len(down),
        len(across),
        squeeze=False,
        sharey="row",
        figsize=(1.5 + 3.7 * len(across), 1.2 + (0.8 + 0.22 * longest) * len(down)),
    )
    sides = list(dict.fromkeys(name for row in rows for name in timed(row)))
    for line, (batch, dtype) in zip(axes, down, strict=True):
        part = [r for r in rows if (r["batch"], r["dtype"]) == (batch, dtype)]
        names = list(dict.fromkeys(row["name"] for row in part))
        for axis, op in zip(line, across, strict=True):
            for i, side in enumerate(sides):
                at = [
                    (row[1]["sides"][side]["median_us"] / row[1]["roof_us"], row[0])
                    for row in ((names.index(r["name"]), r) for r in part)
                    if row[1]["op"] == op and side in timed(row[1])
                ]
                if at:
                    axis.plot(
                        *zip(*at, strict=True),
                        "o",
                        markersize=5,
                        color=PALETTE[i % len(PALETTE)],
                        label=side,
                    )
            axis.axvline(1, color="black", linewidth=0.8)
            axis.set_xscale("log")
            axis.set_title(f"{op}, batch {batch}, {dtype}", fontsize=9)
            axis.set_yticks(range(len(names)), names, fontsize=7)
            axis.grid(axis="y", linewidth=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        line[0].invert_yaxis()
    for axis in axes[-1]:
        axis.set_xlabel("time over roof", fontsize=8)
    axes[0][0].legend(fontsize=8)
    info = result["environment"]
    figure.suptitle(
        f"{result['table']}, {info['device']}, jax {info['jax']}, {info['date']}, "
        f"commit {info['commit']}",
        fontsize=9,
    )
    figure.tight_layout()
    path = stem.with_name(stem.name + ".png")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
