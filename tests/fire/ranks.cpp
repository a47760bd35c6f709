#include <parley/tests/fire/ranks.hpp>

#include <parley/tests/fire/exchanges.hpp>
#include <parley/tests/fire/one_sided.hpp>
#include <parley/tests/fire/records.hpp>
#include <parley/tests/fire/supervisor.hpp>
#include <parley/tests/support/cases/shared_sum.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <sys/eventfd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

namespace fire {

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

bool input_has_ended() {
  pollfd in{0, POLLIN, 0};
  return ::poll(&in, 1, 0) > 0;
}

void say_when_decided(const rank& self) {
  static bool said = false;
  if (said || self.decisions().empty()) return;
  said = true;
  say("it is decided");
}

std::function<bool(const std::string& step)>& own_steps() {
  static std::function<bool(const std::string&)> reached;
  return reached;
}

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// ---- the fault --------------------------------------------------------------------------------------------------------

enum class action : std::uint8_t { none, kill, exit, stop };
struct planned_fault {
  action what = action::none;
  std::string step;
};
action read_action(std::string_view text) {
  return text == "kill" ? action::kill : text == "exit" ? action::exit : action::stop;
}
planned_fault read_own_fault() {
  const std::string restarts = variable("PARLEY_RESTART_COUNT");
  const std::string me = variable("PARLEY_RANK") + ":" + (restarts.empty() ? "0" : restarts);
  std::istringstream all(variable("PARLEY_TEST_FAULT"));
  for (std::string text; std::getline(all, text, ',');) {
    const auto first = text.find(':');
    const auto second = text.find(':', first + 1);
    std::string who = text.substr(second + 1);
    if (who.find(':') == std::string::npos) who += ":0";
    if (who == me) return {read_action(text.substr(0, first)), text.substr(first + 1, second - first - 1)};
  }
  return {};
}

/// The fault planned for this process; `none` once it has struck.
planned_fault& own_fault() {
  static planned_fault plan = read_own_fault();
  return plan;
}

/// Checks on every turn of the loop whether the rank has come to the step. Its event descriptor never fires.
class fault final : public poller {
 public:
  explicit fault(job& here) : here_(here), event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), step_(own_fault().step) {
    here_.loop().attach(*this);
  }
  fault(const fault&) = delete;
  fault& operator=(const fault&) = delete;
  ~fault() override {
    here_.loop().detach(*this);
    ::close(event_);
  }

  bool poll() override {
    if (own_fault().what == action::none || !reached()) return false;
    come_to(step_);
    return true;
  }
  arm_state arm() override { return arm_state::armed; }
  int event_fd() const override { return event_; }

 private:
  bool sent(std::uint16_t type) const { return here_.self().mail().sent_by_type()[type] > 0; }
  bool reached() {
    if (step_ == "start") return true;
    if (step_ == "offer") return sent(actors::offer::message_type);
    if (step_ == "merged") return sent(actors::merged::message_type);
    if (step_ == "warm") return sent(actors::warm::message_type);
    if (step_ == "warmed") return sent(actors::warmed::message_type);
    if (step_ == "report") return sent(actors::report::message_type);
    if (step_ == "decide") return sent(actors::decide::message_type);
    if (own_steps() && own_steps()(step_)) return true;
    // Each further step shows in the flight records since the last turn.
    const auto& flight = here_.self().flight();
    const auto shows = [this](const flight_record& r) {
      const bool trial = is_transfer(r.what) && (r.flags & 1U) != 0;
      decided_ = decided_ || r.what == flight_event::decided;
      if (step_ == "rehearsal") return is_transfer(r.what) && (r.flags & 4U) != 0;
      if (step_ == "trial") return trial;
      if (step_ == "decided") return decided_;
      return step_ == "after" && decided_ && is_transfer(r.what) && !trial && r.invocation > 400;
    };
    const std::uint64_t before = std::exchange(seen_, flight.total());
    return flight.find_latest(shows, flight.total() - before) != nullptr;
  }

  job& here_;
  int event_;
  std::string step_;
  std::uint64_t seen_ = 0;
  bool decided_ = false;
};

/// The rehearsals on scratch buffers of this rank; null if no op of the rank has any.
std::shared_ptr<parley::tests::sums_book>& own_rehearsals() {
  static std::shared_ptr<parley::tests::sums_book> book;
  return book;
}

class record_when_leaving {
 public:
  explicit record_when_leaving(const rank& self) : self_(self) {}
  record_when_leaving(const record_when_leaving&) = delete;
  record_when_leaving& operator=(const record_when_leaving&) = delete;
  ~record_when_leaving() {
    say(program_end_words + std::to_string(clock::now().time_since_epoch().count()));
    const auto& book = own_rehearsals();
    say(record_line(self_, book == nullptr ? std::nullopt : std::optional(book->rehearsed)));
  }

 private:
  const rank& self_;
};

// ---- what the ranks do ------------------------------------------------------------------------------------------------

constexpr std::size_t message_bytes = 200'000;

/// The sender streams until its input ends, and announces the end with a message of one byte.
task<> stream(rank& self, transfer t, rank_id peer, bool sends) {
  std::vector<std::byte> data(message_bytes);
  for (;;) {
    say_when_decided(self);
    if (sends) {
      const bool last = input_has_ended();
      co_await t.send(std::span(data).first(last ? 1 : data.size()), {.to = peer});
      if (last) break;
    } else {
      const auto got = co_await t.receive(data, {.from = peer});
      if (got == 1) break;
    }
  }
  say("fine on rank " + std::to_string(self.id()));
}

/// Two independent pairs: rank 1 sends to rank 2, and rank 0 sends to rank 3. Further ranks are idle.
void pairs(job& here) {
  const rank_id me = here.self().id();
  if (me > 3) return run(here.loop(), rest_until_input_ends(here.self()));
  const bool inner = me == 1 || me == 2;
  transfer_options op;
  op.name = inner ? "inner" : "outer";
  op.edges = {inner ? std::pair{rank_id{1}, rank_id{2}} : std::pair{rank_id{0}, rank_id{3}}};
  op.configs = {direct(), chunked(64_KiB, 2), chunked(32_KiB, 4)};
  transfer t(here.self(), op);
  run(here.loop(), stream(here.self(), t, 3 - me, me < 2));
}

task<> reduce(rank& self, collective group) {
  std::vector<std::uint32_t> values(20'000);
  for (;;) {
    say_when_decided(self);
    // The leader decides when to stop, and the sum tells all ranks.
    std::fill(values.begin(), values.end(), group.leads() && input_has_ended() ? 1U : 0U);
    co_await group.all_reduce(std::span(values));
    if (values[0] != 0) break;
  }
  say("fine on rank " + std::to_string(self.id()));
}
/// Rank 1 leads ranks 2 and 3; rank 0 takes no part.
void group(job& here) {
  collective_options op{.name = "gradients", .configs = {star(), star(16_KiB), chain()}};
  op.role = [](rank_id r) { return r == 0 ? role::idle : r == 1 ? role::leader : role::worker; };
  collective g(here.self(), op);
  if (g.idle()) return run(here.loop(), rest_until_input_ends(here.self()));
  run(here.loop(), reduce(here.self(), g));
}

/// Rank 1 leads ranks 2 and 3 in an op without headers; rank 0 takes no part.
constexpr rank_id first_member = 1;
struct leased_op {
  leased_op(rank& r, bool rehearsed)
      : self(r), member(self.id() - first_member), memory(std::make_shared<parley::tests::shared_sums>(
                                                       (std::filesystem::temp_directory_path() / "sums").string(), 3)),
        over(std::make_shared<parley::tests::shared_communicator>(memory, 0, member)) {
    symmetric_options declared;
    declared.name = "gradients";
    declared.ranks = {1, 2, 3};
    const auto book = std::make_shared<parley::tests::sums_book>();
    book->rehearsal_ns["forward"] = 20'000'000;  // slow, so that the rehearsals lead to a change
    declared.configs = parley::tests::three_orders(book);
    declared.communicator = over;
    if (rehearsed) {
      declared.rehearse = std::make_shared<parley::tests::shared_source>(memory, member, true);
      own_rehearsals() = book;
    }
    op = symmetric(self, std::move(declared));
  }
  bool has_warmed() const { return self.mail().sent_by_type()[actors::warmed::message_type] != 0; }
  bool has_promised() const { return op.end().leases().statistics().promises != 0; }
  /// No member calls before the last member is at the point where the leader asks for its first promise. The fault keeps it from giving
  /// that promise, and then all others reach a gate.
  bool may_call() const { return memory->told_by(2) == asked && (!op.end().leads() || op.end().assigned()->opened()); }
  bool reached(const std::string& step) const {
    symmetric_end& end = op.end();
    if (step == "asked") {
      const bool ready = member == 2 && has_warmed() && !end.owes_messages();
      memory->told_by(2) = ready ? asked : nothing;
      return ready;
    }
    if (step == "rehearsal") return end.leases().statistics().rehearsals != 0;
    if (step == "promise") return has_promised();
    if (step == "prepare") return end.leads() && end.lease_coordinator()->statistics().campaigns != 0;
    if (step == "schedule") return end.leads() && end.lease_coordinator()->statistics().scheduled != 0;
    return false;
  }

  // The words that members write to their shared memory.
  static constexpr std::uint64_t nothing = 0, asked = 1, through = 2;
  void is_through() const { memory->told_by(member) = through; }
  bool all_are_through() const {
    return memory->told_by(0) == through && memory->told_by(1) == through && memory->told_by(2) == through;
  }

  rank& self;
  std::size_t member;
  std::shared_ptr<parley::tests::shared_sums> memory;
  std::shared_ptr<parley::tests::shared_communicator> over;
  symmetric op;
};
/// A member does not run ahead before it has promised where to stop. The members that wait for a lost one therefore wait at a gate.
task<> keep_together(rank& self, leased_op& l) {
  while (!l.has_promised()) {
    l.over->most_ahead(2);  // one call has to end before the budget allows trials
    auto slept = co_await sleep_until(self.where().deadline_in(1'000'000));
    if (!slept) co_return;
  }
  l.over->most_ahead(parley::tests::shared_sums::depth);
}
template <class Condition>
task<> wait_for(rank& self, Condition holds) {
  while (!holds()) {
    auto slept = co_await sleep_until(self.where().deadline_in(1'000'000));
    if (!slept) raise(slept.reason());
  }
}
/// All members end after the same call, whose sums say that the leader's input has ended. None leaves before the last one is through.
task<> sum_until_told(rank& self, leased_op& l) {
  std::vector<std::uint64_t> values(64);
  do {
    say_when_decided(self);
    std::fill(values.begin(), values.end(), l.op.end().leads() && input_has_ended() ? 1U : 0U);
    co_await l.op.run(values);
  } while (values[0] == 0);
  l.is_through();
  co_await wait_for(self, [&l] { return l.all_are_through(); });
}
task<> sum_without_headers(rank& self, leased_op& l, bool apart) {
  scope& here = co_await this_scope;
  scope beside(here);
  beside.spawn(keep_together(self, l));
  if (apart) co_await wait_for(self, [&l] { return l.may_call(); });
  std::exception_ptr thrown;
  try {
    co_await sum_until_told(self, l);
  } catch (...) {
    thrown = std::current_exception();
  }
  say("gates met " + std::to_string(l.op.end().leases().statistics().gates_met));
  beside.cancel();
  co_await beside.join();
  if (thrown) std::rethrow_exception(thrown);
  say("fine on rank " + std::to_string(self.id()));
}
void without_headers(job& here, bool rehearsed, bool apart) {
  if (here.self().id() < first_member) return run(here.loop(), rest_until_input_ends(here.self()));
  leased_op l(here.self(), rehearsed);
  own_steps() = [&](const std::string& step) { return l.reached(step); };
  run(here.loop(), sum_without_headers(here.self(), l, apart));
}
void leased(job& here) { without_headers(here, false, false); }
void rehearsed(job& here) { without_headers(here, true, false); }
void gated(job& here) { without_headers(here, false, true); }

/// Rank 1 computes for a long time without polling, and rank 0 waits for the result.
task<> ask(rank& self, transfer t, clock::duration computing) {
  std::vector<std::byte> data(1000);
  if (self.id() == 0) {
    co_await t.send(data, {.to = 1});
    co_await t.receive(data, {.from = 1});
  } else {
    co_await t.receive(data, {.from = 0});
    for (const auto until = clock::now() + computing; clock::now() < until;) {}
    co_await t.send(data, {.to = 0});
  }
  say("fine on rank " + std::to_string(self.id()));
}
void computing(job& here) {
  transfer t(here.self(), {.name = "input", .edges = {{0, 1}, {1, 0}}});
  run(here.loop(), ask(here.self(), t, std::chrono::milliseconds(std::stoi(variable("PARLEY_TEST_MS")))));
}

// ---- what goes on with a rank that comes back -------------------------------------------------------------------------

constexpr std::uint64_t rounds = 1'000;

/// Whether the last round waits until rank 0's input has ended.
bool is_held() { return !variable("PARLEY_TEST_HOLD").empty(); }

/// Rethrows an error that no restart explains; otherwise waits until the peer has restarted.
task<> await_restart(rank& self, std::uint64_t heard, error why) {
  if (why.code() != errc::peer_failed && why.code() != errc::peer_restarted) raise(std::move(why));
  say("it ended: " + why.what());
  const bool back =
      co_await self.until_restart(heard, std::chrono::milliseconds(std::stoi(variable("PARLEY_TEST_MS"))));
  if (!back) raise(std::move(why));
}

/// Holds the count, the helper's process id, and padding that makes it a large message, which contains the id of its process.
using counted = std::vector<std::uint64_t>;
constexpr std::size_t counted_words = 25'000;

task<> have_counted(counted& now, transfer t) {
  co_await t.send(std::span(now), {.to = 1});
  co_await t.receive(std::span(now), {.from = 1});
}
/// Rank 0 resumes a stopped helper once it has declared the helper dead.
task<> count(rank& self, transfer t) {
  counted now(counted_words);
  for (std::uint64_t reached = 0; reached < rounds;) {
    if (reached + 1 == rounds && is_held()) co_await rest_until_input_ends(self);
    const std::uint64_t heard = self.restarts_heard();
    now[0] = reached;
    std::optional<error> why;
    try {
      co_await have_counted(now, t);
    } catch (const failure& f) {
      why = f.reason();
    }
    if (!why) {
      if (now[0] != reached + 1 || now.back() != now[0]) raise({errc::config_failed, "the count is wrong"});
      reached = now[0];
      continue;
    }
    if (now[1] != 0) ::kill(static_cast<pid_t>(now[1]), SIGCONT);
    co_await await_restart(self, heard, *why);
  }
  say("counted");
}
task<> help(transfer t) {
  counted now(counted_words);
  while (now[0] < rounds) {
    co_await t.receive(std::span(now), {.from = 0});
    now.back() = ++now[0];
    now[1] = static_cast<std::uint64_t>(::getpid());
    co_await t.send(std::span(now), {.to = 0});
  }
  say("helped");
}
void counting(job& here) {
  rank& self = here.self();
  transfer t(self, {.name = "counter", .edges = {{0, 1}, {1, 0}}, .configs = {direct(), chunked(64_KiB, 2)}});
  if (self.id() == 0) run(here.loop(), count(self, t));
  if (self.id() == 1) run(here.loop(), help(t));
}

/// Rank 0 leads all others. Its last sum tells them to stop, after the group has made 200 calls with the decided config, so that a
/// rank whose fault follows the decision has had time to die.
task<> sum(rank& self, collective group) {
  constexpr std::uint64_t after_decision = 200;
  std::uint64_t decided = 0;
  std::vector<std::uint32_t> values(2'000);
  for (std::uint64_t round = 0;; ++round) {
    const std::uint64_t heard = self.restarts_heard();
    std::fill(values.begin(), values.end(), 1U);
    decided = self.decisions().empty() ? 0 : decided + 1;
    const bool may_end = round >= rounds / 4 && decided > after_decision && (!is_held() || input_has_ended());
    values[0] = group.leads() && may_end ? 1 : 0;
    std::optional<error> why;
    try {
      co_await group.all_reduce(std::span(values));
    } catch (const failure& f) {
      why = f.reason();
    }
    if (why) {
      co_await await_restart(self, heard, *why);
      group.rejoin();
      continue;
    }
    if (values.back() != self.world_size()) raise({errc::config_failed, "the sum is wrong"});
    if (values[0] != 0) break;
  }
  say("summed");
}
void summing(job& here) {
  collective_options op{.name = "gradients", .configs = {star(), star(4_KiB), chain()}};
  op.role = [](rank_id r) { return r == 0 ? role::leader : role::worker; };
  run(here.loop(), sum(here.self(), collective(here.self(), op)));
}

}  // namespace

task<> rest_until_input_ends(rank& self) {
  while (!input_has_ended()) {
    auto slept = co_await sleep_until(self.where().deadline_in(5'000'000));
    if (!slept) break;
  }
  say("fine on rank " + std::to_string(self.id()));
}

void come_to(std::string_view step) {
  planned_fault& plan = own_fault();
  if (plan.step != step) return;
  switch (std::exchange(plan.what, action::none)) {
    case action::none: return;
    case action::kill: ::raise(SIGKILL); return;
    case action::exit: ::_exit(0);
    case action::stop: ::raise(SIGSTOP); return;
  }
}

const std::map<std::string, void (*)(job&)>& scenarios() {
  static const std::map<std::string, void (*)(job&)> all{
      {"pairs", pairs},         {"group", group},         {"leased", leased},         {"rehearsed", rehearsed},
      {"gated", gated},         {"computing", computing}, {"counting", counting},     {"summing", summing},
      {"puts", puts},           {"lent_puts", lent_puts}, {"large_puts", large_puts}, {"gets", gets},
      {"lent_gets", lent_gets}, {"batches", batches},     {"one_group", one_group},   {"stages", stages},
      {"rims", rims},           {"attention", attention}, {"two_levels", two_levels}, {"training", training}};
  return all;
}

int run_as_rank() {
  const auto scenario = scenarios().find(variable(scenario_variable));
  if (scenario == scenarios().end()) return 2;
  job_options o;
  o.settings.plan.budget_fraction = 1e9;
  o.settings.flight_records = 8192;  // as text, they fit the longest line that a launched rank may print
  if (const std::string seconds = variable("PARLEY_TEST_JOIN_S"); !seconds.empty())
    o.join_timeout = std::chrono::seconds(std::stoi(seconds));
  o.settings.mutant_ignores_stamp = variable("PARLEY_TEST_MUTANT") == "ignores_stamp";
  parley::tests::fake_cuda gpu;
  if (!variable("PARLEY_TEST_GPU").empty()) o.gpu = &gpu;
  come_to("join");
  return ops::run(
      [&](job& here) {
        const fault strikes(here);
        const record_when_leaving leaves(here.self());
        say("here is rank " + std::to_string(here.self().id()));
        scenario->second(here);
      },
      o);
}

}  // namespace fire
