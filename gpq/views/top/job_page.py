"""The page of one job in `gpq top`: how it goes and why, its loss and goodput curves, its replicas,
the end of its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from gpq.rpc.job_answers import Explanation, JobDetail, JobView
from gpq.views import detail, explanation, goodput_curve, loss_curve, plain
from gpq.views.plain import duration, number, safe, wrapped
from gpq.views.queue import percent
from gpq.views.top import status_bar
from gpq.views.top.job_columns import state_of

PARTS = ("all", "log", "text")
LEAST = 3  # lines of a log
EVENTS = 6  # of the journal, the latest


@dataclass(frozen=True, slots=True)
class Page:
    """What was last told of a job."""

    detail: JobDetail
    why: Explanation
    # lines, made fit for a terminal (views.terminal): colours are the only codes in them
    log: tuple[str, ...] = ()
    log_of: str = ""  # `attempt 2 on a`, or why there is none


def picture(
    page: Page, part: str, scroll: int, width: int, height: int
) -> tuple[RenderableType, int]:
    """All, or one of `PARTS`, below the first line; and how far it is scrolled really. The end of
    the log is always seen, unless it is the log through which one scrolls, from its end."""
    text = lines(page, width)
    if part == "text":
        return status_bar.window(text, scroll, height)
    rule = Text(
        plain.cut(f"-- log of {safe(page.log_of)} ".ljust(width, "-"), width, ""), style="dim"
    )
    below = (
        height - 1
        if part == "log"
        else max(height - 1 - len(text), min(height // 2, max(len(page.log), LEAST)))
    )
    if part == "log":
        scroll = max(min(scroll, len(page.log) - below), 0)
        return status_bar.stacked([rule, *tail(page.log, width, below, scroll)]), scroll
    above, scroll = status_bar.window(text, scroll, height - 1 - below)
    return Group(above, rule, status_bar.stacked(tail(page.log, width, below))), scroll


def head(job: JobView, width: int) -> Text:
    """One line, also for a job of which no more is known yet."""
    text = Text(f"job {job.id} ", style="bold").append(f"{safe(job.name)} of {safe(job.user)}  ")
    text.append_text(state_of(job))
    if job.placement:
        text.append(f" on {detail.places(job.placement)}")
    text.truncate(width, overflow="ellipsis" if plain.ellipsis() == "…" else "crop")
    return text


def lines(page: Page, width: int) -> list[Text]:
    """Everything but the log; nothing is wider than `width`."""
    job, bar = page.detail.job, "█" if plain.ellipsis() == "…" else "#"
    why = msgspec.structs.replace(page.why, curve=[])
    events = [
        f"{plain.moment(event.at)[5:]} {safe(event.text)}"
        for event in page.detail.history[-EVENTS:]
    ]
    text = wrapped(_now(job), width)
    text += [
        line for line in (job.hung, job.unknown) if line for line in wrapped(safe(line), width)
    ]
    text += detail.paragraph(
        "loss", loss_curve.lines(page.detail.losses, width, bar, page.detail.metrics.get("loss"))
    )
    points = page.detail.curve or page.why.curve
    text += detail.paragraph(
        "goodput by number of GPUs, 1x = fewest", goodput_curve.lines(points, width, bar)
    )
    text += detail.paragraph("replicas", detail.replicas(page.detail, width))
    text += detail.paragraph(
        detail.LOST, detail.habits(page.detail.habits, width, page.detail.job.id)
    )
    text += detail.paragraph("why", explanation.lines(why, width, bar))
    text += detail.paragraph(
        "latest events", [line for event in events for line in wrapped(event, width, "  ", "    ")]
    )
    text += detail.paragraph("command", wrapped(safe(job.command), width, "  ", "    "))
    title_flags = [index > 0 and text[index - 1] == "" for index in range(len(text))]
    return [
        Text(line, style="bold" if title else "")
        for line, title in zip(text, title_flags, strict=True)
    ]


def _now(job: JobView) -> str:
    pairs = {
        "done": percent(job.progress) if job.progress is not None else "",
        "left": duration(job.eta_seconds) if job.eta_seconds is not None else "",
        "goodput": number(job.goodput) if job.goodput is not None else "",
        "efficiency": percent(job.efficiency) if job.efficiency is not None else "",
        "batch": str(job.total_batch) if job.total_batch else "",
        "speedup": number(job.speedup, "x") if job.speedup is not None and job.gpus else "",
        "priority": str(job.priority) if job.priority else "",
        "ran": duration(job.run_seconds),
        "age": duration(job.age_seconds),
        "restarts": str(job.restarts) if job.restarts else "",
    }
    return "  ".join(f"{key} {value}" for key, value in pairs.items() if value)


def tail(log: Sequence[str], width: int, height: int, offset: int = 0) -> list[Text]:
    """So many rows of the log's end, `offset` lines before it; long lines are folded, colours are
    kept."""
    rows: list[Text] = []
    for line in reversed(log[: max(len(log) - offset, 0)]):
        text = Text.from_ansi(line, no_wrap=True)
        text.expand_tabs(8)
        pieces = text.divide(range(width, len(text), width)) if len(text) > width else [text]
        rows[:0] = list(pieces)
        if len(rows) >= height:
            break
    return rows[-height:] if height else []
