"""Buffers on GPUs. Two ranks, which share a GPU if there is only one. Runs where torch finds a GPU."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest

import parley
from conftest import Job
from test_torch import launched


def why_not() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    return parley.cuda.why_not()


pytestmark = pytest.mark.skipif(why_not() != "", reason=f"needs a GPU: {why_not()}")

CONFIGS = ["direct", "chunked(chunk_bytes=256KiB)", "put", "get"]

BEGIN = """
import faulthandler, functools
import parley, torch

faulthandler.dump_traceback_later(30, exit=True)     # says where it hangs
say = functools.partial(print, flush=True)

def main(rank):
    torch.cuda.set_device(rank.gpu)
    program(rank, 1 - rank.id)

def run():
    raise SystemExit(parley.run(main, device="cuda"))
"""


def program(body: str, before: str = "") -> str:
    """The script of `def program(rank, peer)`."""
    return f"{BEGIN}\n{textwrap.dedent(before)}\ndef program(rank, peer):\n{textwrap.indent(textwrap.dedent(body), '    ')}\nrun()\n"


@pytest.mark.parametrize("config", CONFIGS)
def test_each_config_moves_what_late_kernels_have_written(job: Job, config: str) -> None:
    made = job(program(f"""
        ring = parley.P2P(rank, "ring", configs=["direct"] if {config!r} == "direct" else ["direct", {config!r}], device="cuda")
        for size in (8, 5000, 1 << 20):
            say(rank.id, size)
            copied = ring.copied_bytes
            x, y = torch.empty(size, device="cuda"), torch.empty(size, device="cuda")
            for step in range(200):
                torch.cuda._sleep(300_000)                       # what the message must wait for
                x.fill_(step + 1000 * rank.id)
                ring.exchange([ring.isend(x, to=peer), ring.irecv(y, source=peer)])
                assert (y == step + 1000 * peer).all(), (size, step, y)
            now = ring.decision(x.nbytes, peer)
            say(rank.id, size, now, [(e.config, e.status, e.detail) for e in now.evidence])
        assert ring.copied_bytes == copied, ring.copied_bytes - copied
        say("well", rank.id)
    """), limit=35)
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr
    # One of the edges has tried it.
    assert config == "direct" or f"'{config[:3]}" in made.stdout, made.stdout


def test_batches_in_the_order_of_a_stream(job: Job) -> None:
    made = job(program("""
        ring = parley.P2P(rank, "ring", configs=["direct", "put", "get"], device="cuda")
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for size in (8, 1 << 18):
                say(rank.id, size)
                x, y, z = (torch.zeros(size, device="cuda") for _ in range(3))
                z.copy_(y), x.fill_(1), torch.cuda._sleep(1), (z == 1).all().item()     # loads all kernels: see docs/gpu.md
                for step in range(60):
                    torch.cuda._sleep(300_000)
                    x.fill_(step + 1000 * rank.id)
                    work = ring.start([ring.isend(x, to=peer), ring.irecv(y, source=peer)], stream=s)
                    work.wait_stream(s)
                    z.copy_(y)                                                   # enqueued before the message is here
                    x.fill_(-1), y.fill_(-1)
                    work.wait()
                    assert (z == step + 1000 * peer).all(), (size, step, z)
        say("well", rank.id)
    """), limit=35)
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_a_thread_keeps_calls_going_while_the_program_waits_for_a_stream(job: Job) -> None:
    made = job(program("""
        rank.start_progress()
        ring = parley.P2P(rank, "ring", configs=["direct", "get"], device="cuda")
        for size in (8, 1 << 18):
            say(rank.id, size)
            x, y = torch.zeros(size, device="cuda"), torch.zeros(size, device="cuda")
            x.fill_(1), y.fill_(1), (y == 1).all().item()        # loads the kernels: see docs/gpu.md
            for step in range(60):
                torch.cuda._sleep(300_000)
                x.fill_(step + 1000 * rank.id)
                work = ring.start([ring.isend(x, to=peer), ring.irecv(y, source=peer)], stream=torch.cuda.current_stream())
                work.wait_stream(torch.cuda.current_stream())
                assert (y == step + 1000 * peer).all().item(), (size, step, y)       # waits by CUDA
        say("well", rank.id)
    """), limit=35)
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_many_batches_of_one_buffer_run_ahead_of_the_host(job: Job) -> None:
    made = job(program("""
        rank.start_progress()
        ring = parley.P2P(rank, "ring", configs=["direct", "chunked(chunk_bytes=64KiB)", "put"], device="cuda")
        s = torch.cuda.current_stream()
        for size in (8, 1 << 16, 1 << 20):
            say(rank.id, size)
            x, y = torch.zeros(size, device="cuda"), torch.zeros(size, device="cuda")
            log = torch.zeros(200, device="cuda")
            x.fill_(1), y.fill_(1), log[0].copy_(y[-1]), (log == 1).all().item()     # loads the kernels: see docs/gpu.md
            works = []
            for step in range(200):
                x.fill_(step + 1000 * rank.id)
                if step % 2:
                    mine = [ring.start([ring.isend(x, to=peer)], stream=s), ring.start([ring.irecv(y, source=peer)], stream=s)]
                else:
                    mine = [ring.start([ring.isend(x, to=peer), ring.irecv(y, source=peer)], stream=s)]
                for work in mine:
                    work.wait_stream(s)
                log[step].copy_(y[-1])
                works += mine
            torch.cuda.synchronize()
            for work in works:
                work.wait()
            assert log.tolist() == [step + 1000 * peer for step in range(200)], log
        say("well", rank.id)
    """), limit=50)
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_transfers_follow_the_current_stream_and_a_given_one(job: Job) -> None:
    made = job(program("""
        numbers = parley.Transfer(rank, "numbers", role=lambda r: "sender" if r == 0 else "receiver", configs=["direct", "put", "get"],
                                  device="cuda")
        s = torch.cuda.Stream()
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            say(rank.id, dtype)
            x = torch.zeros(100_000, dtype=dtype, device="cuda")
            for step in range(20):
                with torch.cuda.stream(s):
                    torch.cuda._sleep(300_000)
                    if rank.id == 0:
                        x.fill_(step % 2)
                        numbers.send(x, to=1)
                        continue
                    assert numbers.receive(x, source=0) == x.nbytes
                    assert (x == step % 2).all(), (dtype, step)
        say(rank.id, "streams that wait")
        y = torch.zeros(1000, device="cuda")
        z = torch.zeros_like(y)
        z.copy_(y), y.fill_(1), torch.cuda.synchronize()         # loads the kernels: see docs/gpu.md
        for step in range(20):
            torch.cuda._sleep(300_000)
            if rank.id == 0:
                y.fill_(step)
                work = numbers.isend(y, to=1, stream=torch.cuda.current_stream())
                work.wait_stream(torch.cuda.current_stream())
                y.fill_(-1)                                      # after the send
                work.wait()
            else:
                work = numbers.ireceive(y, source=0, stream=torch.cuda.current_stream())
                work.wait_stream(torch.cuda.current_stream())
                z.copy_(y)
                assert work.wait() == y.nbytes
                assert (z == step).all(), (step, z)
        say("well", rank.id)
    """), limit=35)
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_objects_like_those_of_cupy(job: Job) -> None:
    made = job(program("""
        numbers = parley.P2P(rank, "numbers", device="cuda")
        s = torch.cuda.Stream()
        for step in range(10):
            with torch.cuda.stream(s):
                x, y = torch.empty(5000, device="cuda"), torch.empty(5000, device="cuda")
                torch.cuda._sleep(300_000)
                x.fill_(step + rank.id)
            numbers.exchange([numbers.isend(Like(x, s), to=peer), numbers.irecv(Like(y, s), source=peer)])
            assert (y == step + peer).all(), (step, y)
        say("well", rank.id)
    """, before="""
        class Like:
            def __init__(self, tensor, stream):
                self.tensor = tensor
                self.__cuda_array_interface__ = {"shape": tuple(tensor.shape), "typestr": "<f4", "data": (tensor.data_ptr(), False),
                                                 "strides": None, "version": 3, "stream": stream.cuda_stream}
    """))
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_arrays_of_cupy(job: Job) -> None:
    pytest.importorskip("cupy")
    made = job(program("""
        import cupy
        numbers = parley.P2P(rank, "numbers", device="cuda")
        with cupy.cuda.Stream(non_blocking=True) as s:
            for step in range(10):
                x, y = cupy.full(5000, step + rank.id, dtype="f4"), cupy.zeros(5000, dtype="f4")
                numbers.exchange([numbers.isend(x, to=peer), numbers.irecv(y, source=peer)])
                assert (y == step + peer).all(), (step, y)
            work = numbers.start([numbers.isend(x, to=peer), numbers.irecv(y, source=peer)], stream=s)
            work.wait()
        say("well", rank.id)
    """))
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_collectives_on_the_gpu(job: Job) -> None:
    made = job(program("""
        sums = parley.Collective(rank, "sums", configs=["star", "chain"], device="cuda")
        news = parley.Collective(rank, "news", kind="broadcast", device="cuda")
        all_of = parley.Collective(rank, "all", kind="gather", device="cuda")
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
            say(rank.id, dtype)
            for step in range(10):
                x = torch.empty(70_000, dtype=dtype, device="cuda")
                torch.cuda._sleep(300_000)
                x.fill_(step + rank.id)
                sums.all_reduce(x)
                assert (x == 2 * step + 1).all(), (dtype, step, x)
        try:
            sums.all_reduce(x, by="max")
            raise AssertionError
        except parley.BadArgument as why:
            print(why)
        say(rank.id, "the other kinds")
        x.fill_(rank.id)
        news.broadcast(x)
        assert (x == 0).all()
        x.fill_(rank.id)
        whole = torch.zeros(2 * x.numel(), dtype=x.dtype, device="cuda") if all_of.leads else None
        all_of.gather(x, whole)
        assert whole is None or ((whole[:x.numel()] == 0).all() and (whole[x.numel():] == 1).all())
        say("well", rank.id)
    """))
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_kernels_are_timed_on_the_gpu_and_their_outputs_compared(job: Job) -> None:
    made = job(program("""
        def slow(x, y):
            torch.cuda._sleep(2_000_000)
            torch.mul(x, 2, out=y)
        def fast(x, y):
            torch.mul(x, 2, out=y)
        def wrong(x, y):
            torch.mul(x, 3, out=y)
        parley.tunable.enable()
        parley.tunable.set_numerical_check_tolerances(True)
        scale = parley.Kernel(rank, "scale", {"slow": slow, "wrong": wrong, "fast": fast}, key=lambda x, y: {"n": len(x)},
                              outputs=lambda x, y: y, device="cuda")
        x = torch.arange(1000, device="cuda", dtype=torch.float32)
        y = torch.zeros_like(x)
        with torch.cuda.stream(torch.cuda.Stream()):
            scale(x, y)
            assert (y == 2 * x).all()
        assert scale.runs(x, y) == "fast", scale.why(x, y)
        print(parley.tunable.get_results())
        try:
            parley.Kernel(rank, "host", {"one": fast, "two": slow}, outputs=lambda x, y: torch.zeros(4), device="cuda")(x, y)
            raise AssertionError
        except parley.BadArgument as why:
            assert "host memory" in str(why), why
        say("well", rank.id)
    """), ranks=1)
    assert made.returncode == 0 and made.stdout.count("well") == 1, made.stdout + made.stderr


def test_wrong_memory_is_refused_and_nothing_hangs(job: Job) -> None:
    made = job(program(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
    """ + """
        from test_gpu_memory import OnDevice
        import numpy
        on_gpu, on_host = parley.P2P(rank, "gpu", device="cuda"), parley.P2P(rank, "host")
        flow, sums = parley.Dataflow(rank), parley.Collective(rank, "sums", device="cuda")
        x = torch.zeros(1000, device="cuda")
        for words, call in {
            "lies on a GPU": lambda: on_host.exchange([on_host.isend(x, to=peer)]),
            "device 0": lambda: on_gpu.exchange([on_gpu.isend(numpy.zeros(10), to=peer)]),
            "do not follow each other": lambda: on_gpu.isend(x[::2], to=peer),
            "requires grad": lambda: on_gpu.isend(torch.zeros(4, device="cuda", requires_grad=True), to=peer),
            "started without a stream": lambda: rank.sleep(0).wait_stream(torch.cuda.current_stream()),
            "operations on a GPU": lambda: on_host.start([on_host.isend(numpy.zeros(1), to=peer)], stream=torch.cuda.current_stream()),
            "`stream` is a stream": lambda: on_gpu.start([], stream="s"),
            "start(batch, stream": lambda: flow.exchange(on_gpu, [on_gpu.isend(x, to=peer)]),
            "`between` is for host memory": lambda: sums.all_reduce(x, between=print),
            "cuda:6, and this rank's GPU is": lambda: on_gpu.start([on_gpu.isend(OnDevice(2, 6), to=peer)]),
        }.items():
            say(rank.id, words)
            try:
                call()
                raise AssertionError(words)
            except parley.BadArgument as why:
                assert words in str(why), (words, str(why))
        # Another type of elements on the other side: both ends fail.
        y = torch.zeros(1000, dtype=torch.int32, device="cuda")
        try:
            on_gpu.exchange([on_gpu.isend(x, to=1)] if rank.id == 0 else [on_gpu.irecv(y, source=0)])
            assert rank.id == 0
        except parley.Failure as why:
            say("told", why)
        say("well", rank.id)
    """))
    assert made.stdout.count("well") == 2, made.stdout + made.stderr


def test_a_dropped_tensor_stays_until_its_send_has_ended(job: Job) -> None:
    made = job(program("""
        numbers = parley.P2P(rank, "numbers", device="cuda")
        for step in range(20):
            if rank.id == 0:
                x = torch.full((1 << 20,), float(step), device="cuda")
                work = numbers.start([numbers.isend(x, to=1)])
                del x
                torch.full((1 << 20,), -1.0, device="cuda")      # takes the memory, if it is free
                work.wait()
            else:
                y = torch.zeros(1 << 20, device="cuda")
                rank.sleep(0.002).wait()
                numbers.exchange([numbers.irecv(y, source=0)])
                assert (y == step).all(), (step, y)
        say("well", rank.id)
    """))
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_a_rank_that_dies_is_named(job: Job) -> None:
    made = job(program("""
        import os, signal
        numbers = parley.P2P(rank, "numbers", configs=["direct", "put"], device="cuda")
        x, y = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
        for step in range(20):
            if rank.id == 1 and step == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            work = numbers.start([numbers.isend(x, to=peer), numbers.irecv(y, source=peer)], stream=torch.cuda.current_stream())
            work.wait_stream(torch.cuda.current_stream())
            try:
                work.wait()
            except parley.PeerFailed as why:
                torch.cuda.synchronize()                         # the stream goes on
                say("told", why.peer)
                raise
    """))
    assert made.returncode != 0 and "told 1" in made.stdout, made.stdout + made.stderr


TORCH = """
import faulthandler, functools, os, torch
import torch.distributed as dist
import parley.torch

faulthandler.dump_traceback_later(40, exit=True)     # says where it hangs
say = functools.partial(print, flush=True)
parley.torch.wait_on = os.environ["WAITS"]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("parley")
me, n = dist.get_rank(), dist.get_world_size()
"""


@pytest.fixture(params=["host", "stream"])
def waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `Work.wait` of parley.torch waits."""
    monkeypatch.setenv("WAITS", request.param)
    if request.param == "stream":
        monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")


@pytest.mark.usefixtures("waits")
def test_torch_distributed_on_gpus(tmp_path: Path) -> None:
    made = launched(tmp_path, TORCH + """
for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
    say(me, dtype)
    x = torch.arange(1000, device="cuda").to(dtype)
    if me == 0:
        dist.send(x, 1)
        dist.isend(x, 1, tag=5).wait()
    else:
        y = torch.zeros_like(x)
        dist.recv(y, 0)
        assert torch.equal(x, y)
        y.zero_()
        work = dist.irecv(y, 0, tag=5)
        work.wait()
        assert work.is_completed() and torch.equal(x, y)

s = torch.cuda.Stream()
with torch.cuda.stream(s):
    for size in (1, 1000, 1 << 20):
        say(me, size)
        for step in range(30):
            right, left = torch.empty(size, device="cuda"), torch.empty(size, device="cuda")
            torch.cuda._sleep(300_000)
            right.fill_(me + step), left.fill_(-me - step)
            from_left, from_right = torch.empty(size, device="cuda"), torch.empty(size, device="cuda")
            ops = [dist.P2POp(dist.isend, right, (me + 1) % n), dist.P2POp(dist.irecv, from_left, (me - 1) % n),
                   dist.P2POp(dist.isend, left, (me - 1) % n, tag=1), dist.P2POp(dist.irecv, from_right, (me + 1) % n, tag=1)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            right.fill_(-7), left.fill_(-7)
            assert (from_left == (me - 1) % n + step).all() and (from_right == -((me + 1) % n) - step).all()

say(me, "collectives")
for op, expected in ((dist.ReduceOp.SUM, 3), (dist.ReduceOp.AVG, 1.5)):
    x = torch.full((100,), float(me + 1), device="cuda")
    dist.all_reduce(x, op)
    assert (x == expected).all(), (op, x[0])
for root in range(n):
    x = torch.full((10,), me, device="cuda")
    dist.broadcast(x, root)
    assert (x == root).all()
dist.barrier()
mine = torch.tensor([me, 10 * me], device="cuda")
flat = torch.zeros(2 * n, dtype=mine.dtype, device="cuda")
dist.all_gather_into_tensor(flat, mine)
assert flat.tolist() == [0, 0, 1, 10]
out = torch.zeros(n, device="cuda")
dist.all_to_all_single(out, torch.arange(n, device="cuda") + 10.0 * me)
assert torch.equal(out, torch.arange(n, device="cuda") * 10.0 + me)
half = torch.zeros(2, device="cuda")
dist.reduce_scatter_tensor(half, torch.arange(2.0 * n, device="cuda"))
assert torch.equal(half, n * torch.tensor([2.0 * me, 2.0 * me + 1], device="cuda"))
everything = [None] * n
dist.all_gather_object(everything, {"rank": me})
assert everything == [{"rank": r} for r in range(n)]
print(dist.group.WORLD.decision(1 - me, 4 << 20, "cuda"))
say("well", me)
dist.destroy_process_group()
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


@pytest.mark.usefixtures("waits")
def test_pipeline_schedules_of_torch_on_gpus(tmp_path: Path) -> None:
    made = launched(tmp_path, TORCH + """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

def model():
    torch.manual_seed(1)
    return [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()).cuda() for _ in range(n)]

torch.manual_seed(2)
x, target = torch.randn(32, 64, device="cuda"), torch.randn(32, 64, device="cuda")
loss_of = torch.nn.functional.mse_loss
whole = torch.nn.Sequential(*model())
for schedule_of in (ScheduleGPipe, Schedule1F1B):
    say(me, schedule_of)
    whole.zero_grad()
    parts = [loss_of(whole(a), b) for a, b in zip(x.chunk(4), target.chunk(4))]
    (sum(parts) / 4).backward()
    mine = model()[me]
    schedule = schedule_of(PipelineStage(mine, me, n, x.device), n_microbatches=4, loss_fn=loss_of)
    losses = []
    schedule.step(x) if me == 0 else schedule.step(target=target, losses=losses)
    if me == n - 1:
        assert torch.equal(torch.stack([l.detach() for l in losses]), torch.stack([p.detach() for p in parts]))
    for a, b in zip(mine.parameters(), whole[me].parameters()):
        assert torch.allclose(a.grad, b.grad, atol=1e-6), (a.grad - b.grad).abs().max()
say("well", me)
dist.destroy_process_group()
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr
