"""How memory on GPUs is described to parley, and what is refused, without a GPU: the stand-ins' memory is the host's."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

import parley

CUDA, ROCM = 2, 10


class Like:
    """What CuPy's arrays offer."""

    def __init__(self, shape: tuple[int, ...] = (4,), typestr: str = "<f4", strides: tuple[int, ...] | None = None,
                 read_only: bool = False, **others: Any) -> None:
        self.memory = bytearray(256)
        at = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "strides": strides, "data": (at, read_only), "version": 3,
                                         **others}


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("ndim", ctypes.c_int),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]


class OnDevice:
    """Four floats, by DLPack, on a device of that type."""

    def __init__(self, device_type: int, number: int = 0) -> None:
        self.memory, self.shape = (ctypes.c_float * 4)(), (ctypes.c_int64 * 1)(4)
        self.tensor = _Tensor(ctypes.addressof(self.memory), device_type, number, 1, 2, 32, 1, self.shape, None, 0, None, None)
        self.device = (device_type, number)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: int | None = None, **_: Any) -> object:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        made: object = make(ctypes.addressof(self.tensor), b"dltensor", None)
        return made


def refused(call: Any, *words: str) -> None:
    with pytest.raises(parley.BadArgument) as why:
        call()
    assert all(word in str(why.value) for word in words), why.value


@pytest.mark.parametrize("on_gpu", [Like(), OnDevice(CUDA)])
def test_operations_on_host_memory_refuse_that_of_gpus(on_gpu: object) -> None:
    with parley.join() as rank:
        sums, batches = parley.Collective(rank, "sums"), parley.P2P(rank, "batches")
        refused(lambda: sums.all_reduce(on_gpu), "data", "lies on a GPU", 'device="cuda"')
        refused(lambda: batches.exchange([batches.irecv(on_gpu, source=0)]), "into", "lies on a GPU")
        scale = parley.Kernel(rank, "scale", {"one": lambda x: None, "two": lambda x: None}, outputs=lambda x: x)
        parley.tunables(rank).enable()
        parley.tunables(rank).set_numerical_check_tolerances(True)
        refused(lambda: scale(on_gpu), "outputs", "lies on a GPU")


@pytest.mark.parametrize("on_gpu", [Like(), OnDevice(CUDA)])
def test_other_operations_say_which_ones_take_memory_of_gpus(on_gpu: object) -> None:
    with parley.join() as rank, parley.Dataflow(rank) as flow:
        batches, tree = parley.P2P(rank, "batches"), parley.Hierarchy(rank, "tree")
        halo = parley.Halo(rank, "halo", ranks=[1])
        for call in (lambda: tree.all_reduce(on_gpu), lambda: halo.plan(on_gpu), lambda: flow.compute(print, reads=[on_gpu])):
            refused(call, "lies on a GPU", "Transfer, P2P, Collective and Kernel", 'device="cuda"')
        refused(lambda: flow.exchange(batches, [batches.isend(on_gpu, to=0)]), "data", "lies on a GPU")


class Mine:
    """A config of the program, for groups and for transfers."""

    name = "mine"
    wire_class = "mine"

    async def lead(self, g: object) -> None:
        raise AssertionError

    work = send = receive = lead


def test_functions_of_own_configs_are_for_host_memory() -> None:
    with parley.join() as rank:
        words = "own config mine", "host memory"
        refused(lambda: parley.Collective(rank, "sums", configs=["star", Mine()], device="cuda"), "op sums", *words)
        refused(lambda: parley.P2P(rank, "batches", configs=[Mine()], device="cuda"), "op batches", *words)  # type: ignore[list-item]
        # As a further config it is left out, so only the missing GPU is an error.
        refused(lambda: parley.P2P(rank, "batches", configs=["direct", Mine()], device="cuda"), "this rank has none")  # type: ignore[list-item]


def test_what_an_array_of_cuda_says_is_checked() -> None:
    def send(x: object) -> None:
        parley.P2P.isend(x, to=0)

    send(Like((2, 3), strides=(12, 4)))
    send(Like((1, 3), strides=(400, 4)))
    send(Like((0, 3), strides=(0, 0)))
    send(Like(read_only=True))
    refused(lambda: parley.P2P.irecv(Like(read_only=True), source=0), "into", "read-only")
    refused(lambda: send(Like((2, 3), strides=(4, 8))), "data", "contiguous")
    refused(lambda: send(Like((3,), strides=(8,))), "contiguous")
    refused(lambda: send(Like(typestr="")), "not as its protocol says")
    refused(lambda: send(Like(shape=None)), "not as its protocol says")  # type: ignore[arg-type]
    refused(lambda: send(Like((2, 3), strides=(4,))), "not as its protocol says")
    refused(lambda: send(Like((-1, 3))), "not as its protocol says")


def test_devices_that_parley_does_not_know_are_refused() -> None:
    refused(lambda: parley.P2P.isend(OnDevice(ROCM), to=0), "neither the processor nor a GPU of CUDA")


def test_why_an_object_cannot_be_shared_is_told() -> None:
    class Secret:
        def __dlpack__(self, **_: Any) -> object:
            raise BufferError("this array is secret")

    refused(lambda: parley.P2P.isend(Secret(), to=0), "Secret", "this array is secret")


def test_an_object_stays_until_its_operation_is_gone() -> None:
    import weakref

    for make in (Like, lambda: OnDevice(CUDA)):
        thing: Any = make()
        seen = weakref.ref(thing)
        operation = parley.P2P.isend(thing, to=0)
        del thing
        assert seen() is not None
        del operation
        assert seen() is None


def test_a_rank_without_a_gpu_says_so() -> None:
    with parley.join() as rank:
        assert rank.gpu is None and parley.cuda.device_of(rank) is None
        for make in (parley.P2P, parley.Transfer, parley.Collective):
            refused(lambda make=make: make(rank, "op", device="cuda"), "op", "this rank has none", 'device="cuda"')
            refused(lambda make=make: make(rank, "op", device="cuda:0"), "cpu or cuda")
        batches = parley.P2P(rank, "batches")
        refused(lambda: batches.start([batches.isend(b"x", to=0), batches.irecv(bytearray(1), source=0)], stream=1), "device=\"cuda\"")
        refused(lambda: rank.sleep(0.0).wait_stream(1), "without a stream")
        refused(lambda: batches.start([], stream="default"), "`stream` is a stream")


def test_names_of_devices() -> None:
    for wrong in ("gpu", "cuda:", "cuda:x", "cuda1", "cuda:1x", ""):
        refused(lambda wrong=wrong: parley.join(device=wrong), "cuda:1 and the like")


@pytest.mark.skipif(parley.cuda.is_available(), reason="this process can use a GPU")
def test_without_a_gpu_joining_with_one_says_why() -> None:
    assert parley.cuda.why_not() != "" and parley.cuda.device_count() == 0
    with pytest.raises(parley.Failure) as why:
        parley.join(device="cuda")
    assert why.value.code == "unavailable" and parley.cuda.why_not() in str(why.value)
    with parley.join() as rank:
        assert rank.world_size == 1
