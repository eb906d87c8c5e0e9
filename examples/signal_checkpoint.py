"""A plain loop without the training library that gpq may stop and start again: it counts primes.

    gpq submit --preemptible --signal USR1 --grace 120 -- python signal_checkpoint.py

On SIGUSR1 it writes its state into $GPQ_CHECKPOINT_DIR and exits with 75, "preempted"; started
again, it goes on there.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

PREEMPTED = 75
REPORTS = 20

asked_to_stop = False


def on_signal(number: int, frame: object) -> None:
    global asked_to_stop
    asked_to_stop = True  # the loop looks at it between two steps, where its state is whole


def is_prime(number: int) -> bool:
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return number >= 2


def save(path: Path, state: dict) -> None:
    """Replace the checkpoint whole or not at all: a stop may be followed by a kill."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as stream:
        json.dump(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the primes below a number.")
    parser.add_argument("--below", type=int, default=300_000)
    options = parser.parse_args()
    signal.signal(signal.SIGUSR1, on_signal)

    path = Path(os.environ.get("GPQ_CHECKPOINT_DIR", ".")) / "primes.json"
    state = {"next": 0, "primes": 0}
    if path.is_file():
        state = json.loads(path.read_text())
        print(f"going on at {state['next']}", flush=True)

    block = max(1, options.below // REPORTS)
    while state["next"] < options.below:
        state["primes"] += is_prime(state["next"])
        state["next"] += 1
        if state["next"] % block == 0:
            print(f"{state['primes']} primes below {state['next']}", flush=True)
        if asked_to_stop:
            save(path, state)
            print(f"stopped at {state['next']}", flush=True)
            return PREEMPTED

    # who is asked to stop now is started once more, and then has nothing left to do
    save(path, state)
    print(f"{state['primes']} primes below {options.below}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
