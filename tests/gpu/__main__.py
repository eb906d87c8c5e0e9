"""`python -m tests.gpu` reads {"name", "devices"} line by line, and answers each with an outcome.

It has imported torch and opens no GPU itself, so each check is a fork that starts at once with a fresh CUDA.
"""

from __future__ import annotations

import json
import sys

from .checks import CHECKS, outcome
from .planted import PLANTS


def main() -> None:
    checks = {**CHECKS, **PLANTS}
    for order in map(json.loads, sys.stdin):
        sys.stdout.write(json.dumps(outcome(checks[order["name"]], order["devices"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
