"""Words of `gpq submit`, flags of sbatch and lines in scripts -> the one request for the daemon.
Imports no typer.

The command line wins over `#GPQ` lines, and these over `#SBATCH` lines. Labels and variables of all
are joined.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gpq.errors import UsageError
from gpq.options import job_spec, remarks, standard_input, values
from gpq.options.job_spec import SubmitTexts
from gpq.rpc import requests
from gpq.rpc.submit_table import BY_NAME, BY_WORD, OPTIONS

if TYPE_CHECKING:  # a plain command needs neither
    from gpq.options import sbatch, script_directives

JOINED = ("tag", "env")  # joined over all places
# of a command that gpq looks at: a glob may give it thousands of files
SCRIPT_WORDS = 8
# not part of what is submitted
HOW = tuple(option.name for option in OPTIONS if option.part == "call")
# these come last in a generated `gpq submit` command
LAST = ("after", "begin", "background", "array", "sweep", "sweep_file")
HERE = "the command line"


class Parsed(msgspec.Struct):
    """`fields` of SubmitTexts and of HOW that were given, `pairs` of sbatch, and the words after
    them."""

    fields: dict[str, Any] = {}
    words: list[str] = []
    black_box: bool = False  # the words were after `--`
    pairs: list[tuple[str, str]] = []


class ResolvedOptions(msgspec.Struct, frozen=True):
    texts: SubmitTexts
    how: dict[str, bool]
    notes: list[str]


def parse(argv: Sequence[str]) -> Parsed | None:
    """None if typer must handle the options: help, mistakes."""
    parsed = Parsed()
    words = list(argv)
    while words:
        if words[0] == "--" or not words[0].startswith("-") or words[0] == "-":
            parsed.black_box = words[0] == "--"
            parsed.words = words[parsed.black_box :]
            break
        count = _own(parsed.fields, words)
        if count is None:
            count = _foreign(parsed.pairs, words)
        if not count:
            return None
        del words[:count]
    return parsed


def plain(argv: Sequence[str], pairs: list[sbatch.Pair]) -> list[str]:
    """The words without flags of sbatch, which go to `pairs`, up to a word that is not an option,
    or a wrong one."""
    words, gpq_words = list(argv), []
    while words and words[0] != "--" and words[0].startswith("-"):
        count = _own({}, words)
        if count:
            gpq_words += words[:count]
        elif count is not None or not (count := _foreign(pairs, words)):
            break
        del words[:count]
    return [*gpq_words, *words]


def _own(fields: dict[str, Any], words: list[str]) -> int | None:
    """How many of the words were an option of gpq. 0 for a wrong one, None if there is none."""
    name, assigned, value = words[0].partition("=")
    attached = not words[0].startswith("--") and len(words[0]) > 2  # -g2
    if attached:
        name, assigned, value = words[0][:2], "=", words[0][2:]
    option = BY_WORD.get(name)
    if option is None:
        return None
    if option.kind == "flag":
        fields[option.name] = True
        return 0 if assigned else 1
    if not assigned and len(words) < 2:
        return 0
    count = 1 if assigned else 2
    value = value if assigned else words[1]
    if option.typed == "list[str]":
        fields.setdefault(option.name, []).append(value)
    elif option.typed == "str":
        fields[option.name] = value
    elif value.removeprefix("-").isdecimal():
        fields[option.name] = int(value)
    else:
        count = 0
    return count


def _foreign(pairs: list[sbatch.Pair], words: list[str]) -> int:
    """How many of the words were a flag of sbatch, written in full."""
    from gpq.options import sbatch

    name = sbatch.name_of(words[0])
    if not name or (words[0].startswith("--") and words[0][2:].partition("=")[0] != name):
        return 0
    alone = (
        "=" in words[0]
        or not sbatch.takes_value(name)
        or (words[0][1] != "-" and len(words[0]) > 2)
    )
    if not alone and len(words) < 2:
        return 0
    count = 1 if alone else 2
    pairs += sbatch.pairs(words[:count], HERE)
    return count


def settle_typed(parsed: Parsed) -> ResolvedOptions:
    """As `settle`, for words from a shell: with what is on stdin, and a note on misplaced options.
    Raises UsageError."""
    misplaced = late(parsed)
    if not parsed.words and "wrap" not in dict(parsed.pairs) and standard_input.has_script():
        parsed.words = ["-"]
    settled = settle(parsed)
    texts, unused = settled.texts, list[str]()
    if texts.words and not texts.stdin:
        stdin, unused = standard_input.implied_stdin(texts.words, black_box=texts.black_box)
        texts = texts.having(stdin=stdin)
    return ResolvedOptions(texts, settled.how, [*misplaced, *unused, *settled.notes])


def late(parsed: Parsed) -> list[str]:
    """A note about options of gpq that are placed after the script or command. Raises UsageError if
    a command begins with one. Options that gpq would refuse for a command belong to the command."""
    words = [word.partition("=")[0] for word in parsed.words]
    if parsed.black_box:
        if words and words[0] in BY_WORD:
            raise UsageError(
                f"{words[0]} is after `--`, where the command begins",
                "put gpq's options before `--`",
            )
        words = [word for word in words if word not in job_spec.OF_SCRIPTS]
    misplaced = dict.fromkeys(name for name in words[1:] if name[:2] == "--" and name in BY_WORD)
    if not misplaced:
        return []
    where, whom, before = (
        ("`--`", "the command", "`--`") if parsed.black_box else ("the script", "it", "it")
    )
    are, go = ("are", "go") if len(misplaced) > 1 else ("is", "goes")
    return [
        f"{', '.join(misplaced)} {are} after {where} and so {go} to {whom}:"
        f" put gpq's options before {before}"
    ]


def settle(parsed: Parsed) -> ResolvedOptions:
    """The request with the options in the script itself. Raises UsageError."""
    wrapped_line = dict(parsed.pairs).get("wrap")
    if wrapped_line is not None:  # a line of shell instead of a script
        if parsed.words:
            raise UsageError(
                "--wrap cannot be combined with a script or command", "use one of them"
            )
        default_name = {} if "job-name" in dict(parsed.pairs) else {"name": "wrap"}
        words = ["/bin/sh", "-c", wrapped_line]
        parsed = Parsed({**default_name, **parsed.fields}, words, True, parsed.pairs)
    script = None if parsed.black_box or not parsed.words else _script(parsed)
    shell = parsed.black_box or (script is not None and not script.python)
    fields, notes = parsed.fields, []
    if parsed.pairs:
        from gpq.options import sbatch

        translated = sbatch.translate(
            parsed.pairs, HERE, explicit_fields=parsed.fields, shell=shell
        )
        fields, notes = ({**translated.fields, **parsed.fields}, _notes(translated, HERE))
    if script is None:
        notes += _of_command(parsed) if parsed.black_box else []
        return _settle(fields, parsed.words, parsed.black_box, notes)
    fields, line_notes = _with_lines(script, fields, parsed, shell=shell)
    notes += line_notes
    if script.slurm and parsed.fields.get("name", "").isdigit():
        # for users of sbatch `-n 4` means four tasks
        notes.append(f"{HERE}: -n is --name, so the job is called {parsed.fields['name']}")
    words = (
        [script.path, *parsed.words[1:]]
        if fields.get("cwd") != parsed.fields.get("cwd")
        else parsed.words
    )
    if shell:
        from gpq.options import script_directives

        cwd = job_spec.directory(fields.get("cwd", ""))
        words = [
            *script_directives.command(script, cwd, relative=bool(fields.get("snapshot"))),
            *parsed.words[1:],
        ]
        fields.setdefault("name", values.as_name(script.name))
        if script.stream and fields.setdefault("stdin", parsed.words[0]) != parsed.words[0]:
            raise UsageError("a script on stdin cannot have --stdin", "save the script to a file")
    return _settle(fields, words, shell, notes)


def _settle(
    fields: dict[str, Any], words: list[str], black_box: bool, notes: list[str]
) -> ResolvedOptions:
    fields = dict(fields)
    how = {key: bool(fields.pop(key, False)) for key in HOW}
    checks = [BY_NAME[name].flag for name in ("check", "no_check") if how[name]]
    if black_box and checks:
        raise job_spec.refused_option(checks[0])
    if len(checks) > 1:
        raise UsageError(f"{' and '.join(checks)} exclude each other", "use one of them")
    if fields.get("setup") and fields.get("env"):
        from gpq.core.feasibility.environments import early  # no plain command needs the core

        pairs = [(word.partition("=")[0], "") for word in fields["env"]]
        names = [name for name, _ in sorted({*pairs} - {*early(pairs)})]
        if names:
            notes.append(
                f"--setup runs without {', '.join(names)}, which only the job gets, where it starts"
            )
    return ResolvedOptions(SubmitTexts(words, black_box, fields), how, notes)


def _of_command(parsed: Parsed) -> Iterator[str]:
    """Remarks about scripts that a command runs, such as `bash -e job.sh`. gpq reads no options in
    them."""
    from gpq.options import script_directives

    for word in parsed.words[:SCRIPT_WORDS]:
        path = os.path.join(job_spec.directory(parsed.fields.get("cwd", "")), word)
        try:
            script = script_directives.read(path) if os.path.isfile(path) else None
        except UsageError as error:
            yield f"{error.message}: {error.hint}"
        else:
            if script is not None and (script.slurm or script.own):
                yield (
                    f"{script.name} runs as a command, so its #SBATCH and #GPQ lines have no"
                    f" effect: `gpq submit {word}` reads them"
                )
            yield from [] if script is None else _srun(script)


def _script(parsed: Parsed) -> script_directives.Script | None:
    """The named file. With --cwd, one in that folder comes first."""
    from gpq.options import script_directives

    word = os.path.expanduser(parsed.words[0])
    if standard_input.is_stream(word):
        data = standard_input.contents(word)
        return script_directives.read_stream(word, data.decode("utf-8", "replace"))
    script = script_directives.read(
        os.path.abspath(os.path.join(job_spec.directory(parsed.fields.get("cwd", "")), word))
    )
    if script is None and not word.endswith(".py"):
        script = script_directives.read(os.path.abspath(word))
    return script


def _srun(script: script_directives.Script) -> list[str]:
    import shutil

    if not script.calls_srun or shutil.which("srun") is not None:
        return []
    return [
        f"{script.name} calls srun, which is not installed here, so those lines will fail:"
        " remove `srun` from them"
    ]


def _with_lines(
    script: script_directives.Script, fields: dict[str, Any], parsed: Parsed, *, shell: bool
) -> tuple[dict[str, Any], list[str]]:
    """`fields` with the options in the script's lines, and remarks."""
    if not (script.slurm or script.own or script.calls_srun):
        return fields, []
    from gpq.options import sbatch

    notes: list[str] = []
    asked = fields.get("env", [])
    own, pairs = _own_lines(script)
    where = f"#GPQ in {script.name}"
    translated = sbatch.translate(pairs, where, explicit_fields={**own, **fields}, shell=shell)
    notes += _notes(translated, where)
    fields = _join({**translated.fields, **own}, fields)
    slurm = [pair for place, words in script.slurm for pair in sbatch.pairs(words, place)]
    where = f"#SBATCH in {script.name}"
    if any(name == "wrap" for name, _ in [*pairs, *slurm]):
        raise UsageError(f"{where}: --wrap works only on the command line", "remove the line")
    otherwise = {name for name, _ in [*pairs, *parsed.pairs]}
    below = [pair for pair in slurm if pair[0] not in otherwise]
    translated = sbatch.translate(below, where, explicit_fields=fields, shell=shell, lines=True)
    notes += _notes(translated, where)
    fields = _join(translated.fields, fields)
    if script.slurm:
        from gpq.options import slurm_variables

        options = slurm_variables.overlay(dict(slurm), pairs, own)
        options = slurm_variables.overlay(options, parsed.pairs, parsed.fields)
        env, env_notes = slurm_variables.environment(options, fields, script, shell=shell)
        fields["env"] = [*env, *fields.get("env", [])]
        notes += env_notes
    taken = [name for name in fields.get("env", []) if "=" not in name and name not in asked]
    if taken:
        notes.append(f"{script.name} passes {', '.join(taken)} of your shell on to the job")
    return fields, [*notes, *_srun(script)]


def _own_lines(script: script_directives.Script) -> tuple[dict[str, Any], list[sbatch.Pair]]:
    parsed = Parsed()
    for where, words in script.own:
        line = parse(words)
        if (
            line is None
            or line.words
            or line.black_box
            or {"check", "no_check", "json", "dry_run"} & set(line.fields)
        ):
            raise UsageError(
                f"{where}: {' '.join(words)[:80]}: not an option of a job",
                "`gpq submit --help` lists them",
            )
        parsed.fields = _join(parsed.fields, line.fields)
        parsed.pairs += line.pairs
    return parsed.fields, parsed.pairs


def _join(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` wins. Labels and variables are those of both, and the later assignment is last."""
    both = {key: [*below[key], *above[key]] for key in JOINED if key in below and key in above}
    if "tag" in both:
        both["tag"] = list(dict.fromkeys(both["tag"]))
    return {**below, **above, **both}


def _notes(translated: sbatch.Translated, where: str) -> list[str]:
    unused = (
        [f"{where}: gpq ignores {', '.join(dict.fromkeys(translated.unused))}"]
        if translated.unused
        else []
    )
    return [*unused, *(f"{where}: {note}" for note in dict.fromkeys(translated.notes))]


def wants_check(settled: ResolvedOptions) -> bool:
    """Does the user or config.toml ask for a check of this script first? Raises UsageError."""
    how, texts = settled.how, settled.texts
    if how["check"]:
        return True
    if texts.black_box or not texts.words or how["no_check"] or how["dry_run"]:
        return False
    from gpq import config

    return job_spec.script_of(texts).uses_library() and config.load().check == "first"


def make_request(
    settled: ResolvedOptions, *, hold: bool = False, dry_run: bool = False
) -> tuple[requests.Submit, list[str]]:
    """The request for the daemon, and all remarks about what was asked. Every way to submit shows
    these. Raises UsageError."""
    texts = settled.texts
    hold = hold or settled.how["hold"]
    dry_run = dry_run or settled.how["dry_run"]
    built = job_spec.build(texts)
    array = None
    if texts.array or texts.sweep or texts.sweep_file:
        from gpq.options import sweeps

        array = sweeps.array_of(texts.array, texts.sweep, texts.sweep_file)
    proof, notes = remarks.of(texts, built, array)
    built = msgspec.structs.replace(built, proof=proof)
    request = requests.Submit(built, held=hold, array=array, dry_run=dry_run)
    return request, [*settled.notes, *notes]


def words_of(settled: ResolvedOptions) -> list[str]:
    """The `gpq submit` command that makes the same request."""
    texts = settled.texts
    line = ["gpq", "submit"]
    for option in sorted(OPTIONS, key=lambda option: option.name in LAST):
        value = getattr(texts, option.name)
        if value is True:
            line.append(option.flag)
        elif isinstance(value, list):
            line += [word for text in value for word in (option.flag, text)]
        elif value:
            line += [option.flag, str(value)]
    line += [BY_NAME[name].flag for name, flag_set in settled.how.items() if flag_set]
    return [*line, *(["--"] if texts.black_box else []), *texts.words]
