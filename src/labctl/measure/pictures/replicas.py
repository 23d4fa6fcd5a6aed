"""What each replica executed, on one time axis, with what happened to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labctl.measure.pictures.timeline import COLORS, GREY

Executed = tuple[float, float, str, int]  # began, ended (seconds), model, requests in it
Event = tuple[float, float, str]  # began, ended (seconds), in words


def draw(steps: Mapping[str, Sequence[Executed]], events: Sequence[Event], path: Path, title: str) -> None:
    """Write the picture: a panel for each replica, a bar for each execution, as high as its batch.

    Args:
        steps: by replica's number, in any order.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    zero = min((step[0] for each in steps.values() for step in each), default=0.0)
    models = sorted({step[2] for each in steps.values() for step in each})
    top = max((step[3] for each in steps.values() for step in each), default=1)
    figure, axes = plt.subplots(len(steps), 1, figsize=(11, 0.9 + 1.5 * len(steps)), sharex=True, squeeze=False)
    for (axis,), (number, each) in zip(axes, sorted(steps.items()), strict=True):
        for index, model in enumerate(models):
            _executions(axis, [step for step in each if step[2] == model], zero, COLORS[index], model)
        axis.set_title(f"replica {number}", loc="left", fontsize=10)
        axis.set_ylabel("requests", fontsize=9)
        axis.set_ylim(0, top * 1.15)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        for began, ended, _ in events:
            axis.axvspan(began - zero, max(ended - zero, began - zero + 0.05), color=GREY, alpha=0.15, linewidth=0)
    for began, _, words in events:
        axes[0][0].annotate(
            words, (began - zero, top * 1.15), xytext=(0, 4), textcoords="offset points", fontsize=8, color=GREY,
            annotation_clip=False,
        )  # fmt: skip
    axes[-1][0].set_xlabel("seconds since the first request")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", frameon=False, fontsize=8, ncols=max(1, len(labels)))
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.tight_layout()
    temporary = path.with_name(f".{path.name}.part")
    figure.savefig(temporary, dpi=110, bbox_inches="tight", format="png")
    plt.close(figure)
    temporary.replace(path)


def _executions(axis: Any, steps: Sequence[Executed], zero: float, color: str, label: str) -> None:
    axis.bar(
        [began - zero for began, *_ in steps], [batch for *_, batch in steps],
        width=[max(ended - began, 1e-3) for began, ended, *_ in steps],
        align="edge", color=color, alpha=0.55, linewidth=0, label=label,
    )  # fmt: skip
