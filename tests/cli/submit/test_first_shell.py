"""A job's environment comes from its own submission and its server. The shell that started the daemon affects nobody
else.

Each command that starts a daemon or submits a job runs in its own process here, as from a shell. It has only the
variables that the test gives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpq.client.connection import Connection
from gpq.rpc.job_answers import Submitted
from gpq.rpc.requests import SpecMessage, Submit
from tests.cli.conftest import FIFO, Gpq, state_directory
from tests.daemon.daemons import QUICK
from tests.support.sshagent import SshAgent
from tests.support.sshd import Sshd, clients
from tests.support.waiting import wait_until

# Variables of one person. Nobody else may see them.
OF_A = {
    "WANDB_API_KEY": "a-key-of-person-A",
    "AWS_SECRET_ACCESS_KEY": "another",
    "CONDA_PREFIX": "/opt/conda/envs/a",
    "CUDA_LAUNCH_BLOCKING": "1",
    "OMP_NUM_THREADS": "7",
    "SLURM_JOB_ID": "77",
    "LD_LIBRARY_PATH": "/opt/of-a",
    "LANG": "de_DE.UTF-8",
    "TZ": "Asia/Tokyo",
    "TMPDIR": "/tmp/of-a",
    "XDG_CONFIG_HOME": "/tmp/of-a",
    "https_proxy": "http://proxy.of-a:3128",
    "EDITOR": "of-a",
}
BARE = ("PATH", "HOME", "PYTHONPATH")
LOOK = """
import json, os, resource
names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
print(json.dumps({
    "umask": oct(os.umask(0)), "nice": os.nice(0), "cores": len(os.sched_getaffinity(0)),
    **{name: resource.getrlimit(getattr(resource, name)) for name in names},
}))
"""
LOOKED = f"{sys.executable} -c '{LOOK}'"
# The first attempt waits until gpq stops it.
TWICE = (
    f"trap 'exit 75' TERM; env; {LOOKED}; touch begun-$GPQ_ATTEMPT; while test $GPQ_ATTEMPT = 1; do sleep 0.05; done"
)


@dataclass
class Shell:
    """A person's shell on gpq's machine. `environ` holds all its own variables, and `prelude` holds what the person
    typed before."""

    gpq: Gpq
    environ: dict[str, str] = field(default_factory=dict)

    names: tuple[str, ...] = (*BARE, "GPQ_HOME", "GPQ_CONFIG")
    prelude: str = ":"

    @property
    def environment(self) -> dict[str, str]:
        own = self.gpq.environment
        return {**{name: own[name] for name in self.names}, **self.environ}

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", f'{{ {self.prelude}; }} >&2 && exec "$@"', "bash", *argv]
        return subprocess.run(
            command, env=self.environment, cwd=self.gpq.home, capture_output=True, text=True, timeout=120, check=False
        )

    def __call__(self, *argv: str) -> str:
        """What `gpq ARGV` prints."""
        done = self.run(sys.executable, "-m", "gpq", *argv)
        assert done.returncode == 0, done
        return done.stdout


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server whose logins set their own variables."""
    with Sshd(
        tmp_path_factory.mktemp("far"), environment=["MODULEPATH=/opt/modules", "http_proxy=http://far"]
    ) as running:
        yield running


@pytest.fixture(params=["local", "far"])
def gpq(request: pytest.FixtureRequest) -> Iterator[Gpq]:
    """No daemon runs yet. Its only server is this machine or another one."""
    with state_directory() as home:
        made = Gpq(home)
        if request.param == "far":
            server: Sshd = request.getfixturevalue("far")
            (home / "config.toml").write_text(f'policy = "fifo"\ninterval = 2.0\n[nodes.far]\n{server.toml()}')
        else:
            (home / "config.toml").write_text(FIFO)
        yield made
        made("cancel", "all")
        made("daemon", "stop")


def variables(printed: str) -> dict[str, str]:
    """The variables that `env` printed, without gpq's and those of the shell that prints them."""
    pairs = dict(line.partition("=")[::2] for line in printed.splitlines() if "=" in line)
    return {
        name: value
        for name, value in pairs.items()
        if name not in ("_", "PWD", "OLDPWD", "SHLVL") and not name.startswith("GPQ_")
    }


def attributes(printed: str) -> dict[str, object]:
    """What `LOOK` printed."""
    [line] = [line for line in printed.splitlines() if line.startswith("{")]
    found: dict[str, object] = json.loads(line)
    return found


def attempts(shell: Shell) -> list[str]:
    """What a job prints in its first and second attempt."""
    gpq, begun = shell.gpq, shell.gpq.home / "begun-1"
    job = shell("submit", "--preemptible", "--", "sh", "-c", TWICE).split()[1]
    wait_until(begun.exists, "the first attempt has printed")
    begun.unlink()
    gpq("requeue", job)
    gpq("wait", job)
    return [gpq("logs", job, "--attempt", attempt).stdout for attempt in ("1", "2")]


def test_a_jobs_environment_comes_only_from_its_server_and_its_submission(gpq: Gpq, far: Sshd) -> None:
    me, remote = pwd.getpwuid(os.getuid()), "far" in (gpq.home / "config.toml").read_text()
    person_b = Shell(gpq, {"LANG": "C.UTF-8", "HF_HOME": "/models", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"})
    for first in (Shell(gpq, OF_A), Shell(gpq)):
        first("daemon", "start")
        for printed in attempts(person_b):
            seen = variables(printed)
            assert int(seen.pop("OMP_NUM_THREADS")) >= 1  # from its CPU slot
            assert seen.pop("TORCHINDUCTOR_CACHE_DIR").endswith("/torchinductor")
            assert {name for name in seen if name.endswith("_NUM_THREADS")} == {
                "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
            }  # fmt: skip
            assert {name: value for name, value in seen.items() if not name.endswith("_NUM_THREADS")} == {
                "HOME": str(far.home if remote else gpq.home),
                "USER": me.pw_name,
                "LOGNAME": me.pw_name,
                "SHELL": me.pw_shell,
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONHASHSEED": "0",
                "PYTHONUNBUFFERED": "1",
                "PATH": person_b.environment["PATH"],
                "PYTHONPATH": person_b.environment["PYTHONPATH"],
                **person_b.environ,
            }
        gpq("daemon", "stop")


def test_a_job_submitted_without_an_environment_has_what_a_login_has(gpq: Gpq, far: Sshd) -> None:
    """Programs that use the socket may leave the environment out, and so does `env -i`."""
    shell = Shell(gpq, OF_A)
    shell("daemon", "start")
    bare = "import os, sys\nos.environ.clear()\nos.environ.update(GPQ_HOME=sys.argv[1])\nimport gpq\n"
    code = f"{bare}print(gpq.submit(command=['env']).id)"
    job = shell.run(sys.executable, "-c", code, str(gpq.home)).stdout.strip()
    assert job, shell.run(sys.executable, "-c", code, str(gpq.home))
    gpq("wait", job)
    seen = variables(gpq("logs", job).stdout)
    assert {name for name in seen if not name.endswith("_NUM_THREADS")} == {
        "HOME", "USER", "LOGNAME", "SHELL", "PATH", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED", "PYTHONUNBUFFERED",
        "TORCHINDUCTOR_CACHE_DIR",
    }  # fmt: skip
    login = shell.run(*far.command, far.name, "printenv PATH").stdout.strip()
    remote = "far" in (gpq.home / "config.toml").read_text()
    assert seen["PATH"] == (login if remote else "/usr/local/bin:/usr/bin:/bin")


# Both contain only changes that anybody may undo. The limit on CPU seconds counts from the start of each process.
FIRST = "umask 077; ulimit -Sn 256; ulimit -Sc 0; ulimit -Sv 8000000; ulimit -Ss 4096; ulimit -St 500; taskset -cp 0 $$"
OWN = "umask 027; ulimit -n 512; ulimit -Sc 7; ulimit -f 100000; ulimit -t 900; renice -n 3 -p $$"


def test_umask_limits_and_niceness_come_from_the_submitting_shell_but_the_job_gets_all_cores(gpq: Gpq) -> None:
    gpus = (gpq.home / "config.toml").read_text().replace("slots = 2", "slots = 1")
    (gpq.home / "config.toml").write_text(gpus)  # the one slot has all cores that gpq may use on this server
    person_b = Shell(gpq, prelude=OWN)
    alone = attributes(Shell(gpq, prelude=f"{OWN}; taskset -cp 0-4095 $$").run(sys.executable, "-c", LOOK).stdout)
    assert (alone["umask"], alone["nice"], alone["RLIMIT_NOFILE"]) == ("0o27", 3, [512, 512])
    for first in (Shell(gpq, prelude=FIRST), Shell(gpq)):
        first("daemon", "start")
        for printed in attempts(person_b):
            assert attributes(printed) == alone
        job = json.loads(gpq("show", "1", "--json").stdout)
        assert job["notices"] == []
        assert job["spec"]["attributes"]["umask"] == 0o27
        gpq("daemon", "stop")


# An ordinary user's shell cannot raise a limit again after lowering it. Root can, unless it gave that right up too.
ORDINARY = "" if os.geteuid() else "setpriv --bounding-set=-sys_resource,-sys_nice "
NARROW = "ulimit -Sn 200; ulimit -Hn 300; ulimit -c 0; renice -n 4 -p $$"


def test_limits_that_a_server_does_not_allow_are_reported(home: Path, tmp_path: Path) -> None:
    """On this machine, the limits are those of the shell that started the daemon."""
    login = f'ForceCommand {{ {NARROW}; }} >/dev/null && exec {ORDINARY}sh -c "$SSH_ORIGINAL_COMMAND"'
    with Sshd(tmp_path / "far", directives=[login]) as far:
        here = "[nodes.near]\nslots = 1\n"
        (home / "config.toml").write_text(f'policy = "fifo"\n{here}[nodes.far]\n{far.toml(slots=1)}')
        gpq = Gpq(home)
        first = Shell(gpq, prelude=NARROW)
        done = first.run(*ORDINARY.split(), sys.executable, "-m", "gpq", "daemon", "start")
        assert done.returncode == 0, done
        both = Shell(gpq, prelude="ulimit -Sn 400; ulimit -c 100")("submit", "--array", "0-1", "--", "sh", "-c", LOOKED)
        try:
            first_id = int(both.partition(" jobs, ")[2].split()[0])
            for job in (first_id, first_id + 1):
                gpq("wait", str(job))
                seen = attributes(gpq("logs", str(job)).stdout)
                assert (seen["RLIMIT_NOFILE"], seen["RLIMIT_CORE"], seen["nice"]) == ([300, 300], [0, 0], 4)
                detail = json.loads(gpq("show", str(job), "--json").stdout)
                node = detail["attempts"][0]["placement"][0]["node"]
                [told] = detail["notices"]
                assert told.startswith(
                    f"{node} does not allow what the job's shell had: niceness 4 instead of 0; core dumps 0"
                )
                assert "open files 300 instead of 400" in told
                assert told in " ".join(gpq("show", str(job), COLUMNS="1000").stdout.split())
        finally:
            gpq("cancel", "all")
            gpq("daemon", "stop")


def test_paths_that_a_server_lacks_are_named_and_a_missing_tmpdir_becomes_tmp(queue: Gpq) -> None:
    gone, there = queue.home / "login", queue.home / "there"
    for folder in (gone, gone / "tmp", there):
        folder.mkdir()
    shell = {"TMPDIR": f"{gone}/tmp", "HF_HOME": str(gone), "XDG_CACHE_HOME": str(there)}
    look = "echo TMPDIR=$TMPDIR HF_HOME=$HF_HOME; mktemp > made && rm $(cat made)"
    done = queue("submit", "--hold", "--env", f"OUT={gone}/new", "--", "sh", "-ec", look, **shell)
    job = done.stdout.split()[1]
    (gone / "tmp").rmdir()
    gone.rmdir()
    queue("release", job)
    assert queue("wait", job).returncode == 0
    assert queue("logs", job).stdout == f"TMPDIR=/tmp HF_HOME={gone}\n"
    lines = json.loads(queue("show", job, "--json").stdout)["notices"]
    assert lines == [f"local lacks TMPDIR={gone}/tmp, HF_HOME={gone}; the job's TMPDIR is /tmp"]
    kept = queue("submit", "--wait", "--", "sh", "-c", "echo $TMPDIR", TMPDIR=str(there))
    job = kept.stdout.split()[1]
    assert queue("logs", job).stdout == f"{there}\n"
    assert json.loads(queue("show", job, "--json").stdout)["notices"] == []


def test_a_submission_without_limits_gets_those_of_its_server(home: Path) -> None:
    """This covers other programs that use the socket and submissions of older versions. Here the limits come from the
    shell that started the daemon."""
    gpq = Gpq(home)
    Shell(gpq, prelude="umask 027; ulimit -Sn 333")("daemon", "start")
    try:
        with Connection(str(home / "gpq.sock")) as connection:
            spec = SpecMessage(["sh", "-c", LOOKED], "/tmp", "black-box")
            job = str(connection.call(Submit(spec), Submitted).id)
        gpq("wait", job)
        seen = attributes(gpq("logs", job).stdout)
        assert (seen["umask"], seen["RLIMIT_NOFILE"][0]) == ("0o27", 333)  # type: ignore[index]
        assert json.loads(gpq("show", job, "--json").stdout)["spec"]["attributes"] is None
    finally:
        gpq("daemon", "stop")


def processes(gpq: Gpq) -> dict[str, Path]:
    """The daemon and the process that it started for its server, as folders in /proc."""
    daemon = Path("/proc") / str(json.loads(gpq("daemon", "status", "--json").stdout)["pid"])

    def started() -> list[str]:
        return [pid for task in (daemon / "task").iterdir() for pid in (task / "children").read_text().split()]

    [pid] = wait_until(started, "the daemon has a child process")
    return {"daemon": daemon, "child": Path("/proc") / pid}


@pytest.mark.parametrize("first", [Shell(Gpq(Path()), OF_A, prelude=FIRST), Shell(Gpq(Path()))], ids=["of-a", "clean"])
def test_gpqs_own_processes_do_not_depend_on_the_shell_that_started_them(gpq: Gpq, first: Shell) -> None:
    """Except for what gpq itself needs from the shell: where to find things, ssh and the network. No job gets these."""
    first = replace(first, gpq=gpq)
    first("daemon", "start")
    wait_until(lambda: json.loads(gpq("nodes", "--json").stdout)["nodes"][0]["state"] == "up", "the server is up")
    for name, place in processes(gpq).items():
        environ = variables((place / "environ").read_text().replace("\0", "\n"))
        needed = {"HOME", "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LC_CTYPE", "LC_ALL", "SSH_ASKPASS_REQUIRE"}
        if name == "daemon" or "ssh" in (place / "comm").read_text():
            needed |= {"TZ", "XDG_CONFIG_HOME", "https_proxy"}
        own = {each for each in environ if not each.endswith("_NUM_THREADS")}
        assert own <= needed, name
        assert environ.get("OMP_NUM_THREADS", "1") == "1"
        assert environ.get("LC_ALL", "C") == "C"
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
        assert status["Umask"].strip() == "0077"
        assert len(os.sched_getaffinity(int(place.name))) == all_cores()
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_AS):
            soft, hard = resource.prlimit(int(place.name), limit)
            assert soft == hard, (name, limit)
        assert resource.prlimit(int(place.name), resource.RLIMIT_CORE)[0] == 0


def all_cores() -> int:
    code = "import os; os.sched_setaffinity(0, range(4096)); print(len(os.sched_getaffinity(0)))"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


# -- modules of another Python -------------------------------------------------------------------------------------------

SHADOWS = ("msgspec", "numpy", "scipy", "rich", "typer", "psutil", "pynvml", "json", "subprocess", "socket")


def test_a_modules_pythonpath_breaks_neither_commands_nor_the_daemon_and_reaches_the_job(
    home: Path, tmp_path: Path
) -> None:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f'raise ImportError("{name} of another Python")\n')
    ran = "import os\nopen(os.path.join(os.path.dirname(__file__), f'ran-{os.getpid()}'), 'w').close()\n"
    (tmp_path / "sitecustomize.py").write_text(ran)
    gpq = Gpq(home)
    own = gpq.environment["PYTHONPATH"]
    shell = Shell(gpq, {"PYTHONPATH": f"{tmp_path}:{own}"})
    try:
        assert shell("status") == "no jobs\n"  # this also started a daemon
        job = shell("submit", "--", "env").split()[1]
        assert shell("wait", job) == f"job {job} completed\n"
        assert f"PYTHONPATH={tmp_path}:{own}" in shell("logs", job).splitlines()
        for argv in (["show", job], ["why", job], ["nodes"], ["top", "--once"], ["history"], ["daemon", "status"]):
            assert shell(*argv)
        for place in processes(gpq).values():
            assert not (tmp_path / f"ran-{place.name}").exists(), (place / "cmdline").read_text()
    finally:
        gpq("daemon", "stop")


def test_a_logins_pythonpath_does_not_break_the_agent(home: Path, tmp_path: Path) -> None:
    """`module load` or a .bashrc can set it, also for logins without a terminal."""
    for name in (*SHADOWS, "hashlib", "tempfile", "zlib", "argparse"):
        (tmp_path / f"{name}.py").write_text(f'raise ImportError("{name} of another Python")\n')
    login = [f"PYTHONPATH={tmp_path}", "PYTHONHOME=/nowhere", "WANDB_API_KEY=of-the-login"]
    with Sshd(tmp_path / "sshd", environment=login) as server:
        (home / "config.toml").write_text(f'policy = "fifo"\n[nodes.far]\n{server.toml()}')
        gpq = Gpq(home)
        shell = Shell(gpq)
        try:
            job = shell("submit", "--", sys.executable, "-c", "print('ran')").split()[1]
            assert gpq("wait", job).returncode == 0
            assert gpq("logs", job).stdout == "ran\n"
            agents = [each for each in environs("gpq_agent.node") if each["HOME"] == str(server.home)]
            assert agents
            for environ in agents:
                assert environ.keys() <= {
                    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LD_LIBRARY_PATH", "SSH_CONNECTION", "PYTHONPATH"),
                    "LC_CTYPE",
                }
                assert environ["PYTHONPATH"].startswith(f"{server.home}/.gpq/agent/")
        finally:
            gpq("daemon", "stop")


def environs(word: str) -> list[dict[str, str]]:
    """The environments of all processes with this word in their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (place / "cmdline").read_bytes().split(b"\0"):
                found.append(variables((place / "environ").read_text().replace("\0", "\n")))
    return found


def test_a_missing_package_of_gpq_gives_one_line_and_a_hint(home: Path) -> None:
    """Runs without the packages of this interpreter."""
    done = Shell(Gpq(home)).run(sys.executable, "-S", "-m", "gpq", "submit", "--", "true")
    assert done.returncode == 1
    said, hint = done.stderr.splitlines()
    assert said.startswith("gpq: cannot import a package that gpq needs: No module named 'msgspec' (")
    assert hint.startswith("hint: reinstall gpq")


def test_a_proxy_reaches_the_job_but_its_password_only_on_request(queue: Gpq) -> None:
    code = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'proxy' in k.lower()}))"
    environ = {"https_proxy": "http://ana:secret@proxy:3128", "HTTP_PROXY": "http://proxy:3128", "no_proxy": "lab"}
    done = queue("submit", "--", sys.executable, "-c", code, **environ)
    assert done.stderr.startswith("note: https_proxy is not passed on"), done
    job = done.stdout.split()[1]
    queue("wait", job)
    assert json.loads(queue("logs", job).stdout) == {"HTTP_PROXY": "http://proxy:3128", "no_proxy": "lab"}
    assert "secret" not in queue("show", job, "--json").stdout


# -- from within a job --------------------------------------------------------------------------------------------------

CHAIN = "gpq config path; gpq submit --name eval -- env; OMP_NUM_THREADS=3 gpq submit --name own -- env"


@pytest.mark.parametrize("found_by", ["GPQ_HOME", "XDG"])
def test_a_job_submits_its_successor_to_its_own_queue(home: Path, found_by: str) -> None:
    shell = Shell(Gpq(home))
    config = home / "config.toml"
    if found_by == "XDG":  # as in a login, where the socket is outside the state directory
        names = {"XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run", "XDG_CONFIG_HOME": "conf"}
        shell = Shell(Gpq(home), {name: str(home / folder) for name, folder in names.items()}, names=BARE)
        config = home / "conf" / "gpq" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(FIFO)
    shell("daemon", "start")
    try:
        first = shell("submit", "--", "sh", "-c", f"env; {CHAIN}").split()[1]
        shell("wait", first)
        printed = shell("logs", first)
        assert str(config) in printed.splitlines()
        successor, own = (line.split()[1] for line in printed.splitlines() if line.endswith(" submitted"))
        shell("wait", successor, own)
        seen = variables(shell("logs", successor))
        # the environment stays the same, however long the chain is
        assert seen == variables(printed.partition(f"\n{config}\n")[0])
        assert "OMP_NUM_THREADS" not in json.loads(shell("show", successor, "--json"))["spec"]["env"]
        assert variables(shell("logs", own))["OMP_NUM_THREADS"] == "3"
    finally:
        shell("cancel", "all")
        shell("daemon", "stop")
    assert not list(home.rglob("gpq.sock"))


def test_the_state_directory_is_enough_to_find_the_daemon(home: Path) -> None:
    """As in cron, which has no XDG_RUNTIME_DIR."""
    state = {"XDG_STATE_HOME": str(home / "state")}
    login = Shell(Gpq(home), {**state, "XDG_RUNTIME_DIR": str(home / "run")}, names=(*BARE, "GPQ_CONFIG"))
    login("daemon", "start")
    cron = Shell(Gpq(home), state, names=login.names)
    assert cron("submit", "--", "true") == "job 1 submitted\n"
    assert login("wait", "1") == "job 1 completed\n", "both use the same queue"
    os.kill(json.loads(login("daemon", "status", "--json"))["pid"], signal.SIGKILL)
    cron("status")  # the next daemon puts its socket where the link was
    assert (home / "state" / "gpq" / "gpq.sock").is_socket()
    assert not (home / "state" / "gpq" / "gpq.sock").is_symlink()
    cron("daemon", "stop")


# -- the ssh-agent of a login that has ended -----------------------------------------------------------------------------


def test_the_daemon_reaches_a_server_with_the_ssh_agent_of_the_latest_command(home: Path, far: Sshd) -> None:
    """Only the agents have the key, as after `ssh -A`. Nothing of the daemon's own shell remains."""
    config = home / "ssh_config"
    config.write_text(
        f"Host {far.name}\n  HostName 127.0.0.1\n  Port {far.port}\n  IdentityFile none\n"
        f"  UserKnownHostsFile {far.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
    )
    ssh = ["ssh", "-F", str(config)]
    (home / "config.toml").write_text(f'policy = "fifo"\n[nodes.far]\n{far.toml(ssh=ssh)}')
    gpq = Gpq(home)

    def node() -> dict[str, str]:
        [found] = json.loads(gpq("nodes", "--json").stdout)["nodes"]
        return dict(found)

    try:
        with SshAgent(home / "agent-1", far.key) as agent:
            Shell(gpq, {"SSH_AUTH_SOCK": agent.path, "GPQ_TEST_PACE": str(QUICK)})("daemon", "start")
            wait_until(lambda: node()["state"] == "up", "the server is up")
        for pid in clients(config):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "accepts none of your keys" in node()["reason"], "the next connection finds no key")
        advice = f"Run `gpq nodes` in a shell where `{' '.join(ssh)} {far.name} true` works"
        assert advice in node()["reason"]
        with SshAgent(home / "agent-2", far.key) as agent:
            person_b = Shell(gpq, {"SSH_AUTH_SOCK": agent.path})
            assert person_b.run(*ssh, far.name, "true").returncode == 0  # the advice works
            person_b("nodes")
            wait_until(lambda: node()["state"] == "up", "the server is up again")
    finally:
        gpq("daemon", "stop")
