"""`python -m gpq_agent.node --spool DIR`, the agent: requests come in on stdin, replies go out on
stdout, in one thread. It owns no job and may end at any moment.

`watch` is a long poll: it stays pending while the agent answers other requests.
"""

import argparse
import contextlib
import os
import select
import sys
from typing import Dict, List, Optional

from gpq_agent import wire
from gpq_agent.node.agent import Agent
from gpq_agent.node.devices import slots
from gpq_agent.node.devices.gpu_locks import FOLDERS
from gpq_agent.node.host import attributes, login, procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.operations import refusal
from gpq_agent.node.shim import launch
from gpq_agent.node.spool.spool import Spool, own_path

LINE_LIMIT = 16 << 20  # bytes


def main(arguments: Optional[List[str]] = None) -> int:
    """Serve until stdin ends or `quit`. Returns 2 for invalid arguments."""
    options = parse(arguments)
    if wire.ENV_MARK in os.environ:
        # The agent was started from within a job. Start again without the job's mark, otherwise the
        # end of that job would end the agent.
        with open("/proc/self/cmdline", "rb") as stream:
            argv = stream.read().split(b"\0")[:-1]
        env = {name: value for name, value in os.environ.items() if not name.startswith("GPQ_")}
        os.execve(sys.executable, argv, env)
    default = attributes.own()
    attributes.settle()
    try:
        cores = sorted(os.sched_getaffinity(0))
        if options.cores:
            cores = slots.parse_cores(options.cores)
        place = Spool(own_path(options.spool), own_path(options.checkpoints))
        agent = Agent(
            place=place,
            base=login.environment(os.environ),
            cores=cores,
            slots=options.slots,
            probe_limit=options.probe_limit,
            probe_period=options.probe_period,
            default=default,
            locks=options.locks,
            visible=options.visible,
            owner=options.owner,
            lock_slots=options.lock_slots,
        )
    except (SpoolError, wire.NotPrivate, OSError, ValueError) as error:
        hint = getattr(error, "hint", "")
        sys.stderr.write("{}{}\n".format(error, hint and ": " + hint))
        return 2
    output = os.dup(1)
    os.set_inheritable(output, False)
    os.dup2(2, 1)  # a stray print must not get between two messages
    with contextlib.suppress(BrokenPipeError):  # the daemon is gone, but the shims live on
        Server(agent, 0, output).run()
    return 0


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gpq_agent.node", description="gpq's agent on a server"
    )
    parser.add_argument(
        "--spool", required=True, help="directory of this server's attempts, created if missing"
    )
    parser.add_argument(
        "--checkpoints", default="", help="where jobs keep checkpoints, if not inside the spool"
    )
    parser.add_argument(
        "--cores", help="cores that CPU slots share, e.g. 0,1 or 0-7 (default: all)"
    )
    parser.add_argument(
        "--locks",
        default="",
        help=(
            "folder of the GPU locks, the same for every user (default: the first shared one of"
            " {})".format(", ".join(FOLDERS))
        ),
    )
    parser.add_argument("--owner", default="", help="user who may ask for the server: `gpq yield`")
    parser.add_argument(
        "--visible",
        choices=(launch.UUIDS, launch.INDEXES),
        default=launch.UUIDS,
        help="how CUDA_VISIBLE_DEVICES names the GPUs of a job",
    )
    parser.add_argument(
        "--probe-limit", type=float, default=10.0, help="seconds that the GPU driver has to answer"
    )
    parser.add_argument(
        "--probe-period", type=float, default=5.0, help="seconds between two looks at the GPUs"
    )
    parser.add_argument(
        "--slots",
        type=_slots,
        default=0,
        help=(
            "number of CPU slots instead of GPUs. 0 means GPUs only (default), auto means GPUs, or"
            " one CPU slot per core if there are none"
        ),
    )
    parser.add_argument(
        "--lock-slots",
        action="store_true",
        help=(
            "lock each of the CPU slots as GPUs are locked, against users who offer as many on the"
            " same cores"
        ),
    )
    parser.add_argument("--transfer-limit", help="MB/s that `--send` and `--receive` may take")
    return parser.parse_args(arguments)


def _slots(text: str) -> int:
    """-1 stands for "auto"."""
    number = -1 if text == "auto" else int(text)
    if number < -1 or number > 1024:
        raise ValueError(text)
    return number


class Server:
    """Carries lines between two descriptors and the agent."""

    def __init__(self, agent: Agent, source: int, sink: int) -> None:
        self.agent = agent
        self.source = source
        self.sink = sink
        self.pending = bytearray()
        self.skipping = False

    def run(self) -> None:
        """Run until end of file or `quit`. Raises BrokenPipeError when nobody reads the replies any
        more."""
        self._send(self.agent.greeting())
        while not self.agent.operations.quitting:
            probing = self.agent.devices.waiting_on()
            descriptors = [self.source] if probing is None else [self.source, probing]
            readable, _, _ = select.select(descriptors, [], [], self.agent.patience())
            if self.source in readable and not self._receive():
                return
            for reply in self.agent.tick():
                self._send(reply)

    def _receive(self) -> bool:
        """Handle the lines that have come. False at end of file."""
        chunk = os.read(self.source, 1 << 16)
        if not chunk:
            return False
        self.pending += chunk
        lines = []
        if b"\n" in chunk:
            *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            if self.skipping:
                self.skipping = False  # the rest of a line that was refused
            elif line.strip():
                for reply in self.agent.handle_line(bytes(line)):
                    self._send(reply)
            if self.agent.operations.quitting:
                return True
        if len(self.pending) > LINE_LIMIT:
            self.pending.clear()
            if not self.skipping:
                self._send(refusal(None, "a request line is longer than 16 MiB"))
            self.skipping = True
        return True

    def _send(self, reply: Dict[str, object]) -> None:
        procs.write_all(self.sink, wire.encode(reply))


if __name__ == "__main__":
    sys.exit(main())
