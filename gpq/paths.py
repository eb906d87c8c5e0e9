"""Where things are: state, socket, configuration. The door imports this, so it imports nothing but
os.

`GPQ_HOME` moves everything (state and socket) into one folder; else the XDG base directories hold.
"""

import os

MARKS = "marks.json"  # what must not go back with the database; see store/high_water_marks.py


def home() -> str:
    """The state directory: $GPQ_HOME, else $XDG_STATE_HOME/gpq, else ~/.local/state/gpq."""
    own = os.environ.get("GPQ_HOME")
    if own:
        return os.path.abspath(own)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    return os.path.join(base, "gpq")


def socket() -> str:
    """The daemon's socket: $GPQ_HOME/gpq.sock, else $XDG_RUNTIME_DIR/gpq/gpq.sock, else beside the
    state.

    A socket's path may have at most 107 bytes; a longer one is a mistake that the daemon names at
    its start.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not os.environ.get("GPQ_HOME"):
        return os.path.join(runtime, "gpq", "gpq.sock")
    return signpost()


def signpost() -> str:
    """In the state directory: the socket itself, or a link to it. Who knows the state directory
    alone finds it by this."""
    return os.path.join(home(), "gpq.sock")


def config() -> str:
    """The user's file: $GPQ_CONFIG, else $XDG_CONFIG_HOME/gpq/config.toml, else
    ~/.config/gpq/config.toml."""
    own = os.environ.get("GPQ_CONFIG")
    if own:
        return os.path.abspath(own)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "gpq", "config.toml")


def of_jobs(home: str) -> dict[str, str]:
    """What leads gpq inside a job of this machine to the queue of the state directory `home`, and
    to the file in use."""
    is_other = os.environ.get("GPQ_CONFIG") or (
        os.environ.get("XDG_CONFIG_HOME") and os.path.exists(config())
    )
    return {"GPQ_HOME": home, **({"GPQ_CONFIG": config()} if is_other else {})}


def database() -> str:
    return os.path.join(home(), "gpq.db")


def marks() -> str:
    """Beside the database; named otherwise, since a damaged one is moved away with all that is
    named after it."""
    return os.path.join(home(), MARKS)


def notifications() -> str:
    """What is still to be told to people about their jobs."""
    return os.path.join(home(), "notifications.json")


def snapshots(state: str = "") -> str:
    """Code that was frozen at a submission, by its SHA-256; of another state directory than the
    user's where one is given."""
    return os.path.join(state or home(), "snapshots")


def verdicts() -> str:
    """What `gpq check` found."""
    return os.path.join(home(), "checks")


def daemon_log() -> str:
    return os.path.join(home(), "daemon.log")


def daemon_lock() -> str:
    return os.path.join(home(), "daemon.lock")


def node_spool(node: str) -> str:
    """Where a local node keeps its attempts."""
    return os.path.join(home(), "nodes", node)
