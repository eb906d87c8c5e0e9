"""What is around the queue, from Python: the daemon itself, what config.toml says, whom jobs can
tell, the live view's frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpq.api.handles import ask
from gpq.api.options import Selector, selector
from gpq.options.query import is_query
from gpq.rpc import requests
from gpq.rpc.daemon_answers import DaemonInfo, TopView

if TYPE_CHECKING:
    from gpq.options.json_answers import Sent, Settings, Targets


def top(*jobs: Selector) -> TopView:
    """Servers, jobs, users and the last re-allocations in one answer, as `gpq top --json`.
    Selectors and conditions as `gpq.status` takes them."""
    words = [selector(job) for job in jobs]
    query = [word for word in words if is_query(word)]
    return ask(requests.Top([word for word in words if word not in query], query), TopView)


def daemon_status() -> DaemonInfo:
    """The daemon's version, policy, rounds and memory, as `gpq daemon status --json`. Starts none:
    raises DaemonUnreachable."""
    from gpq.client import daemon_control

    return daemon_control.status()


def start_daemon(metrics: str = "") -> bool:
    """Start the daemon; whatever asks it does that by itself. False when one runs already.

    `metrics`: "[ADDR:]PORT" where it is to serve Prometheus metrics. Raises Refused where one runs
    that serves others.
    """
    from gpq.client import daemon_control

    return daemon_control.start(metrics)


def stop_daemon() -> bool:
    """Stop the daemon; jobs run on, and the next daemon finds them again. False when none ran."""
    from gpq.client import daemon_control

    return daemon_control.stop()


def daemon_log(lines: int = 100) -> list[str]:
    """The last lines that the daemon wrote. Raises NotFound where it wrote none."""
    from gpq.client import daemon_control

    return daemon_control.logs(lines)


def settings() -> Settings:
    """All settings that hold, defaults included, by their names in config.toml; no URL is in it.
    Raises UsageError for a file with a mistake."""
    from dataclasses import asdict

    from gpq import config, outward
    from gpq.options import json_answers
    from gpq.policies.registry import POLICIES

    file_config = config.load(policies=POLICIES)
    return json_answers.Settings(
        **{**asdict(file_config), "notify": outward.without_urls(file_config.notify)}
    )


def notify_targets() -> Targets:
    """Whom jobs can tell, as `gpq notify list --json`: names and kinds of services, no URLs."""
    from gpq.options import targets

    return targets.listed()


def notify_test(*names: str) -> Sent:
    """Send a message to each of them now, and say which services took it. Raises UsageError for a
    name that is none."""
    from gpq.options import json_answers, targets

    return json_answers.Sent(list(targets.tried(names)))
