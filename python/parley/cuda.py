"""GPUs: what this process can use, and how.

    import parley, torch

    with parley.join(device="cuda") as rank:                   # this rank's GPU; `cuda:1` names one
        torch.cuda.set_device(parley.cuda.device_of(rank))
        acts = parley.Transfer(rank, "acts", role=…, configs=["direct", "put", "get"], device="cuda")
        acts.send(tensor, to=1)                                # after the kernels that torch's current stream has now

`Transfer`, `P2P`, `Collective` and `Kernel`, made with `device="cuda"`, take buffers on their rank's GPU: torch tensors, and whatever else
has DLPack or `__cuda_array_interface__`. The configs say by which plane a message moves (docs/gpu.md): `direct` and `chunked` by pinned
host memory, `put` and `get` from GPU to GPU, `nccl` by NCCL. A rank offers those that its machine can run, and the decision says why
others are missing.

Calls in the order of streams: with `stream=s` a call runs after the work that `s` has now, and `work.wait_stream(s)` lets later work of
`s` run after the call. The host does not wait. But calls go on only while the program is in a call of parley. So do not wait for a stream
by CUDA (`torch.cuda.synchronize`, `tensor.item()`) while it waits for a call of parley: wait for the call first, or call
`rank.start_progress()` before, which starts a thread that keeps calls going.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ._native import Rank, gpu_count, why_no_gpu

# The names under which parley looks for libraries, and the packages of PyPI that bring them.
_libraries = {"libnccl.so.2": ("nvidia.nccl",)}


def is_available() -> bool:
    """True if this process can use a GPU."""
    return why_not() == ""


def why_not() -> str:
    """Why this process can use no GPU; empty if it can. Looks for the driver."""
    return why_no_gpu()


def device_count() -> int:
    """How many GPUs this process sees."""
    return gpu_count()


def device_of(rank: Rank) -> int | None:
    """The number of the rank's GPU; None: it has none."""
    return rank.gpu


def current_stream(device: int) -> int:
    """The stream of a GPU into which torch or CuPy, whichever is loaded, launches work now; 0: CUDA's default stream."""
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(device).cuda_stream)
    if (cupy := sys.modules.get("cupy")) is not None:
        return int(cupy.cuda.get_current_stream().ptr)
    return 0


def stream_of_tensor(producer: object, device: int) -> Any:
    """The stream that writes a tensor of torch, and None for others. By DLPack torch would make an event for each call."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_stream(device) if torch is not None and isinstance(producer, torch.Tensor) else None


def load_libraries() -> None:
    """Loads NCCL from its package of PyPI, unless the program or the dynamic linker has one already. `join(device="cuda")` calls it."""
    import ctypes  # takes a while, and few programs need it

    for name, packages in _libraries.items():
        try:
            ctypes.CDLL(name)
        except OSError:
            for path in _of_packages(name, packages):
                ctypes.CDLL(str(path))
                break


def _of_packages(name: str, packages: tuple[str, ...]) -> list[Path]:
    import importlib.util

    found = []
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (spec.submodule_search_locations if spec is not None else None) or ():
            if (path := Path(folder) / "lib" / name).exists():
                found.append(path)
    return found
