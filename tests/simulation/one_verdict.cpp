// Runs the same small programs as real processes and on virtual ranks. Both must end with the same status, and each rank's program with
// the same error code. This test program is also the rank of a real job, and the simulated job.
#include <parley/tests/support/folder.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/started.hpp>

#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/program.hpp>
#include <parley/scope.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using parley::tests::say;
using parley::tests::scenario_variable;

namespace {

constexpr std::size_t small_bytes = 100;
constexpr std::size_t large_bytes = 4U << 20U;  // stays with the sender until it is fetched, on each transport
constexpr time_ns soon_ns = 2'000'000'000;

// ---- what the ranks do ------------------------------------------------------------------------------------------------

transfer_options both_ways() {
  transfer_options op;
  op.name = "activations";
  op.edges = {{0, 1}, {1, 0}};
  return op;
}
task<> send_some(transfer t, rank_id to, int messages, std::size_t bytes = small_bytes) {
  const std::vector<std::byte> data(bytes);
  for (int i = 0; i < messages; ++i) co_await t.send(data, {.to = to});
}
task<> receive_some(transfer t, rank_id from, int messages, std::size_t bytes = small_bytes) {
  std::vector<std::byte> data(bytes);
  for (int i = 0; i < messages; ++i) co_await t.receive(data, {.from = from});
}

task<> exchanges(rank& self) {
  transfer t(self, both_ways());
  co_await send_some(t, 1 - self.id(), 3);
  co_await receive_some(t, 1 - self.id(), 3);
}
// Each rank, on leaving, waits for the other to receive its messages; neither receives.
task<> both_send(rank& self) {
  auto op = both_ways();
  op.timeout = std::chrono::nanoseconds(soon_ns);
  transfer t(self, op);
  co_await send_some(t, 1 - self.id(), 3);
}
// Rank 0 has the shorter timeout and fails first; rank 1 then gets an error because its peer is gone.
task<> both_send_first(rank& self) {
  transfer t(self, both_ways());
  const std::vector<std::byte> data(large_bytes);
  co_await t.send(data,
                  {.to = 1 - self.id(), .timeout = std::chrono::nanoseconds(self.id() == 0 ? soon_ns : 15 * soon_ns)});
  co_await receive_some(t, 1 - self.id(), 1, large_bytes);
}
task<> takes_one_of_three(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 0) {
    co_await send_some(t, 1, 3);
  } else {
    co_await receive_some(t, 0, 1);
  }
}
task<> sender_returns(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 0) {
    co_await receive_some(t, 1, 3);
  } else {
    co_await send_some(t, 0, 2);
  }
}
// Rank 1 leaves before it has sent anything to rank 0, which waits for a message.
task<> sender_returns_at_once(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 0) co_await receive_some(t, 1, 1);
}
// Rank 0 sends more messages than may be in flight unmatched.
task<> receiver_returns(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 0) {
    co_await send_some(t, 1, 1'000);
  } else {
    co_await receive_some(t, 0, 1);
  }
}
collective sums_of(rank& self) {
  collective_options op;
  op.name = "gradients";
  op.role = [](rank_id r) { return r == 0 ? role::leader : role::worker; };
  return collective(self, op);
}
task<> sum_some(collective g, int calls) {
  std::vector<float> x(100, 1.0F);
  for (int i = 0; i < calls; ++i) co_await g.all_reduce(std::span(x));
}
task<> worker_returns(rank& self) { co_await sum_some(sums_of(self), self.id() == 2 ? 1 : 2); }
task<> leader_returns(rank& self) { co_await sum_some(sums_of(self), self.id() == 0 ? 1 : 2); }
task<> throws(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 1) throw std::runtime_error("the engine gives up");
  co_await receive_some(t, 1, 1);
}
task<> exits(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 1) {
    co_await send_some(t, 0, 1);
    std::exit(0);
  }
  co_await receive_some(t, 1, 2);
}
// Rank 2 exits while the others are in a call whose large sum needs it. A process that has ended sends rank 0 nothing more.
task<> sum_many(collective g) {
  std::vector<float> x(large_bytes / sizeof(float), 1.0F);
  static_cast<void>(co_await attempt(g.all_reduce(std::span(x))));
}
task<> exits_in_a_call(rank& self) {
  collective g(self, {.name = "gradients",
                      .role = [](rank_id r) { return r == 0 ? role::leader : role::worker; },
                      .configs = {chain()}});
  scope calls(co_await this_scope, {});
  if (self.id() != 2) calls.spawn(sum_many(g));
  auto slept = co_await sleep_for(std::chrono::nanoseconds(self.id() == 2 ? 200'000'000 : 100'000'000));
  if (!slept) co_return;
  if (self.id() == 1) std::exit(0);
  if (self.id() == 2) co_await sum_many(g);
  co_await calls.join();
}
task<> exits_with_7(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 1) std::exit(7);
  std::vector<std::byte> data(small_bytes);
  const auto received = co_await attempt(t.receive(data, {.from = 1}));
  // The connections of a process end before the process does. This rank ends after it, so that rank 1 is the first that has failed.
  static_cast<void>(co_await sleep_for(std::chrono::nanoseconds(500'000'000)));
  static_cast<void>(received.value());
}
task<> all_exit_with_3(rank& self) {
  static_cast<void>(transfer(self, both_ways()));
  const auto slept = co_await sleep_for(10ms);
  static_cast<void>(slept);
  std::exit(3);
}
task<> throws_a_number(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 1) throw 7;
  co_await receive_some(t, 1, 1);
}
// The receiver rejects the message; the sender has long gone on.
task<> receives_another_type(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 0) {
    const std::vector<std::uint32_t> data(100);
    co_await t.send(std::span(data), {.to = 1});
  } else {
    std::vector<double> data(100);
    static_cast<void>(co_await attempt(t.receive(std::span(data), {.from = 0})));
  }
  static_cast<void>(co_await sleep_for(
      std::chrono::nanoseconds(self.id() == 0 ? 200'000'000 : 400'000'000)));  // until the sender has the rejection
}
task<> worker_exits(rank& self) {
  auto g = sums_of(self);
  co_await sum_some(g, 1);
  if (self.id() == 2) std::exit(0);
  co_await sum_some(g, 1);
}
task<> nobody_sends(rank& self) {
  transfer t(self, both_ways());
  std::vector<std::byte> data(small_bytes);
  co_await t.receive(
      data, {.from = 1 - self.id(), .timeout = std::chrono::nanoseconds(self.id() == 0 ? soon_ns : 15 * soon_ns)});
}
task<> declares_other_types(rank& self) {
  auto op = both_ways();
  op.dtype = self.id() == 0 ? "bf16" : "fp32";
  transfer t(self, op);
  if (self.id() == 0) {
    co_await send_some(t, 1, 100, large_bytes);  // the first few may be sent before the rejection arrives
  } else {
    co_await receive_some(t, 0, 100, large_bytes);
  }
}
// The types differ, but no call notices it.
task<> declares_other_types_and_returns(rank& self) {
  auto op = both_ways();
  op.edges = {{0, 1}};
  op.dtype = self.id() == 0 ? "bf16" : "fp32";
  transfer t(self, op);
  if (self.id() == 0) co_await send_some(t, 1, 3);
}
task<> buffer_is_too_small(rank& self) {
  transfer t(self, both_ways());
  if (self.id() == 0) {
    co_await send_some(t, 1, 1);
  } else {
    co_await receive_some(t, 0, 1, small_bytes / 2);
  }
}

task<> forgets_to_join(rank& self) {
  transfer t(self, both_ways());
  const std::vector<std::byte> data(large_bytes);
  scope& here = co_await this_scope;
  scope calls(here);
  if (self.id() == 0) calls.spawn(t.send(data, {.to = 1}));
}
task<> send_that_throws(part_sender&, std::span<const std::byte>) {
  throw std::runtime_error("no such card");
  co_return;
}
task<> receive_whole(part_receiver& in, std::span<std::byte> data) { co_await in.receive(0, data); }
// The config throws. Only the user can fix that, so parley must report it.
task<> lists_a_config_that_throws(rank& self) {
  auto op = both_ways();
  op.configs = {direct(), paired({.name = "mine", .wire_class = "mine"}, send_that_throws, receive_whole)};
  transfer t(self, op);
  for (int i = 0; i < 100; ++i) {
    co_await send_some(t, 1 - self.id(), 1);
    co_await receive_some(t, 1 - self.id(), 1);
  }
}

// ---- how each of them ends, in both worlds ----------------------------------------------------------------------------

struct verdict {
  rank_function rank_main;
  rank_id ranks;
  int status;
  int strict;  // the status when undelivered messages count as an error
  std::vector<const char*>
      codes;              // the error code of each rank's program; `none`: it returns, "": it neither returns nor fails
  const char* told = "";  // a text that the user reads in both worlds
};
const std::map<std::string, verdict>& verdicts() {
  static const std::map<std::string, verdict> all{
      {"exchanges", {exchanges, 2, 0, 0, {"none", "none"}}},
      {"both send", {both_send, 2, 0, 3, {"none", "none"}}},
      {"both send first", {both_send_first, 2, 1, 1, {"timeout", "peer_failed"}}},
      {"takes one of three", {takes_one_of_three, 2, 0, 3, {"none", "none"}}},
      {"sender returns", {sender_returns, 2, 1, 1, {"peer_failed", "none"}}},
      {"sender returns at once", {sender_returns_at_once, 2, 1, 1, {"peer_failed", "none"}}},
      {"receiver returns", {receiver_returns, 2, 1, 1, {"peer_failed", "none"}}},
      {"worker returns", {worker_returns, 3, 1, 1, {"peer_failed", "peer_failed", "none"}}},
      {"leader returns", {leader_returns, 3, 1, 1, {"none", "peer_failed", "peer_failed"}}},
      {"throws", {throws, 2, 1, 1, {"peer_failed", "exception"}}},
      {"exits", {exits, 2, 1, 1, {"peer_failed", ""}}},
      {"exits in a call", {exits_in_a_call, 3, 0, 0, {"none", "", "none"}}},
      {"exits with 7", {exits_with_7, 2, 7, 7, {"peer_failed", ""}}},
      {"all exit with 3", {all_exit_with_3, 2, 3, 3, {"", ""}}},
      {"throws a number",
       {throws_a_number,
        2,
        1,
        1,
        {"peer_failed", "exception"},
        "threw an object that is not a std::exception; throw a std::exception"}},
      {"receives another type",
       {receives_another_type, 2, 0, 3, {"none", "none"}, "which is for f64 elements, but the message has u32"}},
      {"worker exits", {worker_exits, 3, 1, 1, {"peer_failed", "peer_failed", ""}}},
      {"nobody sends", {nobody_sends, 2, 1, 1, {"timeout", "peer_failed"}}},
      {"other types", {declares_other_types, 2, 1, 1, {"declaration_mismatch", "declaration_mismatch"}}},
      {"other types unseen", {declares_other_types_and_returns, 2, 1, 1, {"none", "none"}}},
      {"too small", {buffer_is_too_small, 2, 1, 1, {"none", "buffer_too_small"}}},
      {"forgets to join",
       {forgets_to_join, 2, 0, 3, {"none", "none"}, "`co_await` every `join()` before its scope or dataflow ends"}},
      {"config throws",
       {lists_a_config_that_throws, 2, 0, 0, {"none", "none"}, "exception: no such card; its rehearsal failed"}},
  };
  return all;
}

const verdict* chosen() {
  const char* const name = std::getenv(scenario_variable);
  if (name == nullptr) return nullptr;
  const auto at = verdicts().find(name);
  return at == verdicts().end() ? nullptr : &at->second;
}
void say_end(rank_id r, errc code) { say("end of " + std::to_string(r) + " " + std::string(name(code))); }
task<> rank_main(rank& self) {
  std::exception_ptr thrown;
  try {
    co_await chosen()->rank_main(self);
  } catch (...) {
    thrown = std::current_exception();
  }
  say_end(self.id(), thrown ? describe(thrown).code() : errc::none);
  if (thrown) std::rethrow_exception(thrown);
}

constexpr const char* one_rank = "this program as one rank of a job with a verdict";
constexpr const char* all_ranks = "this program as a simulated job with a verdict";

// ---- what the test sees -----------------------------------------------------------------------------------------------

struct ending {
  int status = -1;
  std::vector<std::string> codes;
  std::string text;
};
void read_codes(ending& e, rank_id ranks) {
  e.codes.assign(ranks, "");
  for (rank_id r = 0; r < ranks; ++r) {
    const std::string word = "end of " + std::to_string(r) + " ";
    const std::size_t at = e.text.find(word);
    if (at == std::string::npos) continue;
    e.codes[r] = e.text.substr(at + word.size(), e.text.find('\n', at) - at - word.size());
  }
}
ending real(const std::string& name, const verdict& v, const char* strict) {
  const parley::tests::job_run run(one_rank, name, v.ranks, {{"PARLEY_STRICT", strict}});
  ending e;
  e.text = run.all;
  e.status = run.end.first_failed ? run.end.ranks[*run.end.first_failed].code : run.end.status;
  read_codes(e, v.ranks);
  return e;
}
ending simulated(const std::string& name, const verdict& v, const char* strict) {
  const parley::tests::scratch_folder here;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto s = parley::tests::start_in(here, "env " + std::string(scenario_variable) + "='" + name +
                                                   "' PARLEY_STRICT=" + strict + " '" + self +
                                                   "' --no-skip --test-case='" + all_ranks + "'");
  ending e;
  e.status = s.status;
  e.text = s.out + s.error;
  read_codes(e, v.ranks);
  return e;
}

void compare(const verdict& v, const ending& e, int status) {
  INFO(e.text);
  CHECK(e.status == status);
  CHECK(e.text.find(v.told) != std::string::npos);
  for (rank_id r = 0; r < v.ranks; ++r) {
    CAPTURE(r);
    CHECK(e.codes[r] == v.codes[r]);
  }
}

}  // namespace

TEST_CASE("this program as one rank of a job with a verdict" * doctest::skip()) {
  if (chosen() == nullptr) return;
  std::_Exit(ops::run(0, nullptr, rank_main));
}
TEST_CASE("this program as a simulated job with a verdict" * doctest::skip()) {
  if (chosen() == nullptr) return;
  std::string words[] = {"program", "--sim", std::to_string(chosen()->ranks)};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const int status = simulation::run(3, argv, rank_main);
  std::fflush(stdout);
  std::_Exit(status);
}

TEST_CASE("a program ends with the same status and errors on virtual ranks as in real processes") {
  for (const auto& [name, v] : verdicts()) {
    CAPTURE(name);
    {
      CAPTURE("simulated");
      compare(v, simulated(name, v, "0"), v.status);
    }
    CAPTURE("real");
    compare(v, real(name, v, "0"), v.status);
  }
}

TEST_CASE("with PARLEY_STRICT=1 untaken messages make the status 3, in real processes and on virtual ranks") {
  for (const auto& [name, v] : verdicts()) {
    if (v.strict == v.status && v.status != 0) continue;
    CAPTURE(name);
    compare(v, simulated(name, v, "1"), v.strict);
    compare(v, real(name, v, "1"), v.strict);
  }
}
