"""The page of `gpq report --html`: one file with tables, plots and a glossary, made of report.html.
It has no scripts and loads nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from string import Template

from gpq.rpc.account_answers import Piece, ReportRow, ReportView, RhoBar
from gpq.views import svg
from gpq.views.accounts import hours, report_columns
from gpq.views.plain import Column, duration, fit, moment, number
from gpq.views.queue import percent

MOST_USERS = 8  # users with their own colour and plot
MOST_ROWS = 500  # rows of the table. The CSV has all rows
OTHERS = "others"
HOUR = 3600.0
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report.html")


def document(answer: ReportView, users: ReportView) -> str:
    """`answer` is for the table, and `users` (the same time by user) for the plots."""
    span = f"{moment(answer.since)[:16]} to {moment(answer.until)[:16]}"
    plots = (
        _plots(users) if users.rows else "<p>No job used a GPU, waited or ended in this time.</p>"
    )
    with open(PAGE, encoding="utf-8") as stream:
        page = Template(stream.read())
    return page.substitute(
        span=svg.text(span),
        now=svg.text(moment(answer.now)),
        tiles=_tiles(answer.total),
        table=_table(answer),
        plots=plots,
    )


def _tiles(total: ReportRow) -> str:
    tiles = (
        (hours(total.gpu_hours), "GPU hours"),
        (hours(total.goodput_hours), "goodput hours"),
        (percent(total.efficiency), "worth"),
        (str(total.jobs), "jobs"),
        (duration(total.wait_median_seconds), "median wait"),
        (hours(total.restart_gpu_hours), "GPU hours for restarts"),
        (hours(total.failed_gpu_hours), "GPU hours failed"),
        (number(total.rho_median), "median rho"),
    )
    boxes = "".join(f"<div class=tile><b>{svg.text(v)}</b>{svg.text(k)}</div>" for v, k in tiles)
    return f'<div class="tiles">{boxes}</div>'


def _table(answer: ReportView) -> str:
    shown_rows = answer.rows[:MOST_ROWS]
    rows = [*shown_rows, answer.total] if len(answer.rows) > 1 else shown_rows
    if not rows:
        return ""
    columns = fit(report_columns(rows, answer.by), 0)
    head = "".join(f"<th{_alignment(column)}>{svg.text(column.title)}</th>" for column in columns)
    body = ""
    for index, row in enumerate(rows):
        cells = "".join(
            f"<td{_alignment(column)}>{svg.text(column.cells[index])}</td>" for column in columns
        )
        body += f"<tr{' class=all' if row is answer.total else ''}>{cells}</tr>"
    remark = ""
    if len(answer.rows) > len(shown_rows):
        hidden_rows = len(answer.rows) - len(shown_rows)
        remark = f'<p class="dim">{hidden_rows} more rows: gpq report --by {answer.by} --csv</p>'
    return (
        f"<h2>By {answer.by}</h2><div"
        f' class="scroll"><table><tr>{head}</tr>{body}</table></div>{remark}'
    )


def _alignment(column: Column) -> str:
    return " class=num" if column.right else ""


def _plots(users: ReportView) -> str:
    names = [row.key for row in users.rows if row.gpu_hours > 0 or row.fair_share]
    top_names = names[:MOST_USERS]
    labels = _labels(users.pieces)
    has_used_gpus = users.total.gpu_hours > 0
    has_curves = has_used_gpus and len(users.pieces) > 1
    sections = []
    if has_curves:
        series = _series(users.pieces, top_names, has_others=len(names) > len(top_names))
        key = [(name, svg.colour(place, len(series))) for place, (name, _) in enumerate(series)]
        picture = svg.over_time(series, labels, "GPUs")
        sections.append(f"<h2>GPUs in use, by user</h2><figure>{_key(key)}{picture}</figure>")
    if has_used_gpus:
        sections.append(_worth(users.rows[: 2 * MOST_USERS]))
    if has_curves:
        sections.append(_fairness(users.pieces, top_names, labels))
    if users.total.rhos:
        sections.append(_rhos(users.rho_bars))
    return "\n".join(sections)


def _worth(rows: Sequence[ReportRow]) -> str:
    kinds = (
        ("worth", "good"),
        ("lost to slow, restarted or repeated work", "lost"),
        ("unknown", "none"),
    )
    bars = []
    for row in rows:
        worth = row.goodput_hours or 0.0
        parts = [
            ("worth", worth, "good"),
            ("lost", max(row.known_gpu_hours - worth, 0.0), "lost"),
            ("unknown", max(row.gpu_hours - row.known_gpu_hours, 0.0), "none"),
        ]
        if row.gpu_hours > 0:
            bars.append((row.key, parts))
    return (
        "<h2>What the GPU hours were"
        f" worth</h2><figure>{_key(kinds)}{svg.parts_of(bars, 'GPU hours')}</figure>"
    )


def _rhos(bars: Sequence[RhoBar]) -> str:
    counts, shades = [], []
    for bar in bars:
        label, shade = f"{bar.least:g}+", "lost"
        if bar.below is not None:
            label = f"{bar.least:g}-{bar.below:g}" if bar.least else f"<{bar.below:g}"
        if bar.below is not None and bar.below <= 1:
            shade = "good"
        elif bar.least >= 2:
            shade = "bad"
        counts.append((label, bar.jobs))
        shades.append(shade)
    return (
        "<h2>Finish-time fairness</h2><figure><figcaption>completed jobs (below 1, a job took"
        " less time than alone on its fair "
        f'share)</figcaption><div class="pair">{svg.histogram(counts, shades)}</div></figure>'
    )


def _fairness(pieces: Sequence[Piece], names: Sequence[str], labels: Sequence[str]) -> str:
    shares_by_name = {name: _shares(pieces, name) for name in names}
    highest = max((max(*share, *fair) for share, fair in shares_by_name.values()), default=0.0)
    ceiling = next((limit for limit in (0.2, 0.5) if highest <= limit), 1.0)
    colours = svg.COLOURS - 1
    figures = [
        f"<figure><figcaption>{svg.text(name)}</figcaption>"
        f"{svg.shares(share, fair, labels, name, f's{place % colours}', ceiling=ceiling)}</figure>"
        for place, (name, (share, fair)) in enumerate(shares_by_name.items())
    ]
    caption = "bars: share of the GPUs in use, line: fair share"
    return (
        f'<h2>Fairness over time</h2><p class="dim">{caption}</p><div'
        f' class="pair">{"".join(figures)}</div>'
    )


def _shares(pieces: Sequence[Piece], name: str) -> tuple[list[float], list[float]]:
    """Parts of the GPU hours of each piece: those of the user, and the fair share."""
    shares, fair_shares = [0.0] * len(pieces), [0.0] * len(pieces)
    for index, piece in enumerate(pieces):
        total = sum(usage.gpu_hours for usage in piece.users)
        for usage in piece.users:
            if usage.user == name and total:
                shares[index] = usage.gpu_hours / total
                fair_shares[index] = min(usage.fair_gpu_hours / total, 1.0)
    return shares, fair_shares


def _series(
    pieces: Sequence[Piece], names: Sequence[str], *, has_others: bool
) -> list[tuple[str, list[float]]]:
    """Mean GPUs in each piece, by user."""
    shown_names = [*names, OTHERS] if has_others else names
    series = {name: [0.0] * len(pieces) for name in shown_names}
    for index, piece in enumerate(pieces):
        span = (_at(piece.end) - _at(piece.start)).total_seconds() / HOUR
        for usage in piece.users:
            name = usage.user if usage.user in names else OTHERS
            if name in series and span > 0:
                series[name][index] += usage.gpu_hours / span
    return list(series.items())


def _key(entries: Sequence[tuple[str, str]]) -> str:
    mark = '<svg viewBox="0 0 10 10"><rect class="{0}" width="10" height="10"/></svg>'
    entry_list = "".join(
        f"<li>{mark.format(shade)}{svg.text(name)}</li>" for name, shade in entries
    )
    return f'<ul class="key">{entry_list}</ul>'


def _at(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).astimezone()


def _labels(pieces: Sequence[Piece]) -> list[str]:
    """Labels in local time: times of day for hours, or else dates."""
    starts, ends = [_at(piece.start) for piece in pieces], [_at(piece.end) for piece in pieces]
    hour = timedelta(hours=1)
    hourly = all(
        end - start <= hour and start - starts[0] <= 49 * hour
        for start, end in zip(starts, ends, strict=True)
    )
    return [start.strftime("%d %b %H:%M" if hourly else "%d %b %Y") for start in starts]
