"""The text of `gpq why`."""

from __future__ import annotations

from gpq.rpc.job_answers import Explanation, ReallocationView
from gpq.views import goodput_curve
from gpq.views.plain import moment, number, safe, wrapped
from gpq.views.queue import ENDED


def lines(answer: Explanation, limit: int, bar: str = "█") -> list[str]:
    """Headline, reasons, remedies, and the goodput that decided it."""
    text = wrapped(f"job {answer.id} ({safe(answer.state)}): {safe(answer.headline)}", limit)
    for reason in answer.reasons:
        if reason != answer.headline:  # the headline is the whole reason
            text += wrapped(safe(reason), limit, "  - ", "    ")
    if answer.remedies:
        text += ["", "what to do:" if answer.state in ENDED else "what would change that:"]
        for remedy in answer.remedies:
            text += wrapped(safe(remedy), limit, "  - ", "    ")
    reasons = " ".join([answer.headline, *answer.reasons])
    notes = [note for note in answer.notes if note not in reasons]
    if notes:
        text += ["", "notes:"]
        text += [line for note in notes for line in wrapped(safe(note), limit, "  - ", "    ")]
    if answer.curve:
        text += [
            "",
            "goodput by number of GPUs, 1x = fewest:",
            *goodput_curve.lines(answer.curve, limit, bar),
        ]
    if answer.changes:
        text += ["", f"the last change of GPUs, {moment(answer.changed_at or '')}:"]
        text += [
            line
            for change in answer.changes
            for line in wrapped(_change(change), limit, "  - ", "    ")
        ]
    if answer.round_at:
        text += ["", f"decided at {moment(answer.round_at)}, in the last round"]
    return text


def _change(change: ReallocationView) -> str:
    name = f" {safe(change.name)}" if change.name else ""
    line = f"job {change.job}{name}: {change.before} -> {change.after} GPUs"
    if change.ratio is not None:
        line += f", goodput x{number(change.ratio)}"
    return f"{line}: {safe(change.why)}"
