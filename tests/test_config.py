"""The file becomes settings, or an error that says where the mistake is."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gpq.config import FileConfig, parse
from gpq.core.model.snapshot import Config
from gpq.daemon.main import core_config
from gpq.errors import UsageError

OWN = {
    "grace",
    "nodes",
    "team",
    "requeue_on_lost",
    "log_limit",
    "keep",
    "standby",
    "note_env",
    "check",
    "setup_limit",
    "metrics",
    "notify",
    "accept",
    "user_weights",  # has another type there
}  # settings that the core does not use as they are


def test_the_defaults_are_those_of_the_core() -> None:
    for each in fields(FileConfig):
        if each.name not in OWN:
            assert getattr(FileConfig(), each.name) == getattr(Config(), each.name), each.name


def test_what_is_due_to_users_reaches_the_core() -> None:
    settings = parse("floor_patience = 0\nborrow_limit = 60.5\n[user_weights]\nbo = 1000\nana = 0.5\n")
    core = core_config(settings, gang=False, port_salt=7)
    assert (core.floor_patience, core.borrow_limit, core.port_salt) == (0.0, 60.5, 7)
    assert core.user_weights == (("ana", 0.5), ("bo", 1000.0))


def test_switches_and_the_seed_are_read() -> None:
    config = parse("seed = 7\nevents = false\nby_user = false\n")
    assert (config.seed, config.events, config.by_user) == (7, False, False)


SSH = '[nodes.a]\nconnector = "ssh"\n'
TWO_NODES = """\
# cores = [7] in a comment
[nodes.a]
cores = [0, 1]
[nodes.b]
slots = 2
cores = {}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('check = "always"\n', "unknown check `always` (at line 1, column 1)"),
        ("seed = -1\n", "seed must be 0 or above (at line 1, column 1)"),
        ('keep = "3 months"\n', "keep: `3 months` is not a number of days"),
        ("log_limit = 0.5\n", "log_limit must be 0 (off) or between 1 and 1048576 MiB"),
        ("requeue_on_lost = 59\n", "requeue_on_lost must be 0 (off) or between 60 and 2592000 s"),
        ("events = 1\n", "events must be true or false (at line 1, column 1)"),
        ('interval = "soon"\n', "interval must be a number (at line 1, column 1)"),
        ("[nodes.a]\nslots = 1.5\n", "nodes.a.slots must be a whole number (at line 2, column 1)"),
        ("[nodes.a]\ncores = 3\n", "nodes.a.cores must be a list in square brackets (at line 2, column 1)"),
        (
            "[nodes.a]\nslots = 1\n[nodes.b-1]\nslots = '1'\n",
            "nodes.b-1.slots must be a whole number (at line 4, column 1)",
        ),
        ("[nodes.a]\npython = 3\n", "nodes.a.python must be a text in quotes (at line 2, column 1)"),
        ("nodes = 3\n", "nodes must be a table (at line 1, column 1)"),
        ('restart_seconds = 9.0\npolicy = "best"\n', "unknown policy `best` (at line 2, column 1)"),
        (TWO_NODES.format("[1, 99]"), "nodes.b.cores: gpq may not use core 99 here (at line 6, column 1)"),
        (TWO_NODES.format("[1, 1]"), "nodes.b.cores names a core twice (at line 6, column 1)"),
        ('nodes.a = {slots = 1, connector = "pigeon"}\n', "unknown connector `pigeon` (at line 1, column 23)"),
        ("[nodes.a]\nslots = 1\n[nodes.b]\nslots = 9999\n", "between 0 and 1024 (at line 4, column 1)"),
        ('[nodes.a]\nconnector = "ssh"\n', 'nodes.a.connector is "ssh", but there is no host (at line 2, column 1)'),
        ('[nodes.a]\nhost = "b"\n', 'nodes.a.host is only for connector = "ssh" (at line 2, column 1)'),
        (SSH + 'host = "-oProxyCommand=x"\n', "`-oProxyCommand=x` is not a host (at line 3, column 1)"),
        (SSH + 'host = "a"\nport = 65536\n', "port must be between 1 and 65535 (at line 4, column 1)"),
        (
            "[nodes.a]\ntransfer_limit = -1.0\n",
            "nodes.a.transfer_limit must be 0 (off) or above, in MB/s (at line 2, column 1)",
        ),
        (SSH + 'host = "a"\nspool = "gpq"\n', "spool must start with / or ~/ (at line 4, column 1)"),
        (SSH + 'host = "a"\npython = "a\\nb"\n', "python is not a path (at line 4, column 1)"),
        (SSH + 'host = "a"\nidentity = "-x"\n', "identity is not a path (at line 4, column 1)"),
        (SSH + 'host = "a"\nscript_python = "py"\n', "script_python must start with / (at line 4, column 1)"),
        ('[team]\nname = "lab"\narbiter = "-x"\n', "team.arbiter: `-x` is not a host (at line 3, column 1)"),
        ("metrics = 9464\n", "metrics must be a text in quotes (at line 1, column 1)"),
        ('seed = 1\nmetrics = "gpu1:9464"\n', "metrics: `gpu1` is no IP address (at line 2, column 1)"),
        ('[notify]\nslack = "slack"\n', "notify.slack is not an apprise URL (at line 2, column 1)"),
        ('[notify]\nnone = "json://h"\n', "`none` cannot be the name of a target (at line 2, column 1)"),
        (
            '[notify]\ndefault = ["a"]\n',
            "notify.default: config.toml has no target `a` in [notify] (at line 2, column 1)",
        ),
        ("[notify]\nlines = 1000\n", "notify.lines must lie between 0 and 100 (at line 2, column 1)"),
        ('[notify]\non = ["end", "soon"]\n', "notify.on: `soon` is nothing to be notified of (at line 2, column 1)"),
        ("[notify]\na = 1.5\n", "notify.a is not an apprise URL (at line 2, column 1)"),
        ('metrics = "0"\n', "metrics: `0` is no port or address with a port (at line 1, column 1)"),
        ("setup_limit = 0\n", "setup_limit must be above 0 (at line 1, column 1)"),
        (SSH + 'host = "a"\naddress = "a b"\n', "`a b` is not an address (at line 4, column 1)"),
        (
            '[accept]\n"a.py" = ["own-next"]\n"b.py" = ["Own next"]\n',
            "invalid accept.b.py: expected codes of habits (at line 3, ",
        ),
        ("floor_patience = -1\n", "floor_patience must be between 0 and 86400 s (at line 1, column 1)"),
        ("floor_patience = nan\n", "floor_patience must be between 0 and 86400 s (at line 1, column 1)"),
        ("seed = 1\nborrow_limit = inf\n", "borrow_limit must be between 0 and 2592000 s (at line 2, column 1)"),
        (
            "[user_weights]\nbo = 1\nana = 0\n",
            "user_weights.ana must be above 0 and at most 1000 (at line 3, column 1)",
        ),
        ("user_weights.ana = nan\n", "user_weights.ana must be above 0 and at most 1000 (at line 1, column 14)"),
        ("[user_weights]\nana = 1000.1\n", "user_weights.ana must be above 0 and at most 1000 (at line 2, column 1)"),
        ("[user_weights]\nbo = 1\n'anä' = '2'\n", "user_weights.anä must be a number (at line 3, column 2)"),
        ("[user_weights]\n'ana b' = 2\n", "user_weights: `ana b` is not a user (at line 2, column 2)"),
        (SSH + 'host = "a"\nssh = ["ssh", ""]\n', "ssh must be a command and its options (at line 4, column 1)"),
    ],
)
def test_a_mistake_is_reported_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(text, policies=["goodput", "fifo"], cores=[0, 1])
    assert said in refusal.value.message
    assert refusal.value.hint


def test_policies_and_cores_are_not_checked_if_they_are_unknown() -> None:
    assert parse('policy = "best"\n[nodes.a]\ncores = [99]\n').policy == "best"


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("intervall = 3\n", "unknown key `intervall`", "did you mean interval?"),
        ("[node.a]\nslots = 1\n", "unknown key `node`", "did you mean nodes?"),
        ("[nodes.a]\nslot = 1\n", "unknown key `slot` in nodes.a", "did you mean slots?"),
        ("xyzzy = 1\n", "unknown key `xyzzy`", "known keys: "),
        ("[nodes.a]\nslots = 1\n[nodes.a]\nslots = 2\n", "[nodes.a] appears twice (at line 3", "gpq config check"),
    ],
)
def test_a_misspelt_key_gets_suggestions_and_a_duplicate_table_is_named(text: str, problem: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert problem in raised.value.message
    assert hint in raised.value.hint


def test_no_error_and_no_description_of_the_file_shows_a_url_of_notify() -> None:
    secret = "xoxb-geheim"
    config = parse(f'[notify]\nslack = "slack://{secret}"\ndefault = ["slack"]\n')
    assert secret not in repr(config)
    for wrong in (
        f'[notify]\nslack = "{secret}"\n',
        f'[notify]\nslack = "slack://{secret} x"\n',
        f'[notify]\na = "json://{secret}"\ndefault = "slack://{secret}"\n',
        f'[notify]\na = "json://{secret}"\non = "{secret}://x"\n',
    ):
        with pytest.raises(UsageError) as refusal:
            parse(wrong)
        assert secret not in refusal.value.message + refusal.value.hint
