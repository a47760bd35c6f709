#!/usr/bin/env python3
"""Starts two ranks of a program the way a launcher does; exits with 0 when both succeed.

    start.py torchrun|slurm|slurm-pmi2|mpich PROGRAM      stands in for that launcher: same variables, same PMI wire
    start.py two-hosts PROGRAM                            two network namespaces stand for two hosts
    start.py torchrun-two-hosts|slurm-two-hosts|slurm-pmi2-two-hosts|mpich-two-hosts|openmpi-two-hosts PROGRAM
                                                          a launcher's stand-in, with two ranks on each of those hosts
    start.py mpirun-two-hosts PROGRAM                     the real mpirun on those hosts
    start.py parley-two-hosts PROGRAM PARLEY              a `parley run` on each host
    start.py untuned-two-hosts PARLEY                     `parley tune --untuned` shares a list between them
    start.py mpirun|mpiexec.hydra|srun PROGRAM            the real launcher, if it is installed
    start.py nested PROGRAM PARLEY                        `parley run` inside mpirun, and mpirun inside `parley run`
    start.py loopback PROGRAM                             by hand, on loopback: no other host can reach their sockets
    start.py faults PROGRAM                               contradictory variables, and two different keys: errors by name

Exits with 77, which CTest shows as skipped, if the machine lacks something.
"""

import os
import pathlib
import secrets
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hosts"))
import hosts  # noqa: E402

RANKS = 2
LIMIT_S = 60
SKIPPED = 77
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def skip(why):
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


def clean_environment():
    """Returns this process's environment without the variables of any launcher."""
    prefixes = ("PARLEY_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MPI_LOCAL", "MASTER_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes) and name not in names}


def wait_for(processes):
    """Waits for all processes and kills those that are late. Returns 0 if all succeeded in time."""
    until = time.monotonic() + LIMIT_S
    status = 0
    for process in processes:
        try:
            status = process.wait(max(0.1, until - time.monotonic())) or status
        except subprocess.TimeoutExpired:
            print("a rank did not end in time", file=sys.stderr)
            status = 1
    for process in processes:
        process.kill()
    return status


def start(program, variables, pass_fds=(), stderr=None):
    return subprocess.Popen([program], env=clean_environment() | variables, pass_fds=pass_fds, stderr=stderr)


# --- Stand-ins -------------------------------------------------------------------------------------------------------

def torchrun(program):
    with socket.socket() as store:  # torchrun's own store occupies MASTER_PORT
        store.bind(("127.0.0.1", 0))
        common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
                  "ROLE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.getsockname()[1]),
                  "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
        return wait_for([start(program, common | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(RANKS)])


def slurm_variables(rank):
    job = str(os.getpid())
    return {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
            "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0",
            "SLURM_STEP_NODELIST": socket.gethostname(), "SLURM_STEP_TASKS_PER_NODE": "2"}


def slurm(program):
    return wait_for([start(program, slurm_variables(rank)) for rank in range(RANKS)])


class PmiServer:
    """Speaks PMI-1 like hydra's proxies and Slurm's pmi2 plugin: each line is one request or one answer."""

    def __init__(self, ranks=RANKS):
        self.pairs = [socket.socketpair() for _ in range(ranks)]
        self.values, self.in_barrier = {}, []

    def fd(self, rank):
        return self.pairs[rank][0].fileno()

    def serve(self, processes):
        """Answers until all processes have closed their connections."""
        for theirs, _ in self.pairs:
            theirs.close()
        files = {ours: ours.makefile("rw", newline="\n") for _, ours in self.pairs}
        until = time.monotonic() + LIMIT_S
        while files and time.monotonic() < until:
            ready, _, _ = select.select(list(files), [], [], 1)
            for ours in ready:
                line = files[ours].readline()
                if not line:
                    del files[ours]
                else:
                    self.hear(files, ours, dict(word.split("=", 1) for word in line.split()))
        return wait_for(processes)

    def say(self, file, text):
        file.write(text + "\n")
        file.flush()

    def hear(self, files, ours, said):
        file, command = files[ours], said["cmd"]
        if command == "init":
            self.say(file, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
        elif command == "get_my_kvsname":
            self.say(file, "cmd=my_kvsname kvsname=kvs_1_0")
        elif command == "put":
            self.values[said["key"]] = said["value"]
            self.say(file, "cmd=put_result rc=0 msg=success")
        elif command == "barrier_in":
            self.in_barrier.append(file)
            if len(self.in_barrier) == len(self.pairs):
                for waiting in self.in_barrier:
                    self.say(waiting, "cmd=barrier_out")
                self.in_barrier = []
        elif command == "get" and said["key"] in self.values:
            self.say(file, f"cmd=get_result rc=0 msg=success value={self.values[said['key']]}")
        elif command == "finalize":
            self.say(file, "cmd=finalize_ack")
        else:
            self.say(file, f"cmd={command}_result rc=-1 msg=unknown")


def through_pmi(program, variables_of):
    server = PmiServer()
    processes = []
    for rank in range(RANKS):
        variables = {"PMI_RANK": str(rank), "PMI_SIZE": "2", "PMI_FD": str(server.fd(rank))} | variables_of(rank)
        processes.append(start(program, variables, pass_fds=(server.fd(rank),)))
    return server.serve(processes)


def mpich(program):
    return through_pmi(program, lambda rank: {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": str(rank)})


def slurm_pmi2(program):
    return through_pmi(program, slurm_variables)


# --- Two hosts -------------------------------------------------------------------------------------------------------

def two_hosts(program):
    """Runs each rank in network, host-name and IPC namespaces of its own, joined by a virtual cable."""
    try:
        with hosts.two() as spaces, tempfile.TemporaryDirectory() as folder:
            hosts.join_by_cable(spaces)
            return on_hosts(spaces, folder, program)
    except hosts.Missing as why:
        skip(why)


def on_hosts(spaces, folder, program):
    common = clean_environment() | hosts.job_variables(folder)
    status = wait_for([hosts.start_rank(spaces, rank, common, program) for rank in range(RANKS)])
    if status != 0:
        return status
    # Without a key, neither rank may join a rendezvous that other hosts can reach.
    print("the same without a key, which both ranks must refuse:", flush=True)
    del common["PARLEY_KEY_FILE"]
    refused = [hosts.start_rank(spaces, rank, common, program) for rank in range(RANKS)]
    return 0 if all(process.wait(LIMIT_S) == 1 for process in refused) else 1


LOCAL = 2  # ranks per host
WORLD = 2 * LOCAL
MASTER_PORT = 29500


def launched_on_hosts(variables_of, needs_key=True, through=None, beside=None):
    """Returns a way that starts all ranks with a launcher's variables. `through` makes a PMI server for that many ranks. `beside` is a
    command that runs on the first host meanwhile and prints a line when it is ready."""
    def way(program):
        try:
            with hosts.two() as spaces, tempfile.TemporaryDirectory() as folder:
                hosts.add_bridge(spaces[0])  # before the cable, so that it is the first interface
                hosts.join_by_cable(spaces)
                common = clean_environment() | hosts.key_variables(folder)
                if not needs_key:
                    del common["PARLEY_KEY_FILE"]
                names = [hosts.names_file(folder, host) for host in range(2)]
                server = through and through(WORLD)
                helper = beside and subprocess.Popen(hosts.command(spaces[0], *beside), stdout=subprocess.PIPE)
                processes = []
                if helper:
                    helper.stdout.readline()
                for rank in range(WORLD):
                    variables, fds = variables_of(rank), ()
                    if server:
                        fds = (server.fd(rank),)
                        variables |= {"PMI_RANK": str(rank), "PMI_SIZE": str(WORLD), "PMI_FD": str(fds[0])}
                    command = hosts.on_host(spaces, rank // LOCAL, [program], names[rank // LOCAL])
                    processes.append(subprocess.Popen(command, env=common | variables, pass_fds=fds))
                status = server.serve(processes) if server else wait_for(processes)
                if helper:
                    helper.kill()
                    helper.wait()
                return status
        except hosts.Missing as why:
            skip(why)
    return way


def torchrun_on_hosts(program):
    """Stands in for torchrun; its store occupies MASTER_PORT on the first host."""
    return launched_on_hosts(torchrun_there, beside=[sys.executable, "-c", STORE])(program)


STORE = f"""
import socket, time
store = socket.create_server(("0.0.0.0", {MASTER_PORT}))
print("listens", flush=True)
time.sleep({LIMIT_S})
"""


def mpirun_on_hosts(program):
    """Runs Open MPI's mpirun. It reaches the second host through a script in the place of ssh."""
    if not shutil.which("mpirun"):
        skip("mpirun is not installed")
    try:
        with hosts.two() as spaces, tempfile.TemporaryDirectory() as folder:
            hosts.join_by_cable(spaces)
            names = [hosts.names_file(folder, host) for host in range(2)]
            agent = pathlib.Path(folder, "agent")
            there = shlex.join(hosts.on_host(spaces, 1, ["sh", "-c"], names[1]))
            agent.write_text(f'#!/bin/sh\nwhile [ "$1" != host1 ]; do shift; done\nshift\nexec {there} "$*"\n')
            agent.chmod(0o700)
            told = hosts.key_variables(folder) | {"PARLEY_RENDEZVOUS": "host0:4711"}
            given = [word for name in told for word in ("-x", name)]
            mpirun = ["mpirun", "--host", f"host0:{LOCAL},host1:{LOCAL}", "--mca", "plm_rsh_agent", str(agent), *given,
                      program]
            return wait_for([subprocess.Popen(hosts.on_host(spaces, 0, mpirun, names[0]),
                                              env=clean_environment() | AS_ROOT | told)])
    except hosts.Missing as why:
        skip(why)


def untuned_on_hosts(parley):
    """Each host tunes a part of the list, and both add their results to one file."""
    try:
        with hosts.two() as spaces, tempfile.TemporaryDirectory() as folder:
            hosts.join_by_cable(spaces)
            listed = [f"GemmTunableOp_float_NN,nn_{n}_{n}_{n}" for n in range(8, 14)]
            pathlib.Path(folder, "list.csv").write_text("\n".join(listed) + "\n")
            common = clean_environment() | hosts.job_variables(folder) | {"PARLEY_TUNABLEOP_MAX_TUNING_ITERATIONS": "5"}
            words = [parley, "tune", "--untuned", f"{folder}/list.csv", "--results", f"{folder}/results.csv"]
            ranks = [hosts.start_rank(spaces, rank, common, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                     for rank in range(RANKS)]
            said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
            if any("it has no other implementation" in text for text in said):
                skip("there is no BLAS library")
            results = pathlib.Path(folder, "results.csv").read_text()
            missing = [line for line in listed if f"\n{line}," not in results]
            half = f"{len(listed) // RANKS} tuned, 0 known before, 0 left out"
            if any(rank.returncode != 0 for rank in ranks) or missing or any(half not in text for text in said):
                print(*said, results, f"missing: {missing}", sep="\n", file=sys.stderr)
                return 1
            return 0
    except hosts.Missing as why:
        skip(why)


def parley_on_hosts(program, parley):
    """Runs `parley run` on each host, first with a key and then one without."""
    try:
        with hosts.two() as spaces, tempfile.TemporaryDirectory() as folder:
            hosts.join_by_cable(spaces)
            names = [hosts.names_file(folder, host) for host in range(2)]
            key = clean_environment() | hosts.key_variables(folder)

            def begin_on(host, environment):
                command = [parley, "run", "-n", str(LOCAL), "--hosts", "2", "--host", str(host), "--rendezvous",
                           "host0:4711", "--", program]
                return subprocess.Popen(hosts.on_host(spaces, host, command, names[host]), env=environment)
            status = wait_for([begin_on(host, key) for host in range(2)])
            if status == 0 and begin_on(0, clean_environment()).wait(LIMIT_S) == 0:
                print("a job on two hosts began without a key", file=sys.stderr)
                return 1
            return status
    except hosts.Missing as why:
        skip(why)


def torchrun_there(rank):
    return {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank % LOCAL), "LOCAL_WORLD_SIZE": str(LOCAL),
            "GROUP_RANK": str(rank // LOCAL), "GROUP_WORLD_SIZE": "2", "ROLE_RANK": str(rank), "MASTER_ADDR": "host0",
            "MASTER_PORT": str(MASTER_PORT), "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}


def slurm_there(rank):
    return {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank % LOCAL), "SLURM_NTASKS": str(WORLD), "SLURM_STEP_NUM_TASKS": str(WORLD),
            "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": str(rank // LOCAL), "SLURM_STEP_NODELIST": "host[0-1]",
            "SLURM_STEP_TASKS_PER_NODE": f"{LOCAL}(x2)"}


def mpich_there(rank):
    return {"MPI_LOCALNRANKS": str(LOCAL), "MPI_LOCALRANKID": str(rank % LOCAL)}


def openmpi_there(rank):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(WORLD), "PMIX_NAMESPACE": str(os.getpid()),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % LOCAL), "OMPI_COMM_WORLD_LOCAL_SIZE": str(LOCAL),
            "PARLEY_RENDEZVOUS": "host0:4711"}


# --- By hand ---------------------------------------------------------------------------------------------------------

def listening_at(pid):
    """Returns the addresses of the listening sockets of a process, in the format of /proc."""
    own = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(os.readlink(link))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                found.add(words[1])
    return found


def loopback(program):
    """Runs without a launcher and without a local size. Rank 0 may listen at the rendezvous only; this is checked before rank 1
    starts. There is no key either, and rank 0 must warn of that."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"PARLEY_WORLD": "2", "PARLEY_RENDEZVOUS": f"127.0.0.1:{port}"}
    rendezvous = f"0100007F:{port:04X}"
    host = start(program, common | {"PARLEY_RANK": "0"}, stderr=subprocess.PIPE)
    until = time.monotonic() + LIMIT_S
    found = set()
    while rendezvous not in found and host.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
        found = listening_at(host.pid) if host.poll() is None else found
    guest = start(program, common | {"PARLEY_RANK": "1"})
    status = wait_for([guest, host])
    if found != {rendezvous}:
        print(f"rank 0 listens at {sorted(found)}, and not only at {rendezvous}", file=sys.stderr)
        return 1
    said = host.stderr.read().decode()
    print(said, end="", file=sys.stderr)
    if "warning: this job has no key" not in said:
        print("rank 0 does not warn that the job has no key", file=sys.stderr)
        return 1
    return status


# --- Faults ----------------------------------------------------------------------------------------------------------

def faults(program):
    """Each set of variables must end the program at once, with status 1 and an error that contains the given words."""
    def refused(variables, *words):
        process = subprocess.run([program], env=clean_environment() | variables, capture_output=True, text=True,
                                 timeout=LIMIT_S)
        missing = [word for word in words if word not in process.stderr]
        print(process.stderr, end="", flush=True)
        if process.returncode != 1 or missing:
            print(f"status {process.returncode}, and the error does not hold {missing}", file=sys.stderr)
        return process.returncode == 1 and not missing

    both = slurm_variables(1) | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "1",
                                 "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    fine = refused(both, "OMPI_COMM_WORLD_RANK=0", "SLURM_PROCID=1", "PARLEY_LAUNCHER")
    fine &= refused({"RANK": "1"}, "WORLD_SIZE is not set", "RANK=1")
    fine &= refused({"PARLEY_RANK": "2", "PARLEY_WORLD": "2"}, "PARLEY_RANK=2", "PARLEY_WORLD=2")
    fine &= refused({"PARLEY_RANK": "0", "PARLEY_WORLD": "2", "PARLEY_RENDEZVOUS": "0.0.0.0:4712"}, "has no key")

    # Rank 1 has another key than rank 0: rank 1 gets an error, and rank 0 keeps waiting for a rank 1 with the right key.
    # Rank 0 inherits the socket that holds the port, so that no other process can take the port meanwhile.
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        at = f"127.0.0.1:{listening.getsockname()[1]}"
        keys = [pathlib.Path(folder, f"key{rank}") for rank in range(RANKS)]
        for key in keys:
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(32))
        common = {"PARLEY_WORLD": "2", "PARLEY_LOCAL_SIZE": "2", "PARLEY_RENDEZVOUS": at}
        inherited = {"PARLEY_RENDEZVOUS_FD": str(listening.fileno())}
        host = start(program, common | inherited | {"PARLEY_RANK": "0", "PARLEY_KEY_FILE": str(keys[0])},
                     pass_fds=[listening.fileno()])
        listening.close()
        try:
            fine &= refused(common | {"PARLEY_RANK": "1", "PARLEY_KEY_FILE": str(keys[1])}, "unauthenticated", "same key")
            guest = start(program, common | {"PARLEY_RANK": "1", "PARLEY_KEY_FILE": str(keys[0])})
            fine &= wait_for([guest, host]) == 0
        finally:
            host.kill()
    return 0 if fine else 1


# --- The real ones ---------------------------------------------------------------------------------------------------

def begin(*command):
    if not shutil.which(command[0]):
        skip(f"{command[0]} is not installed")
    return wait_for([subprocess.Popen(command, env=clean_environment() | AS_ROOT)])


def real(launcher):
    return lambda program: begin(launcher, "-n", "2", program)


def nested(program, parley):
    return (begin("mpirun", "-n", "1", parley, "run", "-n", "2", program) or
            begin(parley, "run", "-n", "1", "mpirun", "-n", "2", program))


WAYS = {"torchrun": torchrun, "slurm": slurm, "slurm-pmi2": slurm_pmi2, "mpich": mpich, "two-hosts": two_hosts,
        "torchrun-two-hosts": torchrun_on_hosts, "slurm-two-hosts": launched_on_hosts(slurm_there),
        "slurm-pmi2-two-hosts": launched_on_hosts(slurm_there, needs_key=False, through=PmiServer),
        "mpich-two-hosts": launched_on_hosts(mpich_there, needs_key=False, through=PmiServer),
        "openmpi-two-hosts": launched_on_hosts(openmpi_there), "mpirun-two-hosts": mpirun_on_hosts,
        "parley-two-hosts": parley_on_hosts, "untuned-two-hosts": untuned_on_hosts,
        "mpirun": real("mpirun"), "mpiexec.hydra": real("mpiexec.hydra"), "srun": real("srun"), "nested": nested,
        "loopback": loopback, "faults": faults}

if __name__ == "__main__":
    if len(sys.argv) != (4 if sys.argv[1:2] in (["nested"], ["parley-two-hosts"]) else 3) or sys.argv[1] not in WAYS:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(WAYS[sys.argv[1]](*sys.argv[2:]))
