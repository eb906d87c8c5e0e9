"""Refuses models and optimizers whose state is sharded over the replicas.

gpq can neither average their gradients nor save them. It recognises them by the names of their
types, so it imports nothing. The refusal says what works instead.
"""

from typing import Any, Dict, Iterator, Tuple

from gpq_agent.train.errors import GpqTrainError

SHARDING: Dict[str, str] = {
    "FullyShardedDataParallel": "FullyShardedDataParallel (FSDP)",
    "XlaFullyShardedDataParallel": "XlaFullyShardedDataParallel (FSDP)",
    "FSDPModule": "fully_shard (FSDP2)",
    "FSDP": "fully_shard (FSDP2)",  # its name in torch 2.3 and 2.4
    "DeepSpeedEngine": "DeepSpeed",
    "DeepSpeedOptimizer": "DeepSpeed",
    "ZeROOptimizer": "DeepSpeed",
    "ZeroRedundancyOptimizer": "ZeroRedundancyOptimizer",
}
TENSORS = ("DTensor", "ShardedTensor")
WAYS = (
    "run it without gpq's library on N GPUs of one server: gpq submit --gpus N -- torchrun "
    "--nproc-per-node N train.py. Or let gpq resize it through the script's own saves: use "
    "job.should_stop(), job.save_path and job.saved() instead of job.loader(), job.wrap() and "
    "job.prepare()"
)


def refuse_sharded(*parts: Any) -> None:
    """Raises GpqTrainError for a sharded model or optimizer, or one in a list. Also with one
    replica, because it would only fail later with several."""
    for part in _members(parts):
        sharding = _sharding(part)
        if sharding:
            raise GpqTrainError(
                "gpq cannot resize or checkpoint a model or optimizer sharded by {}".format(
                    sharding
                ),
                WAYS,
            )


def _members(parts: Tuple[Any, ...]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, (list, tuple)):
            for member in part:
                yield member
        else:
            yield part


def _sharding(part: Any) -> str:
    """What shards it, or ""."""
    modules = part.modules() if hasattr(part, "modules") else [part]
    for module in modules:
        for kind in type(module).__mro__:
            if kind.__name__ in SHARDING:
                return SHARDING[kind.__name__]
    parameters = part.parameters() if hasattr(part, "parameters") else _of_groups(part)
    for parameter in parameters:
        # A parameter may hold such a tensor as its data.
        for tensor in (parameter, getattr(parameter, "data", None)):
            if any(kind.__name__ in TENSORS for kind in type(tensor).__mro__):
                return "a {} (tensor or sequence parallelism, FSDP2)".format(type(tensor).__name__)
    return ""


def _of_groups(optimizer: Any) -> Iterator[Any]:
    for group in getattr(optimizer, "param_groups", None) or []:
        for parameter in group["params"]:
            yield parameter
