"""Reports as pictures. Importing this module needs matplotlib, the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def plot_engine(report: Mapping[str, Any], path: Path) -> None:
    """Tokens per second against batch size, medians; beside it each figure's share of its limit, if it was measured."""
    limits = report.get("limits")  # reports of old versions have none
    figure = Figure(figsize=(12 if limits else 7, 4.5), layout="constrained")
    panels = figure.subplots(1, 2 if limits else 1, squeeze=False)[0]
    _draw_rates(panels[0], report)
    if limits:
        _draw_shares(panels[1], limits["shares"])
    figure.suptitle(f"{report['model']}, {report['threads']} threads, {report['machine']['cpu']}")
    figure.savefig(path, dpi=150)


def _draw_rates(axes: Any, report: Mapping[str, Any]) -> None:
    for kind in ("decode", "mixed"):
        points = sorted((int(b), rate) for b, rate in report["median"][kind].items())
        axes.plot(*zip(*points, strict=True), marker="o", label=kind)
    axes.axhline(
        report["median"]["prefill"],
        linestyle=":",
        color="gray",
        label=f"prefill of {report['prompt']} tokens",
    )
    axes.set(xlabel="requests decoded together", ylabel="tokens/s", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_shares(axes: Any, shares: Mapping[str, Any]) -> None:
    """A bar for each figure, named with what limits it."""
    entries = {"prefill": shares["prefill"]}
    for kind in ("decode", "mixed"):
        entries |= {f"{kind} {batch}": entry for batch, entry in shares[kind].items()}
    bars = axes.barh(
        [f"{name}\n({entry['bound']})" for name, entry in entries.items()],
        [100 * entry["share"] for entry in entries.values()],
    )
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.invert_yaxis()
    axes.set(xlabel="% of what the machine allows (median)", xlim=(0, 115))
    axes.grid(alpha=0.3, axis="x")


def plot_serve(report: Mapping[str, Any], path: Path) -> None:
    """Time to the first token and per token against throughput, a point for each level of the sweep."""
    runs = [run for run in report["runs"] if run["tpot_ms"] is not None]
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("ttft_ms", "tpot_ms"), strict=True):
        rates = [run["output_tokens_per_s"] for run in runs]
        for percent in ("p50", "p99"):
            axes.plot(rates, [run[name][percent] for run in runs], marker="o", label=percent)
        for run, rate in zip(runs, rates, strict=True):
            axes.annotate(
                run["level"],
                (rate, run[name]["p50"]),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
        axes.set(xlabel="output tokens/s", ylabel=name.replace("_", " in "), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{report['model']} at {report['url']}")
    figure.savefig(path, dpi=150)
