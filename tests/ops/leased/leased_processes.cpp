// Ranks in separate processes whose op carries no headers. They agree by leases over UCX. The op's own data moves through shared memory,
// where members that run different configs for one call would compute wrong sums.
#include <parley/tests/support/cases/shared_sum.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/folder.hpp>
#include <parley/tests/support/processes.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/actors/services.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

// ---- what the ranks do ------------------------------------------------------------------------------------------------

enum class trials { on_calls, between_calls, beside_calls };

constexpr rank_id member_count = 4;
constexpr std::uint64_t bytes = sizeof(shared_sums::sum_words);
constexpr rank_id late_rank = 3;

struct member {
  member(rank& r, trials t)
      : self(r), how(t), memory(std::make_shared<shared_sums>(
                             (std::filesystem::temp_directory_path() / "sums").string(), member_count)) {
    // The times differ by so much that disturbances from other programs cannot change the winner.
    book->rehearsal_ns = {{"forward", 40_ms}, {"by_threes", 1_ms}, {"by_fives", 80_ms}};
    symmetric_options declared;
    declared.name = "gradients";
    declared.configs = three_orders(book);
    declared.communicator = over = std::make_shared<shared_communicator>(memory, 0, self.id());
    if (how != trials::on_calls)
      declared.rehearse = std::make_shared<shared_source>(memory, self.id(), how == trials::beside_calls);
    // Each member promises another call. A leader that took the smallest promise and not the greatest would let two configs into one call.
    if (how == trials::on_calls) self.services().promise_margin = 4 + 8 * (late_rank - self.id());
    op = symmetric(self, std::move(declared));
  }
  std::uint64_t gates_met() const { return op.end().leases().statistics().gates_met; }
  std::uint64_t messages() const {
    const auto& mail = self.mail().statistics();
    return mail.sent + mail.credits_sent + mail.questions_sent;
  }

  rank& self;
  trials how;
  std::shared_ptr<shared_sums> memory;
  std::shared_ptr<shared_communicator> over;
  std::shared_ptr<sums_book> book = std::make_shared<sums_book>();
  symmetric op;
  std::uint64_t calls = 0;
  std::uint64_t parts = 0;  // calls of `call_until` so far; all members complete them together
};

std::uint64_t number_of(rank_id r, std::uint64_t call, std::size_t word) { return (r + 1) * 1'000'003 * word + call; }

void check(const shared_sums::sum_words& sums, std::uint64_t call) {
  for (std::size_t i = 1; i < sums.size(); ++i) {
    std::uint64_t expected = 0;
    for (rank_id r = 0; r < member_count; ++r) expected += number_of(r, call, i);
    if (sums[i] != expected) raise({errc::exception, "the sums of call " + std::to_string(call) + " are wrong"});
  }
}

/// Calls until every rank is ready. The ranks exchange this in their sums, so that all of them stop at the same call.
task<> call_until(member& m, std::function<bool()> ready) {
  const std::uint64_t so_far = m.parts++;
  bool is_ready = false;
  for (bool all_are = false; !all_are; ++m.calls) {
    is_ready = is_ready || ready();
    shared_sums::sum_words words{};
    words[0] = so_far + (is_ready ? 1 : 0);
    for (std::size_t i = 1; i < words.size(); ++i) words[i] = number_of(m.self.id(), m.calls, i);
    co_await m.op.run(words);
    if (m.calls + 1 < shared_sums::depth) continue;
    check(words, m.calls + 1 - shared_sums::depth);
    all_are = words[0] == member_count * (so_far + 1);
  }
}

/// Waits until all members are done: a member that left earlier would be missing for members that are behind.
task<> await_all(member& m) {
  constexpr std::uint64_t done = ~std::uint64_t{};
  m.memory->told_by(m.self.id()) = done;
  for (rank_id r = 0; r < member_count; ++r) {
    while (m.memory->told_by(r) != done) {
      auto slept = co_await sleep_until(m.self.where().deadline_in(1_ms));
      if (!slept) raise(slept.reason());
    }
  }
}

/// In trials on calls, no member may run ahead before it has promised to stop at a gate. So a late member delays the others at the
/// gate, and nowhere else.
task<> tell_gates(member& m) {
  for (;;) {
    const bool together = m.how == trials::on_calls && m.op.end().leases().statistics().promises == 0;
    m.over->most_ahead(together ? 2 : shared_sums::depth);  // 2: one call must end before trials are affordable
    if (m.self.id() != late_rank) m.memory->told_by(m.self.id()) = m.gates_met();
    auto slept = co_await sleep_until(m.self.where().deadline_in(1_ms));
    if (!slept) co_return;
  }
}

/// The late rank gets ready to be asked for its first promise, then computes until all others wait at that gate. The others start to call
/// only after it is ready, because without calls no rank is asked.
task<> begin_apart(member& m) {
  const auto nap = [&] { return sleep_until(m.self.where().deadline_in(1_ms)); };
  if (m.self.id() != late_rank) {
    const auto may_begin = [&] {
      return m.memory->told_by(late_rank) != 0 && (!m.op.end().leads() || m.op.end().assigned()->opened());
    };
    while (!may_begin()) {
      auto slept = co_await nap();
      if (!slept) raise(slept.reason());
    }
    co_return;
  }
  while (m.self.mail().sent_by_type()[actors::warmed::message_type] == 0 || m.op.end().owes_messages()) {
    auto slept = co_await nap();
    if (!slept) raise(slept.reason());
  }
  m.memory->told_by(late_rank) = 1;
  const auto waits = [&](rank_id r) { return m.memory->told_by(r) != 0; };
  for (const deadline limit; !waits(0) || !waits(1) || !waits(2);) {
    if (limit.is_over()) raise({errc::timeout, "the others met no gate"});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Requests another search as long as the config that has become slow is still chosen. Trials on calls run every config in any case, and
/// the machine's own noise may then decide which one wins.
bool has_changed(member& m, const decision& first, std::uint32_t& asked_after) {
  const decision now = m.op.decision(bytes);
  const bool searched = now.search > first.search && now.decided;
  if (searched && (now.config != first.config || m.how == trials::on_calls)) return true;
  if (m.self.id() == 2 && now.decided && now.search > asked_after) {
    asked_after = now.search;
    m.op.agreed().retune(bytes, "it has become slow");
  }
  return false;
}

task<> tune_twice(member& m) {
  scope& here = co_await this_scope;
  scope beside(here);
  beside.spawn(tell_gates(m));
  // This rank keeps the first decision before any rank requests another search: the other ranks may be several calls ahead.
  decision first;
  const auto has_decided = [&] { return (first = m.op.decision(bytes)).decided; };
  if (m.how == trials::on_calls) co_await begin_apart(m);
  co_await call_until(m, has_decided);
  m.book->rehearsal_ns[first.config] += 80_ms;
  std::uint32_t asked_after = 0;
  co_await call_until(m, [&] { return has_changed(m, first, asked_after); });

  // Calls until the searches have no message left to send.
  std::uint64_t sent = 0;
  time_ns since = 0;
  co_await call_until(m, [&] {
    const time_ns now = m.self.where().now();
    if (m.op.end().owes_messages() || std::exchange(sent, m.messages()) != m.messages()) since = now;
    return now - since > 200_ms;
  });
  const std::uint64_t before = m.messages();
  const std::uint64_t enough = m.calls + 300;
  co_await call_until(m, [&] { return m.calls >= enough; });
  const decision last = m.op.decision(bytes);
  say("decided " + first.config + " then " + last.config);
  say("after that " + std::to_string(m.messages() - before) + " messages in " + std::to_string(m.calls - enough + 300) +
      " calls");
  say("gates " + std::to_string(m.gates_met()) + " searches " + std::to_string(last.search));
  if (m.self.id() == 0)
    say("aborted " + std::to_string(m.op.end().lease_coordinator()->statistics().aborted) + " broken " +
        std::to_string(m.op.end().lease_coordinator()->statistics().broken_promises));
  beside.cancel();
  co_await beside.join();
  co_await await_all(m);
}

int run_as_member(trials how) {
  job_options o;
  o.settings.plan.budget_fraction = 1e9;
  o.settle_limit = 60s;
  return ops::run(
      [how](job& here) {
        member m(here.self(), how);
        runtime::run(here.loop(), tune_twice(m));
        for (const sums_book::entry& e : m.book->calls)
          say("flight gradients " + std::to_string(e.invocation) + " " + std::to_string(e.digest));
      },
      o);
}

// ---- what the test sees -----------------------------------------------------------------------------------------------

/// The number after `word` in the line that begins with `line_begins`.
std::uint64_t number_after(const job_run& run, rank_id r, const std::string& line_begins, const std::string& word) {
  const auto of_rank = run.lines.find(r);
  if (of_rank == run.lines.end()) return ~std::uint64_t{};
  for (const std::string& line : of_rank->second) {
    if (!line.starts_with(line_begins)) continue;
    std::istringstream in(line.substr(line.find(word) + word.size()));
    std::uint64_t number = ~std::uint64_t{};
    in >> number;
    return number;
  }
  return ~std::uint64_t{};
}

std::string line_of(const job_run& run, rank_id r, const std::string& begins) {
  const auto of_rank = run.lines.find(r);
  if (of_rank == run.lines.end()) return {};
  const auto& lines = of_rank->second;
  const auto at = std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.starts_with(begins); });
  return at == lines.end() ? std::string() : *at;
}

}  // namespace

TEST_CASE("this program as one member of an op without headers" * doctest::skip()) {
  const char* const name = std::getenv(scenario_variable);
  if (name == nullptr) return;
  const std::map<std::string, trials> ways{
      {"on_calls", trials::on_calls}, {"between_calls", trials::between_calls}, {"beside_calls", trials::beside_calls}};
  REQUIRE(run_as_member(ways.at(name)) == 0);
}

TEST_CASE(
    "four processes change the config of an op without headers by lease twice, and run each call with one config") {
  for (const std::string way : {"on_calls", "between_calls", "beside_calls"}) {
    CAPTURE(way);
    const scratch_folder here;
    const job_run run("this program as one member of an op without headers", way, member_count,
                      {{"TMPDIR", here.path.string()}});
    CHECK_MESSAGE(run.fine(), run.all);
    const auto [same, different] = run.joined();
    CHECK(same >= (member_count - 1) * 1000);
    CHECK(different == 0);
    std::set<std::string> ran;
    for (const auto& line : run.flights.contains(0) ? run.flights.at(0) : std::vector<std::string>())
      ran.insert(line.substr(line.rfind(' ')));
    CHECK(ran.size() >= 2);
    const std::uint64_t aborted = number_after(run, 0, "aborted", "aborted");
    CHECK(number_after(run, 0, "aborted", "broken") == 0);
    for (rank_id r = 0; r < member_count; ++r) {
      CAPTURE(r);
      CHECK_FALSE(line_of(run, r, "decided").empty());
      CHECK(line_of(run, r, "decided") == line_of(run, 0, "decided"));
      CHECK_MESSAGE(number_after(run, r, "after that", "that") == 0, run.all);
      // N2: at most two gates a search. A gate that was lifted without a schedule, as a member was not heard from in time, counts extra.
      const std::uint64_t gates = number_after(run, r, "gates", "gates");
      CHECK_MESSAGE(gates <= 2 * number_after(run, r, "gates", "searches") + aborted, run.all);
      if (way == "on_calls" && r != late_rank) CHECK_MESSAGE(gates >= 1, run.all);
    }
  }
}
