"""What a look reports about the stub of NVML under several conditions: `python -m tests.agent.node.gpu_matrix <
conditions.json`.

Conditions are environments by name. Like the agent, it makes each look in a fork that already has the binding.
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType

from gpq_agent.node.devices import looking


def look(binding: ModuleType | None, condition: dict[str, str]) -> dict[str, object]:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.environ.update(condition)
        os.write(writing, json.dumps(looking.probe(binding)._asdict()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        answer: dict[str, object] = json.loads(stream.read() or b'{"crashed": true}')
    os.wait()
    return answer


if __name__ == "__main__":
    binding = looking.binding()
    conditions = json.load(sys.stdin)
    json.dump({name: look(binding, condition) for name, condition in conditions.items()}, sys.stdout)
