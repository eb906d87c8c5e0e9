"""`import gpq` can do everything that the command line can. Each command and option has a counterpart or a reason for
having none."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import gpq as api
from gpq.options.completion_data import GRAMMAR

COUNTERPARTS: dict[str, tuple[Any, ...]] = {
    "submit": (api.submit, api.submit_array),
    "status": (api.status, api.jobs, api.Job.status),
    "show": (api.Job.show,),
    "why": (api.Job.why,),
    "logs": (api.Job.logs, api.Job.log_pieces),
    "cancel": (api.cancel, api.Job.cancel),
    "hold": (api.Job.hold,),
    "release": (api.Job.release,),
    "requeue": (api.Job.requeue,),
    "edit": (api.Job.edit,),
    "wait": (api.wait, api.Job.wait),
    "nodes list": (api.nodes,),
    "nodes add": (api.add_node,),
    "nodes remove": (api.remove_node,),
    "nodes drain": (api.drain,),
    "nodes undrain": (api.undrain,),
    "nodes reserve": (api.reserve,),
    "nodes unreserve": (api.unreserve,),
    "yield": (api.yield_node,),
    "top": (api.top,),
    "notify list": (api.notify_targets,),
    "notify test": (api.notify_test,),
    "history": (api.history,),
    "report": (api.report,),
    "daemon start": (api.start_daemon,),
    "daemon stop": (api.stop_daemon,),
    "daemon status": (api.daemon_status,),
    "daemon logs": (api.daemon_log,),
    "config show": (api.settings,),
}
WHY_NOT = {
    "config check": "gpq.settings() raises the mistakes of the file",
    "config library": "for the shell or environment that runs a script without gpq",
    "config path": "only people edit the file",
    "config policies": "a list for people who edit the file",
    "check": "a proof for the author of a script. CI uses `gpq check --json` and its exit code",
    "doctor": "its lines are for the person who fixes what they name",
    "nodes clean": "a decision of a person, once, or of `keep` in config.toml",
    "simulate": "an experiment, whose results are files and figures",
    "demo": "something to look at",
    "run": "a program has subprocess, and gpq.submit with gpq.Job.wait and gpq.Job.logs",
    "attach": "a terminal for a person",
    "shell": "a terminal for a person",
    "join": "a decision of a person, once",
    "leave": "a decision of a person, once",
    **{path: "what people decide about each other" for path in GRAMMAR if path.startswith("team ")},
    "import slurm": "done once, by a person. gpq.submit takes such scripts as well",
    "import ts": "done once, by a person",
    "schema": "answers have types here",
    "completion": "only for shells",
}
RENAMED = {
    ("nodes reserve", "for"): "user",
    ("nodes reserve", "from"): "start",
    ("nodes reserve", "for_duration"): "duration",
    ("yield", "for"): "duration",
}
FORM = {"json", "color", "csv", "html", "raw"}  # options that choose how to print the answer
NO_OPTION = {
    ("submit", "wait"): "Job.wait",
    ("submit", "check"): "for a person, who reads the verdict",
    ("submit", "no_check"): "only the command checks",
    ("cancel", "yes"): "gpq asks nobody",
    ("status", "team"): "jobs of others, for a person to look at",
    ("top", "team"): "jobs of others, for a person to look at",
    ("report", "team"): "what others had, for a person to look at",
    ("nodes list", "team"): "servers of others, for a person to look at",
    ("top", "once"): "there is one answer",
    ("top", "interval"): "there is one answer",
    ("requeue", "state"): "gpq.jobs chooses them",
    ("nodes add", "from_ssh_config"): "the program names the hosts, one call each",
    ("daemon logs", "follow"): "for a person at a terminal, until Ctrl-C",
}


def test_each_command_has_a_counterpart_or_a_reason_for_having_none() -> None:
    assert not COUNTERPARTS.keys() & WHY_NOT.keys()
    missing = GRAMMAR.keys() - COUNTERPARTS.keys() - WHY_NOT.keys()
    assert not missing, f"no counterpart in gpq.api and no reason for it: {sorted(missing)}"
    assert not (COUNTERPARTS.keys() | WHY_NOT.keys()) - GRAMMAR.keys(), "these commands no longer exist"


@pytest.mark.parametrize("command", COUNTERPARTS)
def test_each_option_has_a_counterpart(command: str) -> None:
    here = {name for each in COUNTERPARTS[command] for name in inspect.signature(each).parameters}
    typed = {name[2:].replace("-", "_") for name in GRAMMAR[command][1] if name.startswith("--")} - FORM
    typed -= {option for path, option in NO_OPTION if path == command}
    assert {RENAMED.get((command, option), option) for option in typed} <= here


@pytest.mark.parametrize("command", COUNTERPARTS)
def test_each_counterpart_has_types_and_a_docstring(command: str) -> None:
    for each in COUNTERPARTS[command]:
        signature = inspect.signature(each)
        assert each.__doc__, each
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(
            parameter.annotation is not inspect.Parameter.empty
            for name, parameter in signature.parameters.items()
            if name != "self"
        )
