"""What `job.wrap()` does: moves a model to its device, and into DistributedDataParallel if
needed."""

import torch
from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.runtime.environment import Environment
from gpq_agent.train.runtime.unsupported import refuse_sharded


def wrap_model(
    model: torch.nn.Module,
    device: torch.device,
    environment: Environment,
    *,
    sync_batch_norm: bool,
) -> torch.nn.Module:
    """The model on `device`, in DistributedDataParallel if there are several replicas.

    `sync_batch_norm`: batch norm uses the statistics of all replicas. Raises GpqTrainError for that
    without GPUs, and for a sharded model.
    """
    refuse_sharded(model)
    model = model.to(device)
    on_gpu = device.type == "cuda"
    if sync_batch_norm:
        # Under gpq raise at once, not at the first restart on several CPU slots.
        if not on_gpu and (environment.replicas > 1 or environment.run_dir):
            raise GpqTrainError(
                "sync_batch_norm=True needs GPUs",
                "leave it out, or use layer or group norm",
            )
        convert = torch.nn.SyncBatchNorm.convert_sync_batchnorm
        model = convert(model)  # type: ignore[no-untyped-call]
    if environment.replicas == 1:
        return model
    return DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
