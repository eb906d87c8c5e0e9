"""What every part of the engine uses: this process, its replicas, channels, checkpoints and end,
the current batch, and what the job reports."""

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from gpq_agent import wire
from gpq_agent.train.checkpoints.state_parts import Parts
from gpq_agent.train.checkpoints.store import CheckpointStore
from gpq_agent.train.data.batches import (
    Configuration,
    Limits,
    ceil_div,
    ordered_configuration,
    starting,
)
from gpq_agent.train.data.fingerprint import Fingerprint
from gpq_agent.train.data.sampler import SAMPLE_EVERY, GlobalSampler
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.noise_scale import NoiseScale
from gpq_agent.train.gradients.probe import GradientProbe
from gpq_agent.train.gradients.progress import ProgressMeter
from gpq_agent.train.habits.freedoms import Freedoms
from gpq_agent.train.habits.table import ACCUMULATE, SPLIT
from gpq_agent.train.internals import group_timeouts
from gpq_agent.train.process.agreement import Agreement, Proposal
from gpq_agent.train.process.channels import Heartbeat, Publisher, Reporter
from gpq_agent.train.process.environment import Environment, began_warm, seconds_since_launch
from gpq_agent.train.process.process_group import GROUP_TIMEOUT
from gpq_agent.train.process.shutdown import (
    EXIT_CODES,
    SigtermHandler,
    leave,
    part_company,
    raise_if_stopping,
)
from gpq_agent.train.process.timing import StepClock, StepTimes

if TYPE_CHECKING:
    from gpq_agent.train.prove.recorder import Recorder

SAMPLE_COST = 0.005  # share of training time that gradient statistics may use
SAMPLE_RANGE = (5, 50)  # steps


class BatchSource(NamedTuple):
    """What `job.loader()` made for a loop. `fingerprint`: None if data may change, or if there is
    nothing to compare."""

    limits: Limits
    sampler: GlobalSampler
    noise: NoiseScale
    fingerprint: Optional[Fingerprint]


class BatchShape:
    """One per job, the same on every replica. `data`: None in loops without `job.loader()`, which
    have no shape."""

    def __init__(self, freedoms: Freedoms, replicas: int) -> None:
        self.freedoms = freedoms
        self.data: Optional[BatchSource] = None
        self.is_late = False  # freedoms are lost, but the current step continues as it began
        self.seq = 0  # of the current order
        self._replicas = replicas
        self._order: Optional[Configuration] = None  # before freedoms are lost
        self._announced: Optional[Configuration] = None  # the last one reported as in effect

    @property
    def configuration(self) -> Tuple[int, int]:
        """(examples at once on a replica, micro-batches of a step minus one), or (0, 0) without a
        loader."""
        if self.data is None:
            return (0, 0)
        configuration = self.data.sampler.configuration
        return (configuration.atomic_batch, configuration.accum_steps)

    @property
    def may_cut(self) -> bool:
        """May a step consist of several micro-batches?"""
        return ACCUMULATE not in self.freedoms.lost

    def keep_groups(self, group: int, *, is_checked: bool) -> int:
        """Before the first step: deal whole groups of batch norm. `is_checked`: by `gpq check`,
        which may have asked for smaller micro-batches. Returns how many groups a step may have.
        Raises GpqTrainError if none fits."""
        assert self.data is not None
        limits, sampler = self.data.limits, self.data.sampler
        if is_checked:
            limits = limits._replace(max_local=max(limits.max_local, group))
        most = min(limits.base_batch, limits.max_local)
        if group > most:
            words = "batch_norm={} is more than the {} examples that a GPU may get at once"
            hint = "use a smaller batch_norm, or a larger batch_size and max_local_batch"
            raise GpqTrainError(words.format(group, most), hint)
        self.data = self.data._replace(limits=limits._replace(group=group))
        sampler.group = group
        sampler.configure(starting(self.data.limits))
        return ceil_div(limits.max_batch, group)

    def obey(self, agreed: Proposal) -> None:
        if self.data is not None:
            limits, sampler = self.data.limits, self.data.sampler
            if agreed.seq > self.seq:
                sizes = agreed.atomic_batch, agreed.accum_steps
                self._order = ordered_configuration(limits, agreed.seq, *sizes)
                sampler.configure(self.freedoms.restrict(self._order, limits))
            sampler.sample_every = 0 if self._is_whole() else agreed.sample_every
        self.seq = max(self.seq, agreed.seq)

    def agree(self) -> bool:
        """A habit that any replica noticed takes freedoms from all. Are any lost now?
        Collective."""
        if not self.freedoms.agree():
            return False
        self.reshape()
        return True

    def reshape(self) -> None:
        """Freedoms are lost. The next steps do without them, and are fetched again."""
        self.is_late = False
        if self.data is None:
            return
        limits, sampler = self.data.limits, self.data.sampler
        if self._order is None:
            self._order = sampler.configuration
        sampler.configure(self.freedoms.restrict(self._order, limits))
        if self._is_whole():
            sampler.sample_every = 0
        if not self.may_cut:
            sampler.keep_whole()
        sampler.seek(*sampler.cursor)  # what was issued has the old shape

    def announce(self, configuration: Configuration, report: Reporter, factor: float) -> None:
        """A step of this configuration begins. Report it once it is in effect. `factor`: on the
        learning rate."""
        if configuration.seq <= 0 or configuration == self._announced:
            return
        self._announced = configuration
        content = {
            "atomic_batch": configuration.atomic_batch,
            "accum_steps": configuration.accum_steps,
            "lr_factor": round(factor, 6),
            "seq": configuration.seq,
        }
        report.send("retuned", content)

    def _is_whole(self) -> bool:
        return SPLIT in self.freedoms.lost and self._replicas == 1


class Runtime:
    """One per process.

    recorder: the recorder of `gpq check` if it runs this script.
    evaluating: how many `job.eval()` the script is in.
    epoch: the newest of `job.epochs()`, None before the first.
    finished: the script has said so, or the epochs are over.
    """

    def __init__(
        self,
        environment: Environment,
        device: torch.device,
        environ: Mapping[str, str],
        recorder: "Optional[Recorder]",
    ) -> None:
        self.environment, self.device, self.environ = environment, device, environ
        self.replicas = environment.replicas
        self.recorder = recorder
        run_dir = environment.run_dir
        path = os.path.join(run_dir, wire.REPORT) if run_dir and self.is_lead else ""
        self.report = Reporter(path, environ)
        self.pulse = Heartbeat(run_dir, environment.rank)
        # Orders use a group of their own, so that no collective of the script can meet them.
        self.group: Optional[dist.ProcessGroup] = None
        if environment.replicas > 1:  # it waits as long as the script's own, for a long evaluation
            timeout = max([GROUP_TIMEOUT, *group_timeouts()])
            self.group = dist.new_group(backend="gloo", timeout=timeout)
        self.agreement = Agreement(self.group, environment.rank, Proposal, self.pulse.others_reduce)
        self.meter = ProgressMeter()
        self.evaluating = 0
        self.epoch: Optional[int] = None
        self.finished = False
        self.evaluation_failed = False  # since the current micro-batch began

    @property
    def is_lead(self) -> bool:
        """Does this replica speak for all?"""
        return self.environment.rank == 0

    def notice(self, message: str) -> None:
        """Print a line for the user, and report it."""
        if self.is_lead:
            self.say(message)

    def say(self, message: str) -> None:
        """As `notice`, on any replica."""
        sys.stderr.write("gpq: {}\n".format(message))
        self.report.notice(message)

    def reopen(self) -> None:
        """The script trains on after the end that it announced."""
        environment = self.environment
        if environment.run_dir and environment.local_rank == 0:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(environment.run_dir, wire.FINISHED))
        self.finished = False

    def mark(self, name: str) -> None:
        """Make one of wire's statements to the agent, once per server. Without it only the exit
        code of the attempt counts."""
        run_dir = self.environment.run_dir
        if not run_dir or self.environment.local_rank:
            return
        content = {"step": self.meter.steps, "time": time.time()}
        try:
            wire.write_json(os.path.join(run_dir, name), content)
        except OSError as error:
            self.notice("cannot write {}: {}".format(name, error))


class Checkpointer:
    """Writes checkpoints of everything that was registered. Others decide when. `store`: None if
    there is no folder for checkpoints. `is_ready`: there is something to save, because the script
    has prepared its training."""

    def __init__(self, runtime: Runtime) -> None:
        folder = runtime.environment.checkpoint_dir
        self.store = CheckpointStore(folder) if folder else None
        self.parts = Parts()
        self.is_ready = False
        self._runtime = runtime
        self._refusals: Set[str] = set()  # refusals that were already reported

    def is_due(self) -> bool:
        """Must rank 0 write a checkpoint now, without another reason?"""
        is_ready = self._runtime.is_lead and self.is_ready
        return is_ready and self.store is not None and self.store.due()

    def save(self, why: str) -> bool:
        """Rank 0 writes one: "periodic", "stop" or "end". Returns False, with a notice, if that
        fails."""
        store, runtime = self.store, self._runtime
        if store is None or not runtime.is_lead:
            return False
        step = runtime.meter.steps
        runtime.pulse.phase("saving")
        try:
            saved = store.save(self.parts.state(), step, runtime.environment.attempt, why)
        except Exception as error:  # a full disk, or of a part. Others must not wait for rank 0
            store.postpone()
            text = " ".join((str(error) or repr(error)).split())
            runtime.notice("cannot write a checkpoint: {}".format(text))
            return False
        if saved.refusal and saved.refusal not in self._refusals:
            self._refusals.add(saved.refusal)
            words = "the next attempt cannot resume from this checkpoint: {}"
            runtime.notice(words.format(saved.refusal))
        content = {"step": step, "seconds": round(saved.seconds, 4), "bytes": saved.size}
        runtime.report.send("checkpoint", {**content, "why": why})
        return True


class Ending:
    """The end of an attempt: on request, or because training is over. One per job. `terminator`:
    from a boundary to the end, SIGTERM asks for a checkpoint."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.terminator = SigtermHandler()

    def leave(self, kind: int) -> NoReturn:
        """Everything is saved. Say so on every server, and exit."""
        raise_if_stopping()
        self._runtime.mark(wire.STOPPED)
        self._runtime.pulse.phase("ended")
        self.terminator.disarm()  # a replica that must hurry now has nothing left to save
        leave(EXIT_CODES[kind], self._runtime.say)

    def done(self) -> None:
        """Training is over. Say so on every server, so that exit code 0 ends the job."""
        part_company()
        self.terminator.disarm()
        self._runtime.pulse.phase("ended")
        self._runtime.finished = True
        self._runtime.mark(wire.FINISHED)


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
        self.adapter = ""  # the framework that drives the loop, if any
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
                adapter=self.adapter,
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
