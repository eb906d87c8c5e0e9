"""The commands: module (with the name of its app, if not `app`) and one line for each. Imports nothing: completion reads it."""

COMMANDS = {
    "submit": ("gpq.cli.submit", "queue a job"),
    "status": ("gpq.cli.status", "the queue: who has which GPUs, how well it goes, and why the others wait"),
    "show": ("gpq.cli.show", "everything about one job"),
    "why": ("gpq.cli.why", "why a job waits, or why it has these GPUs and not more or fewer"),
    "logs": ("gpq.cli.logs", "what a job printed, all attempts joined"),
    "cancel": ("gpq.cli.cancel", "stop jobs for good; returns when no process of them is left"),
    "hold": ("gpq.cli.control:hold", "keep jobs from running until they are released"),
    "release": ("gpq.cli.control:release", "let held jobs run"),
    "requeue": ("gpq.cli.control:requeue", "stop jobs and queue them again"),
    "wait": ("gpq.cli.wait", "block until jobs have ended; exits with the job's code"),
    "nodes": ("gpq.cli.nodes", "the servers and their GPUs"),
    "top": ("gpq.cli.top", "live view: GPUs, goodput, fairness, last re-allocations"),
    "history": ("gpq.cli.history", "the jobs that ended: waits, GPU hours, what they were worth, restarts"),
    "report": ("gpq.cli.report", "GPU hours by user, job, server or day: worth, waits, restarts, fairness"),
    "daemon": ("gpq.cli.daemon", "start, stop and look at the daemon"),
    "doctor": ("gpq.cli.doctor", "check this machine, each line with its fix"),
    "config": ("gpq.cli.config", "show and check the configuration"),
    "simulate": ("gpq.cli.simulate", "compare policies on a workload, or on your own jobs, in simulated time"),
    "demo": ("gpq.cli.demo", "three real training jobs on two small CPU servers, live"),
    "completion": ("gpq.cli.completion", "print the completion script of a shell"),
}
