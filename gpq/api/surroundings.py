"""What surrounds the queue, from Python: the daemon, the settings, the notification targets and the
live view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpq.api.handles import ask
from gpq.api.options import Selector, selector
from gpq.rpc import requests
from gpq.rpc.daemon_answers import DaemonInfo, TopView
from gpq.views.queue import is_query

if TYPE_CHECKING:
    from gpq.options.json_answers import Sent, Settings, Targets


def top(*jobs: Selector) -> TopView:
    """Servers, jobs, users and the last re-allocations in one answer, as `gpq top --json` prints
    them.

    Takes the same selectors and queries as `gpq.status`.
    """
    words = [selector(job) for job in jobs]
    query = [word for word in words if is_query(word)]
    return ask(requests.Top([word for word in words if word not in query], query), TopView)


def daemon_status() -> DaemonInfo:
    """The daemon's version, policy, rounds and memory, as `gpq daemon status --json` prints them.

    Starts no daemon: raises gpq.errors.DaemonUnreachable if none runs.
    """
    from gpq.client import daemon_control

    return daemon_control.status()


def start_daemon(metrics: str = "") -> bool:
    """Start the daemon. Returns False if one runs already.

    You rarely need this, because every call that needs the daemon starts it. `metrics` is
    "[ADDR:]PORT", where the daemon serves Prometheus metrics. Raises gpq.errors.Refused if a daemon
    runs that serves them elsewhere or not at all.
    """
    from gpq.client import daemon_control

    return daemon_control.start(metrics)


def stop_daemon() -> bool:
    """Stop the daemon. Jobs run on, and the next daemon finds them. Returns False if none ran."""
    from gpq.client import daemon_control

    return daemon_control.stop()


def daemon_log(lines: int = 100) -> list[str]:
    """The last lines of the daemon's log. Raises gpq.errors.NotFound if there is no log."""
    from gpq.client import daemon_control

    return daemon_control.logs(lines)


def settings() -> Settings:
    """All settings in effect, defaults included, by their names in config.toml. URLs of
    notification targets are left out.

    Raises gpq.errors.UsageError if the file is invalid.
    """
    from dataclasses import asdict

    from gpq import config, outward
    from gpq.options import json_answers
    from gpq.policies.registry import POLICIES

    file_config = config.load(policies=POLICIES)
    return json_answers.Settings(
        **{**asdict(file_config), "notify": outward.without_urls(file_config.notify)}
    )


def notify_targets() -> Targets:
    """The notification targets, as `gpq notify list --json` prints them: names and kinds of
    services, without URLs."""
    from gpq.options import targets

    return targets.list_targets()


def notify_test(*names: str) -> Sent:
    """Send a test message to each target now. The answer says which services accepted it.

    Raises gpq.errors.UsageError for an unknown name.
    """
    from gpq.options import json_answers, targets

    return json_answers.Sent(list(targets.try_targets(names)))
