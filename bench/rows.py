"""The rows of `./dev bench`: each has a measurement, the peers to compare it with, and targets."""

import dataclasses
import functools
import statistics

import columns
from harness import (INSTALL, MPI, UCX, Added, BetweenHosts, Compiled, Instructions, OneRun, Program, Ratios, Reported,
                     SharedRun, UcxPerftest)


@dataclasses.dataclass
class Row:
    name: str
    unit: str
    value: object  # parley's side
    peers: list  # the row compares with the best of them
    beside: list = dataclasses.field(default_factory=list)  # further rows NAME/LABEL, each with its own peer and the same value
    at_most: float = None  # target for the value
    at_least: float = None
    ratio_at_most: float = None  # target for value / peer
    runs: int = 5
    exact: bool = False  # on a virtual clock: the same figures on every machine

    def target(self):
        parts = []
        if self.at_most is not None:
            parts.append(f"<= {show(self.at_most, self.unit)}")
        if self.at_least is not None:
            parts.append(f">= {show(self.at_least, self.unit)}")
        if self.ratio_at_most is not None:
            parts.append(f"ratio <= {self.ratio_at_most:.3g}")
        return ", ".join(parts)

    def reached(self, value, ratio):
        return ((self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least) and
                (self.ratio_at_most is None or ratio <= self.ratio_at_most))


def show(value, unit):
    """Formats a figure for people: 15 ns, 1.5 us, 50 ms."""
    if unit == "ns":
        for scale, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
            if abs(value) >= scale:
                return f"{value / scale:.4g} {name}"
    return f"{value:.4g} {unit}"


def parley(program, only, line):
    """bench/PROGRAM.cpp, which prints LINE when it is started with --only ONLY."""
    return Reported("parley", Program(program, ("--only", only), UCX), line)


def caf(only, line):
    return Reported("CAF", Program("caf", ("--only", only), install=INSTALL["caf"]), line)


def ucx_raw(only, line):
    return Reported("raw UCX", Program("ucx_raw", ("--only", only), UCX), line)


def mpi(program, line, *arguments):
    return Reported("Open MPI", Program(program, arguments, MPI, ranks=2, install=INSTALL["mpi"]), line)


def tuned_call(only):
    """Instructions of one send and its receive, through a decided op or by the config alone."""
    return Instructions("the config alone", Program("tuned_call", ("--only", only)), counted="bench::counted")


def many_ops(only):
    """Like `tuned_call`, with a different op for every call."""
    return Instructions("the config alone", Program("many_ops", ("--only", only)), (2_000, 6_000), "bench::counted")


def gemm(line, label="parley"):
    """One run of bench/gemm.cpp measures all of its choices, alone on the machine or with another program on each core."""
    return Reported(label, BUSY_GEMMS if line.endswith("_busy") else GEMMS, line)


def declared(label, *arguments):
    """The time that a rank takes to declare all ops."""
    return Reported(label, Program("many_ops", ("--only", "bytes", *arguments)), "many_ops_declare")


class PerCall:
    """Halves the measurement of a send and its receive, which are two calls."""

    exact = True

    def __init__(self, pair):
        self.pair, self.label = pair, pair.label

    def prepare(self, build):
        self.pair.prepare(build)

    def measure(self):
        return self.pair.measure() / 2


def virtual(only, line):
    """Four ranks on a virtual clock: the whole scheme is a computation, so one run is exact."""
    return Reported(only, Program("tuning_virtual", ("--only", only, *TUNING)), line)


def leases(line, label="parley"):
    """Ops without headers on a virtual clock: exact, so that one run is enough."""
    return Reported(label, Program("lease_gates"), line)


def simulator(only, line, label="parley", ranks=1_000, calls=None):
    """Many ranks in one process; seeds are those of the scenarios in simulation/."""
    more = () if calls is None else ("--calls", str(calls))
    return Reported(label, Program("simulator", ("--only", only, "--ranks", str(ranks), *more)), line)


def edge_agreement(ranks, line, label="parley"):
    """The virtual time that the edges of a pipeline of that many simulated ranks take to decide."""
    return Reported(label, JOINS[ranks], line)


def started(ranks, line, label="parley"):
    """Pairs of ranks in one process that tune, from their start until the last pair has decided."""
    return Reported(label, STARTS[ranks], line)


def rendezvous(clients, label="parley"):
    return Reported(label, Program("rendezvous", ("--clients", str(clients))), "rendezvous")


def percentile_95(ratios):
    """With so few sizes, it lies between the two worst ratios."""
    return statistics.quantiles(ratios, n=20, method="inclusive")[-1]


def exchanges(what, ranks):
    """Times of an exchange divided by MPI's, for each size: the median over the sizes, the 95th percentile and the worst."""
    table = {"pairs": columns.osu_bibw, "batch": functools.partial(columns.osu_bibw, window=8), "halo": columns.comb,
             "all_reduce": columns.osu_allreduce}[what]
    arguments = ("--only", what)
    sweep = Ratios.Sweep(Program("exchange", (*arguments, "--ranks", str(ranks)), UCX, timeout_s=120),
                         Program("mpi_exchange", arguments, MPI, ranks=ranks, install=INSTALL["mpi"], timeout_s=120), table)
    return (Ratios("parley", sweep, statistics.median), Ratios("95th percentile", sweep, percentile_95),
            Ratios("worst", sweep, max))


def against_mpi(name, what, ranks=2):
    """Three rows of one sweep, each with its own target."""
    median, high, worst = exchanges(what, ranks)
    return [Row(name, "ratio", median, [high], beside=[worst], at_most=1.0, runs=1),
            Row(f"{name}_95", "ratio", high, [median], at_most=1.10, runs=1),
            Row(f"{name}_worst", "ratio", worst, [median], at_most=1.25, runs=1)]


def between_hosts(delay_us):
    return BetweenHosts("halo_overlap", ("--cells", "254"), delay_us=delay_us)


def searches(line, label="parley", ranks=2):
    """1,000 searches of 8 configs in virtual time, each run twice with up to 3 % noise in either direction, by a pair or a group."""
    return Reported(label, SEARCHES[ranks], line)


def shared(only, line, label="parley"):
    """4 ranks in virtual time that share the trials of kernels, with up to 3 % noise in either direction."""
    return Reported(label, SHARED_SEARCHES[only], line)


# The arguments of both sides of the tuning rows. The usual scheme times each of the 8 configs 5 times. parley's coordinator adapts
# the counts: 2 if times hardly scatter, 7 to 24 of the finalists if they do.
TUNING = ("--bytes", str(16 << 20), "--configs", "8", "--warm_ups", "1", "--repetitions", "5",
          "--microbatches", "200", "--compute_us", "5000")

SWEEP = SharedRun("sweep", ("--only", "regret"), UCX)
BUSY_SWEEP = SharedRun("sweep", ("--only", "regret", "--busy", "yes"), UCX, timeout_s=300)
PUTS = SharedRun("sweep", ("--only", "put", "--repetitions", "2000"), UCX)
SEARCHES = {ranks: OneRun("searches", ("--ranks", str(ranks))) for ranks in (2, 4)}
JOINS = {ranks: OneRun("simulator", ("--only", "join", "--ranks", str(ranks)), timeout_s=300) for ranks in (1_024, 4_096)}
STARTS = {ranks: OneRun("simulator", ("--only", "start", "--ranks", str(ranks)), timeout_s=300) for ranks in (10_000, 100_000)}
GEMMS = OneRun("gemm", ("--only", "choices"), install=INSTALL["blas"])
BUSY_GEMMS = OneRun("gemm", ("--only", "choices", "--busy", "yes"), install=INSTALL["blas"], timeout_s=300)
SHARED_SEARCHES = {only: OneRun("shared_search", ("--only", only)) for only in ("share", "agree")}
GUIDED = OneRun("guided_search", timeout_s=300)
FIRST_MINUTE = OneRun("first_minute", (), UCX, timeout_s=300)
OVERLAP_BETWEEN_HOSTS = between_hosts(1_000)

ROWS = [
    Row("actor_pingpong", "ns", parley("actors", "pingpong", "actor_pingpong"), [caf("pingpong", "caf_pingpong")],
        beside=[Reported("floor", Program("coroutine_floor"), "floor_pingpong")], at_most=15, ratio_at_most=1 / 12),
    Row("actor_pingpong_instructions", "instructions",
        Instructions("parley", Program("actors", ("--only", "pingpong"))),
        [Instructions("CAF", Program("caf", ("--only", "pingpong"), install=INSTALL["caf"]))],
        beside=[Instructions("floor", Program("coroutine_floor"))], at_most=180, runs=1),
    Row("actor_fanin", "ns", parley("actors", "fanin", "actor_fanin"), [caf("fanin", "caf_fanin")], at_most=12),
    Row("actor_idle_bytes", "bytes", parley("actors", "idle", "actor_idle_bytes"), [caf("idle", "caf_idle_bytes")],
        at_most=384, runs=1),
    Row("actor_spawn", "ns", parley("actors", "spawn", "actor_spawn"), [caf("spawn", "caf_spawn")], at_most=60),
    Row("actor_request_deadline", "ns", parley("actors", "request", "actor_request_deadline"),
        [caf("request", "caf_request_deadline")], at_most=60),
    Row("ucx_pingpong_8B", "ns", parley("links", "pingpong", "ucx_pingpong_8B"),
        [ucx_raw("pingpong", "ucx_raw_pingpong")], beside=[UcxPerftest()], ratio_at_most=1.15),
    Row("ucx_pingpong_one_core", "ns", parley("links", "one_core", "ucx_pingpong_one_core"),
        [ucx_raw("one_core", "ucx_raw_one_core")], at_most=1500),
    Row("ucx_control_added", "ns", parley("links", "control", "ucx_control_added"),
        [ucx_raw("pingpong", "ucx_raw_pingpong")], at_most=200),
    Row("ucx_idle_cpu", "percent", parley("links", "idle", "ucx_idle_cpu"), [ucx_raw("idle", "ucx_raw_idle_cpu")],
        at_most=0.2, runs=3),
    Row("rank_start", "ns", parley("start", "start", "rank_start"), [mpi("mpi_start", "mpi_start")],
        beside=[ucx_raw("start", "ucx_raw_start")], at_most=50e6),
    Row("transfer_16MiB", "ns", parley("transfer", "agreed", "transfer_16MiB"),
        [mpi("mpi_transfer", "mpi_transfer"),
         Reported("direct", Program("transfer", ("--only", "direct"), UCX), "transfer_direct")], ratio_at_most=1.05),
    Row("transfer_sweep_regret", "percent", Reported("parley", SWEEP, "transfer_sweep_regret"),
        [Reported("always the default", SWEEP, "default_sweep_regret")],
        beside=[Reported("worst", SWEEP, "transfer_sweep_regret_worst")], at_most=3),
    Row("transfer_sweep_regret_busy", "percent", Reported("parley", BUSY_SWEEP, "transfer_sweep_regret_busy"),
        [Reported("always the default", BUSY_SWEEP, "default_sweep_regret_busy")],
        beside=[Reported("worst", BUSY_SWEEP, "transfer_sweep_regret_worst_busy")], at_most=5, runs=3),
    Row("put_16MiB", "ns", Reported("parley", PUTS, "put_16MiB"), [Reported("direct", PUTS, "put_16MiB_direct")],
        ratio_at_most=1.0),
    *against_mpi("p2p_vs_mpi", "pairs"),
    *against_mpi("p2p_vs_mpi_4", "pairs", ranks=4),
    *against_mpi("p2p_batch_vs_mpi", "batch"),
    *against_mpi("p2p_batch_vs_mpi_4", "batch", ranks=4),
    *against_mpi("halo_vs_mpi", "halo"),
    *against_mpi("halo_vs_mpi_4", "halo", ranks=4),
    *against_mpi("allreduce_vs_mpi", "all_reduce"),
    *against_mpi("allreduce_vs_mpi_4", "all_reduce", ranks=4),
    Row("halo_overlap", "percent", Reported("parley", Program("halo_overlap"), "halo_overlap"),
        [Reported("links ten times as slow", Program("halo_overlap", ("--latency_us", "500")), "halo_overlap")],
        at_least=80, runs=1, exact=True),
    Row("halo_overlap_wire", "percent", Reported("parley", OVERLAP_BETWEEN_HOSTS, "halo_overlap"),
        [Reported("half as long a wire", between_hosts(500), "halo_overlap")],
        beside=[Reported("by the clock", OVERLAP_BETWEEN_HOSTS, "halo_overlap_by_clock")], at_least=80, runs=3),
    Row("tuning_regret", "percent", searches("tuning_regret"), [searches("tuning_regret_95", "95th percentile")],
        beside=[searches("tuning_regret_worst", "worst")], at_most=3, runs=1, exact=True),
    Row("tuning_flips", "percent", searches("tuning_flips"), [searches("tuning_regret", "regret")],
        beside=[searches("tuning_gaps", "searches with a gap")], at_most=5, runs=1, exact=True),
    Row("tuning_regret_group", "percent", searches("tuning_regret", ranks=4),
        [searches("tuning_regret_95", "95th percentile", ranks=4)],
        beside=[searches("tuning_regret_worst", "worst", ranks=4)], at_most=3, runs=1, exact=True),
    Row("tuning_flips_group", "percent", searches("tuning_flips", ranks=4),
        [searches("tuning_regret", "regret", ranks=4)],
        beside=[searches("tuning_gaps", "searches with a gap", ranks=4)], at_most=5, runs=1, exact=True),
    Row("sim_events", "per_s", simulator("events", "sim_events", ranks=10_000),
        [simulator("events", "sim_queue", "its queue alone", ranks=10_000)],
        beside=[simulator("events", "sim_events", "1,000 ranks"),
                Reported("SimGrid", Program("simgrid", ("--calls", "100"), install=INSTALL["simgrid"]), "simgrid_events")],
        at_least=5e6, runs=1),
    Row("sim_events_checked", "per_s", simulator("events_checked", "sim_events_checked", ranks=10_000, calls=100),
        [simulator("events", "sim_events", "without checkers", ranks=10_000)],
        beside=[simulator("events_checked", "sim_events_checked", "100 ranks", ranks=100)], at_least=1e6, runs=1),
    Row("sim_rank_bytes", "bytes", simulator("bytes", "sim_rank_bytes", ranks=10_000),
        [simulator("bytes", "sim_idle_rank_bytes", "without an op", ranks=10_000)], at_most=16_384, runs=1),
    Row("sim_small_seed", "ms", simulator("seeds", "sim_small_seed"),
        [simulator("seeds", "sim_any_seed", "all seeds")], at_most=5, runs=1),
    Row("sim_64_ranks_seed", "ms", simulator("large_seed", "sim_64_ranks_seed"),
        [simulator("large_seed", "sim_64_ranks_simulated", "simulated")], at_most=1_000, runs=3),
    Row("sim_join_4096", "ms", simulator("join", "sim_join", ranks=4_096),
        [simulator("join", "sim_join", "a quarter of the ranks", ranks=1_024)], at_most=10_000, runs=1),
    Row("sim_edge_agreement", "ns", edge_agreement(4_096, "sim_edge_agreement"),
        [edge_agreement(1_024, "sim_edge_agreement", "a quarter of the ranks")],
        beside=[edge_agreement(4_096, "sim_edge_agreement_95", "95th percentile")], ratio_at_most=1.01, runs=1, exact=True),
    Row("sim_edge_agreement_slowest", "ns", edge_agreement(4_096, "sim_edge_agreement_slowest"),
        [edge_agreement(1_024, "sim_edge_agreement_slowest", "a quarter of the ranks")], ratio_at_most=1.01, runs=1, exact=True),
    Row("sim_start_100000", "s", started(100_000, "sim_start"),
        [started(10_000, "sim_start", "a tenth of the ranks")], at_most=120, runs=1),
    Row("sim_start_100000_bytes", "bytes", started(100_000, "sim_start_bytes"),
        [started(10_000, "sim_start_bytes", "a tenth of the ranks")], at_most=16_384, runs=1),
    Row("rendezvous_256", "ms", rendezvous(256), [rendezvous(64, "a quarter of the clients")], at_most=2_000, runs=3),
    Row("tuned_call_instructions", "instructions",
        PerCall(Added("parley", tuned_call("tuned"), tuned_call("direct"))), [PerCall(tuned_call("direct"))],
        beside=[PerCall(Added("to the link's calls by hand", tuned_call("tuned"), tuned_call("by_hand")))],
        at_most=250, runs=1),
    Row("gemm_regret", "percent", gemm("gemm_regret"), [gemm("gemm_default_regret", "always the default")],
        beside=[gemm("gemm_regret_95", "95th percentile"), gemm("gemm_regret_worst", "worst"),
                gemm("gemm_more_than_5_off", "choices more than 5 % off")], at_most=2, runs=1),
    Row("gemm_regret_busy", "percent", gemm("gemm_regret_busy"), [gemm("gemm_default_regret_busy", "always the default")],
        beside=[gemm("gemm_regret_95_busy", "95th percentile"), gemm("gemm_regret_worst_busy", "worst"),
                gemm("gemm_more_than_5_off_busy", "choices more than 5 % off")], at_most=5, runs=1),
    Row("gemm_search_share", "percent", gemm("gemm_search_share"), [gemm("gemm_exhaustive_share", "exhaustive")], at_most=25, runs=1),
    Row("guided_regret", "percent", Reported("parley", GUIDED, "guided_regret"), [],
        beside=[Reported("worst", GUIDED, "guided_regret_worst"), Reported("search, ms", GUIDED, "guided_search"),
                Reported("of the exhaustive time, %", GUIDED, "guided_share")], at_most=5, runs=1),
    Row("gemm_hit", "ns", Reported("parley", Program("gemm", ("--only", "hit")), "gemm_hit"),
        [Reported("the bare call", Program("gemm", ("--only", "hit")), "gemm_bare_call")], at_most=30, runs=3),
    Row("shared_search", "percent", shared("share", "shared_search"), [shared("share", "shared_search_alone", "one rank alone")],
        beside=[shared("share", "shared_search_worst", "worst of 20 searches")], at_most=30, runs=1, exact=True),
    Row("shared_search_disagreements", "keys", shared("agree", "shared_search_disagreements"),
        [shared("agree", "shared_search_regret", "regret, percent")],
        beside=[shared("agree", "shared_search_regret_95", "regret, 95th percentile"),
                shared("agree", "shared_search_regret_worst", "regret, worst")], at_most=0, runs=1, exact=True),
    Row("results_load_100k", "ms", Reported("parley", Program("results_load"), "results_load"),
        [Reported("a tenth of them", Program("results_load", ("--entries", "10000")), "results_load")], at_most=300, runs=3),
    Row("many_ops_bytes", "bytes", Reported("declared", Program("many_ops", ("--only", "bytes")), "many_ops_bytes"),
        [Reported("used", Program("many_ops", ("--only", "bytes")), "many_ops_used_bytes")], at_most=1024, runs=1),
    Row("many_ops_declare", "ns", declared("parley"), [declared("a tenth of them", "--ops", "1000")], at_most=1e9, runs=3),
    Row("many_ops_call", "instructions",
        PerCall(Added("parley", many_ops("calls"), many_ops("direct"))), [PerCall(many_ops("direct"))],
        at_most=250, runs=1),
    Row("compile_parley_hpp", "s",
        Compiled("parley", "examples/send_recv.cpp", "-fsyntax-only", text="#include <parley/parley.hpp>\n"),
        [Compiled("all of Boost.Asio", "examples/send_recv.cpp", "-fsyntax-only", text="#include <boost/asio.hpp>\n")], at_most=2),
    Row("compile_send_recv", "s", Compiled("parley, -O2", "examples/send_recv.cpp", "-O2"),
        [Compiled("-O0", "examples/send_recv.cpp", "-O0")], at_most=6),
    Row("tuning_cost", "percent", Reported("parley", Program("tuning", ("--only", "cost", *TUNING), UCX), "tuning_cost"),
        [mpi("mpi_tuning", "mpi_tuning_cost", *TUNING)], at_most=5, runs=3),
    Row("first_minute", "percent", Reported("parley", FIRST_MINUTE, "first_minute"),
        [Reported("by the clock", FIRST_MINUTE, "first_minute_by_clock")], at_most=5, runs=1),
    Row("tuning_time_lost", "ns", Reported("parley", Program("tuning", ("--only", "lost", *TUNING), UCX), "tuning_time_lost"),
        [mpi("mpi_tuning", "mpi_tuning_time_lost", *TUNING)], ratio_at_most=0.2, runs=3),
    Row("lease_gates", "gates", leases("lease_gates"), [leases("barrier_stops", "a barrier for each change")], at_most=0,
        runs=1, exact=True),
    Row("lease_messages_after", "messages", leases("lease_messages_after"),
        [leases("lease_messages_before", "until the decision")], at_most=0, runs=1, exact=True),
    Row("tuning_time_lost/virtual", "ns", virtual("parley", "virtual_tuning_time_lost"),
        [virtual("barriers", "virtual_barriers_time_lost")], ratio_at_most=0.2, runs=1, exact=True),
    Row("group_agreement", "round_trips", parley("group_agreement", "agreement", "group_agreement"),
        [Reported("barriers", Program("group_agreement", ("--only", "barriers")), "group_barriers")], at_most=3, runs=1,
        exact=True),
]
