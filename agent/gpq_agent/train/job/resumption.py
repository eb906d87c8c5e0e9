"""The job's own parts of checkpoints: their names, and how they return in the next attempt."""

import time
from typing import Any, Dict, Optional

from gpq_agent.train.checkpoints.choice import choose_state
from gpq_agent.train.checkpoints.state_parts import Trained, outside_parameters
from gpq_agent.train.engine.engine import Engine
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.job.components import Components
from gpq_agent.train.job.training_data import TrainingData
from gpq_agent.train.optim.inner_optimizers import InnerOptimizer, inner_optimizers
from gpq_agent.train.optim.progress import ScheduleClock


class Resumption:
    """Reads the newest checkpoint once, and restores from it what the job trains."""

    def __init__(self, engine: Engine) -> None:
        """Offers the newest checkpoint to the parts of the job. Collective.

        The script may register a part on one replica alone, which must then wait for no other.
        """
        self._engine = engine
        begin = time.perf_counter()
        runtime = engine.runtime
        # Until it is restored.
        self._state: Optional[Dict[str, Any]] = choose_state(
            engine.checkpointer.store, runtime.group, runtime.environment, engine.runtime.notice
        )
        if self._state is not None:
            engine.checkpointer.parts.offer(self._state)
        self._seconds = time.perf_counter() - begin

    def resume(self, components: Components, data: Optional[TrainingData]) -> None:
        """Register what trains as parts of checkpoints, and restore it. Collective.

        `data`: from job.loader(), or None. Raises GpqTrainError for data that differ between
        replicas or from the previous attempt, for a part that cannot be saved, and for a checkpoint
        that does not fit the script.
        """
        engine = self._engine
        if engine.runtime.agreement.unlike(engine.checkpointer.parts.kinds()) is not None:
            raise GpqTrainError(
                "job.state() keeps other objects on one replica than on replica 0",
                'call it in the same order on every replica, or give names: job.state(part, "ema")',
            )
        self._register_progress(components, data)
        self._register_components(components)
        self._restore(data)

    def _register_progress(self, components: Components, data: Optional[TrainingData]) -> None:
        engine, parts = self._engine, self._engine.checkpointer.parts
        engine.runtime.meter.schedules = [ScheduleClock() for _ in components.schedulers]
        parts.add("progress", engine.runtime.meter)
        if data is None:
            return
        parts.add("cursor", data.loader.sampler)
        parts.add("ledger", engine.boundaries.ledger)
        parts.add("noise", data.noise)
        if data.fingerprint is not None:
            data.fingerprint.compare(engine.runtime.agreement, engine.runtime.notice)
            parts.add("data", data.fingerprint)

    def _register_components(self, components: Components) -> None:
        parts = self._engine.checkpointer.parts
        optimizers = components.optimizers
        for name, items in (("model", components.models), ("optimizer", optimizers)):
            for index, item in enumerate(items):
                parts.add("{}:{}".format(name, index) if index else name, item)
        parts.add("trained", Trained(optimizers))
        outside = outside_parameters(components.models, optimizers)
        if outside:
            parts.add("outside", outside)
        for index, optimizer in enumerate(optimizers):
            for place, inner in enumerate(inner_optimizers(optimizer)):
                name = "optimizer:{}.{}".format(index, place)
                parts.add(name, InnerOptimizer(optimizer, inner))
        for index, scheduler in enumerate(components.schedulers):
            parts.add("scheduler:{}".format(index), scheduler)
        if components.scaler is not None:
            parts.add("scaler", components.scaler)

    def _restore(self, data: Optional[TrainingData]) -> None:
        begin = time.perf_counter()
        engine = self._engine
        if engine.runtime.environment.checkpoint_dir:
            engine.checkpointer.parts.refuse_unsavable()
        state, self._state = self._state, None
        if state is None:
            return
        try:
            engine.checkpointer.parts.restore(state)
            if data is not None:
                engine.boundaries.ledger.resume(data.loader.sampler.cursor.consumed)
        except GpqTrainError:
            raise
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            words = " ".join(str(error).split())
            raise GpqTrainError(
                "the checkpoint does not fit this script: {}".format(words),
                "use the script that wrote it, or submit a new job",
            ) from error
        engine.statistics.restore_seconds = self._seconds + time.perf_counter() - begin
