"""`gpq submit`, quick: options read without typer where they are plain; both ways end in `run`."""

from __future__ import annotations

from typing import Any

from gpq.cli import spec
from gpq.cli.grammar import GRAMMAR
from gpq.client.connection import call
from gpq.rpc import messages

LISTS = {
    "tag": "tags",
    "env": "env",
    "after": "after",
    "sweep": "sweep",
}  # options that may be repeated, and their fields
NUMBERS = ("priority", "retries", "batch_size", "max_batch_size")
HOW = ("hold", "wait", "dry_run", "json")  # not part of the specification


def quick(argv: list[str]) -> int | None:
    """Exit status, or None when typer has to look at the options (help, mistakes)."""
    options = GRAMMAR["submit"][1]
    fields: dict[str, Any] = {}
    words = iter(enumerate(argv))
    black_box, rest = False, len(argv)
    for place, word in words:
        if word == "--" or not word.startswith("-"):
            black_box = word == "--"
            rest = place + black_box
            break
        name, assigned, value = word.partition("=")
        if name not in options or (assigned and not word.startswith("--")):
            return None
        said, kind = options[name]
        field = (name if name.startswith("--") else said)[2:].replace("-", "_")
        if not kind:
            if assigned:
                return None
            fields[field] = True
            continue
        if not assigned:
            place, value = next(words, (-1, ""))
            if place < 0:
                return None
        if not _store(fields, field, value):
            return None
    how = {key: bool(fields.pop(key, False)) for key in HOW}
    return run(spec.Asked(words=argv[rest:], black_box=black_box, **fields), **how)


def _store(fields: dict[str, Any], field: str, value: str) -> bool:
    """False for a value that is not of its option's type."""
    if field in LISTS:
        fields.setdefault(LISTS[field], []).append(value)
    elif field in NUMBERS:
        if not value.removeprefix("-").isdecimal():
            return False
        fields[field] = int(value)
    else:
        fields[field] = value
    return True


def run(asked: spec.Asked, *, hold: bool, wait: bool, dry_run: bool, json: bool) -> int:
    """Submit, and print what came of it."""
    built = spec.build(asked)
    array = _array(asked, built) if asked.array or asked.sweep or asked.sweep_file else None
    request = messages.Submit(built, held=hold, array=array, dry_run=dry_run)
    _tell_of_late(asked)
    if dry_run:
        return _preview(call(request, messages.DryRun), json=json)
    answer = call(request, messages.Submitted)
    _print(answer, [_submitted(answer, array) + (", held: `gpq release` lets it run" if hold else "")], json=json)
    if wait:
        from gpq.cli import output
        from gpq.cli.wait import until_ended

        try:
            return until_ended([str(answer.id)], None, quiet=json, say_why=True)
        except KeyboardInterrupt:
            what = "array" if array is not None else "job"
            output.note(f"{what} {answer.id} stays queued or runs on: `gpq cancel {answer.id}` stops it")
            raise
    return 0


def _array(asked: spec.Asked, built: messages.SpecMessage) -> messages.ArrayMessage | None:
    from gpq.cli import output, sweeps

    array = sweeps.array_of(asked.array, asked.sweep, asked.sweep_file)
    if array is not None:
        output.note(*sweeps.unused(array, built))
    return array


def _submitted(answer: messages.Submitted, array: messages.ArrayMessage | None) -> str:
    if array is None:
        return f"job {answer.id} submitted"
    count, first, last = len(answer.jobs), answer.jobs[0], answer.jobs[-1]
    named = f"{answer.id}_{array.indices[0]}" + (f" to {answer.id}_{array.indices[-1]}" if count > 1 else "")
    jobs = f"{count} jobs, {first} to {last}" if count > 1 else f"1 job, {first}"
    return f"array {answer.id} submitted: {jobs} ({named})" + (
        f", at most {array.limit} at once" if array.limit else ""
    )


def _tell_of_late(asked: spec.Asked) -> None:
    """Options that look like gpq's own and stand where they are the script's."""
    known = GRAMMAR["submit"][1]
    late = dict.fromkeys(
        name for word in asked.words[1:] if (name := word.partition("=")[0]) in known and name[:2] == "--"
    )
    if late:
        from gpq.cli import output

        whose = "command" if asked.black_box else "script"
        stand, go = ("stand", "go") if len(late) > 1 else ("stands", "goes")
        said = f"{stand} after the {whose} and so {go} to it"
        output.note(f"{', '.join(late)} {said}: gpq's own options stand before it")


def _preview(answer: messages.DryRun, *, json: bool) -> int:
    from gpq.views.queue import ranges

    places = ", ".join(f"{part.node} GPU {ranges(part.indices)}" for part in answer.placement)
    lines = [f"would be {answer.state}" + (f" on {places}" if places else "")]
    _print(answer, lines + [f"  {reason}" for reason in answer.reasons], json=json)
    return 0


def _print(answer: messages.Submitted | messages.DryRun, lines: list[str], *, json: bool) -> None:
    from gpq.cli import output

    if json:
        output.emit(answer)
    else:
        output.say(*lines)
        output.note(*answer.warnings)
