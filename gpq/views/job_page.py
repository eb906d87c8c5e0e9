"""The page of one job in `gpq top`: progress and reasons, loss and goodput curves, replicas, and
the end of its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from gpq.rpc.job_answers import Explanation, JobDetail, JobView
from gpq.rpc.job_columns import COLUMNS
from gpq.views import detail, plain, queue, top
from gpq.views.plain import safe, wrap, wrap_all
from gpq.views.top_tables import state_of

PARTS = ("all", "log", "text")
LEAST = 3  # minimum lines of a log
# the first line, by the names in queries
NOW = (
    "progress", "eta", "goodput", "efficiency", "batch", "speedup", "priority", "run", "age",
    "restarts",
)  # fmt: skip
EVENTS = 6  # latest events that are shown


@dataclass(frozen=True, slots=True)
class Page:
    """The latest answers about a job."""

    detail: JobDetail
    why: Explanation
    # lines, safe for a terminal (views.terminal): colours are their only codes
    log: tuple[str, ...] = ()
    log_of: str = ""  # `attempt 2 on a`, or why there is none


def picture(
    page: Page, part: str, scroll: int, width: int, height: int
) -> tuple[RenderableType, int]:
    """The picture with all parts, or one of `PARTS`, below the first line, and the real scroll
    position. The end of the log is always visible, unless the user scrolls the log itself from its
    end."""
    text = lines(page, width)
    if part == "text":
        return top.window(text, scroll, height)
    rule = Text(
        plain.cut(f"-- log of {safe(page.log_of)} ".ljust(width, "-"), width, ""), style="dim"
    )
    if part == "log":
        scroll = max(min(scroll, len(page.log) - height + 1), 0)
        return top.stack([rule, *tail(page.log, width, height - 1, scroll)]), scroll
    log_height = max(height - 1 - len(text), min(height // 2, max(len(page.log), LEAST)))
    upper, scroll = top.window(text, scroll, height - 1 - log_height)
    return Group(upper, rule, top.stack(tail(page.log, width, log_height))), scroll


def head(job: JobView, width: int) -> Text:
    """One line, also for a job without details yet."""
    text = Text(f"job {job.id} ", style="bold").append(f"{safe(job.name)} of {safe(job.user)}  ")
    text.append_text(state_of(job))
    if job.placement:
        text.append(f" on {detail.places(job.placement)}")
    text.truncate(width, overflow="ellipsis" if plain.ellipsis() == "…" else "crop")
    return text


def lines(page: Page, width: int) -> list[Text]:
    """Everything except the log. No line is wider than `width`."""
    answer, job = page.detail, page.detail.job
    bar = plain.drawable("█", "#")
    reasons = msgspec.structs.replace(page.why, curve=[])
    losses = detail.loss_curve(answer.losses, width, bar, answer.metrics.get("loss"))
    curve = detail.goodput_curve(answer.curve or page.why.curve, width, bar)
    row = msgspec.to_builtins(job)
    pairs = [(name, queue.cells(COLUMNS[name], [row])[0]) for name in NOW]
    now = "  ".join(f"{name} {text}" for name, text in pairs if text not in ("-", "0"))
    text = wrap(now, width)
    for trouble in filter(None, (job.hung, job.unknown)):
        text += wrap(safe(trouble), width)
    events = [f"{plain.moment(event.at)[5:]} {safe(event.text)}" for event in answer.history]
    text += detail.paragraph("loss", losses)
    text += detail.paragraph("goodput by number of GPUs, 1x = fewest", curve)
    text += detail.paragraph("replicas", detail.replicas(answer, width))
    text += detail.paragraph(detail.LOST, detail.habits(answer.habits, width, job.id))
    text += detail.paragraph("why", detail.why(reasons, width, bar))
    text += detail.paragraph("latest events", wrap_all(events[-EVENTS:], width, "  ", "    "))
    text += detail.paragraph("command", wrap(safe(job.command), width, "  ", "    "))
    return [
        Text(line, style="bold" if index > 0 and text[index - 1] == "" else "")
        for index, line in enumerate(text)
    ]


def tail(log: Sequence[str], width: int, height: int, offset: int = 0) -> list[Text]:
    """`height` rows of the log that end `offset` lines before its end. Long lines are folded, and
    colours stay."""
    rows: list[Text] = []
    for line in reversed(log[: max(len(log) - offset, 0)]):
        text = Text.from_ansi(line, no_wrap=True)
        text.expand_tabs(8)
        pieces = text.divide(range(width, len(text), width)) if len(text) > width else [text]
        rows[:0] = list(pieces)
        if len(rows) >= height:
            break
    return rows[-height:] if height else []
