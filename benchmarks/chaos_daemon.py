"""Kills the daemon with kill -9 under a load of short jobs. A file that the jobs write is the
judge. Exits with 1 if anything is wrong.

    python benchmarks/chaos_daemon.py [--kills 100] [--jobs 300] [--seed 0] [--policy goodput]

Prints a table. The bar: 0 lost, 0 started twice, 0 wrong exit codes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from tests.e2e.chaos import chaos  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills", type=int, default=100, help="minimum; some more happen while it recovers"
    )
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--longest", type=float, default=2.0, help="maximum seconds per job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="goodput")
    options = parser.parse_args()
    verdict = chaos(**vars(options))
    print(verdict.table())
    if not verdict.good:
        print(
            f"\nFAILED: lost {verdict.lost}, started twice {verdict.doubled}, wrong exit code"
            f" {verdict.wrong}, not ended {verdict.unfinished}"
        )
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
