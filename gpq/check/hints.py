"""Hints from the source of a script, one line each: what a restart resets. They take no freedom."""

from __future__ import annotations

from gpq.source import Script

MOST = 5
END = "`{name}`, by which the loop may end"
KEEP = (
    "add {name} = job.state({short!r}, {name}) before the loop, and job.state({short!r}, {name})"
    " where it changes"
)
WORDS = {  # kind of a source.Reset -> what a restart resets, and the cure
    "value": (END, KEEP),
    "number": (END, "use the epoch that job.epochs() yields"),
    "object": (END, "add {name} = job.state({name}) before the loop"),
    "best": ("`{name}`, the best value so far", KEEP),
    "average": (
        "`{name}`, an average of weights",
        "make it a module (AveragedModel), call job.state() with it before the loop, and update it"
        " only if job.at_step",
    ),
    "scale": ("the scale of `{name}`", "call job.prepare(model, optimizer, scaler={name})"),
}


def hints(script: Script) -> list[str]:
    """At most MOST lines."""
    lines = []
    for kind, name, line in script.resets()[:MOST]:
        what, cure = (part.format(name=name, short=name.split(".")[-1]) for part in WORDS[kind])
        lines.append(f"line {line}: a restart of the job resets {what}: {cure}")
    return lines
