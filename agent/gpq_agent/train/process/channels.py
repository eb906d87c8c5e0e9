"""The files between a replica and the agent while it trains: its heartbeat, the orders, and what
rank 0 tells the agent.

That is a JSON line per fact in report.jsonl, whether it is read or not. A line that cannot be
written (a full disk) is kept and tried again. Training never fails because of a report.
"""

import math
import mmap
import os
import struct
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch

from gpq_agent import records, wire
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.process.agreement import Agreement
from gpq_agent.train.process.timing import StepTimes

if TYPE_CHECKING:
    from gpq_agent.train.gradients.noise_scale import NoiseScale

_NUMBERS = {phase: number for number, phase in enumerate(wire.PHASES)}
_PHASE = struct.Struct("=q")
_PHASE_AT = struct.calcsize(wire.PULSE[:3])  # after pid and step
_REDUCES_AT = struct.calcsize(wire.PULSE)

METRIC = "loss"  # the only name that makes a curve
EARLY_SECONDS = 30.0  # this long after the start, report often: the first fit is worth most
EARLY_INTERVAL = 2.0
LATER_INTERVAL = 10.0
# Seconds between windows of the times of each replica, and before the first of them.
RANK_SECONDS, EARLY_RANK_SECONDS = 30.0, 10.0
KEPT_LINES = 10000
ENV_REPORT_SECONDS = "GPQ_REPORT_SECONDS"


class Heartbeat:
    """Where this replica is, readable while it hangs: a few numbers in a small mapped file in the
    attempt's folder. A step writes them in about a microsecond, without a system call or a thread.
    Without a folder (no gpq), or on a full disk, nothing is written. node/attempt_files.py
    reads them."""

    def __init__(self, folder: Optional[str], rank: int) -> None:
        self._map: Optional[mmap.mmap] = None
        self._step, self._step_time = -1, 0.0
        self._layout = struct.Struct(wire.PULSE + "q")  # and whether it waits in a backward pass
        self._pid = os.getpid()
        self._folder, self._name = folder, "{}{}".format(wire.RANK, rank)
        if folder:
            try:
                path = os.path.join(folder, self._name)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    # On a full disk a mapped write is a SIGBUS.
                    os.posix_fallocate(descriptor, 0, self._layout.size)
                    self._map = mmap.mmap(descriptor, self._layout.size)
                finally:
                    os.close(descriptor)
            except OSError:
                return
            self.beat(0, "starting")

    def beat(self, step: int, phase: str) -> None:
        """`step` optimizer steps are done. `phase`: one of wire.PHASES."""
        if self._map is None:
            return
        if step != self._step:
            self._step, self._step_time = step, time.clock_gettime(time.CLOCK_BOOTTIME)
        self._layout.pack_into(self._map, 0, self._pid, step, _NUMBERS[phase], self._step_time, 0)

    def phase(self, phase: str) -> None:
        """Another phase of the same step."""
        if self._map is not None:
            _PHASE.pack_into(self._map, _PHASE_AT, _NUMBERS[phase])

    def reduces(self, waits: bool) -> None:
        """Is this replica in a backward pass, where only the others are missing?"""
        if self._map is not None:
            _PHASE.pack_into(self._map, _REDUCES_AT, waits)
            if waits:
                self.phase("arrived")

    def others_wait(self, step: int) -> bool:
        """Does another replica of this server wait for this one, after the same number of steps?
        For rare use."""
        arrived = _NUMBERS["arrived"]
        return any((pulse[1], pulse[2]) == (step, arrived) for pulse in self._others())

    def others_reduce(self) -> bool:
        """Does another replica of this server wait in its backward pass? For rare use."""
        return any(pulse[4] for pulse in self._others())

    def _others(self) -> Iterator[Tuple[Any, ...]]:
        if self._map is None or self._folder is None:
            return
        for name in os.listdir(self._folder):
            if name.startswith(wire.RANK) and name != self._name:
                try:
                    path = os.path.join(self._folder, name)
                    with os.fdopen(records.open_plain(path), "rb") as stream:
                        pulse = self._layout.unpack(stream.read(self._layout.size))
                except (OSError, ValueError, struct.error):
                    continue
                yield pulse


class ControlReader:
    """The newest order of the agent, in control.json of this attempt. Orders of another attempt,
    older ones and broken files change nothing."""

    def __init__(self, run_dir: str, attempt: int) -> None:
        self._path = os.path.join(run_dir, wire.CONTROL)
        self._attempt = attempt
        self._order: Optional[wire.Control] = None
        self._stamp: Tuple[int, ...] = ()

    def read(self) -> Optional[wire.Control]:
        """Reads the file only if it has changed."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return self._order
            content = wire.read_json(self._path)
            self._stamp = stamp
        except (OSError, ValueError):
            return self._order
        try:  # unknown fields belong to a later version
            fields: Dict[str, Any] = content or {}
            order = wire.Control(
                attempt=int(fields["attempt"]),
                seq=int(fields["seq"]),
                stop=bool(fields.get("stop", False)),
                atomic_batch=int(fields.get("atomic_batch", 0)),
                accum_steps=int(fields.get("accum_steps", 0)),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return self._order
        is_new = self._order is None or order.seq > self._order.seq
        if order.attempt == self._attempt and is_new:
            self._order = order
        return self._order


class Reporter:
    """Appends to `path`. Ignores everything for an empty path (no gpq, or not rank 0)."""

    def __init__(self, path: str, environ: Mapping[str, str]) -> None:
        self.active = bool(path)
        self._path = path
        self._lines: List[bytes] = []
        self._start = time.monotonic()
        self._last_report = self._start
        self._window, self._windows = self._start, 0
        self._fixed_interval = float(environ.get(ENV_REPORT_SECONDS) or 0.0)

    def due(self) -> bool:
        """Are statistics due?"""
        now = time.monotonic()
        interval = EARLY_INTERVAL if now - self._start < EARLY_SECONDS else LATER_INTERVAL
        return now - self._last_report >= (self._fixed_interval or interval)

    def window_due(self) -> bool:
        """Is a comparison of the replicas due?"""
        interval = RANK_SECONDS if self._windows else EARLY_RANK_SECONDS
        return time.monotonic() - self._window >= (2 * self._fixed_interval or interval)

    def window_closed(self) -> None:
        self._window = time.monotonic()
        self._windows += 1

    def note_report(self) -> None:
        self._last_report = time.monotonic()

    def send(self, kind: str, content: Mapping[str, Any]) -> None:
        """Append ``{"kind": kind, "time": wall clock, **content}``. Numbers that JSON does not know
        become null."""
        if not self.active:
            return
        message: Dict[str, Any] = {"v": wire.VERSION, "kind": kind, "time": round(time.time(), 3)}
        message.update({name: _plain(value) for name, value in content.items()})
        self._lines.append(wire.encode(message))
        data = b"".join(self._lines)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                count = os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError:
            del self._lines[:-KEPT_LINES]
            return
        # After a short write the rest of a line waits for the next try, so that the file consists
        # of lines.
        self._lines = [data[count:]] if count < len(data) else []

    def notice(self, message: str) -> None:
        """A line for the user."""
        self.send("notice", {"message": message})


class Publisher:
    """`nodes` and `replicas` are those of this attempt and its timings."""

    def __init__(self, report: Reporter, agreement: Agreement, nodes: int, replicas: int) -> None:
        self._report, self._agreement = report, agreement
        self._nodes, self._replicas = nodes, replicas
        self._metrics: Dict[str, Any] = {}
        self._losses = LossWindow()

    def log(self, values: Mapping[str, Any], base_steps: float = 0.0) -> None:
        """Keep the newest value of each metric, and the mean of the loss. Raises GpqTrainError. The
        loss was logged at `base_steps` of progress. Tensors stay in place until they are
        published."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
                self._metrics[name] = value.detach()
                continue
            try:
                self._metrics[name] = float(value)
            except (TypeError, ValueError, OverflowError, RuntimeError):
                kind = type(value).__name__
                if isinstance(value, torch.Tensor):
                    kind += " of shape {}".format(tuple(value.shape))
                words = "job.log({}=...) needs one number, not a {}".format(name, kind)
                hint = "pass a float or a tensor with one element"
                raise GpqTrainError(words, hint) from None
        if METRIC in values and self._report.active:
            self._losses.add(self._metrics[METRIC], base_steps)

    def metrics(self, step: int) -> None:
        """Send what was logged since the last time. A value that is not finite is sent as text, and
        a mean over it is left out."""
        if self._metrics and self._report.active:
            values: Dict[str, Any] = {}
            for name, value in sorted(self._metrics.items()):
                number = float(value)
                values[name] = number if math.isfinite(number) else str(number)
            self._report.send("metrics", {"step": step, "values": values})
        self._metrics.clear()
        loss = self._losses.close()
        if loss is not None:
            self._report.send("loss", loss._asdict())

    def publish(
        self,
        times: StepTimes,
        current: Tuple[int, int],
        noise: "Optional[NoiseScale]",
        progress: wire.Progress,
    ) -> None:
        """Send one round of lines. All replicas must call it at the same step. The times of the
        slowest replica count."""
        entries, own_mean = times.flush(), 0.0
        for key, accum, _ in entries:
            if key == current and accum.number:
                own_mean = accum.total / accum.number
        # Steps end together, so rank 0's times hold for all. Gradients are ready when those of the
        # slowest replica are.
        slowest = self._agreement.all_reduce_max([own_mean])[0]
        for key, accum, step in entries:
            is_slowed = key == current and own_mean > 0.0
            seconds = accum.total * (slowest / own_mean if is_slowed else 1.0)
            shape = (self._nodes, self._replicas, *key)
            timing = wire.Timing(*shape, accum.number, seconds, step.number, step.total)
            self._report.send("timing", timing._asdict())
        self._report.note_report()
        if not self._report.active:
            self._metrics.clear()
            return
        if noise is not None and noise.samples > 0:
            flags = {"preconditioned": noise.preconditioned, "capped": noise.capped}
            content = wire.Noise(noise.sqr, noise.var, noise.samples, **flags)
            self._report.send("noise", content._asdict())
        self._report.send("progress", progress._asdict())
        self.metrics(progress.step)

    def ranks(self, times: StepTimes, step: int) -> None:
        """Compare all replicas. Collective if there are several."""
        if self._replicas == 1:
            return
        table = self._agreement.gather(times.window())
        self._report.window_closed()
        if all(row[0] > 0 for row in table):
            steps, *columns = (list(column) for column in zip(*table))
            rounded = [[float("{:.4g}".format(value)) for value in column] for column in columns]
            content = wire.RankTimes(step, [int(count) for count in steps], *rounded)
            self._report.send("ranks", content._asdict())


class LossWindow:
    """The mean of the values of `job.log(loss=...)` since the last report. Sums stay on the device
    of each loss, so that only `close` must wait for it."""

    def __init__(self) -> None:
        self._sums: Dict[Optional[torch.device], Any] = {}  # None: plain numbers
        self._count = 0
        self._base_steps = 0.0

    def add(self, value: Any, base_steps: float) -> None:
        """One loss, a float or a tensor of one element, logged at `base_steps` of progress."""
        device = None
        if isinstance(value, torch.Tensor):
            device, value = value.device, value.detach().reshape(()).float()
        # Never in place, because the tensor belongs to the script.
        self._sums[device] = self._sums.get(device, 0.0) + value
        self._count += 1
        self._base_steps += base_steps

    def close(self) -> Optional[wire.Loss]:
        """The mean, at the mean progress. Starts a new window. None if nothing was logged, or if
        something was not finite."""
        count, progress = self._count, self._base_steps
        total = sum(float(part) for part in self._sums.values())
        self._sums, self._count, self._base_steps = {}, 0, 0.0
        if not count or not math.isfinite(total):
            return None
        return wire.Loss(round(progress / count, 3), total / count)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
