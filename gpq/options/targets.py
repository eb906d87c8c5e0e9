"""The targets of gpq's messages about jobs, for `gpq notify` and gpq's Python interface. Prints
nothing, and returns no URL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpq import config, outward
from gpq.options import json_answers

LIMIT = 30.0  # seconds for each


def list_targets() -> json_answers.Targets:
    """The targets of config.toml, and the defaults for jobs that name none."""
    table = config.load().notify
    settings, public = outward.notify(table), outward.without_urls(table)
    kinds = {name: str(public[name]).partition(":")[0] for name in settings.targets}
    return json_answers.Targets(kinds, list(settings.default), list(settings.on), settings.lines)


def try_targets(names: Sequence[str]) -> Iterator[json_answers.SentView]:
    """Send a message to each now. Raises UsageError for an unknown name before it sends
    anything."""
    from gpq.notify.worker_pool import Courier

    outward.check_targets(names, outward.notify(config.load().notify))
    for name in dict.fromkeys(names):
        why = Courier().deliver(name, "gpq: a test", "gpq can reach you here.", LIMIT)
        yield json_answers.SentView(name, not why, why)
