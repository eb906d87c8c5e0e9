"""The page of `gpq report --html`: one file with tables, plots and a glossary. It has no scripts
and loads nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from gpq.errors import UsageError
from gpq.rpc.account_answers import Piece, ReportRow, ReportView, RhoBar
from gpq.views import svg
from gpq.views.accounts import hours, report_columns
from gpq.views.plain import Column, duration, fit, moment, number
from gpq.views.queue import percent

MOST_USERS = 8  # users with their own colour and plot
MOST_ROWS = 500  # rows of the table. The CSV has all rows
OTHERS = "others"
HOUR = 3600.0
STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--dim:#667;--line:#d8dee4;\
--panel:#f6f8fa;--fair:#111}
@media(prefers-color-scheme:dark){:root{--back:#14171a;--text:#e6e9ec;--dim:#9aa4ae;--line:#333a41;\
--panel:#1c2126;--fair:#fff}}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.45 system-ui,sans-serif}
main{max-width:980px;margin:0 auto;padding:24px 16px 48px}h1{margin:0;font-size:26px}\
h2{font-size:18px;margin:32px 0 8px}
p{margin:4px 0 12px}.dim,figcaption,dd{color:var(--dim)}.tiles{display:flex;flex-wrap:wrap;\
gap:12px;margin:20px 0}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 16px;\
min-width:110px}
.tile b{display:block;font-size:22px;font-weight:600}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
th{font-size:12px;color:var(--dim)}.num{text-align:right}tr.all td{font-weight:600;border-bottom:0}
figure{margin:0 0 20px}svg{width:100%;height:auto;display:block}\
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
.end{text-anchor:end}.mid{text-anchor:middle}.grid{stroke:var(--line);fill:none}\
.fair{stroke:var(--fair);stroke-width:1.6;fill:none}
.pair{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:8px 24px}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;margin:4px 0 8px;padding:0;\
list-style:none}
.key svg{width:11px;height:11px;display:inline-block;margin-right:6px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;font-size:13px}\
dt{font-weight:600}dd{margin:0}
.s0{fill:#3b82c4}.s1{fill:#e69f00}.s2{fill:#1a9e77}.s3{fill:#cc6fa5}.s4{fill:#5bb8e8}\
.s5{fill:#d55e00}.s6{fill:#a89a1e}.s7{fill:#8b6bb8}
.s8{fill:#8a929a}.good{fill:#1a9e77}.lost{fill:#d9822b}.none{fill:#aab2ba}.bad{fill:#cf4a3f}
"""
WORDS = (
    ("GPU H", "hours times GPUs, from the start of an attempt to its end"),
    (
        "GOODPUT H",
        (
            "how many hours one GPU, used as well as the job can use it, needs for the same useful"
            " work. Useful work is progress in steps at the job's base batch size, as its training"
            " library counts it. Repeated work counts once. Jobs that report no progress have none"
        ),
    ),
    ("WORTH", "goodput hours relative to the GPU hours, over jobs that report progress"),
    (
        "SHARE, FAIR",
        (
            "the part of all GPU hours, and what it would have been if all users with running or"
            " waiting jobs had shared the GPUs equally at every moment"
        ),
    ),
    (
        "WAIT, P95",
        (
            "time from submission to the first start, without the time on hold: the median, and the"
            " value that 95% of the waits stay below"
        ),
    ),
    (
        "RESTARTS, COST H",
        (
            "starts after a job's first, and the GPU hours that stops took, and starts up to the"
            " first step"
        ),
    ),
    (
        "FAILED H",
        "GPU hours of attempts that failed or were lost, even if a checkpoint saved their work",
    ),
    (
        "RHO, MAX",
        (
            "finish-time fairness of completed jobs: the time taken, relative to the time alone on"
            " the fair share. 1 is fair, and lower is better. Median and worst"
        ),
    ),
)


def check(path: str) -> None:
    """Raises UsageError if the file cannot be written."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(
            f"--html {path}: cannot write there",
            "choose a file in a directory that exists and is writable",
        )


def write(path: str, page: str) -> None:
    """Replace an older page completely or not at all. Raises UsageError."""
    part = f"{path}.{os.urandom(8).hex()}.part"  # a name that nobody can have taken
    try:
        with open(part, "x", encoding="utf-8") as stream:
            stream.write(page)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part)
        raise UsageError(
            f"--html {path}: {error.strerror or error}", "choose a writable file"
        ) from None


def document(answer: ReportView, users: ReportView) -> str:
    """`answer` is for the table, and `users` (the same time by user) for the plots."""
    span = f"{moment(answer.since)[:16]} to {moment(answer.until)[:16]}"
    plots = (
        _plots(users) if users.rows else "<p>No job used a GPU, waited or ended in this time.</p>"
    )
    words = "".join(
        f"<dt>{svg.text(word)}</dt><dd>{svg.text(meaning)}</dd>" for word, meaning in WORDS
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta'
        ' http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src'
        ' \'unsafe-inline\'"><meta name="viewport" content="width=device-width,'
        ' initial-scale=1"><title>gpq report,'
        f" {svg.text(span)}</title><style>{STYLE}</style></head>\n<body><main><h1>gpq report</h1><p"
        f' class="dim">{svg.text(span)}, as of'
        f" {svg.text(moment(answer.now))}</p>\n{_tiles(answer.total)}\n{_table(answer)}\n"
        f"{plots}\n<h2>Terms</h2>"
        f"<dl>{words}</dl></main></body></html>\n"
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
