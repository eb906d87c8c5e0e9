"""The commands: module (with the name of its app, if not `app`) and one line for each. Imports
nothing: completion reads it."""

COMMANDS = {
    "submit": ("gpq.cli.submit.submit", "queue a job"),
    "status": (
        "gpq.cli.jobs.status",
        "the queue: who has which GPUs, how well it goes, and why the others wait",
    ),
    "show": ("gpq.cli.jobs.show", "everything about one job"),
    "why": ("gpq.cli.jobs.why", "why a job waits, or why it has these GPUs and not more or fewer"),
    "logs": ("gpq.cli.jobs.logs", "what a job printed, all attempts joined"),
    "cancel": (
        "gpq.cli.jobs.cancel",
        "stop jobs for good; returns when no process of them is left",
    ),
    "hold": (
        "gpq.cli.jobs.hold_release_requeue:hold",
        "keep jobs from running until they are released",
    ),
    "release": ("gpq.cli.jobs.hold_release_requeue:release", "let held jobs run"),
    "requeue": ("gpq.cli.jobs.hold_release_requeue:requeue", "stop jobs and queue them again"),
    "edit": ("gpq.cli.jobs.edit", "change what was asked of jobs that have not ended"),
    "wait": ("gpq.cli.submit.wait", "block until jobs have ended; exits with the job's code"),
    "nodes": ("gpq.cli.lab.nodes", "the servers and their GPUs"),
    "yield": ("gpq.cli.lab.yield_", "get your own server back from gpq"),
    "top": ("gpq.cli.top.top", "live view: GPUs, goodput, fairness, last re-allocations"),
    "notify": ("gpq.cli.lab.notify", "whom to tell about jobs: list the targets, try them"),
    "history": (
        "gpq.cli.jobs.history",
        "the jobs that ended: waits, GPU hours, what they were worth, restarts",
    ),
    "report": (
        "gpq.cli.jobs.report",
        "GPU hours by user, job, server or day: worth, waits, restarts, fairness",
    ),
    "daemon": ("gpq.cli.lab.daemon", "start, stop and look at the daemon"),
    "check": (
        "gpq.cli.jobs.check",
        "prove on your own script that gpq does not change what it trains",
    ),
    "doctor": ("gpq.cli.doctor.doctor", "check this machine, each line with its fix"),
    "config": ("gpq.cli.lab.config", "show and check the configuration"),
    "simulate": (
        "gpq.cli.simulate.simulate",
        "compare policies on a workload, or on your own jobs, in simulated time",
    ),
    "demo": ("gpq.cli.lab.demo", "three real training jobs on two small CPU servers, live"),
    "import": (
        "gpq.cli.importers.command",
        "jobs from Slurm's scripts and from task-spooler's queue",
    ),
    "schema": ("gpq.cli.lab.schema", "the JSON Schema of what a command prints with --json"),
    "completion": ("gpq.cli.completion.completion", "print the completion script of a shell"),
}
