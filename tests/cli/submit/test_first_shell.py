"""What a job finds is of its own submission and of its server: the shell that happened to start the daemon reaches nobody.

What starts a daemon or submits is a process of its own here, as from a shell: all that it has is what it was given.
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

# One person's, none of which is anybody else's affair.
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
# Its first attempt waits until it is stopped.
TWICE = (
    f"trap 'exit 75' TERM; env; {LOOKED}; touch begun-$GPQ_ATTEMPT; while test $GPQ_ATTEMPT = 1; do sleep 0.05; done"
)


@dataclass
class Shell:
    """Somebody's, on the machine of `gpq`: `environ` is all that its own variables are, `prelude` was typed in it before."""

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
    """A server whose logins have variables of their own."""
    with Sshd(
        tmp_path_factory.mktemp("far"), environment=["MODULEPATH=/opt/modules", "http_proxy=http://far"]
    ) as running:
        yield running


@pytest.fixture(params=["local", "far"])
def gpq(request: pytest.FixtureRequest) -> Iterator[Gpq]:
    """No daemon yet; its only server is this machine, or another."""
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
    """Of `env`, without those of the shell that prints them, and without gpq's."""
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
    """What a job prints in its first attempt and in its second."""
    gpq, begun = shell.gpq, shell.gpq.home / "begun-1"
    job = shell("submit", "--preemptible", "--", "sh", "-c", TWICE).split()[1]
    wait_until(begun.exists, "its first attempt has printed")
    begun.unlink()
    gpq("requeue", job)
    gpq("wait", job)
    return [gpq("logs", job, "--attempt", attempt).stdout for attempt in ("1", "2")]


def test_a_jobs_environment_is_of_its_server_and_its_submission_alone(gpq: Gpq, far: Sshd) -> None:
    me, remote = pwd.getpwuid(os.getuid()), "far" in (gpq.home / "config.toml").read_text()
    person_b = Shell(gpq, {"LANG": "C.UTF-8", "HF_HOME": "/models", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"})
    for first in (Shell(gpq, OF_A), Shell(gpq)):
        first("daemon", "start")
        for printed in attempts(person_b):
            seen = variables(printed)
            assert int(seen.pop("OMP_NUM_THREADS")) >= 1  # of its CPU slot
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
                "PATH": person_b.environment["PATH"],
                "PYTHONPATH": person_b.environment["PYTHONPATH"],
                **person_b.environ,
            }
        gpq("daemon", "stop")


def test_without_a_word_of_its_submission_a_job_has_what_a_login_has(gpq: Gpq, far: Sshd) -> None:
    """Which programs that speak to the socket leave out, and `env -i`."""
    shell = Shell(gpq, OF_A)
    shell("daemon", "start")
    bare = "import os, sys\nos.environ.clear()\nos.environ.update(GPQ_HOME=sys.argv[1])\nimport gpq\n"
    code = f"{bare}print(gpq.submit(command=['env']).id)"
    job = shell.run(sys.executable, "-c", code, str(gpq.home)).stdout.strip()
    assert job, shell.run(sys.executable, "-c", code, str(gpq.home))
    gpq("wait", job)
    seen = variables(gpq("logs", job).stdout)
    assert {name for name in seen if not name.endswith("_NUM_THREADS")} == {
        "HOME", "USER", "LOGNAME", "SHELL", "PATH", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED",
    }  # fmt: skip
    login = shell.run(*far.command, far.name, "printenv PATH").stdout.strip()
    remote = "far" in (gpq.home / "config.toml").read_text()
    assert seen["PATH"] == (login if remote else "/usr/local/bin:/usr/bin:/bin")


# Both with what anybody may undo; the limit of CPU seconds counts for each process from its start.
FIRST = "umask 077; ulimit -Sn 256; ulimit -Sc 0; ulimit -Sv 8000000; ulimit -Ss 4096; ulimit -St 500; taskset -cp 0 $$"
OWN = "umask 027; ulimit -n 512; ulimit -Sc 7; ulimit -f 100000; ulimit -t 900; renice -n 3 -p $$"


def test_umask_limits_and_niceness_are_those_of_the_shell_that_submits_and_all_cores_are_the_jobs(gpq: Gpq) -> None:
    gpus = (gpq.home / "config.toml").read_text().replace("slots = 2", "slots = 1")
    (gpq.home / "config.toml").write_text(gpus)  # one slot has all cores that gpq may use there
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


# No shell of an ordinary user gets back what it gave up; root may, unless it gave that up as well.
ORDINARY = "" if os.geteuid() else "setpriv --bounding-set=-sys_resource,-sys_nice "
NARROW = "ulimit -Sn 200; ulimit -Hn 300; ulimit -c 0; renice -n 4 -p $$"


def test_what_a_server_does_not_allow_is_told(home: Path, tmp_path: Path) -> None:
    """Of this machine it is the shell that started the daemon."""
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


def test_what_noted_nothing_has_the_limits_of_its_server(home: Path) -> None:
    """Other programs that speak to the socket, and submissions of older versions: here, of who started the daemon."""
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
    """The daemon, and what it has started for its server: each by its folder in /proc."""
    daemon = Path("/proc") / str(json.loads(gpq("daemon", "status", "--json").stdout)["pid"])

    def started() -> list[str]:
        return [pid for task in (daemon / "task").iterdir() for pid in (task / "children").read_text().split()]

    [pid] = wait_until(started, "it has a child")
    return {"daemon": daemon, "child": Path("/proc") / pid}


@pytest.mark.parametrize("first", [Shell(Gpq(Path()), OF_A, prelude=FIRST), Shell(Gpq(Path()))], ids=["of-a", "clean"])
def test_gpqs_own_processes_are_the_same_whichever_shell_they_are_of(gpq: Gpq, first: Shell) -> None:
    """But for what they need of it, which no job gets: where it finds things, ssh and the network."""
    first = replace(first, gpq=gpq)
    first("daemon", "start")
    wait_until(lambda: json.loads(gpq("nodes", "--json").stdout)["nodes"][0]["state"] == "up", "its server is up")
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


def test_a_modules_pythonpath_breaks_no_command_and_no_daemon_and_is_the_jobs(home: Path, tmp_path: Path) -> None:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f'raise ImportError("{name} of another Python")\n')
    ran = "import os\nopen(os.path.join(os.path.dirname(__file__), f'ran-{os.getpid()}'), 'w').close()\n"
    (tmp_path / "sitecustomize.py").write_text(ran)
    gpq = Gpq(home)
    own = gpq.environment["PYTHONPATH"]
    shell = Shell(gpq, {"PYTHONPATH": f"{tmp_path}:{own}"})
    try:
        assert shell("status") == "no jobs\n"  # and a daemon was started
        job = shell("submit", "--", "env").split()[1]
        assert shell("wait", job) == f"job {job} completed\n"
        assert f"PYTHONPATH={tmp_path}:{own}" in shell("logs", job).splitlines()
        for argv in (["show", job], ["why", job], ["nodes"], ["top", "--once"], ["history"], ["daemon", "status"]):
            assert shell(*argv)
        for place in processes(gpq).values():
            assert not (tmp_path / f"ran-{place.name}").exists(), (place / "cmdline").read_text()
    finally:
        gpq("daemon", "stop")


def test_a_logins_pythonpath_breaks_no_agent(home: Path, tmp_path: Path) -> None:
    """As `module load` or a .bashrc sets it, also where nobody types."""
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
    """Of all processes with this word in their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (place / "cmdline").read_bytes().split(b"\0"):
                found.append(variables((place / "environ").read_text().replace("\0", "\n")))
    return found


def test_what_gpq_stands_on_is_not_there_is_one_line(home: Path) -> None:
    """Without what is installed beside this interpreter."""
    done = Shell(Gpq(home)).run(sys.executable, "-S", "-m", "gpq", "submit", "--", "true")
    assert done.returncode == 1
    said, hint = done.stderr.splitlines()
    assert said.startswith("gpq: cannot import a package that gpq needs: No module named 'msgspec' (")
    assert hint.startswith("hint: reinstall gpq")


def test_a_proxy_goes_along_and_its_password_does_not_without_a_word(queue: Gpq) -> None:
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
def test_a_job_submits_its_successor_to_the_queue_that_it_came_from(home: Path, found_by: str) -> None:
    shell = Shell(Gpq(home))
    config = home / "config.toml"
    if found_by == "XDG":  # as of a login, where the socket does not lie in the state directory
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
        assert seen == variables(printed.partition(f"\n{config}\n")[0])  # the same, however long the chain is
        assert "OMP_NUM_THREADS" not in json.loads(shell("show", successor, "--json"))["spec"]["env"]
        assert variables(shell("logs", own))["OMP_NUM_THREADS"] == "3"
    finally:
        shell("cancel", "all")
        shell("daemon", "stop")
    assert not list(home.rglob("gpq.sock"))


def test_who_knows_the_state_directory_alone_finds_the_daemon(home: Path) -> None:
    """As cron does, which has no XDG_RUNTIME_DIR."""
    state = {"XDG_STATE_HOME": str(home / "state")}
    login = Shell(Gpq(home), {**state, "XDG_RUNTIME_DIR": str(home / "run")}, names=(*BARE, "GPQ_CONFIG"))
    login("daemon", "start")
    cron = Shell(Gpq(home), state, names=login.names)
    assert cron("submit", "--", "true") == "job 1 submitted\n"
    assert login("wait", "1") == "job 1 completed\n", "it is the same queue"
    os.kill(json.loads(login("daemon", "status", "--json"))["pid"], signal.SIGKILL)
    cron("status")  # the next one has its socket where the link was left
    assert (home / "state" / "gpq" / "gpq.sock").is_socket()
    assert not (home / "state" / "gpq" / "gpq.sock").is_symlink()
    cron("daemon", "stop")


# -- the ssh-agent of a login that has ended -----------------------------------------------------------------------------


def test_a_server_is_reached_by_the_ssh_agent_of_whoever_says_something(home: Path, far: Sshd) -> None:
    """The key is in the agents alone, as after `ssh -A`. Of the daemon's own shell there is nothing left."""
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
            wait_until(lambda: node()["state"] == "up", "its server is up")
        for pid in clients(config):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "accepts none of your keys" in node()["reason"], "the next connection finds no key")
        advice = f"Run `gpq nodes` in a shell where `{' '.join(ssh)} {far.name} true` works"
        assert advice in node()["reason"]
        with SshAgent(home / "agent-2", far.key) as agent:
            person_b = Shell(gpq, {"SSH_AUTH_SOCK": agent.path})
            assert person_b.run(*ssh, far.name, "true").returncode == 0  # the advice is right
            person_b("nodes")
            wait_until(lambda: node()["state"] == "up", "its server is up again")
    finally:
        gpq("daemon", "stop")
