"""Writes checkpoints of everything that was registered. Others decide when."""

from typing import Set

from gpq_agent.train.checkpoints.state_parts import Parts
from gpq_agent.train.checkpoints.store import CheckpointStore

from .runtime import Runtime


class Checkpointer:
    """`store`: None if there is no folder for checkpoints. `is_ready`: there is something to save,
    because the script has prepared its training."""

    def __init__(self, runtime: Runtime) -> None:
        folder = runtime.environment.checkpoint_dir
        self.store = CheckpointStore(folder) if folder else None
        self.parts = Parts()
        self.is_ready = False
        self._runtime = runtime
        self._refusals: Set[str] = set()  # refusals that were already reported

    def is_due(self) -> bool:
        """Must rank 0 write a checkpoint now, without another reason?"""
        return (
            self.store is not None and self._runtime.is_lead and self.is_ready and self.store.due()
        )

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
        except (
            Exception
        ) as error:  # a full disk or a part's own error: others must not wait for rank 0
            store.postpone()
            text = " ".join((str(error) or repr(error)).split())
            runtime.notice("cannot write a checkpoint: {}".format(text))
            return False
        if saved.refusal and saved.refusal not in self._refusals:
            self._refusals.add(saved.refusal)
            runtime.notice(
                "the next attempt cannot resume from this checkpoint: {}".format(saved.refusal)
            )
        content = {
            "step": step,
            "seconds": round(saved.seconds, 4),
            "bytes": saved.size,
            "why": why,
        }
        runtime.report.send("checkpoint", content)
        return True
