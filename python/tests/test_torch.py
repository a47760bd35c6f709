"""The backend of torch.distributed. Runs where torch is installed."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from conftest import Job

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def launched(tmp_path: Path, script: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Starts the script's ranks as torchrun does, which would end all of them when one dies. Returns the output of all, and the worst status."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(script))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "PARLEY_RESULTS": "", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    started = [subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                                env={**common, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(ranks)]
    try:
        said = [one.communicate(timeout=100) for one in started]
    finally:
        for one in started:
            one.kill()
    worst = max(abs(one.returncode) for one in started)
    return subprocess.CompletedProcess([str(program)], worst, "".join(out for out, _ in said), "".join(err for _, err in said))


BEGIN = """
import torch
import torch.distributed as dist
import parley.torch

dist.init_process_group("parley")
me, n = dist.get_rank(), dist.get_world_size()
"""


def test_sends_receives_and_batches(tmp_path: Path) -> None:
    made = launched(tmp_path, BEGIN + """
for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
    x = torch.arange(1000).to(dtype)
    if me == 0:
        dist.send(x, 1)
        dist.isend(x, 1, tag=5).wait()
    elif me == 1:
        y = torch.zeros_like(x)
        dist.recv(y, 0)
        assert torch.equal(x, y)
        y.zero_()
        work = dist.irecv(y, 0, tag=5)
        work.wait()
        assert work.is_completed() and torch.equal(x, y)

# A ring, in both directions at once, at sizes that need a receive to end.
for size in (1, 1000, 1 << 20):
    right, left = torch.full((size,), float(me)), torch.full((size,), float(-me))
    from_left, from_right = torch.empty(size), torch.empty(size)
    ops = [dist.P2POp(dist.isend, right, (me + 1) % n), dist.P2POp(dist.irecv, from_left, (me - 1) % n),
           dist.P2POp(dist.isend, left, (me - 1) % n, tag=1), dist.P2POp(dist.irecv, from_right, (me + 1) % n, tag=1)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (from_left == (me - 1) % n).all() and (from_right == -((me + 1) % n)).all()

objects = [None]
if me == 0:
    dist.send_object_list([{"a": 1}], 1)
if me == 1:
    dist.recv_object_list(objects, 0)
    assert objects == [{"a": 1}]
print("well", me)
dist.destroy_process_group()
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well") == 3, made.stdout + made.stderr


def test_collectives_and_subgroups(tmp_path: Path) -> None:
    made = launched(tmp_path, BEGIN + """
for op, expected in ((dist.ReduceOp.SUM, 6), (dist.ReduceOp.AVG, 2), (dist.ReduceOp.PRODUCT, 6), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.MAX, 3)):
    x = torch.full((100,), float(me + 1))
    dist.all_reduce(x, op)
    assert (x == expected).all(), (op, x[0])
for root in range(n):
    x = torch.full((10,), me)
    dist.broadcast(x, root)
    assert (x == root).all()
dist.barrier()
mine = torch.tensor([me, 10 * me])
all_of = [torch.zeros_like(mine) for _ in range(n)]
dist.all_gather(all_of, mine)
assert torch.equal(torch.cat(all_of), torch.tensor([0, 0, 1, 10, 2, 20]))
flat = torch.zeros(2 * n, dtype=mine.dtype)
dist.all_gather_into_tensor(flat, mine)
assert torch.equal(flat, torch.cat(all_of))
gathered = [torch.zeros_like(mine) for _ in range(n)] if me == 1 else None
dist.gather(mine, gathered, dst=1)
assert me != 1 or torch.equal(torch.cat(gathered), flat)
part = torch.zeros(2, dtype=mine.dtype)
dist.scatter(part, all_of if me == 2 else None, src=2)
assert torch.equal(part, mine)
out = torch.zeros(n)
dist.all_to_all_single(out, torch.arange(n) + 10.0 * me)
assert torch.equal(out, torch.arange(n) * 10.0 + me)
half = torch.zeros(2)
dist.reduce_scatter_tensor(half, torch.arange(2.0 * n))
assert torch.equal(half, n * torch.tensor([2.0 * me, 2.0 * me + 1]))
everything = [None] * n
dist.all_gather_object(everything, {"rank": me})
assert everything == [{"rank": r} for r in range(n)]
pair = dist.new_group([0, 2])
if me != 1:
    x = torch.ones(4)
    dist.all_reduce(x, group=pair)
    assert (x == 2).all()
    dist.send(x, 2, group=pair) if me == 0 else dist.recv(x, 0, group=pair)
# Bits, truth values, complex numbers, factors; memory with gaps; nothing at all.
mine = torch.tensor([1 << me, 7], dtype=torch.int32)
for op, expected in ((dist.ReduceOp.BOR, [7, 7]), (dist.ReduceOp.BAND, [0, 7]), (dist.ReduceOp.BXOR, [7, 7])):
    x = mine.clone()
    dist.all_reduce(x, op)
    assert x.tolist() == expected, (op, x)
yes = torch.tensor([me == 0, True, False])
dist.all_reduce(yes, dist.ReduceOp.MAX)
assert yes.tolist() == [True, True, False]
z = torch.tensor([complex(me, 1)])
dist.all_reduce(z)
assert z.item() == complex(3, 3)
x = torch.ones(3)
dist.all_reduce(x, torch._C._distributed_c10d._make_nccl_premul_sum(0.5))
assert (x == 1.5).all()
whole = torch.zeros(4, 4)
dist.all_reduce(whole[:, 1].fill_(me + 1))
assert (whole[:, 1] == 6).all() and whole.sum() == 24
dist.broadcast(whole.t()[2].fill_(me), 1)
assert (whole[:, 2] == 1).all()
turned = torch.tensor([complex(0, me)]).conj().imag      # a negation that torch has not carried out
assert turned.is_neg()
dist.broadcast(turned, 2)
assert turned.item() == -2
for op in (dist.all_reduce, lambda t: dist.broadcast(t, 1), lambda t: dist.all_gather([torch.empty(0)] * n, t)):
    op(torch.empty(0))
# Only the root's tensor changes.
x = torch.full((3,), float(me))
dist.reduce(x, 1)
assert (x == (3 if me == 1 else me)).all()
# Parts of other sizes.
sizes = [1, 2, 3]
out = torch.empty(sum(sizes[me] for _ in range(n)))
dist.all_to_all_single(out, torch.cat([torch.full((s,), float(me)) for s in sizes]), [sizes[me]] * n, sizes)
assert out.tolist() == [float(r) for r in range(n) for _ in range(sizes[me])]
into = torch.empty(sizes[me])
dist.reduce_scatter(into, [torch.full((s,), me + 1.0) for s in sizes], dist.ReduceOp.PRODUCT)
assert (into == 6).all()
try:
    dist.all_reduce(torch.eye(2).to_sparse())
    raise AssertionError
except ValueError as why:
    assert "dense tensors" in str(why)
print("well", me)
dist.destroy_process_group()
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well") == 3, made.stdout + made.stderr


def test_receives_from_any_rank_take_what_comes_first_and_lose_nothing(tmp_path: Path) -> None:
    made = launched(tmp_path, BEGIN + """
import time
if me != 0:
    time.sleep(0.3 * me)
    for i in range(4):
        dist.send(torch.full((5,), 10.0 * me + i), 0)
    dist.recv(torch.empty(1), 0)
    if me == 2:
        dist.send(torch.full((5,), 2.0), 0, tag=9)
else:
    x = torch.empty(5)
    assert dist.recv(x) == 1 and (x == 10).all()
    seen = {1: [10.0], 2: []}
    # The receive that stands for rank 2 serves this one, also in a batch.
    (work,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 2)])
    work.wait()
    assert (x == 20).all()
    seen[2].append(20.0)
    late = dist.irecv(torch.empty(5), tag=9)
    try:
        dist.recv(torch.empty(5), 1, tag=9)
        raise AssertionError
    except ValueError as why:
        assert "needs another tag" in str(why)
    works = [dist.irecv(torch.empty(5)) for _ in range(3)]
    for work in works:
        work.wait()
        seen[work.source_rank()].append(work.result()[0][0].item())
    while len(seen[1]) + len(seen[2]) < 8:
        seen[dist.recv(x)].append(x[0].item())
    assert seen == {1: [10, 11, 12, 13], 2: [20, 21, 22, 23]}, seen
    assert not late.is_completed()
    for r in (1, 2):
        dist.send(torch.ones(1), r)
    late.wait()
    assert late.source_rank() == 2 and (late.result()[0] == 2).all()
dist.barrier()
print("well", me)
dist.destroy_process_group()
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well") == 3, made.stdout + made.stderr


def test_works_end_by_themselves_and_in_any_thread(tmp_path: Path) -> None:
    made = launched(tmp_path, BEGIN + """
import threading, time
from datetime import timedelta

def until(is_met):
    deadline = time.monotonic() + 20
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.01)

# Futures end while the program is elsewhere.
x, got = torch.ones(3), torch.empty(3)
peer = 1 - me
futures = [dist.irecv(got, peer).get_future(), dist.isend(x * me, peer).get_future(), dist.all_reduce(x, async_op=True).get_future()]
doubled = futures[2].then(lambda f: f.value()[0] * 2)
until(lambda: all(f.done() for f in futures))
assert (got == peer).all() and (doubled.wait() == 4).all()
assert futures[0].wait()[0] is got

# A send needs nothing more of a rank that computes.
if me == 0:
    dist.send(torch.ones(1 << 18), 1, tag=1)
    time.sleep(1)
else:
    began = time.monotonic()
    dist.recv(torch.empty(1 << 18), 0, tag=1)
    assert time.monotonic() - began < 0.9

# A wait that is too short; the work goes on.
work = dist.irecv(got, peer, tag=2)
if me == 0:
    try:
        work.wait(timedelta(seconds=0.1))
        raise AssertionError
    except TimeoutError as why:
        assert "0.1 s" in str(why)
    assert not work.is_completed()
dist.barrier()
dist.send(torch.full((3,), 7.0), peer, tag=2)
until(work.is_completed)
assert work.is_success() and (got == 7).all()

# Other threads.
def exchange(tag, failed=[]):
    y = torch.empty(100)
    for i in range(50):
        sent = dist.isend(torch.full((100,), float(i)), peer, tag=tag)
        dist.recv(y, peer, tag=tag)
        sent.wait()
        if not (y == i).all():
            failed.append((tag, i))
    return failed

threads = [threading.Thread(target=exchange, args=(10 + t,)) for t in range(3)]
for t in threads: t.start()
for t in threads: t.join()
assert exchange(20) == []

# An error is in the future, too.
if me == 0:
    short = dist.irecv(torch.empty(3), 1, tag=3)
    future = short.get_future()
    until(short.is_completed)
    for wait in (short.wait, future.wait):
        try:
            wait()
            raise AssertionError
        except Exception as why:
            assert "type" in str(why) or "element" in str(why), why
    assert not short.is_success() and isinstance(short.exception(), parley.Failure)
else:
    try:
        dist.send(torch.ones(3, dtype=torch.int32), 0, tag=3)
    except parley.Failure:
        pass

dist.monitored_barrier(timeout=timedelta(seconds=30))
try:
    if me == 0:
        dist.monitored_barrier(timeout=timedelta(seconds=0.2))
        raise AssertionError
except RuntimeError as why:
    assert "Rank 1 failed to pass monitoredBarrier in 200 ms" in str(why)
print("well", me)
dist.destroy_process_group()
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_groups_begin_again_and_stand_beside_other_backends(tmp_path: Path) -> None:
    made = launched(tmp_path, """
import torch
import torch.distributed as dist
import parley.torch

dist.init_process_group("gloo")
me, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(3)
beside = dist.new_group(backend="parley")
part = dist.new_group([0, 1], backend="parley")
dist.all_reduce(x, group=beside)
assert (x == n).all() and dist.get_backend(beside) == "parley"
dist.all_reduce(x, group=part)
both = dist.new_group(backend="cpu:parley,cuda:gloo")
work = dist.all_reduce(x, group=both, async_op=True)
work.wait()
assert (x == 4 * n).all()
dist.destroy_process_group()
for round in range(3):
    # In the other order.
    rank = (me + round) % n
    dist.init_process_group("parley", init_method=f"file://{__file__}.{round}", rank=rank, world_size=n)
    y = torch.full((2,), float(rank))
    dist.broadcast(y, 1)
    assert (y == 1).all()
    for _ in range(2):
        group = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(y, group=group)
        dist.destroy_process_group(group)
    assert (y == 4).all()
    dist.destroy_process_group()
print("well", me)
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_functional_collectives_meshes_and_wrappers_of_torch(tmp_path: Path) -> None:
    made = launched(tmp_path, BEGIN + """
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

world = dist.group.WORLD
assert (functional.all_reduce(torch.ones(3), "sum", world) == n).all()
assert functional.reduce_scatter_tensor(torch.arange(2.0 * n), "avg", 0, world).tolist() == [2.0 * me, 2.0 * me + 1]
assert functional.all_gather_tensor(torch.full((2,), float(me)), 0, world).tolist() == [0, 0, 1, 1]
assert functional.all_to_all_single(torch.arange(2.0) + 10 * me, None, None, world).tolist() == [me, 10 + me]
assert (functional.broadcast(torch.full((2,), float(me)), 1, world) == 1).all()
many = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", world)
assert all((t == n).all() for t in many)

mesh = init_device_mesh("cpu", (n,))
whole = torch.arange(24.0).view(6, 4)
rows = distribute_tensor(whole, mesh, [Shard(0)])
assert torch.equal(rows.full_tensor(), whole)
columns = rows.redistribute(mesh, [Shard(1)])
assert torch.equal(columns.to_local(), whole.chunk(n, 1)[me])
assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), whole)
assert torch.equal(columns.sum().full_tensor(), whole.sum())

def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

torch.manual_seed(4)
data = torch.randn(2 * n, 8)
alone = net()
alone(data).sum().backward()
mine = data.chunk(n)[me]
wrapped = torch.nn.parallel.DistributedDataParallel(net())
(n * wrapped(mine).sum()).backward()
sharded = net()
for layer in (sharded[0], sharded[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
(n * sharded(mine).sum()).backward()
for expected, of_wrapped, of_sharded in zip(alone.parameters(), wrapped.parameters(), sharded.parameters()):
    assert torch.allclose(of_wrapped.grad, expected.grad, atol=1e-5)
    assert torch.allclose(of_sharded.grad.full_tensor(), expected.grad, atol=1e-5)
print("well", me)
dist.destroy_process_group()
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


PIPELINE = BEGIN + """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

torch.set_num_threads(1)
LAYERS, WIDTH, WORDS, MICROBATCHES = 4, 32, 50, 4

def transformer():
    torch.manual_seed(1)
    layers = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True), LAYERS,
                                         enable_nested_tensor=False).layers
    for layer in layers:
        for weights in layer.parameters():
            torch.nn.init.normal_(weights, std=0.1)
    blocks = [torch.nn.Sequential(layer) for layer in layers]
    blocks[0].insert(0, torch.nn.Embedding(WORDS, WIDTH))
    blocks[-1].append(torch.nn.Linear(WIDTH, WORDS))
    return blocks

def loss_of(scores, target):
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())

torch.manual_seed(2)
words, target = torch.randint(WORDS, (2 * MICROBATCHES, 10)), torch.randint(WORDS, (2 * MICROBATCHES, 10))

# One process: the same microbatches in the same order.
whole = transformer()
alone = []
for a, b in zip(words.chunk(MICROBATCHES), target.chunk(MICROBATCHES)):
    loss = loss_of(torch.nn.Sequential(*whole)(a), b)
    loss.backward()
    alone.append(loss.detach())
for weights in torch.nn.Sequential(*whole).parameters():
    weights.grad.div_(MICROBATCHES)
"""


def test_pipeline_schedules_of_torch_give_the_bits_of_one_process(tmp_path: Path) -> None:
    made = launched(tmp_path, PIPELINE + """
for kind, chunks in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)):
    blocks = transformer()
    count = n * chunks
    of_stage = {at: torch.nn.Sequential(*blocks[at * LAYERS // count:(at + 1) * LAYERS // count]) for at in range(me, count, n)}
    stages = [PipelineStage(module, at, count, torch.device("cpu")) for at, module in of_stage.items()]
    schedule = kind(stages[0] if chunks == 1 else stages, n_microbatches=MICROBATCHES, loss_fn=loss_of)
    for step in range(3):
        for module in of_stage.values():
            module.zero_grad()
        losses = []
        words_of_mine = (words,) if me == 0 else ()
        schedule.step(*words_of_mine, target=target if me == n - 1 else None, losses=losses if me == n - 1 else None)
        if me == n - 1:
            assert torch.equal(torch.stack([l.detach() for l in losses]), torch.stack(alone)), kind
        for at, module in of_stage.items():
            same = torch.nn.Sequential(*whole[at * LAYERS // count:(at + 1) * LAYERS // count])
            for mine, expected in zip(module.parameters(), same.parameters()):
                assert torch.equal(mine.grad, expected.grad), (kind, at, (mine.grad - expected.grad).abs().max())
print("well", me)
dist.destroy_process_group()
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    made = launched(tmp_path, BEGIN + """
import os, signal, sys
if me == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.recv(torch.zeros(4), 1)
except parley.Failure as why:
    print("told", why.code, why.peer, file=sys.stderr)
    raise
""")
    assert made.returncode != 0 and "told peer_failed 1" in made.stderr, made.stdout + made.stderr


@pytest.mark.parametrize("ends", ["os.kill(os.getpid(), 9)", "raise ValueError('no such layer')"])
def test_a_rank_that_ends_in_the_midst_of_data_parallel_training_is_named(tmp_path: Path, ends: str) -> None:
    made = launched(tmp_path, f"""
import os, torch, torch.distributed as dist, parley.torch

dist.init_process_group("parley")
me = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
try:
    for step in range(100):
        if me == 1 and step == 50:
            {ends}
        model(torch.ones(4, 64)).sum().backward()
except Exception as why:
    if me == 0:
        print("step", step, "told", why, flush=True)
        os._exit(0)
    raise
""")
    assert "step 50 told" in made.stdout and "rank 1" in made.stdout, made.stdout + made.stderr
    assert "SIGSEGV" not in made.stderr and made.returncode != 11, made.stderr


def test_torch_finds_the_backend_by_its_name(tmp_path: Path) -> None:
    # As an installed wheel has it.
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    (name, function), = project["project"]["entry-points"]["torch.distributed.backends"].items()
    info = tmp_path / "of_parley-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: of_parley\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torch.distributed.backends]\n{name} = {function}\n")
    made = launched(tmp_path, """
import torch
import torch.distributed as dist

dist.init_process_group("parley")
x = torch.ones(2)
dist.all_reduce(x)
assert (x == 2).all()
print("well")
dist.destroy_process_group()
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_tensors_that_are_more_than_their_memory_are_refused_by_name(job: Job) -> None:
    made = job("""
import parley, torch

def main(rank):
    numbers = parley.P2P(rank, "numbers")
    graded, turned, negated = torch.zeros(4, requires_grad=True), torch.zeros(4, dtype=torch.complex64).conj(), torch._neg_view(torch.ones(4))
    for x, says in (graded, "requires grad, and parley computes none; pass its detach()"), (turned, "pass resolve_conj()"), (negated, "(is_neg)"):
        for make in (lambda: numbers.isend(x, to=0), lambda: numbers.irecv(x, source=0)):
            try:
                make()
            except parley.BadArgument as why:
                assert says in str(why), why
                print("told")
    numbers.isend(graded.detach(), to=0)

raise SystemExit(parley.run(main))
""", ranks=1)
    assert made.returncode == 0 and made.stdout.count("told") == 6, made.stdout + made.stderr


def test_what_cannot_work_is_an_error_that_says_why(tmp_path: Path) -> None:
    made = launched(tmp_path, BEGIN + """
def fails(kind, text, f):
    try:
        f()
        raise SystemExit(f"no error: {text}")
    except kind as why:
        assert text in str(why), why

group = dist.group.WORLD
backend = group._get_backend(torch.device("cpu"))
fails(ValueError, "cannot be shared by 2 ranks", lambda: dist.reduce_scatter_tensor(torch.empty(1), torch.empty(3)))
fails(ValueError, "has no rank 7", lambda: dist.send(torch.ones(1), 7))
fails(ValueError, "has no rank -1", lambda: backend.recv([torch.ones(1)], -1, 0))
fails(ValueError, "has no rank 2", lambda: dist.broadcast(torch.ones(1), 2))
fails(ValueError, "moves tensors on the host and on GPUs of CUDA; this one is on meta", lambda: group.allreduce([torch.ones(2, device="meta")]))
fails(ValueError, "no batch", lambda: backend.end_coalescing())
fails(ValueError, "only a receive from any rank", lambda: dist.all_reduce(torch.ones(1), async_op=True).source_rank())
# Ranks that differ in sizes are told, on both sides; the group works on.
work = dist.all_reduce(torch.ones(3 + me), async_op=True)
fails(parley.Failure, "torch.", work.wait)
x = torch.ones(2)
dist.all_reduce(x)
assert (x == 2).all()
# The tensor of a send may go away at once.
for i in range(20):
    if me == 0:
        dist.isend(torch.full((1 << 16,), float(i)), 1)
    else:
        y = torch.empty(1 << 16)
        dist.recv(y, 0)
        assert (y == i).all()
dist.barrier()
dist.destroy_process_group()
fails(parley.Failure, "has left", lambda: group.allreduce([torch.ones(1)]))
print("well", me)
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr
