// Explores the restart of one rank: every order of the calls, of the messages of the old and the new process, and of the news of the
// restart. Whole ranks run here, with ops as programs declare them. Pairs and groups run their default config; an op without headers
// has one campaign in each generation, which its results files have decided.
#include <parley/tests/small_scope/held_world.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/services.hpp>
#include <parley/collective.hpp>
#include <parley/news.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/version.hpp>
#include <parley/runtime/wire/incarnations.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>
#include <parley/when.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

enum class flaw : std::uint8_t {
  none,
  generation_ignored,  // data of the ended generation is accepted as data of the new one
  not_told,            // no rank learns of the restart
  promises_kept,       // promises of the ended generation count in the new one
  log_kept,            // a leader's log of the ended generation counts in the new one
};

struct restart_setup {
  enum class op : std::uint8_t { pair, group, leases } what = op::pair;
  rank_id returns = 1;
  std::uint64_t before = 1;  // calls of each rank with the old process
  std::uint64_t after = 1;   // calls of each rank with the new process
  bounds allowed{};
  flaw broken = flaw::none;
};
constexpr auto group = restart_setup::op::group;
constexpr auto leases = restart_setup::op::leases;
constexpr std::size_t call_bytes = 8;

/// Stands in for a library whose calls carry no parley header: the i-th calls of both ranks on one communicator meet.
struct library final : runtime::link::handler {
  struct word {
    std::uint64_t communicator = 0, index = 0, digest = 0, invocation = 0, value = 0;
  };
  static_assert(sizeof(word) <= runtime::link::max_header_bytes);
  struct communicator final : ops::communicator {
    communicator(library& l, std::uint64_t n) : of(l), number(n) {}
    void abort() noexcept override {
      aborted = true;
      of.changed.tell();
    }
    library& of;
    std::uint64_t number, next = 0;
    bool aborted = false;
  };

  explicit library(runtime::link& n) : net(n) { net.listen(runtime::link::channel::transfers, this); }
  ~library() { net.listen(runtime::link::channel::transfers, nullptr); }
  void on_arrival(arrival&& m) noexcept override {
    word w;
    std::memcpy(&w, m.header().data(), sizeof w);
    heard[{w.communicator, w.index}] = w;
    changed.tell();
  }
  static std::shared_ptr<communicator> make(library& l, std::uint64_t number) {
    return std::make_shared<communicator>(l, number);
  }

  runtime::link& net;
  news changed;
  std::map<std::pair<std::uint64_t, std::uint64_t>, word> heard;
  std::function<void(const word&)> on_call;              // runs when this rank begins a call
  std::function<void(const word&, const word&)> on_met;  // runs when two calls meet: this rank's word, the peer's word
};

/// Gives each rank the sum of both ranks' first bytes.
struct exchange final : ops::symmetric_config {
  explicit exchange(std::string name) : symmetric_config({.name = std::move(name)}) {}
  task<> run(ops::symmetric_call call, std::span<std::byte> data) const override {
    auto& over = static_cast<library::communicator&>(*call.communicator);
    library& lib = over.of;
    const library::word mine{over.number, over.next++, digest(), call.invocation,
                             std::to_integer<std::uint64_t>(data[0])};
    lib.on_call(mine);
    static_cast<void>(lib.net.send(1 - call.self, runtime::link::channel::transfers, std::as_bytes(std::span(&mine, 1)),
                                   {}, nullptr));
    const std::pair place{mine.communicator, mine.index};
    while (!over.aborted && !lib.heard.contains(place)) {
      auto woken = co_await lib.changed.next(never);
      if (!woken) raise(woken.reason());
    }
    if (over.aborted) raise(errc::closed);
    const library::word theirs = lib.heard.at(place);
    lib.on_met(mine, theirs);
    data[0] = static_cast<std::byte>(mine.value + theirs.value);
  }
};

const std::vector<ops::symmetric_config_ptr>& exchanges() {
  static const std::vector<ops::symmetric_config_ptr> all{std::make_shared<exchange>("c0"),
                                                          std::make_shared<exchange>("c1")};
  return all;
}

/// A process in a rank's place, and what its program has done so far.
struct process {
  process(site& s, const runtime::incarnations& known, const restart_setup& setup, std::uint64_t g,
          std::uint64_t communicator)
      : lib(s.net), self({s.clock, s.net, &disk, known, {}}, settings_for(setup, disk, s.net.rank())), generation(g),
        program(s.clock) {
    if (setup.what == leases) {
      self.services().promise_margin = 0;
      norms = ops::symmetric(
          self, {.name = "norms", .configs = exchanges(), .communicator = library::make(lib, communicator)});
    } else if (setup.what == group) {
      ops::collective_options op;
      op.name = "sums";
      op.role = [](rank_id r) { return r == 0 ? ops::role::leader : ops::role::worker; };
      sums = ops::collective(self, op);
    } else {
      messages = ops::transfer(self, {.name = "messages", .edges = {{0, 1}}});
    }
  }
  static ops::rank_settings settings_for(const restart_setup& setup, memory_storage& on, rank_id r) {
    ops::rank_settings s;
    s.policy = tuning_policy::off;
    s.flight_records = 16;
    if (setup.what != leases) return s;
    s.results_path = "results.csv";
    on.files["results" + std::to_string(r) + ".csv"] =
        "Validator,PARLEY_VERSION," + std::string(version_text) + "\nValidator,PARLEY_WORLD,2\nnorms/0>1,8B,c1,0.001\n";
    return s;
  }
  memory_storage disk;
  library lib;
  ops::rank self;
  ops::transfer messages;
  ops::collective sums;
  ops::symmetric norms;
  std::uint64_t generation;  // the generation that its program is in: 1 after the restart
  bool told = false;         // this process knows of the restart
  bool calling = false;
  scope program;
};

class restart_world final : public held_world {
 public:
  explicit restart_world(const restart_setup& setup) : held_world(2, setup.allowed), setup_(setup) {
    for (rank_id r = 0; r < ranks; ++r) incarnations_.push_back(1000 + r);
    for (rank_id r = 0; r < ranks; ++r) processes_.push_back(make(r, 0));
    settle_all();
  }
  std::unique_ptr<process> make(rank_id r, std::uint64_t generation) {
    auto made = std::make_unique<process>(*sites[r], incarnations_, setup_, generation, incarnations_[setup_.returns]);
    made->lib.on_call = [this](const library::word& w) {
      const auto [at, fresh] = ran_.emplace(std::pair{w.communicator, w.invocation}, w.digest);
      if (!fresh && at->second != w.digest)
        breaks("S2: invocation " + std::to_string(w.invocation) + " runs with two configs");
    };
    made->lib.on_met = [this](const library::word& mine, const library::word& theirs) {
      if (mine.digest != theirs.digest || mine.invocation != theirs.invocation)
        breaks("S2: calls of different invocations or configs meet");
    };
    return made;
  }
  void settle_all() {
    for (auto& s : sites) s->settle();
  }

  bool may_call(rank_id r) const {
    const process& p = *processes_[r];
    return !p.calling && p.told == (p.generation == 1) && made_[r][p.generation] < most(p.generation);
  }
  std::uint64_t most(std::uint64_t generation) const { return generation == 0 ? setup_.before : setup_.after; }
  bool may_hear(rank_id r) const { return restarted_ && !processes_[r]->told && setup_.broken != flaw::not_told; }
  bool may_rejoin(rank_id r) const {
    return processes_[r]->told && processes_[r]->generation == 0 && !processes_[r]->calling;
  }
  std::vector<event> steps() override {
    std::vector<event> all;
    for (rank_id r = 0; r < ranks; ++r) {
      if (may_call(r)) all.push_back({make_call, r, 0, make_call});
      if (may_hear(r)) all.push_back({hear, r, 0, hear});
      if (may_rejoin(r)) all.push_back({rejoin, r, 0, rejoin});
    }
    // `restart` keeps the messages in flight to the old process, which may then reach the new one; `restart_alone` drops them.
    if (!restarted_) {
      all.push_back({restart, setup_.returns, 0, restart});
      all.push_back({restart_alone, setup_.returns, restart_alone, restart_alone});
    }
    return all;
  }
  void step(const event& e) override {
    process& p = *processes_[e.where];
    switch (e.id) {
      case make_call:
        p.calling = true;
        p.program.spawn(call(*this, e.where, p.generation, made_[e.where][p.generation]++));
        break;
      case hear:
        p.told = true;
        p.self.on_restarted(setup_.returns, incarnations_[setup_.returns]);
        if (setup_.what == restart_setup::op::pair) p.generation = 1;  // a pair needs no `rejoin`
        break;
      case rejoin:
        if (!(setup_.what == leases ? p.norms.rejoin(library::make(p.lib, incarnations_[setup_.returns]))
                                    : p.sums.rejoin()))
          breaks("L2: a rank that has heard of a restart cannot rejoin");
        p.generation = 1;
        break;
      case restart_alone:
        std::erase_if(in_flight, [&](const held& m) { return m.to == setup_.returns; });
        [[fallthrough]];
      default: begin_anew(); break;
    }
  }
  void begin_anew() {
    restarted_ = true;
    auto& place = processes_[setup_.returns];
    place.reset();
    incarnations_[setup_.returns] += runtime::incarnation_of(0, 1);
    place = make(setup_.returns, 1);
    place->told = true;
    if (setup_.what == leases) newest_ = place->norms.end().participant().generation;
  }
  std::string name_of_step(const event& e) override {
    const char* const what[] = {"makes a call", "hears of the restart", "rejoins", "restarts",
                                "restarts, and what was for it is lost"};
    return "rank " + std::to_string(e.where) + " " + what[e.id];
  }

  // A value that is unique to the rank, the generation and the call.
  static std::byte value(rank_id r, std::uint64_t generation, std::uint64_t n) {
    return static_cast<std::byte>(100 * generation + 10 * n + r + 1);
  }
  static task<> call(restart_world& w, rank_id r, std::uint64_t generation, std::uint64_t n) {
    process& p = *w.processes_[r];
    std::array<std::byte, call_bytes> data{};
    data.fill(value(r, generation, n));
    std::optional<error> failed;
    if (w.setup_.what == leases) {
      auto done = co_await ops::attempt(p.norms.run(std::span(data)));
      if (!done) failed = done.reason();
    } else if (w.setup_.what == group) {
      std::array<std::uint8_t, 8> x{};
      std::memcpy(x.data(), data.data(), x.size());
      auto done = co_await ops::attempt(p.sums.all_reduce(std::span<std::uint8_t>(x)));
      if (!done) failed = done.reason();
      std::memcpy(data.data(), x.data(), x.size());
    } else if (r == 0) {
      auto done = co_await ops::attempt(p.messages.send(data, {.to = 1}));
      if (!done) failed = done.reason();
    } else {
      auto done = co_await ops::attempt(p.messages.receive(data, {.from = 0}));
      if (!done) failed = done.reason();
    }
    w.note_end(r, generation, n, failed, data[0]);
  }
  void note_end(rank_id r, std::uint64_t generation, std::uint64_t n, const std::optional<error>& failed,
                std::byte got) {
    processes_[r]->calling = false;
    const std::string what = "call " + std::to_string(n) + " of rank " + std::to_string(r) +
                             (generation == 0 ? " with the old process" : " with the new process");
    if (failed) {
      const bool explained =
          generation == 0 && (failed->code() == errc::peer_restarted || failed->code() == errc::fenced);
      if (!explained) breaks("L2: " + what + " fails: " + failed->what());
      return;
    }
    ++went_well_[r][generation];
    std::byte right = value(0, generation, n);
    if (setup_.what != restart_setup::op::pair)
      right =
          static_cast<std::byte>(std::to_integer<unsigned>(right) + std::to_integer<unsigned>(value(1, generation, n)));
    if (got != right)
      breaks("S5: " + what + " brings " + std::to_string(std::to_integer<unsigned>(got)) + " and not " +
             std::to_string(std::to_integer<unsigned>(right)));
  }

  static bool is_of_leases(const held& m) {
    return m.type() >= lease_prepare::message_type && m.type() <= lease_let_go::message_type;
  }
  // Messages that the search need not delay. In a pair or a group: all control messages except `gen_end`, and data of rehearsals. In an op
  // without headers, the search delays lease messages (except `known` replies) and messages of the new process to a rank that has not
  // rejoined. Calls with the new process meet as soon as both ranks have begun them, as if the slower rank had begun later.
  bool comes_at_once(const held& m) const override {
    stamp s;
    if (setup_.what != leases) {
      if (m.type() == 0) return read_stamp(m.header, s) && has(s.flags, stamp_flags::rehearsal);
      return m.type() != gen_end::message_type;
    }
    if (restarted_ && m.from == setup_.returns && processes_[m.to]->generation == 0) return false;
    if (m.type() == 0) return restarted_ && processes_[m.from]->generation == 1;
    const auto said = m.as<lease_reply>();
    return !is_of_leases(m) || (said && said->what == lease_reply::kind::known);
  }
  bool on_deliver(held& m) override {
    if (!restarted_ || setup_.broken == flaw::none) return true;
    const bool is_kept = (setup_.broken == flaw::promises_kept && m.type() == lease_reply::message_type) ||
                         (setup_.broken == flaw::log_kept && m.type() == lease_schedule::message_type);
    if (is_kept) {
      frame_header h = m.frame();
      h.generation = newest_;
      h.session = session_of(0, incarnations_[m.from], incarnations_[m.to]);
      std::memcpy(m.header.data(), &h, sizeof h);
    }
    stamp s;
    if (setup_.broken == flaw::generation_ignored && m.type() == 0 && read_stamp(m.header, s)) {
      s.generation = newest_;
      if (newest_ != 0) std::memcpy(m.header.data(), &s, sizeof s);
    }
    return true;
  }
  bool on_send(held& m) override {
    if (const auto said = m.as<lease_reply>(); said && said->what == lease_reply::kind::promise) {
      const auto [at, fresh] = promised_.emplace(std::tuple(m.from, m.frame().generation, said->campaign), said->from);
      if (!fresh && at->second != said->from) breaks("S7: rank " + std::to_string(m.from) + " promises something else");
    }
    if (setup_.what == leases) return true;
    stamp s;
    const bool is_data = m.type() == 0 && read_stamp(m.header, s);
    if (restarted_ && m.from == setup_.returns && (is_data || m.type() != 0))
      newest_ = is_data ? s.generation : m.frame().generation;
    return true;
  }

  bool go_on() override {
    bool moved = false;
    for (rank_id r = 0; r < ranks; ++r) {
      const std::uint32_t what = may_hear(r) ? hear : may_rejoin(r) ? rejoin : may_call(r) ? make_call : nothing;
      if (what == nothing) continue;
      step({0, r, 0, what});
      moved = true;
    }
    return moved;
  }
  bool over() override {
    for (rank_id r = 0; r < ranks; ++r) {
      if (processes_[r]->calling || processes_[r]->generation == 0 || made_[r][1] < setup_.after) return false;
    }
    return setup_.what != leases || has_changed_config();
  }
  const lease_log* log() const { return processes_[0]->norms.end().lease_coordinator()->log_of(call_bytes); }
  /// Whether the campaign of the new generation has ended with the decided config.
  bool has_changed_config() const {
    return log() != nullptr && log()->tail() == exchanges()[1]->digest() &&
           !processes_[0]->norms.end().lease_coordinator()->owes_messages();
  }
  std::string unfinished() override {
    const bool calling = std::any_of(processes_.begin(), processes_.end(), [](const auto& p) { return p->calling; });
    return calling || setup_.what != leases ? "L2: a call never ends" : "L1: the campaign never ends";
  }
  void judge() override {
    if (setup_.what != leases) return;
    for (const auto& [at, digest] : ran_) {
      if (at.first == incarnations_[setup_.returns] && log()->assigned(at.second).digest != digest)
        breaks("S1: invocation " + std::to_string(at.second) + " ran otherwise than the log has it");
    }
  }
  // For each rank: how many of its calls with the old process succeeded.
  std::string outcome() const override { return std::to_string(went_well_[0][0]) + std::to_string(went_well_[1][0]); }

 private:
  enum : std::uint32_t { make_call, hear, rejoin, restart, restart_alone, nothing };
  restart_setup setup_;
  std::vector<std::uint64_t> incarnations_;
  std::vector<std::unique_ptr<process>> processes_;
  bool restarted_ = false;
  std::uint64_t newest_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>
      ran_;  // by communicator and invocation: the config that ran
  std::map<std::tuple<rank_id, std::uint64_t, std::uint64_t>, std::uint64_t> promised_;
  std::uint64_t made_[2][2]{};       // by rank and generation
  std::uint64_t went_well_[2][2]{};  // by rank and generation
};

explorer::maker making(const restart_setup& s) {
  return [s] { return std::make_unique<restart_world>(s); };
}

void check_safe(const std::string& name, const restart_setup& s, const std::set<std::string>& predicted) {
  tests::check_safe(name, making(s), predicted);
}
void check_broken(const std::string& name, const restart_setup& s, const std::string& invariant) {
  tests::check_broken(name, making(s), invariant);
}

}  // namespace

// `predicted` is how many calls with the old process may succeed on ranks 0 and 1. A receive needs its send. A leader's call needs the
// worker's contribution, and the worker's next call needs the leader's result.
TEST_CASE("a pair continues when one of its ranks restarts") {
  const std::set<std::string> predicted{"00", "10", "11", "20", "21", "22"};
  const std::uint64_t after = deep() ? 2 : 1;
  check_safe("the receiver restarts", {.before = 2, .after = after}, predicted);
  check_safe("the sender restarts", {.returns = 0, .before = 2, .after = after}, predicted);
}

TEST_CASE("a group continues when one of its ranks restarts") {
  const std::set<std::string> predicted{"00", "10", "11", "21", "22"};
  check_safe("the worker restarts", {.what = group, .before = 2, .after = 2}, predicted);
  check_safe("the leader restarts", {.what = group, .returns = 0, .before = 2, .after = 2}, predicted);
}

// A call can succeed once both ranks have begun it; a restart may still end it on one of them.
TEST_CASE("an op without headers continues when one of its ranks restarts, and changes its config in each generation") {
  const std::set<std::string> predicted{"00", "01", "10", "11"};
  const std::uint64_t after = deep() ? 2 : 1;
  check_safe("a member restarts", {.what = leases, .before = 1, .after = after}, predicted);
  check_safe("the leader of leases restarts", {.what = leases, .returns = 0, .before = 1, .after = after}, predicted);
}

TEST_CASE("the search finds every planted flaw of restarts, and names the broken invariant") {
  check_broken("an old generation's data counts", {.broken = flaw::generation_ignored}, "S5");
  check_broken("an old sender's data counts", {.returns = 0, .broken = flaw::generation_ignored}, "S5");
  check_broken("an old worker's data counts", {.what = group, .broken = flaw::generation_ignored}, "S5");
  check_broken("an old leader's data counts", {.what = group, .returns = 0, .broken = flaw::generation_ignored}, "S5");
  check_broken("a restart that nobody hears of", {.broken = flaw::not_told}, "L2");
  check_broken("an old member's promise counts",
               {.what = leases, .before = 1, .after = 2, .broken = flaw::promises_kept}, "S2");
  check_broken("an old leader's log counts",
               {.what = leases, .returns = 0, .before = 1, .after = 2, .broken = flaw::log_kept}, "S7");
}
