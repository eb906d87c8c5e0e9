"""gpq with every kind of server and user: it works there, or says in one sentence why not. Rows 38 and 39."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import kinds
from tests.lab.daemons import LabDaemon
from tests.lab.lab import Lab
from tests.support.figures import Figures
from tests.support.waiting import wait_until

WORK = {
    "plain": kinds.PLAIN,
    "old": kinds.OLD_PYTHON,
    "new": kinds.NEW_PYTHON,
    "csh": kinds.CSH,
    "fish": kinds.FISH,
    "noisy": kinds.NOISY,
    "noisy-csh": kinds.NOISY_CSH,
    "port": kinds.PORT_2222,
    "one-session": kinds.ONE_SESSION,
    "far": kinds.behind("plain"),
}
# And what the sentence must contain.
REFUSE = {
    "no-python": (kinds.NO_PYTHON, "no Python 3.8 or newer was found"),
    "exits": (kinds.EXITING, "the login shell ended before it ran anything"),
    "talks": (kinds.TALKATIVE, "the login scripts print more than"),
    "no-session": (kinds.NO_SESSION, "allows no more sessions|could not connect"),
    "another-key": (kinds.PLAIN, "has changed, so gpq did not connect"),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab({**WORK, **{name: kind for name, (kind, _) in REFUSE.items()}}) as lab:
        stranger = lab["another-key"]
        stranger.kill_sshd()
        stranger.new_host_key()
        stranger.start_sshd()
        yield lab


@pytest.fixture(scope="module")
def daemon(lab: Lab) -> Iterator[LabDaemon]:
    with LabDaemon(lab, dict.fromkeys([*WORK, *REFUSE], 1)) as daemon:
        yield daemon


@pytest.mark.row("38")
def test_a_job_runs_on_every_server_that_can_run_one(daemon: LabDaemon, figures: Figures) -> None:
    daemon.up(*WORK)
    # One slot each and all at once, so one job per server. Prints the program that a job of the user's shell would
    # find.
    python = "import sys; print(sys.version_info[:2])"
    command = f"hostname; id -un; pwd; python3 -c '{python}'; while ! test -e go; do sleep 0.1; done"
    jobs = [daemon.run(command) for _ in WORK]
    places = {daemon.place(job): job for job in jobs}
    assert set(places) == set(WORK)
    for name in WORK:
        (daemon.lab[name].home / "go").touch()
    assert set(daemon.ended(*jobs).values()) == {("completed", 0)}
    for name, job in places.items():
        server, user, folder, version = daemon.log(job).splitlines()
        assert (server, user, folder) == (name, "ada", "/home/ada")
        assert version == {"old": "(3, 8)", "new": "(3, 13)"}.get(name, version)
    figures.exactly(f"kinds of servers and users, of {len(WORK)}, on which a job runs", len(places), len(WORK))


@pytest.mark.row("38, 39")
@pytest.mark.parametrize("name", REFUSE)
def test_a_server_that_cannot_be_used_says_why_in_one_sentence(daemon: LabDaemon, name: str, figures: Figures) -> None:
    wait_until(lambda: daemon.node(name).state == "unreachable", f"{name} is tried again later")
    reason = daemon.node(name).reason
    figures.note(name, reason)
    assert "\n" not in reason
    assert len(reason) < 300
    assert any(words in reason for words in REFUSE[name][1].split("|"))
