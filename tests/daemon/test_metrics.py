"""Prometheus reads a daemon under load: the figures, hanging scrapers that delay nobody, and the dashboard's queries."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpq_agent.node.devices.gpu_locks import common_folder
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gpq.daemon.metrics import MOST_OPEN, _Server
from gpq.outward import address
from gpq.rpc.job_answers import CancelResult, Changed, JobList, JobView, Submitted
from gpq.rpc.requests import Cancel, Hold, Release, SpecMessage, Status, Submit, Wait
from tests.daemon.daemons import ROOT, Daemon, daemon
from tests.support import commands
from tests.support.figures import Figures
from tests.support.ports import free_port
from tests.support.waiting import wait_until

FAKE = ROOT / "tests" / "fakes" / "nvml"
DASHBOARD = json.loads((ROOT / "examples" / "grafana" / "gpq.json").read_text())
Sample = tuple[str, dict[str, str], float]

TRAINING = """\
import json, os, sys, time
lines = [
    {"kind": "declared", "level": "adaptive", "batch_size": 64, "max_batch_size": 512, "min_atomic_batch": 8,
     "max_atomic_batch": 128, "dataset_size": 6400, "epochs": 10},
    {"kind": "ready", "seconds": 1.0, "restore_seconds": 0.0},
    {"kind": "timing", "nodes": 1, "replicas": 1, "atomic_batch": 64, "accum_steps": 0, "accum_count": 20,
     "accum_sum": 1.0, "accum_sq": 0.05, "step_count": 20, "step_sum": 2.0, "step_sq": 0.2},
    {"kind": "noise", "sqr": 0.5, "var": 200.0, "samples": 6400},
    {"kind": "progress", "epoch": 1, "epochs": 10, "samples": 6400, "step": 100, "base_steps": 100.0, "fraction": 0.1},
    {"kind": "retuned", "atomic_batch": 64, "accum_steps": 0, "lr_factor": 1.0, "seq": 1},
]
with open(os.path.join(os.environ["GPQ_RUN_DIR"], "report.jsonl"), "a") as report:
    for line in lines:
        report.write(json.dumps({"v": 1, "time": time.time(), **line}) + "\\n")
time.sleep(600)
"""


def fetch(url: str, accept: str = "") -> tuple[str, str]:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(url: str) -> list[Sample]:
    families = text_string_to_metric_families(fetch(url)[1])
    return [(one.name, dict(one.labels), float(one.value)) for family in families for one in family.samples]


def value(found: list[Sample], series: str, **labels: str) -> float:
    [only] = [figure for each, given, figure in found if each == series and given.items() >= labels.items()]
    return only


class Lab:
    """A daemon with two GPUs of a fake driver. One job trains, one black box runs, one job waits, and one has
    restarted."""

    def __init__(self, served: Daemon, url: str) -> None:
        self.served, self.url = served, url
        self.trains = self.box = self.waits = 0

    def fill(self, folder: Path) -> None:
        script = folder / "train.py"
        script.write_text(TRAINING)
        self.served.wait_for_nodes()
        self.trains = self.served.submit(
            str(script), level="script", name="train", max_gpus=1, python=sys.executable, modules=[]
        )
        self.box = self.served.submit("sh", "-c", "trap 'exit 75' TERM; while :; do sleep 0.1; done", level="signal")
        self.until(self.box, "running")
        self.served.call(Hold([str(self.box)]), Changed)
        self.until(self.box, "held")
        self.served.call(Release([str(self.box)]), Changed)
        self.until(self.box, "running")
        self.until(self.trains, "running")
        self.waits = self.served.submit("true", name="waits")
        driver(folder, used_mib=4096)  # before that it would count as a foreign process
        wait_until(self.is_measured, "memory and fairness are reported")

    def is_measured(self) -> bool:
        found = {name: figure for name, _, figure in samples(self.url)}
        return "gpq_job_finish_time_fairness_ratio" in found and found.get("gpq_gpu_memory_used_bytes", 0.0) > 4e9

    def until(self, job: int, state: str) -> None:
        def seen() -> JobView:
            return self.served.call(Status([str(job)]), JobList).jobs[0]

        try:
            wait_until(lambda: seen().state == state, f"job {job} is {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {seen()}") from None


GPUS = [f"GPU-{uuid.uuid4()}" for _ in range(2)]  # a lock on one outlives a test that is killed


def driver(folder: Path, **more: int) -> None:
    gpus = [{"uuid": name, "utilisation": 40 + number, **more} for number, name in enumerate(GPUS)]
    (folder / "nvml.new").write_text(json.dumps({"mode": "ok", "gpus": gpus}))
    (folder / "nvml.new").replace(folder / "nvml.json")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("metrics")
    driver(folder)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nFAKE_NVML_STATE="{folder}/nvml.json" PYTHONPATH="{FAKE}:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    port = free_port()
    settings = f'policy = "fifo"\ninterval = 2.0\nmetrics = "{port}"\n[nodes.here]\npython = "{python}"\nslots = 0\n'
    with daemon(folder / "home", settings) as served:
        made = Lab(served, f"http://127.0.0.1:{port}/metrics")
        made.fill(folder)
        yield made
    for name in GPUS:
        for path in Path(common_folder()).glob(f"gpq-{name}.*"):
            path.unlink()


def test_the_figures_are_those_of_the_cluster(lab: Lab) -> None:
    found = samples(lab.url)
    [row] = lab.served.call(Status([str(lab.trains)]), JobList).jobs
    user = row.user
    assert value(found, "gpq_jobs", state="running", user=user) == 2
    assert value(found, "gpq_jobs", state="pending", user=user) == 1
    assert value(found, "gpq_gpus", node="here", state="held") == 2
    assert sum(figure for name, _, figure in found if name == "gpq_gpus") == 2
    assert value(found, "gpq_gpu_utilisation_ratio", node="here", gpu="1") == 0.41
    assert value(found, "gpq_gpu_memory_used_bytes", gpu="0") == 4096 * 2**20
    assert value(found, "gpq_node_up", node="here") == 1
    assert value(found, "gpq_job_goodput_examples_per_second", job_id=str(lab.trains)) == pytest.approx(row.goodput)
    assert value(found, "gpq_job_efficiency_ratio", job_id=str(lab.trains)) == pytest.approx(row.efficiency)
    assert value(found, "gpq_job_info", job_id=str(lab.trains), name="train", user=user) == 1
    assert value(found, "gpq_job_gpus", job_id=str(lab.box), node="here") == 1
    assert value(found, "gpq_restarts_total", user=user) == 1
    assert value(found, "gpq_gpu_seconds_total", user=user) > 0
    assert value(found, "gpq_oldest_pending_job_age_seconds", user=user) > 0
    info = lab.served.info()
    assert 0 < value(found, "gpq_round_duration_seconds_count") <= info.rounds
    assert value(found, "gpq_commit_duration_seconds_count") > 0
    assert value(found, "gpq_job_wait_seconds_count") == 2
    assert value(found, "gpq_process_resident_memory_bytes") == pytest.approx(info.memory_mib * 2**20, rel=0.2)
    assert value(found, "gpq_build_info", version=info.version, policy="fifo") == 1
    assert (info.metrics, info.metrics_problem) == (lab.url, "")


def test_names_and_labels_keep_prometheus_conventions(lab: Lab) -> None:
    known = {
        "state",
        "user",
        "node",
        "gpu",
        "uuid",
        "type",
        "job_id",
        "name",
        "level",
        "le",
        "version",
        "policy",
        "python",
    }
    for family in text_string_to_metric_families(fetch(lab.url)[1]):
        assert family.name.startswith("gpq_"), family.name
        assert family.documentation.endswith("."), family.name
        for name, labels, *_ in family.samples:
            assert set(labels) <= known
            assert family.type != "counter" or name.endswith("_total")
    seen = [(name, tuple(sorted(labels.items()))) for name, labels, _ in samples(lab.url)]
    assert len(seen) == len(set(seen))


def test_only_live_jobs_have_series_of_their_own(lab: Lab) -> None:
    over = lab.served.call(Submit(SpecMessage(["true"], "/tmp", "black-box", name="over")), Submitted).id
    lab.served.call(Cancel([str(over)]), CancelResult)
    wait_until(lambda: value(samples(lab.url), "gpq_jobs_ended_total", state="cancelled") >= 1, "gpq has counted it")
    jobs = {labels["job_id"] for _, labels, _ in samples(lab.url) if "job_id" in labels}
    assert jobs == {str(lab.trains), str(lab.box)}


def test_a_client_that_asks_for_open_metrics_gets_it(lab: Lab) -> None:
    kind, text = fetch(lab.url, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("evil.example:9464", 403), ("127.0.0.1.evil.example", 403), ("", 403), ("localhost.evil.example", 403),
        ("[::1].evil.example", 403), ("localhost:9464", 200), ("127.0.0.1", 200), ("[::1]:1", 200), (None, 200),
    ],
)  # fmt: skip
def test_a_web_page_that_gives_its_name_our_address_reads_nothing(lab: Lab, host: str | None, code: int) -> None:
    line = "" if host is None else f"Host: {host}\r\n"
    with socket.create_connection(("127.0.0.1", int(lab.url.rsplit(":", 1)[1].partition("/")[0]))) as page:
        page.sendall(f"GET /metrics HTTP/1.0\r\n{line}\r\n".encode())
        answer = page.makefile("rb").read()
    assert int(answer.split()[1]) == code
    assert (b"gpq_" in answer) == (code == 200)


def test_many_or_hanging_scrapers_block_nobody(lab: Lab, figures: Figures) -> None:
    port = int(lab.url.rsplit(":", 1)[1].partition("/")[0])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * MOST_OPEN)]
    over = threading.Event()
    try:
        for number, one in enumerate(idle):
            # nobody reads the answer, or the request never ends
            one.sendall(b"GET /metrics HTTP/1.0\r\n" + (b"\r\n" if number % 2 else b"X: "))
        crowd = [threading.Thread(target=_hammer, args=(lab.url, over)) for _ in range(4)]
        for one in crowd:
            one.start()
        began = time.monotonic()
        job = lab.served.submit("true", name="quick")
        assert lab.served.call(Status([str(job)]), JobList).jobs[0].state == "pending"
        assert lab.served.call(Cancel([str(job)]), CancelResult).cancelled == [job]
        figures.at_most("three requests while many scrapers hang", time.monotonic() - began, 10.0)
    finally:
        over.set()
        for one in idle:
            one.close()
    for one in crowd:
        one.join()
    assert wait_until(lambda: _tried(lab.url), "a scraper is served again")


def test_one_connection_too_many_is_refused() -> None:
    with _Server(address(str(free_port())), CollectorRegistry()) as server:
        accepted = [server.verify_request(None, None) for _ in range(MOST_OPEN + 1)]
    assert accepted == [True] * MOST_OPEN + [False]


def _hammer(url: str, over: threading.Event) -> None:
    while not over.is_set():
        _tried(url)


def _tried(url: str) -> bool:
    try:
        return bool(samples(url))
    except OSError:
        return False


def gpq(served: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(words, served.environment)


def test_a_port_in_use_is_reported_and_the_daemon_continues(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = f'policy = "fifo"\nmetrics = "127.0.0.1:{port}"\n[nodes.here]\nslots = 1\n'
        with daemon(tmp_path / "home", settings) as served:
            said = gpq(served, "daemon", "status")
            assert f"not served: cannot listen on 127.0.0.1:{port}: address already in use, tried again" in said.stdout
            assert said.returncode == 0
            job = served.submit("true")
            assert served.call(Wait([str(job)]), JobList).jobs[0].state == "completed"
            taken.close()
            wait_until(lambda: not served.info().metrics_problem, "metrics are served")
            assert value(samples(served.info().metrics), "gpq_node_up", node="here") == 1


def test_metrics_are_off_by_default_and_their_library_is_not_imported(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as served:
        assert served.info().metrics == ""
        assert "metrics   not served" in gpq(served, "daemon", "status").stdout
        assert served.process is not None
        maps = Path(f"/proc/{served.process.pid}/maps").read_text()
        assert "prometheus" not in maps
        said = gpq(served, "daemon", "start", "--metrics", str(free_port()))
        assert (said.returncode, said.stderr.splitlines()[0]) == (
            5,
            "gpq: the daemon is already running and serves no metrics",
        )
    code = "import sys, gpq.daemon.main; print([name for name in sys.modules if name.startswith('prometheus')])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"


def test_start_serves_metrics_and_warns_if_others_can_reach_them(tmp_path: Path) -> None:
    served, port = Daemon(tmp_path / "home"), free_port()
    try:
        said = gpq(served, "daemon", "start", "--metrics", f"0.0.0.0:{port}")
        assert said.returncode == 0, said.stderr
        assert f"metrics are at http://0.0.0.0:{port}/metrics" in said.stdout
        assert "can read the names of users, servers and jobs" in said.stderr
        assert samples(f"http://127.0.0.1:{port}/metrics")
        again = gpq(served, "daemon", "start", "--metrics", f"0.0.0.0:{port}")
        assert (again.returncode, "is already running" in again.stdout) == (0, True)
    finally:
        assert gpq(served, "daemon", "stop").returncode == 0
    for wrong in ("lab", "host:9464", "1.2.3.4:99999", "0"):
        refused = gpq(served, "daemon", "start", "--metrics", wrong)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 2), wrong


# -- the dashboard -----------------------------------------------------------------------------------------------------

TARGETS = {"instance", "job"}  # labels that Prometheus itself gives each series
GRAFANA = {"$__rate_interval": "5m"}
QUERIES = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", [])
]


@pytest.fixture(scope="module")
def exposed(lab: Lab) -> dict[str, set[str]]:
    """Names of series, with the labels of each."""
    found: dict[str, set[str]] = {}
    for name, labels, _ in samples(lab.url):
        found.setdefault(name, set()).update(labels)
    return found


def selectors(expression: Any) -> Iterator[Any]:
    if hasattr(expression, "matchers"):
        yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector", "param", "args"):
        parts = getattr(expression, name, None)
        for part in parts if isinstance(parts, list) else [parts]:
            if part is not None:
                yield from selectors(part)


@pytest.mark.parametrize(("title", "query", "legend"), QUERIES, ids=[f"{t}-{n}" for n, (t, _, _) in enumerate(QUERIES)])
def test_every_query_of_the_dashboard_has_an_answer(
    title: str, query: str, legend: str, exposed: dict[str, set[str]]
) -> None:
    promql = pytest.importorskip("promql_parser")
    for name, meant in GRAFANA.items():
        query = query.replace(name, meant)
    known = set(TARGETS)
    for selector in selectors(promql.parse(query)):
        assert selector.name in exposed, f"{title}: no series {selector.name}"
        labels = exposed[selector.name] | TARGETS
        known |= labels
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels, title
    grouped = re.findall(r"\b(?:by|on|group_left|group_right|without|ignoring) \(([^)]*)\)", query)
    used = {word.strip() for words in grouped for word in words.split(",")} | set(re.findall(r"{{(\w+)}}", legend))
    assert used <= known, title


def test_the_variables_of_the_dashboard_are_existing_labels(exposed: dict[str, set[str]]) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used == {*variables, "__rate_interval"}
    for name in ("instance", "node", "user"):
        asked = variables[name]["query"]["query"]
        series, label = re.fullmatch(r"label_values\((\w+)(?:{[^}]*})?, (\w+)\)", asked).groups()  # type: ignore[union-attr]
        assert label in exposed[series] | TARGETS
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
