"""Sends a checkpoint between two servers of this machine, as the daemon does: many small files, and
a few large ones.

    python benchmarks/files.py [--files 10000] [--megabytes 400] [--times 3]

Exits with 1 below a bar. Figures are medians over --times. `cp -a` of the same folder in the same
run is the scale for this disk. ext4 makes files slowly for some minutes after many were deleted, so
wait six minutes between two runs.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from tests.agent.node.harness import NodeAgent  # noqa: E402
from tests.contract.trees import JOB, bring, seen  # noqa: E402

FILES_A_SECOND, BYTES_A_SECOND = 2000.0, 20e6  # one of the two has a bar
LARGE = 100_000_000


def small(folder: Path, count: int) -> None:
    """So many files of 1 KB, a thousand per folder."""
    for number in range(count):
        place = folder / f"shard-{number // 1000}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.json").write_bytes(os.urandom(1000))


def large(folder: Path, size: int) -> None:
    for number in range(-(-size // LARGE)):
        (folder / f"weights-{number}.pt").write_bytes(os.urandom(min(LARGE, size - number * LARGE)))


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def measure(home: Path, source: NodeAgent, target: NodeAgent, times: int) -> tuple[float, float]:
    """Median seconds of a transfer to an empty folder, and of a copy by `cp -a` with a `sync`."""
    here, there = home / "here" / str(JOB), home / "there" / str(JOB)
    transfers, copies = [], []
    # deletes nothing meanwhile, because ext4 is slow to make files right after that
    past = Path(tempfile.mkdtemp(dir=home))
    for number in range(times):
        transfers.append(timed(lambda: bring(source, target)))
        assert seen(there) == seen(here)
        there.rename(past / f"{number}")
        copy = past / f"copy-{number}"
        command = f"cp -a {here} {copy} && sync -f {copy}"
        copies.append(timed(functools.partial(subprocess.run, ["sh", "-c", command], check=True)))
    return statistics.median(transfers), statistics.median(copies)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000, help="number of small files")
    parser.add_argument("--megabytes", type=int, default=400, help="size of the large files")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    if min(options.files, options.megabytes, options.times) < 1:
        parser.error("--files, --megabytes and --times must be at least 1")
    good = True
    with tempfile.TemporaryDirectory(prefix="gpq-files-") as folder:
        home = Path(folder)
        agents = [
            NodeAgent(home / f"spool-{name}", "--slots", "1", "--checkpoints", str(home / name))
            for name in ("here", "there")
        ]
        for what, make in (
            (f"{options.files} files of 1 KB", lambda place: small(place, options.files)),
            (
                f"{options.megabytes} MB in large files",
                lambda place: large(place, options.megabytes * 1_000_000),
            ),
        ):
            place = home / "here" / str(JOB)
            place.mkdir()
            make(place)
            seconds, copied = measure(home, *agents, options.times)
            size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            files, rate = options.files / seconds, size / seconds
            is_small = what.startswith(str(options.files))
            is_good = (
                files >= FILES_A_SECOND or rate >= BYTES_A_SECOND
                if is_small
                else rate >= BYTES_A_SECOND
            )
            good = good and is_good
            each = f"{files:,.0f} files/s" if is_small else f"{rate / 1e6:,.0f} MB/s"
            print(
                f"{what}: {seconds:.2f} s, {each}, {seconds / copied:.1f} x cp"
                f" -a{'' if is_good else '  MISSED'}"
            )
            shutil.rmtree(place)
        for one in agents:
            one.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
