"""The variables of Slurm that a script may read, as far as its submission knows them: those that
sbatch sets for its options, with its values (as sbatch 22.05 does). The daemon adds the others
(gpq.daemon.orders.slurm_variables)."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpq.options import sbatch, sweeps
from gpq.rpc.protocol import LIKE_SLURM

if TYPE_CHECKING:
    from gpq.options.script_directives import Script

Options = Mapping[str, str]  # of sbatch, by name without dashes. "" for a flag
AS_TYPED = {
    "account": "SLURM_JOB_ACCOUNT", "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
    "cpus-per-task": "SLURM_CPUS_PER_TASK", "dependency": "SLURM_JOB_DEPENDENCY",
    "distribution": "SLURM_DISTRIBUTION", "export": "SLURM_EXPORT_ENV",
    "gpu-bind": "SLURM_GPU_BIND", "gpu-freq": "SLURM_GPU_FREQ", "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE", "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "ntasks-per-core": "SLURM_NTASKS_PER_CORE", "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE", "ntasks-per-socket": "SLURM_NTASKS_PER_SOCKET",
    "overcommit": "SLURM_OVERCOMMIT", "partition": "SLURM_JOB_PARTITION", "qos": "SLURM_JOB_QOS",
    "reservation": "SLURM_JOB_RESERVATION", "threads-per-core": "SLURM_THREADS_PER_CORE",
}  # fmt: skip
IN_MIB = {
    "mem": "SLURM_MEM_PER_NODE",
    "mem-per-cpu": "SLURM_MEM_PER_CPU",
    "mem-per-gpu": "SLURM_MEM_PER_GPU",
}
TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
ARRAY = ("SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP")
BY_DAEMON = frozenset({
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_NODEID",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS",
    "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
})  # fmt: skip
# Slurm sets these without the option as well
OF_CLUSTER = frozenset({"account", "partition", "qos"})
# Slurm also leaves these unset without a request or a restart.
OPTIONAL = frozenset({
    *(variable for option, variable in AS_TYPED.items() if option not in OF_CLUSTER),
    *IN_MIB.values(), *TASKS, *ARRAY,
    "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_RESTART_COUNT",
})  # fmt: skip
# Options of gpq, and those of sbatch that they replace.
INSTEAD = {"name": ("job-name",), "gpus": sbatch.GPUS, "after": ("dependency",)}
COMMENT = re.compile(r"(?m)^\s*#.*$")
NAME = r"SLURMD?_[A-Z0-9_]+"
ANY = re.compile(rf"\b{NAME}\b")
ASSIGNMENT = re.compile(rf"\b({NAME})=|\$\{{({NAME}):?=")


def overlay(
    below: Options, pairs: Sequence[tuple[str, str]], fields: Mapping[str, Any]
) -> dict[str, str]:
    """Options of a place `below`, with those that `pairs` of sbatch and `fields` of gpq's own
    options above it replace."""
    options = {**below, **dict(pairs)}
    replaced = {name for field, names in INSTEAD.items() if field in fields for name in names}
    options_left = {name: value for name, value in options.items() if name not in replaced}
    if "name" in fields:
        options_left["job-name"] = fields["name"]
    if "gpus" in options and str(fields.get("gpus", "")).isdecimal():
        options_left["gpus"] = fields["gpus"]
    return options_left


def environment(
    options: Options, fields: Mapping[str, Any], script: Script, *, shell: bool
) -> tuple[list[str], list[str]]:
    """(assignments, remarks). `fields`: of the final request. `shell`: it runs as a command. Raises
    UsageError for an invalid array."""
    variables = _variables(options, fields, script.name)
    assigned_names = {assignment.partition("=")[0] for assignment in fields.get("env", [])}
    remarks = []
    code = COMMENT.sub("", script.text)
    # Scripts of Python do not get numbers of tasks, because a library that finds one waits for
    # processes that `srun` starts.
    tasks = [
        name
        for name in TASKS
        if shell
        and name not in {*variables, *assigned_names}
        and re.search(rf"\$(?:{name}\b|\{{{name}\}})", code)
    ]
    if tasks:
        variables |= dict.fromkeys(tasks, "1")
        remarks.append(
            f"{script.name} reads {', '.join(tasks)}, which sbatch sets only with --ntasks:"
            " gpq sets it to 1"
        )
    assigned_names |= {name for names in ASSIGNMENT.findall(code) for name in names}
    slurm_would_set = {*ANY.findall(code)} - BY_DAEMON - OPTIONAL
    missing = sorted(slurm_would_set - assigned_names - variables.keys())
    if missing:
        remarks.append(
            f"{script.name} reads {', '.join(missing)}, which gpq does not set: set it with --env"
            f" {missing[0]}=VALUE"
        )
    return [f"{name}={value}" for name, value in variables.items()], remarks


def _variables(options: Options, fields: Mapping[str, Any], script: str) -> dict[str, str]:
    variables = {
        LIKE_SLURM: "1",
        "SLURM_JOB_NAME": options.get("job-name") or script,
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": socket.gethostname(),
    }
    variables |= {
        name: options[option] or "1" for option, name in AS_TYPED.items() if option in options
    }
    if "," in variables.get("SLURM_JOB_PARTITION", ""):
        del variables["SLURM_JOB_PARTITION"]  # Slurm sets it to the one that it chose
    sizes = {
        name: sbatch.mebibytes(options[option])
        for option, name in IN_MIB.items()
        if option in options
    }
    variables |= {name: str(size) for name, size in sizes.items() if size}
    if any(option in options for option in sbatch.TASKS):
        tasks = sbatch.tasks(options, script, fields.get("gpus") or "1")
        variables |= dict.fromkeys(TASKS, str(tasks))
    text = fields.get("array", "")
    array = sweeps.array_of(text, fields.get("sweep", []), fields.get("sweep_file", ""))
    if array is not None:
        step = re.search(r":(\d+)", text)  # the first one counts, even if each range has one
        ends = str(array.indices[0]), str(array.indices[-1])
        variables |= zip(ARRAY, (*ends, step[1] if step else "1"), strict=True)
    return variables
