"""What `gpq nodes` and `gpq yield` do to servers, for both the command line and gpq's Python
interface. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from gpq.client import daemon_control
from gpq.client.connection import call, connect
from gpq.errors import DaemonUnreachable, GpqError, UsageError
from gpq.options import datetimes, values
from gpq.rpc import daemon_answers, node_answers, requests

Note = Callable[[str, str], None]  # a remark, and what to do
ONE_END = "gpq nodes reserve needs either --until or --for-duration"
PATIENCE = 30.0  # seconds for a server's answer


def remove(node: str, note: Note, *, force: bool) -> bool:
    """Take the server out of config.toml. True if a daemon took notice. If it raises GpqError, the
    file is unchanged."""
    from gpq.servers import config_file

    before = config_file.read()
    after = config_file.without_node(before, node)
    if not force:
        # A daemon that starts before the file changes knows which jobs are on the server.
        call(requests.Info(), daemon_answers.DaemonInfo)
    config_file.write(after, before)
    try:
        return _reload(note, force=force)
    except GpqError:
        config_file.write(before, after)
        raise


def taken_in(names: Sequence[str], note: Note) -> bool:
    """Make the daemon use new servers. They are in the file already, so a refusal is only a
    remark."""
    try:
        return _reload(note, force=False)
    except GpqError as error:
        note(
            f"the daemon could not add {', '.join(names)}: {error.message}", daemon_control.RESTART
        )
        return False


def _reload(note: Note, *, force: bool) -> bool:
    """False if no daemon runs. The next one reads the new file."""
    try:
        with connect(start=False) as connection:
            answer = connection.call(requests.Reload(force), node_answers.Reloaded)
    except DaemonUnreachable:
        return False
    if answer.restart_needed:
        note(f"{daemon_control.CHANGED}, not only by this command", daemon_control.RESTART)
    return True


def reserve(target: str, user: str, start: str, until: str, duration: str) -> requests.Reserve:
    """Reserve `gpu1:0-1` from `start` to `until` or for `duration`, all as typed. Raises
    UsageError."""
    node, colon, gpus = target.partition(":")
    if bool(until) == bool(duration):
        raise UsageError(ONE_END, "for example --for-duration 2d")
    now = datetime.now().astimezone()
    begin = datetimes.moment(start, "--from", now)
    end = (
        datetimes.moment(until, "--until", now)
        if until
        else begin + values.seconds(duration, "--for-duration")
    )
    if end <= now.timestamp():
        raise UsageError(
            f"gpq nodes reserve: --until {until} is in the past", "use a time in the future"
        )
    if end <= begin:
        raise UsageError(
            "gpq nodes reserve: the end is before the start", "check --from and --until"
        )
    return requests.Reserve(node, begin, end, values.gpu_list(gpus, target) if colon else [], user)


def yield_server(node: str, seconds: float) -> node_answers.Yielded:
    """Give `node` back to its owner for `seconds`, or with 0 to gpq. Raises GpqError if the server
    cannot be asked."""
    request = requests.Errand(node, "yield", {"seconds": seconds}, PATIENCE)
    answer = call(request, node_answers.ErrandResult).answer
    if "error" in answer:
        raise GpqError(f"cannot ask {node}: {answer['error']}", f"run `gpq doctor {node}`")
    return node_answers.Yielded(
        node, str(answer.get("user", "")), seconds or None, bool(answer.get("wanted", True))
    )
