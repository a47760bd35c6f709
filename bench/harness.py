"""Starts measuring programs and reads their figures: lines `name value unit` on stdout.

A measurement is an object with a `label` and two methods: `prepare(build)` raises `Missing`, with advice, if it cannot run;
`measure()` runs it once and returns one number.
"""

import dataclasses
import os
import pathlib
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_S = 60

sys.path += [str(ROOT / "tests/hosts"), str(ROOT / "cmake/checks")]
import hosts  # noqa: E402
from compile_options import options_of  # noqa: E402

UCX = {
    "UCX_TLS": "posix,cma,self",
    "UCX_POSIX_ERROR_HANDLING": "y",  # parley needs this to detect dead peers, so its peers run with it, too
    "UCX_MEM_MMAP_HOOK_MODE": "none",
    "UCX_LOG_LEVEL": "error",
}
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
INSTALL = {
    "blas": "install libopenblas0-pthread, libblis4-pthread and libdnnl2",
    "caf": "install libcaf-dev and run ./dev bench again",
    "mpi": "install libopenmpi-dev and openmpi-bin and run ./dev bench again",
    "simgrid": "run ./dev bench where apt-get can download libsimgrid-dev: it unpacks that in .deps/simgrid",
    "valgrind": "install valgrind",
    "parley": "build the targets of bench/",
}


class Missing(Exception):
    """A measurement cannot run here; the text says what to do."""


class Failed(Exception):
    """A program ended badly or did not print its figure."""


def execute(command, environment, timeout_s=TIMEOUT_S):
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True,
                              timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"{command[0]} did not end within {timeout_s} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Failed(f"{' '.join(map(str, command))} ended with status {done.returncode}: {last}")
    return done


def figures(text):
    """The `name value unit` lines of a program's output."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3:
            try:
                found[words[0]] = float(words[1])
            except ValueError:
                continue
    return found


def waiting_of(ranks):
    """Makes Open MPI's waiting ranks yield if they share cores, and only then, like parley's ranks."""
    return {"OMPI_MCA_mpi_yield_when_idle": "1" if ranks > len(os.sched_getaffinity(0)) else "0"}


@dataclasses.dataclass
class Program:
    """A measuring program: BUILD/bench/NAME with arguments, started alone or by a launcher."""

    name: str
    arguments: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)
    ranks: int = 0  # if more than 0, mpirun starts the program
    install: str = INSTALL["parley"]
    timeout_s: float = TIMEOUT_S
    path: pathlib.Path = None

    def prepare(self, build):
        self.path = pathlib.Path(build) / "bench" / self.name
        if not self.path.is_file():
            raise Missing(f"no {self.path}: {self.install}")
        if self.ranks and not shutil.which("mpirun"):
            raise Missing(f"no mpirun: {INSTALL['mpi']}")

    def run(self, *more):
        command = [str(self.path), *self.arguments, *more]
        if not self.ranks:
            return execute(command, self.environment, self.timeout_s).stdout
        launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(self.ranks)]
        return execute([*launcher, *command], self.environment | waiting_of(self.ranks), self.timeout_s).stdout

    def run_for(self, _line):
        return self.run()


@dataclasses.dataclass
class OneRun(Program):
    """A long program, which runs only once: all of its figures come from that run."""

    output: str = None

    def run(self, *more):
        if self.output is None:
            self.output = super().run(*more)
        return self.output


@dataclasses.dataclass
class SharedRun(Program):
    """A program whose figures are compared with each other: in each turn, all figures come from the same run."""

    output: str = None
    taken: set = dataclasses.field(default_factory=set)

    def run_for(self, line):
        if self.output is None or line in self.taken:
            self.output, self.taken = self.run(), set()
        self.taken.add(line)
        return self.output


class Reported:
    """The figure that a program prints under one name."""

    def __init__(self, label, program, line):
        self.label, self.program, self.line = label, program, line

    def prepare(self, build):
        self.program.prepare(build)

    def measure(self):
        found = figures(self.program.run_for(self.line))
        if self.line not in found:
            raise Failed(f"{self.program.name} printed no figure named {self.line}")
        return found[self.line]


@dataclasses.dataclass
class BetweenHosts(SharedRun):
    """Two ranks of a job on two simulated hosts: network namespaces joined by tests/hosts/forwarder.cpp, which delays messages by
    `delay_us` in each direction."""

    delay_us: int = 0
    forwarder: pathlib.Path = None

    def prepare(self, build):
        super().prepare(build)
        self.forwarder = pathlib.Path(build) / "tests/parley_forwarder"
        if not self.forwarder.is_file():
            raise Missing(f"no {self.forwarder}: build the target parley_forwarder")

    def run(self, *more):
        try:
            with hosts.two() as spaces, hosts.joined_by(self.forwarder, spaces, "--delay_us", str(self.delay_us)), \
                 tempfile.TemporaryDirectory() as folder:
                return self.run_on(spaces, os.environ | hosts.job_variables(folder), more)
        except hosts.Missing as why:
            raise Missing(str(why)) from None

    def run_on(self, spaces, environment, more):
        started = [hosts.start_rank(spaces, rank, environment, str(self.path), *self.arguments, *more,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
        try:
            ended = [rank.communicate(timeout=self.timeout_s) for rank in started]
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {self.timeout_s} s") from None
        finally:
            for rank in started:
                rank.kill()
        if any(rank.returncode != 0 for rank in started):
            raise Failed("".join(errors for _, errors in ended).strip() or "a rank failed")
        return ended[0][0]


class Instructions:
    """User-space instructions per iteration, counted by valgrind. Two runs of different length are subtracted, so that start and end
    do not count. If `counted` is given, only instructions inside that function count; programs need this if the clock decides
    how long they run before they call it."""

    exact = True

    def __init__(self, label, program, iterations=(20_000, 60_000), counted=None):
        self.label, self.program, self.iterations = label, program, iterations
        self.only = [f"--toggle-collect=*{counted}*"] if counted else []

    def prepare(self, build):
        self.program.prepare(build)
        if not shutil.which("valgrind"):
            raise Missing(f"this machine has no instruction counters: {INSTALL['valgrind']}")

    def measure(self):
        few, many = self.iterations
        return (self.total(many) - self.total(few)) / (many - few)

    def total(self, iterations):
        count = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *self.only]
        program = [str(self.program.path), *self.program.arguments, "--iterations", str(iterations)]
        text = execute(count + program, self.program.environment, 10 * TIMEOUT_S).stderr  # valgrind is slow
        return float(re.search(r"Collected : (\d+)", text).group(1))


class Compiled:
    """CPU seconds that the compiler of a build folder takes for a file, or for `text` in its place, with that file's options
    but no header that was parsed before."""

    def __init__(self, label, source, *options, text=None):
        self.label, self.source, self.options, self.text = label, source, options, text

    def prepare(self, build):
        found = options_of(build, self.source)
        if found is None:
            raise Missing(f"{build} has no command for {self.source}: build it first")
        self.command, self.file = found

    def measure(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "text.cpp"
            source.write_text(self.text if self.text else f'#include "{self.file}"\n', encoding="utf-8")
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            execute([*self.command, *self.options, "-c", str(source), "-o", f"{folder}/text.o"], {})
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


class Added:
    """The difference between two measurements."""

    exact = True

    def __init__(self, label, whole, part):
        self.label, self.whole, self.part = label, whole, part

    def prepare(self, build):
        self.whole.prepare(build)
        self.part.prepare(build)

    def measure(self):
        return self.whole.measure() - self.part.measure()


class Ratios:
    """Runs two programs in turns that print the same figures, such as one for each size, and returns `pick` of their ratios, own
    divided by peer's. Figures with a slash in their name are only for `columns`, which makes a table of one program's figures.
    Measurements that share a sweep share its runs."""

    exact = True

    class Sweep:
        def __init__(self, own, peer, columns, runs=3):
            self.own, self.peer, self.columns, self.runs, self.medians = own, peer, columns, runs, None

        def prepare(self, build):
            self.own.prepare(build)
            self.peer.prepare(build)

        def measured(self):
            """The medians of all figures: own, and the peer's."""
            if self.medians is None:
                found = [(figures(self.own.run()), figures(self.peer.run())) for _ in range(self.runs)]
                self.medians = tuple(self.medians_of(runs) for runs in zip(*found))
            return self.medians

        @staticmethod
        def medians_of(runs):
            if len({frozenset(run) for run in runs}) != 1:
                raise Failed("not every run printed the same figures")
            return {name: statistics.median(run[name] for run in runs) for name in runs[0]}

        def ratios(self):
            own, theirs = self.measured()
            sizes = [name for name in own if "/" not in name]
            if missing := [name for name in sizes if name not in theirs]:
                raise Failed(f"{self.peer.name} printed no figure named {missing[0]}")
            return sorted(own[name] / theirs[name] for name in sizes)

        def tables(self):
            return [f"{label}\n{self.columns(label, found)}" for label, found in zip(("parley", "Open MPI"), self.measured())]

    def __init__(self, label, sweep, pick):
        self.label, self.sweep, self.pick = label, sweep, pick

    def prepare(self, build):
        self.sweep.prepare(build)

    def measure(self):
        return self.pick(self.sweep.ratios())


def wait_for_listener(port):
    """Waits until a process listens on the TCP port. A trial connection would use up the only one that the server accepts."""
    listening = re.compile(rf":{port:04X} \S+ 0A ")
    deadline = time.monotonic() + 10
    while not any(listening.search(pathlib.Path(table).read_text()) for table in ("/proc/net/tcp", "/proc/net/tcp6")):
        if time.monotonic() > deadline:
            raise Failed(f"nothing listens on port {port} after 10 s")
        time.sleep(0.01)


class UcxPerftest:
    """`ucx_perftest -t ucp_am_lat` between two pinned processes: the median of its latencies, in ns one way.
    Its messages have no header."""

    label = "ucx_perftest"

    def __init__(self, size=8, iterations=200_000):
        self.size, self.iterations = size, iterations

    def prepare(self, build):
        root = pathlib.Path(os.environ.get("UCX_ROOT", ROOT / ".deps/ucx"))
        packed = root / "bin/ucx_perftest"
        found = str(packed) if packed.is_file() else shutil.which("ucx_perftest")
        if found is None:
            raise Missing("no ucx_perftest: run ./dev setup, or install ucx-utils")
        self.folder = pathlib.Path(build) / "bench" / "ucx_perftest"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tool = self.folder / "ucx_perftest"
        shutil.copyfile(found, self.tool)  # a wheel keeps no file modes
        self.tool.chmod(0o755)
        self.environment = {**UCX, "LD_LIBRARY_PATH": f"{root / 'lib'}:{self.folder}"}
        self.link_renamed_libraries()

    def link_renamed_libraries(self):
        """A wheel expects its own copies of system libraries, named libNAME-HASH.so.N. Links these names to the system's libraries."""
        listed = subprocess.run(["ldd", self.tool], env={**os.environ, **self.environment}, capture_output=True, text=True)
        known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
        for wanted, stem, major in re.findall(r"((lib\w+)-[0-9a-f]+\.so\.(\d+)\S*) => not found", listed.stdout):
            own = re.search(rf"{stem}\.so\.{major} .*=> (\S+)", known)
            if own is None:
                raise Missing(f"ucx_perftest needs {stem}.so.{major}: install {stem}{major}")
            (self.folder / wanted).unlink(missing_ok=True)
            (self.folder / wanted).symlink_to(own.group(1))

    def measure(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        cores = sorted(os.sched_getaffinity(0))
        command = ["taskset", "-c", str(cores[-1]), str(self.tool), "-t", "ucp_am_lat", "-s", str(self.size), "-p", port]
        server = subprocess.Popen(command, env={**os.environ, **self.environment}, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            wait_for_listener(int(port))
            command[2] = str(cores[0])
            text = execute([*command, "-n", str(self.iterations), "-f", "127.0.0.1"], self.environment).stdout
        finally:
            server.kill()
            server.wait()
        last = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d", line)]
        if not last:
            raise Failed("ucx_perftest printed no latency")
        return float(last[-1][1]) * 1000


def interleave(measurements, runs):
    """Runs A B A B ... and returns the median of each. Exact measurements run once."""
    values = [[] for _ in measurements]
    for turn in range(runs):
        for measurement, into in zip(measurements, values):
            if turn == 0 or not getattr(measurement, "exact", False):
                into.append(measurement.measure())
    return [statistics.median(each) for each in values]
