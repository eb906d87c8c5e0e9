"""Can CUDA use the GPU that this process sees? `python -m gpq_agent.node.devices.cuda_trial` ends
with an exit code that says so, and prints why not.

It uses the driver's own library, without torch. A job's torch may not match the driver, which is
not the GPU's fault. The calls and codes are those of cuda.h.
"""

import ctypes
import os
import subprocess
import sys
from typing import Any

from gpq_agent import wire
from gpq_agent.node.host import procs

LIBRARY = "libcuda.so.1"
BYTES = 1 << 20
# out of memory, and in use by another process in an exclusive mode: they prove nothing about the
# GPU
PASSING = (2, 46)
USABLE, REFUSED, BUSY, NO_LIBRARY = 0, 3, 4, 5  # exit codes


class Refused(Exception):
    """CUDA's own text, with its `code`."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__("CUDA error {}: {}".format(code, words))
        self.code = code


def trial(cuda: Any) -> None:
    """Write to a little of its memory. Raises Refused."""
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _call(cuda, cuda.cuInit, 0)
    _call(cuda, cuda.cuDeviceGet, ctypes.byref(device), 0)
    _call(cuda, cuda.cuDevicePrimaryCtxRetain, ctypes.byref(context), device)
    _call(cuda, cuda.cuCtxSetCurrent, context)
    _call(cuda, cuda.cuMemAlloc_v2, ctypes.byref(memory), ctypes.c_size_t(BYTES))
    _call(cuda, cuda.cuMemsetD8_v2, memory, ctypes.c_ubyte(1), ctypes.c_size_t(BYTES))
    _call(cuda, cuda.cuCtxSynchronize)


def _call(cuda: Any, function: Any, *arguments: Any) -> None:
    code = function(*arguments)
    if code == 0:
        return
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(code, ctypes.byref(text))
    words = (text.value or b"unknown error").decode("utf-8", "replace")
    raise Refused(code, words)


def begin(gpu: str) -> "subprocess.Popen[bytes]":
    """Start the trial of this GPU in its own process, because a faulty GPU may never answer. Raises
    OSError."""
    parent = os.getpid()
    return subprocess.Popen(
        [sys.executable, "-m", __name__], cwd="/",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu, wire.ENV_TRIAL: "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: procs.die_with_parent(parent),
    )  # fmt: skip


def main() -> int:
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:  # no job could use it either
        sys.stdout.write("{}\n".format(error))
        return NO_LIBRARY
    try:
        trial(cuda)
    except Refused as reason:
        sys.stdout.write("{}\n".format(reason))
        return BUSY if reason.code in PASSING else REFUSED
    return USABLE


if __name__ == "__main__":
    sys.exit(main())
