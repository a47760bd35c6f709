#!/usr/bin/env python3
"""How long NCCL takes to get ready on one GPU. A rank pays this once, at its start (nccl_library::prepare).

    python3 bench/gpu/nccl_start.py [DEVICE]

Each of five new processes makes a CUDA context, then a communicator of one rank, which loads NCCL's kernels, then a second
communicator. libcudart.so.13 and libnccl.so.2 are found by LD_LIBRARY_PATH. Prints milliseconds, a line per process.
"""
import ctypes
import subprocess
import sys
import time


class unique_id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def must(status, what):
    if status != 0:
        sys.exit(f"{what} failed with status {status}")


def once(device):
    cuda, nccl = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libnccl.so.2")
    nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, unique_id, ctypes.c_int]
    nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]

    def communicator():
        made, name = ctypes.c_void_p(), unique_id()
        must(nccl.ncclGetUniqueId(ctypes.byref(name)), "ncclGetUniqueId")
        must(nccl.ncclCommInitRank(ctypes.byref(made), 1, name, 0), "ncclCommInitRank")
        must(nccl.ncclCommDestroy(made), "ncclCommDestroy")

    def context():
        must(cuda.cudaSetDevice(device), "cudaSetDevice")
        must(cuda.cudaFree(None), "cudaFree")

    for name, step in (("context", context), ("first communicator", communicator), ("second communicator", communicator)):
        began = time.perf_counter()
        step()
        print(f"{name} {1e3 * (time.perf_counter() - began):.0f} ms", end="  ")
    print(flush=True)


if len(sys.argv) > 2 and sys.argv[1] == "--once":
    once(int(sys.argv[2]))
else:
    for _ in range(5):
        subprocess.run([sys.executable, __file__, "--once", sys.argv[1] if len(sys.argv) > 1 else "0"], check=True)
