"""The past minutes of the GPUs, since `gpq top` began: means over short periods, so that the data
stay small. Also the users of the jobs on them, which a filter may hide."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from gpq.rpc.job_answers import JobView
from gpq.rpc.node_answers import NodeView
from gpq.views import plain

PIECE = 15.0  # seconds per character
PIECES = 20  # periods kept per GPU: five minutes
USE, MEMORY = 10, 5  # characters in the live picture
LEVELS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=+*#"
GONE = 400.0  # seconds after which a GPU that no answer mentions is forgotten


class Track:
    """Means of one quantity from 0 to 1, oldest first. The last period is not complete yet."""

    __slots__ = ("_begins", "_count", "_means", "_sum")

    def __init__(self) -> None:
        self._means: deque[float] = deque(maxlen=PIECES)
        self._begins, self._sum, self._count = 0.0, 0.0, 0

    def note(self, value: float, at: float) -> None:
        """`at`: seconds of a clock that never goes back."""
        if not self._count or at - self._begins >= PIECE:
            self._begins, self._sum, self._count = at, 0.0, 0
            self._means.append(value)
        self._sum += value
        self._count += 1
        self._means[-1] = self._sum / self._count

    def means(self) -> list[float]:
        return list(self._means)


NO_TRACKS = (Track(), Track(), 0.0)  # for a GPU that no answer mentioned


class Past:
    """Utilisation and memory of every GPU."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, str], tuple[Track, Track, float]] = {}
        self.owners: dict[int, str] = {}  # job -> user, for jobs on GPUs

    def note(self, nodes: Sequence[NodeView], jobs: Iterable[JobView], at: float) -> None:
        """Add an answer from the time `at` (seconds, monotonic)."""
        jobs_on_devices, owners = set[int | None](), dict[int, str]()
        for node in nodes:
            for device in node.devices:
                use, memory, _ = self._tracks.get((node.name, device.id)) or (Track(), Track(), at)
                if device.utilisation is not None:
                    use.note(device.utilisation / 100, at)
                if device.memory_mib:
                    memory.note(device.used_mib / device.memory_mib, at)
                self._tracks[node.name, device.id] = (use, memory, at)
                jobs_on_devices.add(device.job)
                for process in device.processes:
                    if process.job is not None:
                        owners[process.job] = process.user
        for key in [key for key, (_, _, last) in self._tracks.items() if at - last > GONE]:
            del self._tracks[key]
        owners |= {**self.owners, **{job.id: job.user for job in jobs}}
        self.owners = {job: user for job, user in owners.items() if job in jobs_on_devices}

    def utilisation(self, node: str, device: str, room: int = USE) -> str:
        use, _, _ = self._tracks.get((node, device)) or NO_TRACKS
        return spark(use.means(), room)

    def memory(self, node: str, device: str, room: int = MEMORY) -> str:
        _, memory, _ = self._tracks.get((node, device)) or NO_TRACKS
        return spark(memory.means(), room)

    def server(self, node: str, room: int = USE) -> str:
        """Mean utilisation of the server's GPUs."""
        rows = [use.means() for (name, _), (use, _, _) in self._tracks.items() if name == node]
        rows = [row for row in rows if row]
        shortest = min(map(len, rows), default=0)
        latest = [row[len(row) - shortest :] for row in rows]
        return spark([sum(column) / len(column) for column in zip(*latest, strict=True)], room)


def spark(shares: Sequence[float], room: int) -> str:
    """The last `room` values, one character each, with the newest at the right. 1 is the
    highest."""
    levels = plain.drawable(LEVELS, ASCII)
    visible_shares = list(shares)[-room:]
    return "".join(
        levels[round(min(max(share, 0.0), 1.0) * (len(levels) - 1))] for share in visible_shares
    ).rjust(room)
