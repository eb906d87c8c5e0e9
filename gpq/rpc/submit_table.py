"""The options of `gpq submit`, one row each: the only place where an option is declared.

From the table come the command's signature (`gpq.cli.shared.submit_options`) and with it the help,
the man page and the completion; the words that are read without typer
(`gpq.options.submit_words`); the record of what was typed (`gpq.options.submit_texts`, generated)
and its values (`gpq.options.submit_values`); the keywords of `gpq.submit`
(`gpq.api.option_types`, generated); and what a live job may be changed to
(`gpq.control.requests.edit`). A new option is a row here, a field of SpecMessage and of JobSpec,
and `make completions`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Part = Literal["job", "array", "call"]
Editing = Literal["never", "always", "resizable", "waiting"]

# kind: (type of what is typed, type that `gpq.submit` takes)
KINDS = {
    "codes": ("list[str]", "str | Sequence[str]"),
    "count": ("int", "int"),
    "duration": ("str", "Duration"),
    "events": ("str", "str | Sequence[str]"),
    "flag": ("bool", "bool"),
    "gpus": ("str", "Gpus"),
    "indices": ("str", "str | Sequence[int]"),
    "jobs": ("list[str]", "Selector | Sequence[Selector]"),
    "lease": ("str", "Duration"),
    "limit": ("str", "Duration"),
    "line": ("str", "str"),
    "memory": ("str", "str"),
    "moment": ("str", "Moment"),
    "name": ("str", "str"),
    "path": ("str", "str | os.PathLike[str]"),
    "signal": ("str", "str | int"),
    "size": ("int | None", "int | None"),
    "span": ("str", "str | int | tuple[int, int]"),
    "sweeps": ("list[str]", "Mapping[str, Sequence[object]] | str | Sequence[str]"),
    "tags": ("list[str]", "str | Sequence[str]"),
    "targets": ("list[str]", "str | Sequence[str]"),
    "text": ("str", "str"),
    "variables": ("list[str]", "Mapping[str, object] | Sequence[str]"),
    "words": ("str", "str | Sequence[Word]"),
}
SECONDS = ("duration", "lease", "limit")  # kinds whose value is a number of seconds


class Option(msgspec.Struct, frozen=True):
    name: str  # as a keyword: min_gpu_memory
    kind: str  # of KINDS
    help: str
    metavar: str | None = None
    short: str = ""
    # of SpecMessage, that its value fills; an option without any is looked at by name
    fields: tuple[str, ...] = ()
    # when `gpq edit` may change them: "resizable" is while it waits or can be resized
    edit: Editing = "never"
    # of what it speaks: of each job, of the array that the jobs make, or of this one call
    part: Part = "job"
    scripts_only: bool = False  # a mistake for a command

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def typed(self) -> str:
        """The type of what is typed."""
        return KINDS[self.kind][0]


# In the order of the help, each in a few lines.
# fmt: off
OPTIONS = (
    Option("gpus", "gpus",
           "Fixed number, or for scripts a range. [default: 1; scripts: 1 to whatever pays]",
           "N|A-B", short="-g", fields=("min_gpus", "max_gpus"), edit="resizable"),
    Option("gpu_type", "text", "Part of the GPU's name, such as A100.", "TEXT",
           fields=("gpu_type",), edit="waiting"),
    Option("min_gpu_memory", "memory", "Least memory of each GPU, such as 40G.", "SIZE",
           fields=("min_gpu_memory_mib",), edit="waiting"),
    Option("name", "name", "[default: the script's or the program's]", "NAME", short="-n",
           fields=("name",), edit="always"),
    Option("tag", "tags", "A label; may be repeated.", "NAME", fields=("tags",)),
    Option("notify", "targets",
           "Whom to tell: a target of config.toml, desktop, mailto:ADDRESS, or none; may be"
           " repeated.", "NAME", fields=("notify",), edit="always"),
    Option("notify_on", "events", "Of what: start, restart, retry, fail, end. [default: end]",
           "WORD,...", fields=("notify_on",), edit="always"),
    Option("priority", "count", "Higher goes first. [default: 0]", "N", fields=("priority",),
           edit="always"),
    Option("time", "limit", "Limit of the run time, such as 90m or 2h.", "DURATION", short="-t",
           fields=("time_limit",), edit="always"),
    Option("after", "jobs",
           "Start once these have ended so; commas, and may be repeated. [default: ok]",
           "JOB[:ok|any|notok]", fields=("after",), edit="waiting"),
    Option("begin", "moment", "Start no earlier: 18:00, 'tomorrow 8am', 'fri 18:00', +2h.", "WHEN",
           fields=("begin",), edit="waiting"),
    Option("background", "flag",
           "Take only GPUs that nobody else wants; leave them when somebody does.",
           fields=("background",), edit="always"),
    Option("array", "indices",
           "A job for each index, such as 0-99; at most N at once. {index} in arguments becomes"
           " it.", "INDICES[%N]", part="array"),
    Option("sweep", "sweeps",
           "A job for each value, or number of 0..9; brackets hold together. Repeated: all"
           " combinations. {NAME} becomes it.", "NAME=A,B", part="array"),
    Option("sweep_file", "path", "CSV: a job for each line, names in the first.", "FILE",
           part="array"),
    Option("retries", "count", "Start again so many times after a failure. [default: 0]", "N",
           fields=("retries",), edit="always"),
    Option("requeue_on_lost", "lease",
           "Start elsewhere after so long a silence of its server, where it then ends itself;"
           " 1m at least. [default: off]", "DURATION", fields=("requeue_on_lost",), edit="waiting"),
    Option("rigid", "flag", "Never resize this script.", fields=("rigid",), edit="resizable",
           scripts_only=True),
    Option("preemptible", "flag", "The command checkpoints on a signal and may be stopped."),
    Option("signal", "signal", "That signal, such as USR1. [default: TERM]", "NAME",
           fields=("signal",)),
    Option("grace", "duration", "From the signal to the kill. [default: 2m]", "DURATION",
           fields=("grace",), edit="waiting"),
    Option("resume_args", "words", "Added from the second start on, in quotes: --resume auto.",
           "ARGS", fields=("resume_argv",)),
    Option("done_file", "path",
           "The job writes it at its very end: then an exit with 0 after a stop order is its"
           " end, too.", "PATH", fields=("done_file",)),
    Option("batch_size", "size", "Base total batch size, instead of the script's.", "N",
           fields=("batch_size",), edit="waiting", scripts_only=True),
    Option("max_batch_size", "size", "Largest total batch size.", "N", fields=("max_batch_size",),
           edit="waiting", scripts_only=True),
    Option("atomic_batch_size", "span", "Range of the batch on one GPU in one pass.", "A-B",
           fields=("min_atomic_batch", "max_atomic_batch"), edit="waiting", scripts_only=True),
    Option("accept", "codes",
           "A habit that gpq suspects, and that is to count for nothing; may be repeated.", "CODE",
           fields=("accept",), edit="always", scripts_only=True),
    Option("env", "variables",
           "Set a variable, or pass on K; may be repeated. [default: PATH, LANG, CONDA_*,"
           " PYTHON*, ...: see README]", "K=V", short="-e"),
    Option("cwd", "path", "Directory to run in. [default: this one]", "PATH"),
    Option("python", "path",
           "Interpreter of the script. [default: of the active environment, else gpq's own]",
           "PATH"),
    Option("setup", "line",
           "Run once on each server before the first start there; jobs get what it exports.",
           "COMMAND", fields=("setup",)),
    Option("snapshot", "flag", "Run the code as it is now, whatever is edited later."),
    Option("hold", "flag", "Queue it held.", part="call"),
    Option("wait", "flag", "Block until it has ended; exit with its code.", part="call"),
    Option("dry_run", "flag", "Say what would happen; queue nothing.", part="call"),
    Option("json", "flag", "Print JSON only, as the daemon answered.", part="call"),
)
# fmt: on
BY_NAME = {option.name: option for option in OPTIONS}
BY_WORD = {word: option for option in OPTIONS for word in (option.flag, option.short) if word}
