"""Counts primes in a plain loop, without the training library, that gpq may stop and restart.

    gpq submit --preemptible --signal USR1 --grace 120 -- python signal_checkpoint.py

On SIGUSR1 it saves its state in $GPQ_CHECKPOINT_DIR and exits with 75, "preempted". When gpq starts
it again, it resumes from there.
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
    asked_to_stop = True  # the loop checks this between two steps, when its state is consistent


def is_prime(number: int) -> bool:
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return number >= 2


def save(path: Path, state: dict) -> None:
    """Replace the checkpoint in one go, because a kill may follow the stop."""
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

    # a stop that arrives now only means one more start, with nothing left to do
    save(path, state)
    print(f"{state['primes']} primes below {options.below}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
