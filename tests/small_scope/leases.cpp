// Explores the lease scheme, with the coordinator and the participants that programs run, in every order of delivery.
#include <parley/tests/small_scope/held_world.hpp>

#include <parley/actors/agreement/coordinator.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/actors/leases/lease_participant.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::uint64_t bytes = 1024;

/// The configs of each rank. The last rank lacks the third config.
const tuning::catalogue& configs() {
  static const tuning::catalogue all = tuning::catalogue::make({{"c0"}, {"c1"}, {"c2"}}).value();
  return all;
}
std::uint64_t digest_of(std::size_t config) { return configs()[config].digest; }
std::string id_of(std::uint64_t digest) { return configs()[*configs().find(digest)].identity.name; }

enum class mutant : std::uint8_t {
  none,
  promise_too_low,   // the coordinator receives a lower index than the one at which the member stops
  smallest_promise,  // the schedule begins at the smallest of the promises
  promise_changes,
  abort_after_schedule,
  schedule_forgotten,
  log_lost,            // the coordinator loses its log and starts over in the same generation
  claims_to_be_ready,  // a member reports a config as ready that it does not have
};

struct lease_setup {
  rank_id ranks = 2;
  std::uint64_t calls = 3;
  std::vector<std::uint64_t> margins{0, 0, 0};
  enum class aim : std::uint8_t { decision, trials } campaign = aim::decision;
  enum class from : std::uint8_t { opened, offers } begins = from::opened;  // candidates are known, or not yet offered
  bounds allowed{};
  std::size_t aborts = 0;
  std::size_t failures = 0;  // failures of c1; after each, another campaign cuts the remaining trials short
  std::size_t generation_ends = 0;
  mutant broken = mutant::none;
};

op_declaration declared(rank_id ranks) {
  op_declaration d;
  d.name = "op";
  d.scheme = "lease";
  for (rank_id r = 0; r < ranks; ++r) d.participants.push_back({r, "member"});
  d.default_config = "c0";
  d.default_digest = digest_of(0);
  return d;
}

struct call {
  std::uint64_t generation, invocation, digest;
  bool ready;  // the config was warmed on that rank
};

/// One rank's part of the op.
struct member final : implementations, rehearsals {
  member(site& s, const op_declaration& d, std::uint64_t g, const lease_setup& setup)
      : at(s), rows(s.clock), mine(d, g, rows, *this), leases(s.shared, mine, *this), program(s.clock) {
    leases.on_generation_ended([this](const std::string&) { ended = true; });
    mine.role = "member";
    mine.configs = configs();
    mine.available = tuning::bits(3, tuning::bit::set);
    if (s.net.rank() + 1 == setup.ranks) mine.available.clear(2);
    if (setup.begins == lease_setup::from::opened) {
      mine.ready = {digest_of(0), digest_of(1)};
    } else {
      if (setup.campaign == lease_setup::aim::decision) mine.remembered.push_back({"1KiB", best(setup), 1.0});
      spawn_participant(s.shared, mine);
    }
  }
  static const char* best(const lease_setup& s) { return s.broken == mutant::claims_to_be_ready ? "c2" : "c1"; }
  struct own_state : participant_state {
    own_state(const op_declaration& d, std::uint64_t g, row_log& its_rows, implementations& its_runs) {
      declaration = d;
      generation = g;
      rows = &its_rows;
      runs = &its_runs;
    }
  };
  task<> rehearse(std::uint64_t) override { co_return; }
  void on_rejected(const error&) noexcept override { leases.fail(errc::config_mismatch); }
  task<> connect(std::vector<std::byte>) override { co_return; }
  task<> run_scratch(rehearsal_run, std::uint64_t, std::string&) override { co_return; }
  void abandon() noexcept override {}

  static task<> call_once(member& m) {
    auto begun = co_await m.leases.start(bytes, never);
    m.calling = false;
    if (!begun) co_return;
    m.ran.push_back(
        {m.leases.generation(), begun->what.invocation, begun->what.digest, m.mine.may_run(begun->what.digest)});
    m.leases.ended(*begun, 0, 0, errc::none);
  }
  site& at;
  row_log rows;
  own_state mine;
  lease_participant leases;
  std::vector<call> ran;
  bool calling = false;
  bool ended = false;  // the generation of this rank has ended, and the rank has not joined the next one
  scope program;
};

/// What the leader has in addition to its `member`.
struct leader {
  leader(site& s, const op_declaration& d, std::uint64_t g, const lease_setup& setup)
      : actors(s.clock), own{s.clock, actors, s.net, s.mail, s.data, s.flight, s.shared.incarnations},
        assigned(digest_of(0), "c0", "", ranks_of(d), tuning_policy::online, plan()) {
    state.declaration = d;
    state.generation = g;
    state.configs = configs();
    state.assigned = &assigned;
    leases =
        std::make_unique<lease_coordinator>(own, state, [] { return std::vector<std::byte>(); }, trial_path::leased);
    if (setup.begins == lease_setup::from::opened) {
      std::vector<remembered_best> best;
      if (setup.campaign == lease_setup::aim::decision) best.push_back({"1KiB", "c1", 1.0});
      assigned.open({digest_of(0), digest_of(1)}, {"c0", "c1"}, std::move(best), 0);
    } else {
      spawn_coordinator(own, state);
    }
    leases->start();
  }
  static std::vector<rank_id> ranks_of(const op_declaration& d) {
    std::vector<rank_id> all;
    for (const auto& p : d.participants) all.push_back(p.rank);
    return all;
  }
  static tuning::plan_options plan() {
    tuning::plan_options p;
    p.budget_fraction = 1e9;
    p.maximum_rounds = 1;
    p.probe_repetitions = p.enough_repetitions = 1;
    return p;
  }
  scope actors;
  services own;
  assignment assigned;
  coordinator_state state;
  std::unique_ptr<lease_coordinator> leases;
};

class lease_world final : public held_world {
 public:
  explicit lease_world(const lease_setup& setup)
      : held_world(setup.ranks, setup.allowed), setup_(setup), op_(declared(setup_.ranks)) {
    for (rank_id r = 0; r < ranks; ++r) {
      sites[r]->shared.promise_margin = setup_.margins[r];
      members.push_back(std::make_unique<member>(*sites[r], op_, first_generation_number, setup_));
    }
    begin_to_lead();
    members[0]->leases.on_new_key([this](std::uint64_t b) { lead->leases->key_seen(b); });
    for (auto& s : sites) s->settle();
  }

  void begin_to_lead() {
    lead.reset();
    sites[0]->mail.unbind(number_of(op_.id(), part::coordinator));
    lead = std::make_unique<leader>(*sites[0], op_, first_generation_number, setup_);
  }

  std::vector<event> steps() override {
    std::vector<event> all;
    for (rank_id r = 0; r < ranks; ++r) {
      const member& m = *members[r];
      if (m.ended) {
        all.push_back({join, r, 0, join});
      } else if (!m.calling && m.ran.size() < setup_.calls) {
        all.push_back({make_call, r, 0, make_call});
      }
    }
    if (aborted_ < setup_.aborts && lead->leases->statistics().campaigns > aborted_)
      all.push_back({abort, 0, 0, abort});
    const lease_log* const log = lead->leases->log_of(bytes);
    if (failed_ < setup_.failures && log != nullptr && log->size() != 0) all.push_back({c1_fails, 0, 0, c1_fails});
    if (setup_.broken == mutant::log_lost && lost_ == 0 && log != nullptr) all.push_back({lose_log, 0, 0, lose_log});
    if (ended_ < setup_.generation_ends) all.push_back({end_generation, 0, 0, end_generation});
    return all;
  }
  void step(const event& e) override {
    member& m = *members[e.where];
    switch (e.id) {
      case make_call:
        m.calling = true;
        m.program.spawn(member::call_once(m));
        break;
      case join: m.ended = !m.leases.rejoin(); break;
      case abort:  // 2 s, so that the coordinator stops waiting for promises
        ++aborted_;
        sites[0]->clock.advance_to(sites[0]->clock.deadline_in(2'000'000'000));
        break;
      case c1_fails:
        ++failed_;
        lead->assigned.quarantine(bytes, digest_of(1), 0, "it failed");
        lead->state.on_change();
        break;
      case lose_log:
        ++lost_;
        begin_to_lead();
        lead->leases->key_seen(bytes);
        break;
      default:
        ++ended_;
        lead->leases->end_generation("the search says so");
        break;
    }
  }
  std::string name_of_step(const event& e) override {
    const char* const what[] = {
        "makes a call",  "joins the next generation", "waits for promises in vain", "hears that c1 fails",
        "loses its log", "ends the generation"};
    return "rank " + std::to_string(e.where) + " " + what[e.id];
  }
  bool go_on() override {
    bool moved = false;
    for (rank_id r = 0; r < ranks; ++r) {
      member& m = *members[r];
      if (!m.ended && (m.calling || m.ran.size() >= setup_.calls)) continue;
      step({0, r, 0, m.ended ? join : make_call});
      moved = true;
    }
    return moved;
  }
  bool over() override {
    return !lead->leases->owes_messages() && lead->state.owed == 0 && lead->assigned.opened() &&
           std::all_of(members.begin(), members.end(),
                       [&](const auto& m) { return m->ran.size() >= setup_.calls && !m->ended && m->mine.owed == 0; });
  }
  std::string unfinished() override {
    for (const auto& m : members) {
      if (m->calling) return "L2: a call on rank " + std::to_string(m->at.net.rank()) + " never ends";
    }
    return "L1: the campaign never ends";
  }
  void judge() override {
    const lease_log* const log = lead->leases->log_of(bytes);
    for (const auto& m : members) {
      if (m->leases.statistics().gates_met > lead->leases->statistics().campaigns)
        breaks("N2: more gates than campaigns");
      for (const call& c : m->ran) {
        if (log != nullptr && c.generation == lead->leases->generation() &&
            log->assigned(c.invocation).digest != c.digest)
          breaks("S1: rank " + std::to_string(m->at.net.rank()) + " ran invocation " + std::to_string(c.invocation) +
                 " otherwise than the log has it");
      }
    }
  }
  void look() override {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> seen;
    for (const auto& m : members) {
      for (const call& c : m->ran) {
        if (!c.ready) breaks("S3: invocation " + std::to_string(c.invocation) + " ran what was not warmed there");
        const auto [at, fresh] = seen.emplace(std::pair{c.generation, c.invocation}, c.digest);
        if (!fresh && at->second != c.digest)
          breaks("S2: invocation " + std::to_string(c.invocation) + " ran as " + id_of(at->second) + " and as " +
                 id_of(c.digest));
      }
    }
  }
  std::string outcome() const override {
    std::string text;
    for (const call& c : members[0]->ran)
      text += std::string(c.generation == first_generation_number ? "" : "'") + id_of(c.digest).back();
    return text;
  }
  bool on_send(held& m) override {
    if (auto said = m.as<lease_reply>(); said && said->what == lease_reply::kind::promise) {
      const auto key = std::tuple(m.from, m.frame().generation, said->campaign);
      const auto [at, fresh] = promised_.emplace(key, said->from);
      if (at->second != said->from) breaks("S7: rank " + std::to_string(m.from) + " promises something else");
      if (setup_.broken == mutant::promise_too_low && said->from > 0) --said->from;
      if (setup_.broken == mutant::promise_changes && !fresh) ++said->from;
      m.replace(*said);
    }
    if (auto w = m.as<warmed>(); w && setup_.broken == mutant::claims_to_be_ready) {
      w->ready = {digest_of(0), digest_of(1), digest_of(2)};
      m.replace(*w);
    }
    if (auto log = m.as<lease_schedule>(); log && !log->entries.empty()) {
      lease_entry& e = log->entries.back();
      if (setup_.broken == mutant::abort_after_schedule && m.to == 1) e = {};
      if (setup_.broken == mutant::schedule_forgotten && m.to == 1) return false;
      if (setup_.broken == mutant::smallest_promise) {
        for (const auto& [who, k] : promised_) e.from = std::min(e.from, k);
      }
      m.replace(*log);
    }
    return true;
  }

  static constexpr std::uint64_t first_generation_number = 0x10000;
  enum : std::uint32_t { make_call, join, abort, c1_fails, lose_log, end_generation };

  // Declared in this order so that coroutines end before the objects that they use.
  std::vector<std::unique_ptr<member>> members;
  std::unique_ptr<leader> lead;

 private:
  lease_setup setup_;
  op_declaration op_;
  std::size_t aborted_ = 0;
  std::size_t failed_ = 0;
  std::size_t lost_ = 0;
  std::size_t ended_ = 0;
  std::map<std::tuple<rank_id, std::uint64_t, std::uint64_t>, std::uint64_t> promised_;
};

explorer::maker making(const lease_setup& s) {
  return [s] { return std::make_unique<lease_world>(s); };
}

using outcomes = std::set<std::string>;

/// `predicted`: the outcomes of protocol_model.py, counted from the leader's first call, for the same number of calls and margins.
void check_safe(const std::string& name, const lease_setup& s, const outcomes& predicted) {
  tests::check_safe(name, making(s), predicted);
}
void check_broken(const std::string& name, const lease_setup& s, const std::string& invariant) {
  tests::check_broken(name, making(s), invariant);
}

constexpr auto trials = lease_setup::aim::trials;
constexpr auto offers = lease_setup::from::offers;

}  // namespace

TEST_CASE("members run each invocation with the same config, in every order of messages and calls") {
  check_safe("two", {.calls = 3}, {"000", "001", "011"});
  check_safe("two, the first lets one more call through", {.calls = 3, .margins = {1, 0}}, {"000", "001"});
  check_safe("two, the other lets one more call through", {.calls = 3, .margins = {0, 1}}, {"000", "001", "011"});
  check_safe("three", {.ranks = 3, .calls = 2}, {"00", "01"});
  if (deep()) check_safe("three, three calls", {.ranks = 3, .calls = 3}, {"000", "001", "011"});
}

TEST_CASE("members run each invocation with the same config when messages are lost or arrive twice") {
  check_safe("lost or repeated",
             {.calls = 2, .margins = {0, 1}, .allowed = {.losses = 1, .repetitions = 1, .timers = 1}}, {"00", "01"});
  if (deep()) check_safe("two lost", {.calls = 3, .allowed = {.losses = 2, .timers = 2}}, {"000", "001", "011"});
}

TEST_CASE("members stay in agreement when a campaign is aborted at any time") {
  check_safe("aborted", {.calls = 2, .allowed = {.timers = 1}, .aborts = 1}, {"00", "01"});
  if (deep())
    check_safe("aborted, three calls", {.calls = 3, .allowed = {.timers = 1}, .aborts = 1}, {"000", "001", "011"});
}

TEST_CASE("trials end by themselves, and a second campaign may cut them short") {
  check_safe("trials", {.calls = 4, .campaign = trials}, {"0000", "0001", "0010"});
  check_safe("cut short", {.calls = 2, .campaign = trials, .failures = 1}, {"00"});
  if (deep()) check_safe("cut short, three calls", {.calls = 3, .campaign = trials, .failures = 1}, {"000", "001"});
}

TEST_CASE("members stay in agreement when the generation ends at any time") {
  check_safe("ended", {.calls = 2, .generation_ends = 1}, {"00", "01", "0'0", "'0'0", "'0'1"});
}

TEST_CASE("members that begin with their offers agree on the same candidates, and run them alike") {
  check_safe("offers", {.calls = 1, .begins = offers}, {"0"});
  check_safe("offers of three", {.ranks = 3, .calls = 0, .begins = offers}, {""});
  if (deep()) check_safe("offers, two calls", {.calls = 2, .begins = offers}, {"00", "01"});
}

TEST_CASE("the reduced search of leases finds the same outcomes as the search of every interleaving") {
  const auto both = [](const std::string& name, lease_setup s) {
    const findings some = explore(name, making(s));
    s.allowed.acknowledge_late = true;
    const findings all = explore(name + ", every interleaving", making(s), {.every_interleaving = true});
    CHECK_MESSAGE(all.safe(), all.how());
    CHECK(all.outcomes == some.outcomes);
  };
  both("two calls", {.calls = 2});
  both("two calls, a message lost", {.calls = 1, .allowed = {.losses = 1, .timers = 1}});
  both("nothing but offers", {.calls = 0, .begins = offers});
}

TEST_CASE("the search finds every planted flaw of leases, and names the broken invariant") {
  check_broken("a promise that is told too low", {.broken = mutant::promise_too_low}, "S2");
  check_broken("the smallest promise", {.broken = mutant::smallest_promise}, "S2");
  check_broken("an abort after the schedule", {.broken = mutant::abort_after_schedule}, "S2");
  check_broken("a promise that changes", {.ranks = 3, .calls = 2, .broken = mutant::promise_changes}, "S7");
  check_broken("a log that is lost", {.broken = mutant::log_lost}, "S7");
  check_broken("a schedule that is not sent", {.broken = mutant::schedule_forgotten}, "L1");
  check_broken("a member that claims to be ready", {.calls = 2, .begins = offers, .broken = mutant::claims_to_be_ready},
               "S3");
}
