"""The backend of torch.distributed. Runs where torch is installed."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
    said = [one.communicate(timeout=100) for one in started]
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
try:
    dist.all_reduce(torch.ones(1, dtype=torch.int32), dist.ReduceOp.BXOR)
    raise AssertionError
except ValueError as why:
    assert "SUM, AVG, PRODUCT, MIN and MAX" in str(why)
print("well", me)
dist.destroy_process_group()
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well") == 3, made.stdout + made.stderr


def test_pipeline_schedules_of_torch_run_over_it(tmp_path: Path) -> None:
    made = launched(tmp_path, BEGIN + """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

def model():
    torch.manual_seed(1)
    return [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(n)]

torch.manual_seed(2)
x, target = torch.randn(32, 16), torch.randn(32, 16)
loss_of = torch.nn.functional.mse_loss

whole = torch.nn.Sequential(*model())
losses_alone = []
for schedule_of in (ScheduleGPipe, Schedule1F1B):
    whole.zero_grad()
    parts = [loss_of(whole(a), b) for a, b in zip(x.chunk(4), target.chunk(4))]
    (sum(parts) / 4).backward()
    mine = model()[me]
    stage = PipelineStage(mine, me, n, torch.device("cpu"))
    schedule = schedule_of(stage, n_microbatches=4, loss_fn=loss_of)
    losses = []
    if me == 0:
        schedule.step(x)
    elif me == n - 1:
        schedule.step(target=target, losses=losses)
        assert torch.allclose(torch.stack([l.detach() for l in losses]), torch.stack([p.detach() for p in parts]))
    else:
        schedule.step()
    for a, b in zip(mine.parameters(), whole[me].parameters()):
        assert torch.allclose(a.grad, b.grad, atol=1e-6), (a.grad - b.grad).abs().max()
print("well", me)
dist.destroy_process_group()
""", ranks=2)
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
