"""Names of torch that torch does not promise to keep.

All uses in gpq are here, so a new version needs changes in one place. If a version lacks a name
that gpq can do without, the function says what it returns then.
"""

import copyreg
import sys
from datetime import timedelta
from operator import attrgetter
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist
import torch.distributed.rendezvous  # a module that torch.distributed hides behind a function
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

__all__ = ["BatchNorm", "TorchDispatchMode"]

# Versions of torch with which the tests of the library, or of GPUs, have run.
TRIED = ("2.5", "2.11", "2.13")

BatchNorm = _BatchNorm
current_dispatch_mode = _get_current_dispatch_mode

# One call for many tensors.
foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_div = torch._foreach_div
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm
foreach_reciprocal_ = torch._foreach_reciprocal_
foreach_sqrt = torch._foreach_sqrt
foreach_zero_ = torch._foreach_zero_

# What pickle itself calls for an object of another class than its own.
new_object: Any = copyreg._reconstructor  # type: ignore[attr-defined]

version_of = attrgetter("_version")  # of a tensor: how often it was changed in place
base_of = attrgetter("_base")  # of a tensor: the one that it is a view of, or None


def untried_notice(version: str) -> str:
    """The notice for a version of torch that the library's tests have never used, else ""."""
    if ".".join(version.split(".")[:2]) in TRIED:
        return ""
    words = (
        "gpq has never been tested with torch {} (only with {}). gpq check shows whether this "
        "script trains the same"
    )
    return words.format(version.partition("+")[0], ", ".join(TRIED))


# -- tensors, generators and operations ----------------------------------------------------------


def number_of(generator: torch.Generator) -> int:
    return int(getattr(generator, "_cdata", 0))


def is_torchs(generator: torch.Generator) -> bool:
    """Is it a generator that draws if none is given? gpq seeds those by the step."""
    default_generators = (torch.default_generator, *getattr(torch.cuda, "default_generators", ()))
    return number_of(generator) in map(number_of, default_generators)


def gradient_hooks(parameter: torch.Tensor) -> List[Dict[int, Any]]:
    """The hooks called with its gradient on the way, and with the tensor on arrival, by number.

    torch calls a replacement in the same place.
    """
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return [getattr(parameter, name, None) or {} for name in names]


def schema_of(function: Any) -> Any:
    """The schema of an operation in a dispatch mode, or None."""
    return getattr(function, "_schema", None)


# -- process groups ------------------------------------------------------------------------------


def rendezvous_handlers() -> Dict[str, Callable[..., Any]]:
    """How the processes of a group meet, by the scheme of the address that they are given."""
    handlers: Dict[str, Callable[..., Any]] = vars(sys.modules["torch.distributed.rendezvous"])[
        "_rendezvous_handlers"
    ]
    return handlers


def group_timeouts() -> List[timedelta]:
    """How long the backends of the default group wait. Empty if torch does not say."""
    group: Any = dist.group.WORLD
    backends = [group._get_backend(device) for device in getattr(group, "_device_types", ())]
    options = [getattr(backend, "options", None) for backend in backends]
    timeouts = [getattr(item, "_timeout", None) for item in options]
    return [timeout for timeout in timeouts if isinstance(timeout, timedelta)]


# -- modules and what trains them ----------------------------------------------------------------


def uncompiled_module(model: torch.nn.Module) -> torch.nn.Module:
    """The module that torch.compile got, or the same one."""
    inner: torch.nn.Module = getattr(model, "_orig_mod", model)
    return inner


def is_compiled() -> bool:
    """Does the script use torch.compile or its output?

    That may run differently under a mode, or not at all.
    """
    if "torch.nn.attention.flex_attention" in sys.modules:
        return True
    frame = sys.modules.get("torch._dynamo.eval_frame")
    return any(item is not None for item in getattr(frame, "cached_backends", {}).values())


def check_input(layer: Any, input: torch.Tensor) -> None:
    """Raises ValueError for a number of dimensions that a layer of batch norm does not take."""
    layer._check_input_dim(input)


def has_scheduler(optimizer: Any) -> bool:
    """Was a scheduler of torch ever made for it? False if torch leaves no mark."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")


def inner_schedulers(scheduler: Any) -> List[Any]:
    """Of SequentialLR and ChainedScheduler. [] if torch has another name for them."""
    return list(getattr(scheduler, "_schedulers", []))


def scale_of(scaler: Any) -> Any:
    """The scale of a GradScaler, without waiting for the device.

    A tensor, or a number if it has scaled nothing yet.
    """
    scale = getattr(scaler, "_scale", None)
    return scaler.get_scale() if scale is None else scale


def enter_without_effect(autocast: Any, enter: Callable[[Any], Any]) -> Any:
    """Let an autocast change nothing this time. `enter`: its own method."""
    is_enabled, autocast._enabled = autocast._enabled, False
    try:
        return enter(autocast)
    finally:
        autocast._enabled = is_enabled


def synchronise(model: torch.nn.Module, enable: bool) -> None:
    """Set what DistributedDataParallel.no_sync() sets, without a block around the script's own
    code.

    Avoids the module's own __setattr__, which looks for parameters first.
    """
    model.__dict__["require_backward_grad_sync"] = enable


def end_workers(loader: Any) -> None:
    """The next loop over a DataLoader starts new workers, also if they are persistent."""
    loader._iterator = None


def share_buffers(model: Any) -> None:
    """Give all replicas rank 0's buffers, as DistributedDataParallel does in a forward pass.

    First does what else may be due in one: one replica alone may already have run it. Collective.
    """
    reducer = getattr(model, "reducer", None)
    if reducer is not None:
        reducer._rebuild_buckets()
    if model.modules_buffers:
        model._sync_buffers()


def detach_reducer(model: torch.nn.Module) -> None:
    """Stop DistributedDataParallel from reducing.

    The end of its reducer removes its hooks from the parameters.
    """
    model.__dict__.update(reducer=None, logger=None)  # which a copy of the model leaves out


def views_of(bucket: Any) -> List[torch.Tensor]:
    """The gradients in a bucket of DDP, as it lays them out: by the strides of a dense parameter
    (channels_last), else row by row. `bucket.gradients()` shows all of them row by row."""
    views: List[torch.Tensor] = bucket.gradients()
    parameters = bucket.parameters()
    if all(map(torch.Tensor.is_contiguous, parameters)):
        return views
    for place, item in enumerate(parameters):
        is_dense = torch.empty_like(item, device="meta").stride() == item.stride()
        if is_dense and not item.is_contiguous():
            views[place] = views[place].as_strided(item.shape, item.stride())
    return views


def all_reduce(group: Any, buffer: torch.Tensor, options: Any) -> Any:
    """A work object that reduces in place.

    dist.all_reduce checks and logs for a tenth of a millisecond, and this runs once per bucket.
    """
    return group.allreduce([buffer], options)
