"""What the job reports: what the script is, that it runs, its times, noise scale and logged
values."""

from typing import Any, Mapping, Sequence

from gpq_agent import wire
from gpq_agent.train.data.sampler import SAMPLE_EVERY
from gpq_agent.train.gradients.probe import GradientProbe
from gpq_agent.train.loop.runtime import Runtime
from gpq_agent.train.loop.shape import BatchShape
from gpq_agent.train.process.environment import began_warm, seconds_since_launch
from gpq_agent.train.process.report import Publisher
from gpq_agent.train.process.timing import StepClock, StepTimes

SAMPLE_COST = 0.005  # share of training time that gradient statistics may use
SAMPLE_RANGE = (5, 50)  # steps


class Statistics:
    """One per job.

    measures: whether to measure the noise scale, if there is memory for it.
    total_steps: the length of a loop without a loader, 0 if unknown.
    probes: the probe of the training, once prepared.
    """

    def __init__(self, runtime: Runtime, shape: BatchShape) -> None:
        environment = runtime.environment
        self.publisher = Publisher(
            runtime.report, runtime.agreement, environment.nodes, environment.replicas
        )
        self.times = StepTimes(StepClock(runtime.device))
        self.probes: Sequence[GradientProbe] = ()
        self.measures = True
        self.total_steps = 0
        self.restore_seconds = 0.0
        self._runtime, self._shape = runtime, shape
        self._notice = ""  # the probe's last reported notice
        self._is_declared = False
        self._is_ready = False

    def declare(self, rules: Sequence[Any] = (), models: Sequence[Any] = ()) -> None:
        """Report once what the script is."""
        if self._is_declared:
            return
        self._is_declared = True
        content = wire.Declared(level="resizable")
        data = self._shape.data
        if data is not None and rules:
            limits, meter = data.limits, self._runtime.meter
            content = wire.Declared(
                level="resizable" if limits.fixed else "adaptive",
                batch_size=limits.base_batch,
                max_batch_size=limits.max_batch,
                max_atomic_batch=limits.max_local,
                dataset_size=data.sampler.size,
                epochs=meter.epochs,
                rule=", ".join(dict.fromkeys(rule.name for rule in rules)),
                parameters=sum(item.numel() for model in models for item in model.parameters()),
                passes=meter.passes,
            )
        self._runtime.report.send("declared", content._asdict())

    def say_ready(self) -> None:
        """The first step of this attempt is done."""
        if not self._is_ready:
            self._is_ready = True
            content = {
                "seconds": round(seconds_since_launch(), 3),
                "restore_seconds": round(self.restore_seconds, 3),
                "warm": began_warm(),
            }
            self._runtime.report.send("ready", content)

    def sample_every(self, step_seconds: float) -> int:
        """Steps between two measurements of noise, 0 for none, so that statistics cost SAMPLE_COST
        of the time. A split batch costs more than the probe can see."""
        data = self._shape.data
        if data is None or data.limits.fixed or not self.measures:
            return 0
        if self._runtime.replicas == 1 or not self.probes or not step_seconds:
            return SAMPLE_EVERY
        every = int(self.probes[0].cost / (SAMPLE_COST * step_seconds)) + 1
        return min(max(every, SAMPLE_RANGE[0]), SAMPLE_RANGE[1])

    def publish(self) -> None:
        """Combine the statistics of all replicas, and report them. Collective."""
        for probe in self.probes:
            probe.collect()
            if probe.notice and probe.notice != self._notice:
                self._notice = probe.notice
                self._runtime.notice(probe.notice)
        data = self._shape.data
        noise = data.noise if data is not None else None
        self.publisher.publish(self.times, self._shape.configuration, noise, self.progress())

    def progress(self) -> wire.Progress:
        meter, data = self._runtime.meter, self._shape.data
        if data is not None:
            return meter.at(data.sampler.size, data.sampler.base_steps)
        fraction = min(meter.steps / self.total_steps, 1.0) if self.total_steps else 0.0
        base_steps = round(meter.base_steps, 3)
        return wire.Progress(0, 0, 0, meter.steps, base_steps, round(fraction, 6))

    def log(self, values: Mapping[str, Any], *, at_once: bool = False) -> None:
        """Keep these numbers for the next report. `at_once`: report them now."""
        meter = self._runtime.meter
        if self._runtime.recorder is not None:
            self._runtime.recorder.log(values)
        base_steps = meter.base_steps if self._shape.data is not None else float(meter.steps)
        self.publisher.log(values, base_steps)
        if at_once:
            self.publisher.metrics(meter.steps)
