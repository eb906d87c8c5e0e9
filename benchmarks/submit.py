"""CPU time of `gpq submit`, acknowledged durably, relative to `python -c pass`.

    python benchmarks/submit.py [--runs 21]

The bar: at most 15 times. Counts user and system time of the command itself. The daemon runs
already.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpq.client import daemon_control


def cpu_seconds(argv: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """(CPU, wall) seconds of one run."""
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    began = time.perf_counter()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, argv
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=21)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as home:
        Path(home, "config.toml").write_text("[nodes.local]\nslots = 1\n")
        os.environ.update(GPQ_HOME=home, GPQ_CONFIG=os.path.join(home, "config.toml"))
        environment = dict(os.environ)
        gpq = [sys.executable, "-m", "gpq"]
        submit = [*gpq, "submit", "--", "sleep", "3600"]
        daemon_control.start()
        try:
            bare, ours, wall = [], [], []
            for _ in range(runs):
                bare.append(cpu_seconds([sys.executable, "-c", "pass"], environment)[0])
                cpu, seconds = cpu_seconds(submit, environment)
                ours.append(cpu)
                wall.append(seconds)
        finally:
            daemon_control.stop(jobs=True)
    base, mine = statistics.median(bare), statistics.median(ours)
    print(f"python -c pass   {base * 1000:6.1f} ms CPU, median of {runs}")
    print(
        f"gpq submit       {mine * 1000:6.1f} ms CPU, {statistics.median(wall) * 1000:.1f} ms wall"
    )
    print(f"ratio            {mine / base:6.1f} (bar 15)")


if __name__ == "__main__":
    main()
