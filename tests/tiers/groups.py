"""Groups of tests, and the sources that they prove. Owns what is proven.

If the sources of a group are those of its last green run, the group is proven. A tenth of it runs, another tenth after
each commit. A group whose sources changed runs whole.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "tests" / "proven.json"
PARTS = 10  # a proven group runs one of them


@dataclass(frozen=True, slots=True)
class Group:
    """`tests` and `sources`: files and folders, relative to the root of the repository."""

    name: str
    tests: tuple[str, ...]
    sources: tuple[str, ...]

    def has(self, path: str) -> bool:
        """Whether the group has the test file `path`."""
        return any(path == place or path.startswith(f"{place}/") for place in self.tests)

    def digest(self, root: Path = ROOT) -> str:
        """SHA-256 of the names and contents of all tests and sources below `root`."""
        total = hashlib.sha256()
        for path in sorted({path for place in (*self.tests, *self.sources) for path in _files(root / place)}):
            total.update(f"{path.relative_to(root)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    else:
        yield from (path for path in place.rglob("*") if path.is_file() and not _is_cached(path.relative_to(place)))


def _is_cached(path: Path) -> bool:
    """Cached by Python or a linter while the tests run."""
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)


WIRE = ("agent/gpq_agent/messages", "agent/gpq_agent/wire.py", "agent/gpq_agent/records.py")
AGENT = ("agent/gpq_agent/__init__.py", "agent/gpq_agent/node", "agent/gpq_agent/standby", *WIRE)
ROOMS = ("checkpoints", "data", "gradients", "habits", "loop", "process", "prove")
FILES = ("__init__", "errors", "internals", "program")
LIBRARY = (
    *(f"agent/gpq_agent/train/{name}" for name in ROOMS), *(f"agent/gpq_agent/train/{name}.py" for name in FILES),
    *WIRE, "constraints.txt",
)  # fmt: skip
MODELS = (
    "gpq/core", "gpq/policies", "gpq/lab/policies", "gpq/extensions.py", "gpq/config.py", "gpq/config_rules.py",
    "gpq/job_request.py", "constraints.txt",
)  # fmt: skip
DAEMON = ("gpq/connectors", "gpq/control", "gpq/daemon", "gpq/notify", "gpq/rpc", "gpq/store", "agent/gpq_agent/node")
SYSTEM = (
    *AGENT, *DAEMON, *MODELS, "gpq/attributes.py", "gpq/client", "gpq/decoding.py", "gpq/errors.py", "gpq/outward.py",
    "gpq/pace.py", "gpq/paths.py", "gpq/ports.py",
)  # fmt: skip
# What tests of the system use to start processes and to wait.
HELPERS = ("tests/support", "tests/daemon/daemons.py", "tests/e2e/harness.py")
SIMULATED = ("memory_store", "programs", "sim_world")
TRAININGS = (
    "tests/cli/lab/test_library.py", "tests/docs/test_examples.py", "tests/e2e/test_endings.py",
    "tests/e2e/test_multi_node.py", "tests/e2e/test_policies.py", "tests/e2e/test_replica_faults.py",
    "tests/e2e/test_training.py",
    "tests/lab/test_multi_node.py", "tests/lab/test_training.py", "tests/test_demo.py",
)  # fmt: skip
# A test belongs to the first group that has it. A test of no group runs each time.
GROUPS = (
    Group("habits", ("tests/habits",), LIBRARY),
    Group("library", ("tests/agent/train",), LIBRARY),
    Group("gpu", ("tests/gpu",), LIBRARY),
    Group("frameworks", ("tests/frameworks",), ("agent/gpq_agent/train/frameworks", *LIBRARY)),
    Group(
        "checks",
        ("tests/check", "tests/cli/check/test_check.py", "tests/cli/check/test_precision.py"),
        (*LIBRARY, "gpq/check", "gpq/source.py", "gpq/verdicts.py", "gpq/cli/jobs/check.py"),
    ),
    Group(
        "simulation",
        ("tests/sim", "tests/dst"),
        (*MODELS, *DAEMON, "gpq/lab", *(f"tests/support/{name}.py" for name in SIMULATED)),
    ),
    Group("policies", ("tests/core", "tests/policies"), (*MODELS, "gpq/control")),
    Group("trainings", TRAININGS, (*SYSTEM, *LIBRARY, *HELPERS, "examples", "gpq/demo.py", "gpq/demo_team.py")),
    Group("agent", ("tests/agent/node",), (*AGENT, "tests/fakes", *HELPERS)),
    Group("store", ("tests/contract",), (*SYSTEM, *HELPERS)),
    Group("daemon", ("tests/control", "tests/daemon"), (*SYSTEM, *HELPERS)),
    Group("servers", ("tests/lab",), (*SYSTEM, *HELPERS)),
    Group("faults", ("tests/chaos", "tests/e2e"), (*SYSTEM, *HELPERS)),
)


def proofs() -> dict[str, str]:
    """Digest of each group at its last green run."""
    content: dict[str, str] = json.loads(PROOFS.read_text())
    return content


def stale() -> list[str]:
    """Names of the groups that must run whole."""
    proven = proofs()
    return [group.name for group in GROUPS if group.digest() != proven.get(group.name)]


def write_proofs(digests: dict[str, str]) -> None:
    PROOFS.write_text(json.dumps({**proofs(), **digests}, indent=2, sort_keys=True) + "\n")


def turn() -> int:
    """Which tenth runs: the number of commits, so each commit runs the next one. 0 outside a repository."""
    command = ["git", "rev-list", "--count", "HEAD"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(answer.stdout) if answer.returncode == 0 else 0


def drawn(name: str, number: int) -> bool:
    """Whether the test `name` is in the tenth of turn `number`."""
    return zlib.crc32(name.encode()) % PARTS == number % PARTS
