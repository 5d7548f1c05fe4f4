"""Reports as pictures. Importing this module needs matplotlib, the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def plot_engine(report: Mapping[str, Any], path: Path) -> None:
    """Tokens per second against batch size; medians."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
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
    axes.set_title(f"{report['model']}, {report['threads']} threads, {report['machine']['cpu']}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


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
