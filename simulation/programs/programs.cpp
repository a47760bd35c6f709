#include <parley/simulation/programs/programs.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/simulation/checkers/payload_book.hpp>
#include <parley/simulation/checkers/rank_views.hpp>
#include <parley/simulation/programs/config_text.hpp>
#include <parley/simulation/programs/message_bytes.hpp>
#include <parley/simulation/programs/op_programs.hpp>
#include <parley/symmetric.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

namespace parley::simulation {

using runtime::errc;
using runtime::task;

namespace {

constexpr std::byte untouched{0xa5};
constexpr std::size_t spare_bytes = 24;   // by which a receive buffer is larger than any message
constexpr std::size_t margin_bytes = 40;  // untouched bytes after the receive buffer
// A round between calls runs before a call far ahead: as far ahead as a burst of calls can get during the longest round trips.
constexpr std::uint64_t most_more_between_calls = 20'000;
// The longest pause between calls that are added to those of the scenario (`more_at_once`). All added calls together take longer than
// the longest wait for a config that is always late.
constexpr time_ns more_pause_ns = 10'000'000;
constexpr time_ns look_pause_ns = 10'000'000;
constexpr time_ns longest_look_ns = 20'000'000'000;
constexpr time_ns longest_until_rejoined_ns = 20'000'000;
constexpr time_ns longest_settling_ns = 5'000'000;
constexpr std::uint64_t most_attempts = 100;  // receives for each message

// The index of the first written byte, or the size if there is none.
std::size_t first_written(std::span<const std::byte> bytes) noexcept {
  const bool none = bytes.empty() ||
                    (bytes.front() == untouched && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
  if (none) return bytes.size();
  const auto is_written = [](std::byte b) { return b != untouched; };
  return static_cast<std::size_t>(std::find_if(bytes.begin(), bytes.end(), is_written) - bytes.begin());
}

// Sets the configs that `rank` can run, and the options that ops of every kind have.
template <class Op, class Make>
void take_configs(Op& into, const op_spec& op, rank_id rank, kernel_times& times, const Make& make) {
  into.configs.clear();
  std::vector<bool> able;
  for (const std::string& text : op.configs) {
    const config_text here = text_for(text, rank);
    into.configs.push_back(make(here.text, times, here.abi));
    able.push_back(here.available);
  }
  into.can_run = [able](rank_id) { return able; };
  into.timeout = std::chrono::nanoseconds(op.timeout_ns);
  into.constraints.compare_trials = op.compare;
}

// Errors after which every further call also fails.
bool is_final(errc code) noexcept {
  return code == errc::peer_failed || code == errc::peer_restarted || code == errc::fenced || code == errc::closed ||
         code == errc::declaration_mismatch || code == errc::role_conflict || code == errc::cancelled;
}

}  // namespace

// The memory of one call at a time.
struct programs::lane {
  std::vector<std::byte> memory;
  std::uint64_t left_as = 0;  // hash of the memory when its last call gave it back
  bool given_back = false;
  const actors::registered_memory* registered = nullptr;  // set if calls use registered memory
  // A rank that was declared dead may still write into lost memory, so this memory is not used again.
  bool lost() const noexcept { return registered != nullptr && registered->lost(); }
};

// How often an op is called in one generation of a job. The leader of the op decides; all members make that many calls.
struct programs::turnout {
  std::uint64_t total = 0;
  std::uint64_t unsent = 0;  // sends that ended before they had room, so that no receive matches them
  bool ended = false;        // the total is final
  std::vector<const caller*> callers{};
};

// The calls of one rank to one op, in one generation of a job.
struct programs::caller {
  programs& all;
  const op_spec& op;
  std::size_t index;
  rank_id rank;
  std::uint64_t job;
  std::uint64_t returns;
  time_ns calm_from_ns;
  turnout& calls;
  dice luck;
  std::vector<lane> lanes{};
  std::int64_t latest = -1;   // at a receiver: the latest message that has arrived
  std::uint64_t matched = 0;  // receives that did not time out: each has used up one message
  bool over = false;          // no further call can succeed
  bool replaced = false;      // another caller makes the calls
  std::unique_ptr<stage_of_pipeline> pipeline{};
  std::optional<ops::symmetric> without_headers{};
  std::function<void(caller&)> start{};  // spawns the coroutine that makes the calls
  std::function<void()> rejoin{};        // empty: the op rejoins by itself

  std::uint64_t total() const noexcept { return calls.total; }
  std::uint64_t planned() const noexcept { return op.calls + op.calm; }
  bool has_more(std::uint64_t made) const noexcept { return made < total() && !over; }
  // The end of the phase of a call. No rank makes calls of different phases together.
  std::uint64_t end_of_phase(std::uint64_t number) const noexcept {
    return number < op.calls ? op.calls : number < planned() ? planned() : total();
  }
  std::uint32_t tag_of_send(std::uint64_t number) const noexcept {
    return static_cast<std::uint32_t>(number % op.streams);
  }
  // Among messages that are sent together, those of the last stream are received first, so that the other streams have to wait.
  std::uint32_t tag_of_receive(std::uint64_t number) const noexcept {
    const std::uint64_t phase = number < op.calls ? 0 : number < planned() ? op.calls : planned();
    std::uint64_t before = (number - phase) % op.in_flight;
    const std::uint64_t first = number - before;
    const std::uint64_t end = std::min(first + op.in_flight, end_of_phase(number));
    for (auto tag = static_cast<std::uint32_t>(op.streams - 1); tag != 0; --tag) {
      for (std::uint64_t sent = first; sent < end; ++sent) {
        if (tag_of_send(sent) == tag && before-- == 0) return tag;
      }
    }
    return 0;
  }
  std::uint64_t size(std::uint64_t number) const noexcept { return op.sizes[number % op.sizes.size()]; }
  std::uint64_t stream(rank_id sender) const noexcept {
    return (job << 40U) ^ (returns << 32U) ^ (index << 20U) ^ sender;
  }
  std::uint64_t largest() const noexcept { return *std::max_element(op.sizes.begin(), op.sizes.end()); }
  time_ns now() const noexcept { return all.world_.stage().now(); }
  call_record begin(bool sends, std::uint64_t number) const {
    call_record r;
    r.op = index;
    r.job = job;
    r.returns = returns;
    r.rank = rank;
    r.sends = sends;
    r.number = number;
    r.calm = number >= op.calls;
    r.began_ns = now();
    r.timeout_ns = op.timeout_ns;
    return r;
  }
  template <class Outcome>
  void end(call_record r, const Outcome& outcome) {
    r.ended_ns = now();
    if (!outcome) r.failed = outcome.reason();
    all.world_.stage().note(static_cast<std::uint64_t>(r.code()) << 56U ^ r.number << 32U ^
                            static_cast<std::uint64_t>(r.ended_ns));
    if (is_final(r.code())) over = true;
    all.record_.calls.push_back(std::move(r));
  }
};

struct programs::stage_of_pipeline final : ops::pipeline_stage {
  void forward(std::uint64_t microbatch, std::span<std::byte> activation) override {
    const std::uint64_t stream = from->stream(from->op.members.front());
    const std::uint64_t number = first + microbatch;
    if (place == 0) return fill(activation, stream, number);
    if (recognise(activation, stream, from->total()) != static_cast<std::int64_t>(number))
      from->all.violated(*from, "stage " + std::to_string(place) + " got other bytes than those of microbatch " +
                                    std::to_string(number));
  }
  time_ns modelled_ns(std::uint64_t, std::size_t) const override {
    return from->all.kernels_[from->rank].draw(5'000, from->now());
  }
  caller* from = nullptr;
  std::size_t place = 0;
  std::uint64_t first = 0;
};

programs::programs(const scenario& s, const tape& t, std::uint64_t seed, world& w, run_record& r,
                   std::string_view mutant)
    : play_(s), tape_(t), seed_(seed), world_(w), record_(r), mutant_claims_room_(mutant == "total-not-checked"),
      mutant_awaits_agreement_(mutant == "agreement-awaited"), mutant_uses_lost_memory_(mutant == "lost-memory-used"),
      library_(w.stage(), s.link.latency_ns,
               [this](std::string text) { record_.at_once.push_back({"S2", std::move(text)}); }),
      callers_(w.ranks()) {
  for (rank_id rank = 0; rank < w.ranks(); ++rank)
    kernels_.emplace_back(kernels_of(s, t), dice(seed, purpose::kernel, rank));
}

programs::~programs() = default;

void programs::violated(const caller& c, std::string text) {
  record_.at_once.push_back({"S8", c.op.name + ", on rank " + std::to_string(c.rank) + ": " + std::move(text)});
}

programs::turnout& programs::turnout_of(std::size_t op, std::uint64_t returns) {
  const auto [at, first] = turnouts_.try_emplace({op, world_.job(), returns});
  if (first) {
    at->second = std::make_unique<turnout>();
    at->second->total = play_.ops[op].calls + play_.ops[op].calm;
  }
  return *at->second;
}

programs::caller& programs::add(std::size_t op, rank_id rank, time_ns calm_from_ns) {
  const std::uint64_t returns = world_.returns(rank, play_.ops[op].members);
  const std::uint64_t who = (world_.job() << 32U) ^ (returns << 48U) ^ (op << 16U) ^ rank;
  turnout& calls = turnout_of(op, returns);
  caller& made = *callers_[rank].emplace_back(std::make_unique<caller>(caller{
      *this, play_.ops[op], op, rank, world_.job(), returns, calm_from_ns, calls, dice(seed_, purpose::program, who)}));
  calls.callers.push_back(&made);
  return made;
}

// Calls in flight have ended with an error. `over` stops the coroutines that made them.
void programs::go_on(rank_id who, rank_id peer) {
  std::vector<caller*> found;
  for (const auto& c : callers_[who]) {
    const auto& members = c->op.members;
    if (c->job != world_.job() || c->replaced) continue;
    if (std::find(members.begin(), members.end(), peer) != members.end()) found.push_back(c.get());
  }
  for (caller* const before : found) {
    before->over = before->replaced = true;
    if (before->rejoin) {
      world_.programs_of(who).spawn(rejoin_later(*before));
    } else {
      begin(before->index, who, before->calm_from_ns, before->start, {});
    }
  }
}

void programs::let_go(rank_id rank) {
  for (const auto& c : callers_[rank]) c->start = nullptr, c->rejoin = nullptr;
}

// Rejoins after a random time: a program may have other things to do first, and other ranks may restart before it rejoins.
task<> programs::rejoin_later(caller& before) {
  auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(before.luck.between(0, longest_until_rejoined_ns)));
  if (!slept) co_return;
  if (before_rejoining) before_rejoining(before.rank, before.op.name);
  before.rejoin();
  begin(before.index, before.rank, before.calm_from_ns, before.start, before.rejoin);
}

void programs::begin(std::size_t op, rank_id rank, time_ns calm_from_ns, std::function<void(caller&)> start,
                     std::function<void()> rejoin) {
  caller& c = add(op, rank, calm_from_ns);
  c.start = std::move(start);
  c.rejoin = std::move(rejoin);
  c.start(c);
}

// The user's communicator for one generation of an op without headers.
std::shared_ptr<ops::communicator> programs::communicator_of(std::size_t op, rank_id rank) {
  const auto& members = play_.ops[op].members;
  const auto [at, first] = communicators_.try_emplace({op, world_.job(), world_.returns(rank, members)}, 0);
  if (first) at->second = library_.make(members.size(), play_.ops[op].name);
  return library_.join(at->second, rank);
}

void programs::launch(rank_id rank, time_ns calm_from_ns) {
  for (const auto& c : callers_[rank]) {
    if (c->job == world_.job()) c->replaced = true;  // of an earlier process of this rank
  }
  ops::rank& self = world_[rank];
  for (std::size_t i = 0; i < play_.ops.size(); ++i) {
    const op_spec& op = play_.ops[i];
    const auto mine = std::find(op.members.begin(), op.members.end(), rank);
    if (mine == op.members.end() && !op.everybody) continue;
    const bool calls = mine != op.members.end();
    if (is_program(op.what)) {
      if (!calls) continue;
      const auto program = make_program(self, op, kernels_[rank]);
      const auto start = [this, program](caller& c) { world_.programs_of(c.rank).spawn(call_program(c, program)); };
      begin(i, rank, calm_from_ns, start, [program] { program->rejoin(); });
      continue;
    }
    if (op.what == op_spec::kind::pair) {
      ops::transfer_options t;
      t.name = op.name;
      t.edges = {{op.members[0], op.members[1]}};
      take_configs(t, op, rank, kernels_[rank], config_from);
      const ops::transfer declared(self, t);
      const auto start = [this, declared](caller& c) {
        runtime::scope& here = world_.programs_of(c.rank);
        if (c.rank == c.op.members[0]) {
          here.spawn(send_all(c, declared, c.op.members[1]));
        } else {
          here.spawn(receive_all(c, declared, c.op.members[0]));
        }
      };
      if (calls) begin(i, rank, calm_from_ns, start, {});
    } else if (op.what == op_spec::kind::pipeline) {
      ops::pipeline_options p;
      p.name = op.name;
      p.stages = op.members;
      p.configs.clear();
      for (const std::string& text : op.configs) p.configs.push_back(config_from(text, kernels_[rank]));
      p.timeout = std::chrono::nanoseconds(op.timeout_ns);
      auto declared = std::make_shared<ops::pipeline>(ops::pipeline(self, std::move(p)));
      const auto start = [this, declared](caller& c) { world_.programs_of(c.rank).spawn(run_pipeline(c, *declared)); };
      if (calls) begin(i, rank, calm_from_ns, start, [declared] { declared->rejoin(); });
    } else if (op.what == op_spec::kind::symmetric) {
      ops::symmetric_options s;
      s.name = op.name;
      s.ranks = op.members;
      take_configs(s, op, rank, kernels_[rank], collective_from);
      if (calls) s.communicator = communicator_of(i, rank);
      if (op.rehearse) s.rehearse = library_.source(rank, op.members.size(), !op.between_calls, op.name);
      ops::symmetric declared(self, std::move(s));
      const auto start = [this, declared](caller& c) {
        c.without_headers = declared;
        world_.programs_of(c.rank).spawn(call_symmetric(c, declared));
      };
      const auto rejoin = [this, i, rank, declared]() mutable { declared.rejoin(communicator_of(i, rank)); };
      if (calls) begin(i, rank, calm_from_ns, start, rejoin);
    } else {
      ops::collective_options g;
      g.name = op.name;
      g.role = [&op](rank_id r) {
        if (r == op.members.front()) return ops::role::leader;
        const bool works = std::find(op.members.begin(), op.members.end(), r) != op.members.end();
        return works ? ops::role::worker : ops::role::idle;
      };
      g.kind = op.does == "broadcast" ? ops::collective_kind::broadcast
               : op.does == "gather"  ? ops::collective_kind::gather
                                      : ops::collective_kind::all_reduce;
      g.depth = op.depth;
      take_configs(g, op, rank, kernels_[rank], group_config_from);
      ops::collective declared(self, g);
      const auto start = [this, declared](caller& c) { world_.programs_of(c.rank).spawn(call_group(c, declared)); };
      if (calls) begin(i, rank, calm_from_ns, start, [declared]() mutable { declared.rejoin(); });
    }
  }
}

// Runs before each call: waits a random time, and then may retune or settle. The first calm call also waits until all faults have ended.
task<> programs::rest(caller& c, std::uint64_t number) {
  const bool calm = number >= c.op.calls;
  time_ns span =
      c.luck.between(0, number >= c.planned() ? more_pause_ns * static_cast<time_ns>(c.op.in_flight) : c.op.pause_ns);
  if (calm && c.now() < c.calm_from_ns) span += c.calm_from_ns - c.now();
  auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(span));
  if (!slept || calm) co_return;
  if (c.op.retunes != 0 && c.luck.chance(c.op.retunes))
    world_[c.rank].retune(c.op.name, "a simulated program wants it");
  if (c.op.leaves != 0 && c.luck.chance(c.op.leaves))
    co_await world_[c.rank].settle(std::chrono::nanoseconds(longest_settling_ns));
}

// True if the caller makes another call after `made` calls. A search ends only while its op is called, and lost messages are repeated only
// after a while. If a search still runs after the calls of the scenario, the leader adds calls (L1).
task<bool> programs::goes_on(caller& c, std::uint64_t made) {
  for (time_ns waited = 0; made >= c.total() && !c.over && !c.calls.ended; waited += look_pause_ns) {
    if (c.rank == c.op.members.front()) {
      const searching now = searches(c, made);
      const std::uint64_t more = c.op.between_calls ? most_more_between_calls : most_more;
      const bool late = waited >= longest_look_ns || c.total() >= c.planned() + more;
      if (now == searching::nothing || late || !everybody_calls(c)) {
        c.calls.ended = true;
      } else if (now == searching::for_calls) {
        c.calls.total += more_at_once;
      }
      if (c.calls.ended || made < c.total()) continue;
    } else if (!everybody_calls(c)) {
      break;
    }
    auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(look_pause_ns));
    if (!slept) break;
  }
  co_return c.has_more(made);
}

bool programs::everybody_calls(const caller& c) const {
  return std::all_of(c.op.members.begin(), c.op.members.end(), [&](rank_id r) { return world_.find(r) != nullptr; }) &&
         std::none_of(c.calls.callers.begin(), c.calls.callers.end(), [](const caller* other) { return other->over; });
}

// Returns whether the searches of an op wait for messages or for more calls, as far as their leader knows.
programs::searching programs::searches(const caller& c, std::uint64_t made) const {
  searching all = searching::nothing;
  // With look-ahead, a trial is assigned, and its round is complete, before the call of the trial is made.
  const auto not_called = [&](const actors::search_run::trial& t) {
    return !t.settled && t.invocation >= play_.first_invocation + made;
  };
  const auto look = [&](const ops::edge_agreement& a) {
    if (!is_of(a.op, c.op.name)) return;
    for (const auto& one : a.assigned->searches()) {
      if (is_beside(c.op, one->invocations())) continue;
      const bool ahead = c.op.what == op_spec::kind::group && one->run() != nullptr &&
                         std::any_of(one->run()->trials().begin(), one->run()->trials().end(), not_called);
      // These also need more calls: a round between calls runs before a certain call, and leased trials are future calls of their size. It
      // is not known how many calls an op makes to each of the ops that it is made of.
      const bool leased = c.op.what == op_spec::kind::symmetric && !c.op.rehearse;
      const bool between =
          (c.op.between_calls || leased || is_program(c.op.what)) && one->where() == actors::search::stage::collecting;
      if (one->where() == actors::search::stage::trying || ahead || between) all = searching::for_calls;
      if (!one->is_decided() && all == searching::nothing) all = searching::for_messages;
    }
  };
  for (const rank_id r : c.op.members) {
    if (const ops::rank* const member = world_.find(r)) {
      for (const ops::edge_agreement& a : member->agreements()) look(a);
    }
  }
  return play_.must_decide ? all : searching::nothing;
}

// Waits until the op has agreed on its configs. Only a mutant does this; no call may wait for it.
task<> programs::await_agreement(caller& c) {
  const auto agreed = [&] {
    const std::vector<ops::edge_agreement> all = world_[c.rank].agreements();
    return std::any_of(all.begin(), all.end(),
                       [&](const ops::edge_agreement& a) { return a.op == c.op.name && a.assigned->opened(); });
  };
  while (!agreed()) {
    auto slept = co_await runtime::sleep_for(std::chrono::microseconds(100));
    if (!slept) runtime::raise(slept.reason());
  }
}

// --- Pairs -----------------------------------------------------------------------------------------------------------

task<> programs::send_one(caller& c, ops::transfer& t, rank_id to, lane& l, std::uint64_t number) {
  const std::span<std::byte> bytes = std::span(l.memory).first(c.size(number));
  fill(bytes, c.stream(c.rank), number);
  const call_record begun = c.begin(true, number);
  if (c.all.mutant_awaits_agreement_) co_await c.all.await_agreement(c);
  auto outcome = co_await ops::attempt(t.send(bytes, {.to = to, .tag = c.tag_of_send(number)}));
  c.end(begun, outcome);
  const bool may_be_early = c.op.timeout_ns < short_timeout_ns || c.all.tape_.early_timeouts != 0;
  const bool early = may_be_early && outcome.code() == errc::timeout;
  if (early && outcome.reason().what().find("has no room") != std::string::npos) ++c.calls.unsent;
}

task<> programs::send_all(caller& c, ops::transfer t, rank_id to) {
  runtime::scope& here = co_await runtime::this_scope;
  std::vector<actors::registered_memory> handles;  // in the frame, so that they end before their rank
  c.lanes.resize(c.op.in_flight);
  for (lane& l : c.lanes) {
    l.memory.resize(c.largest());
    if (c.op.registered) handles.push_back(t.registered(l.memory));
  }
  for (std::uint64_t i = 0;;) {
    bool more = c.has_more(i);
    if (!more) more = co_await goes_on(c, i);
    if (!more) break;
    co_await rest(c, i);
    if (c.over) break;
    const std::uint64_t end = c.end_of_phase(i);
    runtime::scope calls(here);
    for (lane& l : c.lanes) {
      if (i == end) break;
      calls.spawn(send_one(c, t, to, l, i++));
    }
    co_await calls.join();
  }
}

task<> programs::receive_one(caller& c, ops::transfer& t, rank_id from, lane& l, std::uint64_t number) {
  if (l.given_back && hash_of(l.memory) != l.left_as)
    c.all.violated(c, "a buffer was written into after its receive had ended");
  l.given_back = false;
  std::fill(l.memory.begin(), l.memory.end(), untouched);
  const bool small = c.luck.chance(c.op.small_receives);
  const std::size_t room = small ? static_cast<std::size_t>(c.largest() / 2) : l.memory.size() - margin_bytes;
  // The mutant claims more room than the buffer has, which has the same effect as not checking the size.
  const std::size_t claimed = c.all.mutant_claims_room_ && small ? l.memory.size() - margin_bytes : room;
  const std::span<std::byte> into = std::span(l.memory).first(claimed);
  const call_record begun = c.begin(false, number);
  auto outcome = co_await ops::attempt(t.receive(into, {.from = from, .tag = c.tag_of_receive(number)}));
  c.end(begun, outcome);
  std::size_t may_be_written = 0;
  if (outcome) {
    const std::span<const std::byte> got = into.first(static_cast<std::size_t>(*outcome));
    may_be_written = std::min(got.size(), room);
    const std::int64_t which = recognise(got, c.stream(from), c.total());
    if (which < 0 || c.size(static_cast<std::uint64_t>(which)) != got.size()) {
      c.all.violated(c, "receive " + std::to_string(number) + " brought " + std::to_string(got.size()) +
                            " bytes that no rank sent");
    } else if (c.op.in_flight == 1 && which <= c.latest) {
      c.all.violated(c, "receive " + std::to_string(number) + " brought message " + std::to_string(which) + " after " +
                            std::to_string(c.latest));
    }
    if (which >= 0) {
      std::vector<bool>& all = c.all.record_.received[{c.index, c.job, c.returns}];
      if (all.size() < c.total()) all.resize(c.total());
      all[static_cast<std::size_t>(which)] = true;
    }
    c.latest = std::max(c.latest, which);
  } else if (outcome.code() != errc::timeout && outcome.code() != errc::buffer_too_small) {
    may_be_written = room;  // part of a message may have arrived
  }
  if (outcome.code() != errc::timeout) ++c.matched;
  const std::size_t written = may_be_written + first_written(std::span(l.memory).subspan(may_be_written));
  if (written != l.memory.size())
    c.all.violated(c, "receive " + std::to_string(number) + " ended with " +
                          std::string(runtime::name(outcome.code())) + ", and byte " + std::to_string(written) +
                          " beyond its " + std::to_string(may_be_written) + " was written");
  l.left_as = hash_of(l.memory);
  l.given_back = !l.lost() || c.all.mutant_uses_lost_memory_;
}

task<> programs::receive_all(caller& c, ops::transfer t, rank_id from) {
  runtime::scope& here = co_await runtime::this_scope;
  std::vector<actors::registered_memory> handles;  // in the frame, so that they end before their rank
  c.lanes.resize(c.op.in_flight);
  handles.reserve(c.op.in_flight);
  for (lane& l : c.lanes) {
    l.memory.assign(c.largest() + spare_bytes + margin_bytes, untouched);
    if (c.op.registered) l.registered = &handles.emplace_back(t.registered(l.memory));
  }
  std::uint64_t attempts = 0;
  while (attempts < most_attempts * c.total()) {
    const std::uint64_t first = c.matched + c.calls.unsent;
    bool more = c.has_more(first);
    if (!more) more = co_await goes_on(c, first);
    if (!more) break;
    co_await rest(c, first);
    if (c.over) break;
    const std::uint64_t most = c.op.streams == 1 ? c.op.in_flight : 1;
    const std::uint64_t at_once = std::min(most, c.end_of_phase(first) - first);
    runtime::scope calls(here);
    for (std::uint64_t i = 0; i < at_once; ++i) calls.spawn(receive_one(c, t, from, c.lanes[i], first + i));
    co_await calls.join();
    attempts += at_once;
  }
  if (attempts >= most_attempts * c.total())
    record_.at_once.push_back({"L2", c.op.name + ", on rank " + std::to_string(c.rank) + ": " +
                                         std::to_string(attempts) + " receives brought no more than " +
                                         std::to_string(c.matched) + " messages"});
}

void programs::look_at_memory() {
  for (rank_id r = 0; r < callers_.size(); ++r) {
    for (const auto& c : callers_[r]) {
      if (c->job != world_.job() || world_.find(r) == nullptr) continue;
      for (const lane& l : c->lanes) {
        if (l.given_back && hash_of(l.memory) != l.left_as)
          violated(*c, "a buffer was written into after its receive had ended");
      }
    }
  }
}

void programs::write(std::uint64_t address, std::span<const std::byte> data) {
  const auto write_to = [&](caller& c) {
    for (lane& l : c.lanes) {
      const auto begin = reinterpret_cast<std::uint64_t>(l.memory.data());
      if (address >= begin && address + data.size() <= begin + l.memory.size())
        std::copy(data.begin(), data.end(), l.memory.begin() + static_cast<std::ptrdiff_t>(address - begin));
    }
  };
  for (const auto& of_rank : callers_) {
    for (const auto& c : of_rank) write_to(*c);
  }
}

// --- Groups ----------------------------------------------------------------------------------------------------------

task<> programs::group_one(caller& c, ops::collective g, std::uint64_t number) {
  const std::size_t members = c.op.members.size();
  const std::uint64_t size = std::max<std::uint64_t>(c.size(number) / 4 * 4, 8);
  const rank_id leader = c.op.members.front();
  const bool leads = c.rank == leader;
  const call_record begun = c.begin(leads, number);
  std::vector<rank_id> sorted = c.op.members;
  std::sort(sorted.begin(), sorted.end());
  const char* wrong = nullptr;
  if (c.op.does == "broadcast") {
    std::vector<std::byte> data(size);
    if (leads) fill(data, c.stream(leader), number);
    auto outcome = co_await ops::attempt(g.broadcast(std::span(data)));
    c.end(begun, outcome);
    if (outcome && recognise(data, c.stream(leader), c.total()) != static_cast<std::int64_t>(number))
      wrong = "brought other bytes than the leader's";
  } else if (c.op.does == "gather") {
    std::vector<std::byte> mine(size);
    std::vector<std::byte> all(leads ? size * members : 0);
    fill(mine, c.stream(c.rank), number);
    auto outcome = co_await ops::attempt(g.gather(std::span(mine), std::span(all)));
    c.end(begun, outcome);
    for (std::size_t i = 0; outcome && leads && i < members; ++i) {
      const std::span<const std::byte> block = std::span(all).subspan(i * size, size);
      if (recognise(block, c.stream(sorted[i]), c.total()) != static_cast<std::int64_t>(number))
        wrong = "gathered other bytes than a member's";
    }
  } else {
    std::vector<std::uint32_t> data(size / 4);
    std::vector<std::uint32_t> sum(data.size());
    for (const rank_id r : sorted) {
      const message_words words(c.stream(r), number);
      for (std::size_t i = 0; i < data.size(); ++i) {
        const auto value = static_cast<std::uint32_t>(words[i]);
        sum[i] += value;
        if (r == c.rank) data[i] = value;
      }
    }
    auto outcome = co_await ops::attempt(g.all_reduce(std::span(data)));
    c.end(begun, outcome);
    if (outcome && data != sum) wrong = "combined to another sum";
  }
  if (wrong != nullptr) c.all.violated(c, "call " + std::to_string(number) + " " + wrong);
}

task<> programs::call_group(caller& c, ops::collective g) {
  runtime::scope& here = co_await runtime::this_scope;
  for (std::uint64_t i = 0;;) {
    bool more = c.has_more(i);
    if (!more) more = co_await goes_on(c, i);
    if (!more) break;
    co_await rest(c, i);
    if (c.over) break;
    const std::uint64_t end = c.end_of_phase(i);
    runtime::scope calls(here);
    for (std::uint64_t k = 0; k < c.op.in_flight && i < end; ++k) calls.spawn(group_one(c, g, i++));
    co_await calls.join();
  }
}

// --- Ops without headers ---------------------------------------------------------------------------------------------

// True if `brought` is the sum, byte by byte, of the data of all members in that call.
bool programs::is_sum(const caller& c, std::span<const std::byte> brought, std::uint64_t number) {
  std::vector<std::byte> sum(brought.size());
  std::vector<std::byte> one(brought.size());
  for (const rank_id r : c.op.members) {
    fill(one, c.stream(r), number);
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] = static_cast<std::byte>(static_cast<unsigned>(sum[i]) + static_cast<unsigned>(one[i]));
  }
  return std::equal(sum.begin(), sum.end(), brought.begin());
}

task<> programs::call_symmetric(caller& c, ops::symmetric op) {
  std::vector<std::byte> data(c.largest());
  for (std::uint64_t i = 0;; ++i) {
    bool more = c.has_more(i);
    if (!more) more = co_await goes_on(c, i);
    if (!more) break;
    co_await rest(c, i);
    if (c.over) break;
    const call_record begun = c.begin(op.end().leads(), i);
    const std::span<std::byte> mine = std::span(data).first(c.size(i));
    fill(mine, c.stream(c.rank), i);
    auto outcome = co_await ops::attempt(op.run(mine));
    c.end(begun, outcome);
    if (outcome && !is_sum(c, mine, i)) violated(c, "call " + std::to_string(i) + " brought another sum");
    // After a call that failed in the middle, the members would make their next calls under different numbers, and no longer meet.
    if (!outcome && outcome.code() != errc::config_failed) c.over = true;
  }
}

std::vector<lease_view> programs::leases(rank_id rank) const {
  std::vector<lease_view> all;
  for (const auto& c : callers_[rank]) {
    if (c->job != world_.job() || c->replaced || !c->without_headers) continue;
    ops::symmetric_end& end = c->without_headers->end();
    lease_view v = gates_of(static_cast<std::size_t>(c->job), rank, end);
    for (const std::uint64_t bytes : c->op.sizes) {
      if (!end.leases().open(bytes)) v.closed = end.leases().missing(bytes);
    }
    all.push_back(std::move(v));
  }
  return all;
}

// --- Ops that are made of others -------------------------------------------------------------------------------------

task<> programs::call_program(caller& c, std::shared_ptr<op_program> p) {
  // All generations use the same memory, so the last call of the generation before must end first.
  while (p->in_call && !c.over) {
    auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(more_pause_ns));
    if (!slept) co_return;
  }
  for (std::uint64_t i = 0;; ++i) {
    const bool more = co_await goes_on(c, i);
    if (!more) break;
    co_await rest(c, i);
    if (c.over) break;
    const call_record begun = c.begin(c.rank == c.op.members.front(), i);
    program_call now{i, c.size(i), [&c](rank_id r) { return c.stream(r); }};
    p->in_call = true;
    auto outcome = co_await ops::attempt(p->call(std::move(now)));
    p->in_call = false;
    c.end(begun, outcome);
    if (outcome && !p->right()) violated(c, "call " + std::to_string(i) + " brought other values than were given");
    if (!outcome && !calls_again(c.op.what, outcome.code())) c.over = true;
  }
  if (!c.replaced) p->rest();
}

// --- Pipelines -------------------------------------------------------------------------------------------------------

task<> programs::run_pipeline(caller& c, ops::pipeline p) {
  c.pipeline = std::make_unique<stage_of_pipeline>();
  c.pipeline->from = &c;
  c.pipeline->place = p.stage();
  // A few microbatches at a time, so that one failure does not end all of them.
  constexpr std::uint64_t at_once = 10;
  for (std::uint64_t i = 0;;) {
    bool more = c.has_more(i);
    if (!more) more = co_await goes_on(c, i);
    if (!more) break;
    co_await rest(c, i);
    if (c.over) break;
    const std::uint64_t end = c.end_of_phase(i);
    const std::uint64_t n = std::min(at_once, end - i);
    std::vector<std::uint64_t> sizes;
    for (std::uint64_t k = 0; k < n; ++k) sizes.push_back(c.size(i + k));
    c.pipeline->first = i;
    const call_record begun = c.begin(p.first(), i);
    auto outcome = co_await ops::attempt(p.run(sizes, *c.pipeline));
    c.end(begun, outcome);
    if (!outcome && !calls_again(c.op.what, outcome.code())) c.over = true;
    i += n;
  }
}

}  // namespace parley::simulation
