"""Findings as tables: the printed ones and those in benchmarks/results. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.recovery.findings import Findings, Partition, Running, failures

NO_NETWORK = "n/a: one machine, no network between controller and jobs"

CUTS = (
    "A cut ends 20 s after a second run was seen (`--together`), and jobs are told to end a minute"
    " after that; two that run at once do so until then, or until the server that was cut off is"
    " asked again what it runs: a longer cut, a longer overlap."
)


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up. The first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join(
        [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]
    )


def kills(found: Sequence[Findings]) -> list[list[str]]:
    """A column for each job manager."""
    bursts = [each.burst for each in found]
    rows = [
        ["kill -9 of the controller", *(each.system for each in found)],
        ["jobs acknowledged before a kill, queued", *(str(burst.acknowledged) for burst in bursts)],
        ["... at most so long before", *(f"{burst.oldest_ack:.2f} s" for burst in bursts)],
        ["... lost", *(f"{burst.lost} of {burst.acknowledged}" for burst in bursts)],
        ["... whose id was given to another", *(str(burst.reused_ids) for burst in bursts)],
    ]
    for each in zip(*(each.running for each in found), strict=True):
        rows.append(
            [
                f"a job {each[0].moment}: lives to its end",
                *(f"{one.lived_on} of {one.tries}" for one in each),
            ]
        )
        rows.append(["... its exit code is known", *(_code(one) for one in each)])
        rows.append(["... it is run again", *(f"{one.doubled} of {one.tries}" for one in each)])
    return rows


def _code(one: Running) -> str:
    wrong = f", {one.code_wrong} wrong" if one.code_wrong else ""
    return f"{one.code_known} of {one.tries}{wrong} ({'; '.join(one.said)})"


def partitions(found: Sequence[Findings]) -> list[list[str]]:
    """A row for each variant."""
    rows = [
        [
            "server cut off",
            "for",
            "runs",
            "two at once",
            "first run lived",
            "said meanwhile",
            "said later",
            "exit code",
        ]
    ]
    for each in found:
        if each.partitions is None:
            rows.append([each.system, "", "", "", "", "", "", NO_NETWORK])
        else:
            rows += [_partition(each.system, cut) for cut in each.partitions]
    return rows


def _partition(system: str, cut: Partition) -> list[str]:
    code = (
        "not known"
        if cut.exit_code is None
        else f"{cut.exit_code}, {'right' if cut.code_right else 'wrong'}"
    )
    lived = "through" if cut.first_lived > cut.cut_seconds + 1.0 else f"{cut.first_lived:.0f} s"
    return [
        f"{system}, {cut.variant}",
        f"{cut.cut_seconds:.0f} s",
        str(cut.runs),
        f"{cut.overlap_seconds:.1f} s",
        lived,
        ", ".join(cut.before),
        ", ".join(cut.after),
        code,
    ]


def page(found: Sequence[Findings], *about: str) -> str:
    """The report of one run. `about`: paragraphs on the machine and the run."""
    parts = [*about, table(kills(found)), table(partitions(found)), CUTS]
    parts.append("\n".join(f"- {line}" for each in found for line in each.settings))
    better = [f"- {line}" for each in found for line in each.better]
    if better:
        parts.append("What would help:\n\n" + "\n".join(better))
    for each in found:
        if each.system.startswith("gpq"):
            bad = failures(each)
            parts.append(
                "gpq: "
                + ("; ".join(bad) if bad else "nothing lost, nothing run twice, no exit code wrong")
            )
    return "\n\n".join(parts) + "\n"
