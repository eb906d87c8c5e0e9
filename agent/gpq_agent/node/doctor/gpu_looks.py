"""`python -m gpq_agent.node.doctor.gpu_looks` prints one look at the GPUs like those of the agent,
in its own process, because a faulty driver may never answer."""

import json
import sys
import time

from gpq_agent.node.devices import gpus


def main() -> None:
    begin = time.monotonic()
    probe = gpus.probe(gpus.binding())
    notice = probe.describe(round(time.monotonic() - begin, 1))
    fields = dict(probe._asdict(), notice=notice, gpus=[gpu._asdict() for gpu in probe.gpus])
    sys.stdout.write("gpq:" + json.dumps(fields) + "\n")


if __name__ == "__main__":
    main()
