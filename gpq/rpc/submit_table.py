"""The options of `gpq submit`, one row each. This is the only place that declares an option.

The table feeds
- the signature of the command (`gpq.cli.jobs.submit`), and so help, man page, completion,
- the fast reader without typer (`gpq.options.submit_request`),
- the options as typed (`gpq.options.job_spec.SubmitTexts`),
- their values (`gpq.options.job_spec.READERS`),
- the keywords of `gpq.submit` and `Job.edit` (`gpq.api.option_types`, generated),
- the options of `gpq edit` (`gpq.cli.jobs.changes`),
- and the fields that it may change (`gpq.control.edit`).

To add an option, add a row here and a field to `gpq.job_request.JobRequest`, and run `make
completions`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Part = Literal["job", "array", "call"]
Editing = Literal["never", "always", "resizable", "waiting"]

# kind: (type on the command line, type that `gpq.submit` takes)
KINDS = {
    "at_once": ("str", "str | int"),
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
# type on the command line: the value of an option that is not given
DEFAULTS = {"str": "", "bool": False, "int": 0, "int | None": None, "list[str]": list[str]()}
SECONDS = ("duration", "lease", "limit")  # kinds whose value is in seconds


class Option(msgspec.Struct, frozen=True):
    name: str  # as a keyword, such as min_gpu_memory
    kind: str  # a key of KINDS
    help: str
    metavar: str | None = None
    short: str = ""
    # fields of SpecMessage that the value fills. gpq reads an option without fields by its name
    fields: tuple[str, ...] = ()
    # when `gpq edit` may change them. "resizable": while the job waits or can be resized
    edit: Editing = "never"
    # what it describes: each job, the array of the jobs, or only this call
    part: Part = "job"
    scripts_only: bool = False  # an error for a command

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def typed(self) -> str:
        """The type on the command line."""
        return KINDS[self.kind][0]


# In the order of the help.
# fmt: off
OPTIONS = (
    Option("gpus", "gpus",
           "A fixed number, or a range for scripts. [default: 1. Scripts: 1 to as many as help]",
           "N|A-B", short="-g", fields=("min_gpus", "max_gpus"), edit="resizable"),
    Option("gpu_type", "text", "Part of the GPU's name, such as A100.", "TEXT",
           fields=("gpu_type",), edit="waiting"),
    Option("min_gpu_memory", "memory", "Minimum memory of each GPU, such as 40G.", "SIZE",
           fields=("min_gpu_memory_mib",), edit="waiting"),
    Option("name", "name", "Name of the job. [default: the name of the script or program]", "NAME",
           short="-n", fields=("name",), edit="always"),
    Option("tag", "tags", "Add a label. Can be repeated.", "NAME", fields=("tags",)),
    Option("notify", "targets",
           "Where to send notifications: a target of config.toml, desktop, mailto:ADDRESS or"
           " none. Can be repeated.", "NAME", fields=("notify",), edit="always"),
    Option("notify_on", "events",
           "When to notify: start, restart, retry, fail, end. [default: end]",
           "WORD,...", fields=("notify_on",), edit="always"),
    Option("priority", "count", "Higher priority starts first. [default: 0]", "N",
           fields=("priority",), edit="always"),
    Option("time", "limit", "Stop the job after this run time, such as 90m or 2h.", "DURATION",
           short="-t", fields=("time_limit",), edit="always"),
    Option("after", "jobs",
           "Start after these jobs have ended this way. Separate several by commas, or repeat the"
           " option. [default: ok]",
           "JOB[:ok|any|notok]", fields=("after",), edit="waiting"),
    Option("begin", "moment",
           "Do not start before: 18:00, 'tomorrow 8am', 'fri 18:00', +2h.", "WHEN",
           fields=("begin",), edit="waiting"),
    Option("background", "flag",
           "Use only GPUs that nobody else wants, and leave them when somebody does.",
           fields=("background",), edit="always"),
    Option("array", "indices",
           "One job per index, such as 0-99, at most N at once. {index} in the arguments becomes"
           " the index.", "INDICES[%N]", part="array"),
    Option("sweep", "sweeps",
           "One job per value, or per number of 0..9. Brackets keep a value with commas together."
           " Repeat it for all combinations. {NAME} in the arguments becomes the value.",
           "NAME=A,B", part="array"),
    Option("sweep_file", "path", "CSV file with one job per line, and the names in the first line.",
           "FILE", part="array"),
    Option("retries", "count", "Restart up to N times after a failure. [default: 0]", "N",
           fields=("retries",), edit="always"),
    Option("requeue_on_lost", "lease",
           "If the server is unreachable this long, stop the job there and restart it elsewhere."
           " At least 1m. [default: off]", "DURATION", fields=("requeue_on_lost",), edit="waiting"),
    Option("rigid", "flag", "Never resize this script.", fields=("rigid",), edit="resizable",
           scripts_only=True),
    Option("preemptible", "flag",
           "The command saves a checkpoint on a signal, so gpq may stop and restart it."),
    Option("signal", "signal", "Signal for --preemptible, such as USR1. [default: TERM]", "NAME",
           fields=("signal",)),
    Option("grace", "duration",
           "Time to save after the signal, before TERM and KILL. [default: 2m]", "DURATION",
           fields=("grace",), edit="waiting"),
    Option("resume_args", "words",
           "Arguments to add from the second start on, in quotes: '--resume auto'.",
           "ARGS", fields=("resume_argv",)),
    Option("done_file", "path",
           "File that the job writes when it is done. With it, exit code 0 after a stop means"
           " completed.", "PATH", fields=("done_file",)),
    Option("batch_size", "size", "Base batch size, instead of the script's.", "N",
           fields=("batch_size",), edit="waiting", scripts_only=True),
    Option("max_batch_size", "size", "Largest batch size.", "N", fields=("max_batch_size",),
           edit="waiting", scripts_only=True),
    Option("atomic_batch_size", "span", "Range of the micro-batch size.", "A-B",
           fields=("min_atomic_batch", "max_atomic_batch"), edit="waiting", scripts_only=True),
    Option("launcher", "text",
           "Start the replicas with `torchrun`, for a script that uses its API. [default: gpq]",
           "torchrun", fields=("launcher",), scripts_only=True),
    Option("accept", "codes",
           "Ignore a habit that gpq suspects. Can be repeated.", "CODE",
           fields=("accept",), edit="always", scripts_only=True),
    Option("env", "variables",
           "Set a variable, or pass on K from your shell. Can be repeated. [default: PATH, LANG,"
           " CONDA_*, PYTHON* and others]", "K=V", short="-e"),
    Option("cwd", "path", "Directory to run in. [default: the current one]", "PATH"),
    Option("stdin", "path",
           "File for the job's stdin, or - for that of this command. gpq keeps a copy.", "FILE"),
    Option("python", "path",
           "Python for the script. [default: the active environment's, else gpq's own]",
           "PATH"),
    Option("setup", "line",
           "Run this once per server before the first start. Jobs get the variables it exports.",
           "COMMAND", fields=("setup",)),
    Option("snapshot", "flag", "Run the code as it is now, even if you edit it later."),
    Option("check", "flag",
           "Run `gpq check` on the script first, unless its verdict is known. Nothing is queued if"
           " the script fails.", part="call", scripts_only=True),
    Option("no_check", "flag", "Run no `gpq check` first, whatever config.toml says.",
           part="call", scripts_only=True),
    Option("hold", "flag", "Queue the job held.", part="call"),
    Option("wait", "flag", "Wait until the job has ended, and exit with its code.", part="call"),
    Option("dry_run", "flag", "Say what would happen, without queueing anything.", part="call"),
    Option("json", "flag", "Print only JSON.", part="call"),
)
# fmt: on
# What `gpq edit` offers, in the order of its help, which it words like this.
EDIT_HELP = {
    "name": "New name.",
    "priority": "Higher priority starts first.",
    "gpus": "Only for jobs that wait or can be resized.",
    "time": "Limit of the run time, or none.",
    "retries": "Restarts after a failure, in total.",
    "tag": "Add a label. Can be repeated.",
    "untag": "Remove a label. Can be repeated.",
    "after": "Wait for these jobs instead, or none.",
    "begin": "Do not start before this time, or now.",
    "gpu_type": "Part of the GPU's name, or none.",
    "min_gpu_memory": "Minimum memory of each GPU, or none.",
    "max_batch_size": "Largest batch size.",
    "background": "Use only GPUs that nobody else wants, or not.",
    "array_limit": "How many jobs of the array may run at once, or none for no limit.",
    "notify": "Where to send notifications from now on, as in `gpq submit`, or none.",
    "notify_on": "When to notify: start, restart, retry, fail, end.",
    "accept": "Ignore a habit that gpq suspects, or none to ignore none. Can be repeated.",
}
ONLY_EDIT = (Option("untag", "tags", "", "NAME"), Option("array_limit", "at_once", "", "N"))
BY_NAME = {option.name: option for option in OPTIONS}
BY_WORD = {word: option for option in OPTIONS for word in (option.flag, option.short) if word}


def edit_options() -> list[Option]:
    """The options of `gpq edit`."""
    rows = {**BY_NAME, **{option.name: option for option in ONLY_EDIT}}
    return [msgspec.structs.replace(rows[name], help=text) for name, text in EDIT_HELP.items()]
