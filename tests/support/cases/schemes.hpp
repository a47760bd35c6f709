#pragma once
/// One op of a small job in virtual time: an edge, a group with a leader, or an op without headers whose trials are made in one of three
/// ways. A test of something that holds for all of these runs on all of them.
///
///     scheme_job j(scheme::group);
///     j.remember(2, scheme_job::fine);     // a result of an earlier job on rank 2
///     j.run();                             // declares the op, calls it, and lets time pass
///     CHECK(j.search().chosen().config == "fine");
///
/// All have the same five configs, which take `takes_ns` and little more. Each rank has settings, results and configs of its own.
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/runtime/version.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <optional>

namespace parley::tests {

enum class scheme : std::uint8_t { edge, group, rehearsed, between_calls, on_calls };
inline constexpr std::array all_schemes{scheme::edge, scheme::group, scheme::rehearsed, scheme::between_calls,
                                        scheme::on_calls};
inline std::string name(scheme s) {
  constexpr std::array names{"an edge", "a group", "leased, rehearsed", "leased, rehearsed between calls",
                             "leased, tried on calls"};
  return names[static_cast<std::size_t>(s)];
}

/// A scheme and its look-ahead.
struct scheme_variant {
  scheme how;
  std::uint64_t depth;  ///< of a group
};
inline constexpr std::array all_variants{scheme_variant{scheme::edge, 1},          scheme_variant{scheme::group, 1},
                                         scheme_variant{scheme::group, 2},         scheme_variant{scheme::rehearsed, 1},
                                         scheme_variant{scheme::between_calls, 1}, scheme_variant{scheme::on_calls, 1}};

inline constexpr auto nobody = static_cast<rank_id>(-1);

/// A config's times and health, and how often it has run on each rank, rehearsals included.
struct config_state {
  const char* name;
  const char* wire_class;
  std::array<runtime::time_ns, 3> takes_ns;  ///< by rank
  rank_id ill = nobody;                      ///< the rank on which it fails
  std::array<std::size_t, 3> runs{};

  runtime::task<> run(rank_id on) {
    ++runs[on];
    runtime::scope& here = co_await runtime::this_scope;
    auto slept = co_await runtime::sleep_until(here.where().deadline_in(takes_ns[on]));
    if (!slept) runtime::raise(slept.reason());
  }
  void check(rank_id on) const {
    if (on == ill) runtime::raise({errc::unavailable, "no such hardware"});
  }
};

class stated_transfer final : public ops::paired_config {
 public:
  explicit stated_transfer(config_state& s) : paired_config({.name = s.name, .wire_class = s.wire_class}), state_(s) {}
  runtime::task<> send(ops::part_sender& out, std::span<const std::byte> data) const override {
    co_await state_.run(0);
    state_.check(0);
    co_await out.send(0, data);
  }
  runtime::task<> receive(ops::part_receiver& in, std::span<std::byte> data) const override {
    co_await state_.run(1);
    state_.check(1);
    co_await in.receive(0, data);
  }

 private:
  config_state& state_;
};

class stated_star final : public ops::group_config {
 public:
  explicit stated_star(config_state& s) : group_config({.name = s.name, .wire_class = s.wire_class}), state_(s) {}
  runtime::task<> lead(ops::group_call& g) const override {
    co_await state_.run(static_cast<rank_id>(g.self()));
    state_.check(static_cast<rank_id>(g.self()));
    co_await real_->lead(g);
  }
  runtime::task<> work(ops::group_call& g) const override {
    co_await state_.run(static_cast<rank_id>(g.self()));
    state_.check(static_cast<rank_id>(g.self()));
    co_await real_->work(g);
  }

 private:
  config_state& state_;
  ops::group_config_ptr real_ = configs::star();
};

/// No member ends before all have begun.
class stated_algorithm final : public ops::symmetric_config {
 public:
  explicit stated_algorithm(config_state& s)
      : symmetric_config({.name = s.name, .wire_class = s.wire_class}), state_(s) {}
  runtime::task<> run(ops::symmetric_call call, std::span<std::byte>) const override {
    auto& over = static_cast<library_communicator&>(*call.communicator);
    const bool rehearsal = call.on == ops::symmetric_call::stream::rehearsal;
    const calls_book::entry noted(*over.place->book, call.self, rehearsal);
    const std::size_t at = over.next++;
    co_await state_.run(call.self);
    auto met = co_await over.place->enter(at, digest(), call.invocation, call.bytes, 0);
    if (!met) runtime::raise(met.reason());
    state_.check(call.self);
  }

 private:
  config_state& state_;
};

/// In an edge, rank 0 sends to rank 1. In the other schemes, rank 1 leads ranks 0 and 2.
struct scheme_job {
  static constexpr std::size_t plain = 0;  ///< the default
  static constexpr std::size_t fine = 1;   ///< the fastest
  static constexpr std::size_t coarse = 2;
  static constexpr std::size_t twin = 3;     ///< has the wire class of `fine`; at first no rank has it
  static constexpr std::size_t fragile = 4;  ///< is faster than `fine`; at first no rank has it
  static constexpr std::size_t bytes = 100'000;

  explicit scheme_job(scheme s, std::string called = "activations", const char* wire_class_of_coarse = "coarse")
      : how(s), size(s == scheme::edge ? 2 : 3), leader(s == scheme::edge ? 0 : 1), op_name(std::move(called)),
        entry(op_name + (s == scheme::edge ? "/0>1" : "/0>1>2")), settings(size, settings_on("test")),
        can(size, {true, true, true, false, false}), disks(size), links(clock, size) {
    configs[coarse].wire_class = wire_class_of_coarse;
    for (config_state& c : configs) {
      transfers_.push_back(std::make_shared<stated_transfer>(c));
      collectives_.push_back(std::make_shared<stated_star>(c));
      algorithms_.push_back(std::make_shared<stated_algorithm>(c));
    }
  }
  scheme_job(const scheme_job&) = delete;
  scheme_job& operator=(const scheme_job&) = delete;

  static ops::rank_settings settings_on(const std::string& processor) {
    ops::rank_settings s;
    s.plan.budget_fraction = 1e9;
    s.results_path = "results.csv";
    s.validators = {{"PARLEY_PROCESSOR", processor}};
    return s;
  }
  bool leased() const { return how != scheme::edge && how != scheme::group; }
  void let_all_have(std::size_t config) {
    for (auto& rank : can) rank[config] = true;
  }

  // ---- results files ------------------------------------------------------------------------------------------------

  static std::string file_of(rank_id r) { return "results" + std::to_string(r) + ".csv"; }
  std::string line(const std::string& solution, const std::string& time = "1.5") const {
    return entry + ",128KiB," + solution + "," + time + "\n";
  }
  /// Gives a rank a results file, with its current validators.
  void remember(rank_id r, const std::string& lines) {
    std::string text = "Validator,PARLEY_VERSION," + std::string(runtime::version_text) + "\nValidator,PARLEY_WORLD," +
                       std::to_string(size) + "\n";
    for (const auto& v : settings[r].validators) text += "Validator," + v.name + "," + v.value + "\n";
    disks[r].files[file_of(r)] = text + lines;
  }
  void remember(rank_id r, std::size_t config) { remember(r, line(configs[config].name)); }
  void remember_everywhere(std::size_t config) {
    for (rank_id r = 0; r < size; ++r) remember(r, config);
  }
  void forget() {
    for (auto& d : disks) d.files.clear();
  }
  /// The entry for the key that the results of all ranks contain; nothing: no rank has one.
  std::optional<tuning::result_entry> learned(const std::string& machines = {}) const {
    std::vector<std::optional<tuning::result_entry>> all;
    for (const auto& r : ranks) {
      const auto file = r->results();
      const auto* found = file.find(entry + machines, "128KiB");
      all.push_back(found == nullptr ? std::nullopt : std::optional(*found));
      CHECK(all.back() == all.front());
    }
    return all.front();
  }
  std::string learned_config(const std::string& machines = {}) const {
    const auto found = learned(machines);
    return found ? found->solution : "";
  }

  // ---- running ------------------------------------------------------------------------------------------------------

  /// Starts all ranks, which read their files and declare the op, and calls the op until something has been decided.
  void run() {
    start();
    call(first_calls());
  }
  void start() {
    leased_ops.clear();
    sources.clear();
    groups.clear();
    transfers_declared.clear();
    ranks.clear();
    lib.emplace(clock, size);
    const auto users = lib->make();
    for (rank_id r = 0; r < size; ++r) {
      const std::vector<std::uint64_t> incarnations(size, 1);
      ops::rank_foundation on{clock, links[r], &disks[r], {incarnations}, {}};
      on.hosts = hosts;
      on.kinds = kinds;
      ranks.push_back(std::make_unique<ops::rank>(std::move(on), settings[r]));
      declare(*ranks.back(), users);
    }
  }
  std::size_t first_calls() const { return leased() ? 400 : 120; }
  /// Makes `times` more calls on each rank, and then lets 20 s pass. Checks that no call ran two configs, and counts failed calls.
  void call(std::size_t times, std::size_t of_bytes = bytes) {
    call_meanwhile(times, [] {}, of_bytes);
    pass(20'000'000'000);
  }
  /// Makes calls, and does `what` in the middle of them, or as soon as `when` returns true. All ranks go on calling.
  template <class Do>
  void call_meanwhile(std::size_t times, Do what, std::size_t of_bytes = bytes) {
    call_and_when(times, [&] { return made >= size * times / 2; }, what, of_bytes);
  }
  template <class When, class Do>
  void call_and_when(std::size_t times, When when, Do what, std::size_t of_bytes = bytes) {
    runtime::scope all(clock);
    made = 0;
    for (rank_id r = 0; r < size; ++r) all.spawn(call_on(r, times, of_bytes));
    runtime::run_until(clock, [&] { return when() || all.running() == 0; });
    what();
    runtime::run_until(clock, [&] { return all.running() == 0; });
    CHECK(join_group_flights(ranks).mismatches == 0);
    if (!mixed) CHECK(lib->mismatches() == 0);
  }
  void pass(runtime::time_ns span) {
    const auto sleep = [](runtime::time_ns until) -> runtime::task<> {
      auto slept = co_await runtime::sleep_until(until);
      static_cast<void>(slept);
    };
    runtime::run(clock, sleep(clock.deadline_in(span)));
  }
  std::size_t failed = 0;  ///< failed calls
  std::size_t made = 0;    ///< the latest calls, of all ranks

  // ---- what came of it ----------------------------------------------------------------------------------------------

  const actors::assignment& assigned() const {
    const auto agreed = ranks[leader]->agreements();
    REQUIRE(agreed.size() == 1);
    return *agreed[0].assigned;
  }
  const actors::search& search() const {
    REQUIRE(assigned().searches().size() == 1);
    return *assigned().searches().front();
  }
  bool decided() const { return search().is_decided(); }
  /// The decision that all ranks know, which must be the same one.
  actors::decision_record decision() const {
    std::vector<actors::decision_record> all;
    for (const auto& r : ranks) {
      const auto known = r->decisions();
      REQUIRE(known.size() == 1);
      all.push_back(known[0].decision);
      CHECK(all[0].digest == all.back().digest);
      CHECK(all[0].why == all.back().why);
      CHECK(all[0].source == all.back().source);
      CHECK(all[0].proposer == all.back().proposer);
      CHECK(all[0].search == all.back().search);
    }
    CHECK(all[0].digest == search().chosen().digest);
    return all[0];
  }
  bool says(const std::string& part) const {
    const auto why = decision().why;
    INFO(why);
    return why.find(part) != std::string::npos;
  }
  /// The config that runs from now on: by the log of an op without headers, else by the decision.
  std::string running() const {
    if (!leased()) return search().chosen().config;
    auto& end = leased_ops[leader].end();
    const auto* log = end.lease_coordinator()->log_of(bytes);
    REQUIRE(log != nullptr);
    const std::string* of = end.participant().id_of(log->tail());
    return of == nullptr ? "" : *of;
  }
  const actors::lease_coordinator::counters& led() const {
    return leased_ops[leader].end().lease_coordinator()->statistics();
  }
  std::uint64_t gates_met() const {
    std::uint64_t met = 0;
    for (const auto& op : leased_ops) met += op.end().leases().statistics().gates_met;
    return met;
  }
  /// Number of control messages that are not about windows and acknowledgements. An op without headers sends none about these.
  std::uint64_t agreement_messages() const {
    std::uint64_t sent = 0;
    for (const auto& r : ranks) {
      if (leased()) {
        sent += r->mail().statistics().sent;
        continue;
      }
      for (const std::size_t type :
           {actors::offer::message_type, actors::merged::message_type, actors::warm::message_type,
            actors::warmed::message_type, actors::report::message_type, actors::decide::message_type})
        sent += r->mail().sent_by_type()[type];
    }
    return sent;
  }

  scheme how;
  rank_id size;
  rank_id leader;
  std::string op_name;
  std::string entry;  ///< its name in results files
  std::vector<ops::rank_settings> settings;
  std::vector<std::vector<bool>> can;      ///< by rank: the configs that it has
  std::uint64_t depth = 1;                 ///< of a group
  std::size_t at_once = 1;                 ///< calls of a rank in flight
  bool mixed = false;                      ///< ranks run several configs of one wire class for one call
  std::array<runtime::time_ns, 3> late{};  ///< how long each rank takes before it calls
  std::vector<std::uint64_t> hosts{};
  std::vector<std::string> kinds{};
  std::array<config_state, 5> configs{{{"plain", "plain", {400'000, 400'000, 400'000}},
                                       {"fine", "fine", {100'000, 100'000, 100'000}},
                                       {"coarse", "coarse", {200'000, 200'000, 200'000}},
                                       {"twin", "fine", {150'000, 150'000, 150'000}},
                                       {"fragile", "fragile", {50'000, 50'000, 50'000}}}};
  std::vector<memory_storage> disks;

  runtime::virtual_time clock;
  memory_world links;
  std::optional<library> lib;
  std::vector<std::unique_ptr<ops::rank>> ranks;

 private:
  void declare(ops::rank& self, const std::shared_ptr<meeting_place>& users) {
    const auto fill = [this](auto& op, const auto& list) {
      op.name = op_name;
      op.configs = list;
      op.can_run = [this](rank_id r) { return can[r]; };
    };
    if (how == scheme::edge) {
      auto op = pair_of({});
      fill(op, transfers_);
      transfers_declared.emplace_back(self, op);
    } else if (how == scheme::group) {
      auto op = led_by(leader, {});
      fill(op, collectives_);
      op.depth = depth;
      groups.emplace_back(self, op);
    } else {
      ops::symmetric_options op;
      fill(op, algorithms_);
      op.ranks = {1, 0, 2};
      op.communicator = std::make_shared<library_communicator>(users);
      const auto source = std::make_shared<library_source>(*lib);
      source->beside = how == scheme::rehearsed;
      sources.push_back(source);
      if (how != scheme::on_calls) op.rehearse = source;
      leased_ops.emplace_back(self, op);
    }
  }
  runtime::task<> call_on(rank_id r, std::size_t times, std::size_t of_bytes) {
    runtime::scope& here = co_await runtime::this_scope;
    for (std::size_t i = 0; i < times; i += at_once) {
      runtime::scope calls(here);
      for (std::size_t k = 0; k < at_once; ++k) calls.spawn(call_once(r, of_bytes));
      co_await calls.join();
      made += at_once;
    }
  }
  runtime::task<> call_once(rank_id r, std::size_t of_bytes) {
    if (late[r] != 0) {
      auto woken = co_await runtime::sleep_until(clock.deadline_in(late[r]));
      static_cast<void>(woken);
    }
    std::vector<float> data(of_bytes / sizeof(float));
    const auto raw = std::as_writable_bytes(std::span(data));
    runtime::result<> outcome;
    if (how == scheme::group) {
      outcome = co_await ops::attempt(groups[r].all_reduce(std::span(data)));
    } else if (leased()) {
      auto slept = co_await runtime::sleep_until(clock.deadline_in(20'000));
      static_cast<void>(slept);
      outcome = co_await ops::attempt(leased_ops[r].run(raw));
    } else if (r == 0) {
      outcome = co_await ops::attempt(transfers_declared[0].send(raw, {.to = 1}));
    } else {  // waits longer than a send: a receive that times out would leave its message to the next one
      auto received = co_await ops::attempt(transfers_declared[1].receive(raw, {.from = 0, .timeout = 60s}));
      if (!received) outcome = received.reason();
    }
    if (!outcome) ++failed;
  }

  std::vector<ops::config_ptr> transfers_;
  std::vector<ops::group_config_ptr> collectives_;
  std::vector<ops::symmetric_config_ptr> algorithms_;

 public:
  std::vector<ops::transfer> transfers_declared;
  std::vector<ops::collective> groups;
  std::vector<ops::symmetric> leased_ops;
  std::vector<std::shared_ptr<library_source>> sources;  ///< of the ranks' communicators for rehearsals
};

}  // namespace parley::tests
