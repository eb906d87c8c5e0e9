"""The commands: their module (and the name of the app, if it is not `app`) and one line each.

Other packages, such as `gpq.lab`, add such rows as entry points of the group `gpq.commands`.
"""

from __future__ import annotations

GROUP = "gpq.commands"
Row = tuple[str, str]

COMMANDS: dict[str, Row] = {
    "submit": ("gpq.cli.jobs.submit", "queue a job"),
    "status": (
        "gpq.cli.jobs.status:status",
        "show the queue: which job has which GPUs, and why others wait",
    ),
    "show": ("gpq.cli.jobs.status:show", "show everything about one job"),
    "why": ("gpq.cli.jobs.status:why", "explain why a job waits, or why it has these GPUs"),
    "logs": ("gpq.cli.jobs.logs", "show what a job printed"),
    "cancel": (
        "gpq.cli.jobs.cancel",
        "stop jobs permanently, and return when every process is gone",
    ),
    "hold": ("gpq.cli.jobs.changes:hold", "keep jobs from starting until you release them"),
    "release": ("gpq.cli.jobs.changes:release", "let held jobs start"),
    "requeue": ("gpq.cli.jobs.changes:requeue", "queue jobs again"),
    "edit": ("gpq.cli.jobs.changes:edit", "change jobs"),
    "wait": ("gpq.cli.jobs.wait", "wait until jobs have ended, and exit with the job's code"),
    "nodes": ("gpq.cli.lab.nodes", "show and manage the servers and their GPUs"),
    "yield": ("gpq.cli.lab.nodes:yield_", "get your own server back from gpq"),
    "top": ("gpq.cli.top.top", "live view of GPUs, jobs, goodput, fairness and changes"),
    "notify": ("gpq.cli.lab.config:notify", "list and test the targets of notifications"),
    "history": (
        "gpq.cli.jobs.history:history",
        "show jobs that ended: waits, GPU hours, goodput hours, restarts",
    ),
    "report": ("gpq.cli.jobs.history:report", "report GPU hours, waits, restarts and fairness"),
    "daemon": ("gpq.cli.lab.daemon", "start, stop and inspect the daemon"),
    "check": (
        "gpq.cli.jobs.check",
        "prove on your own script that gpq does not change what it trains",
    ),
    "doctor": (
        "gpq.cli.doctor.doctor",
        "check this machine and the servers, and say how to fix problems",
    ),
    "config": ("gpq.cli.lab.config:config", "show and check the configuration"),
    "demo": ("gpq.cli.lab.demo", "watch three real training jobs on two small CPU servers"),
    "import": ("gpq.cli.jobs.import_", "import jobs from Slurm scripts or from task-spooler"),
    "schema": ("gpq.cli.lab.schema:schema", "print the JSON Schema of a command's --json output"),
    "completion": ("gpq.cli.lab.schema:completion", "print the completion script of a shell"),
}


def names() -> list[str]:
    """The names of all commands. It imports none of them."""
    from gpq import extensions

    return [*COMMANDS, *(name for name in extensions.entries(GROUP) if name not in COMMANDS)]


def row(name: str) -> Row:
    """The row of a command. Raises KeyError if there is none, and UsageError for a broken entry
    point."""
    if name in COMMANDS:
        return COMMANDS[name]
    from gpq import extensions

    match extensions.load(GROUP, name):
        case (str(module), str(line)):
            return module, line
    raise extensions.broken(GROUP, name, "it is not a pair (module, line for `gpq --help`)")
