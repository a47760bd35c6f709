// Messages to a rank that declares its op later: all of them arrive, or both the sender and the receiver get an error that names the op.
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/messages.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <list>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns late_ns = 500'000'000;

task<> note_send(transfer t, std::span<const std::byte> data, send_options o, result<>& outcome) {
  outcome = co_await attempt(t.send(data, o));
}

task<> note_receive(transfer t, std::span<std::byte> into, receive_options o, result<>& outcome) {
  auto got = co_await attempt(t.receive(into, o));
  if (got) {
    outcome = {};
  } else {
    outcome = got.reason();
  }
}

/// Rank 0 sends one message on each tag to rank 1, which declares its end late.
struct one_on_each_tag {
  one_on_each_tag(world& w, std::size_t tags, std::size_t bytes)
      : w_(w), bytes_(bytes), calls_(w.clock), sent(tags, error(errc::pending)), received(tags, error(errc::pending)) {
    out_ = transfer(w[0], pair_of({direct()}));
  }
  void send_all(time_ns timeout_ns = 0) {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      data_.push_back(pattern(bytes_, i));
      calls_.spawn(note_send(
          out_, data_.back(),
          {.to = 1, .tag = static_cast<std::uint32_t>(i), .timeout = std::chrono::nanoseconds(timeout_ns)}, sent[i]));
    }
  }
  void receive_all(const transfer& in) {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      into_.emplace_back(bytes_);
      calls_.spawn(note_receive(in, into_.back(), {.from = 0, .tag = static_cast<std::uint32_t>(i)}, received[i]));
    }
  }
  void join() {
    run_until(w_.clock, [&] { return calls_.running() == 0; });
  }
  static std::size_t count(const std::vector<result<>>& all, errc how) {
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& r) { return (r ? errc::none : r.code()) == how; }));
  }
  std::size_t whole() const {
    std::size_t i = 0;
    return static_cast<std::size_t>(
        std::count_if(into_.begin(), into_.end(), [&](const auto& b) { return b == pattern(bytes_, i++); }));
  }

 private:
  world& w_;
  std::size_t bytes_;
  transfer out_;
  std::list<std::vector<std::byte>> data_;
  std::list<std::vector<std::byte>> into_;
  scope calls_;

 public:
  std::vector<result<>> sent;
  std::vector<result<>> received;
};

}  // namespace

TEST_CASE("a receiver that declares the op half a second late gets all of 5,000 messages on as many tags") {
  world w(2);
  one_on_each_tag job(w, 5'000, 96);
  job.send_all();
  pass(w, late_ns);
  job.receive_all(transfer(w[1], pair_of({direct()})));
  job.join();
  CHECK(job.count(job.sent, errc::none) == 5'000);
  CHECK(job.count(job.received, errc::none) == 5'000);
  CHECK(job.whole() == 5'000);
}

TEST_CASE("a receiver that declares the op half a second late gets 64 messages from each of 65 senders") {
  constexpr rank_id senders = 65;
  constexpr std::size_t each = 64;
  world w(senders + 1);
  transfer_options op = pair_of({direct()});
  op.role = [](rank_id r) { return r == senders ? role::receiver : role::sender; };
  for (rank_id r = 0; r < senders; ++r) op.edges.emplace_back(r, senders);
  std::list<std::vector<std::byte>> data;
  std::vector<result<>> sent(senders * each, error(errc::pending));
  scope calls(w.clock);
  for (rank_id r = 0; r < senders; ++r) {
    const transfer out(w[r], op);
    for (std::size_t i = r * each; i < (r + 1) * each; ++i) {
      data.push_back(pattern(96, i));
      calls.spawn(note_send(out, data.back(), {.to = senders}, sent[i]));
    }
  }
  pass(w, late_ns);
  const transfer in(w[senders], op);
  std::vector<std::vector<std::byte>> got(senders * each, std::vector<std::byte>(96));
  std::vector<result<>> received(senders * each, error(errc::pending));
  for (std::size_t i = 0; i < got.size(); ++i)
    calls.spawn(note_receive(in, got[i], {.from = static_cast<rank_id>(i / each)}, received[i]));
  run_until(w.clock, [&] { return calls.running() == 0; });
  std::size_t whole = 0;
  for (std::size_t i = 0; i < got.size(); ++i) whole += sent[i] && received[i] && got[i] == pattern(96, i) ? 1 : 0;
  CHECK(whole == got.size());
}

TEST_CASE("a member that declares its group half a second late gets a whole broadcast of 5,000 parts") {
  world w(2);
  auto op = led_by(0, {star(64)});
  op.kind = collective_kind::broadcast;
  std::vector<std::vector<std::byte>> data{pattern(320'000, 3), std::vector<std::byte>(320'000)};
  std::vector<result<>> outcomes(2, error(errc::pending));
  const auto call = [](collective g, std::span<std::byte> bytes, result<>& outcome) -> task<> {
    outcome = co_await attempt(g.broadcast(bytes));
  };
  scope calls(w.clock);
  calls.spawn(call(collective(w[0], op), data[0], outcomes[0]));
  pass(w, late_ns);
  calls.spawn(call(collective(w[1], op), data[1], outcomes[1]));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK_MESSAGE(outcomes[0], (outcomes[0] ? std::string() : outcomes[0].reason().what()));
  CHECK_MESSAGE(outcomes[1], (outcomes[1] ? std::string() : outcomes[1].reason().what()));
  CHECK(data[0] == data[1]);
}

TEST_CASE("messages beyond half of early_bytes wait at the sender, and arrive once the receiver declares the op") {
  rank_settings s;
  s.early_bytes = 1 << 20;
  world w(2, s);
  one_on_each_tag job(w, 1'000, 4'096);
  job.send_all();
  pass(w, late_ns);
  const std::size_t early = job.count(job.sent, errc::none);
  CHECK(early > 100);
  CHECK(early < 130);  // of 4 KiB each: half of the 1 MiB that the receiver keeps
  job.receive_all(transfer(w[1], pair_of({direct()})));
  job.join();
  CHECK(job.count(job.received, errc::none) == 1'000);
  CHECK(job.whole() == 1'000);
}

TEST_CASE("a send beyond the limit of early messages times out, and names the missing declaration and the limit") {
  rank_settings s;
  s.early_bytes = 1 << 20;
  world w(2, s);
  one_on_each_tag job(w, 200, 4'096);
  job.send_all(200'000'000);
  pass(w, late_ns);
  const std::size_t early = job.count(job.sent, errc::none);
  CHECK(early < 130);
  CHECK(job.count(job.sent, errc::timeout) == 200 - early);
  CHECK(is(job.sent.back(), {.code = errc::timeout,
                             .op = "activations 0->1",
                             .begun = false,
                             .peer = 1,
                             .unmet = awaited::declaration,
                             .quotes = "524288"}));
}

TEST_CASE("an op that sends more than is kept before its declaration gets full on both ranks, and other ops continue") {
  rank_settings s;
  s.early_bytes = 1 << 20;
  world w(2, s);
  const std::vector configs{chunked(2'048, 4)};
  const transfer out(w[0], pair_of(configs));
  auto beside = pair_of({direct()});
  beside.name = "beside";
  const transfer other_out(w[0], beside);
  const std::vector<std::byte> data = pattern(16 << 20, 1);
  const std::vector<std::byte> little = pattern(96, 2);
  std::vector<result<>> sent(3, error(errc::pending));
  scope calls(w.clock);
  calls.spawn(note_send(other_out, little, {.to = 1}, sent[0]));
  calls.spawn(note_send(out, data, {.to = 1}, sent[1]));
  pass(w, late_ns);
  CHECK(sent[0]);
  calls.spawn(note_send(out, little, {.to = 1}, sent[2]));
  pass(w, late_ns);
  CHECK(is(sent[2], {.code = errc::full, .op = "activations 0->1", .rank = 0, .peer = 1}));
  CHECK(w[1].data().statistics().refused > 0);
  REQUIRE_FALSE(w[1].warnings().empty());
  CHECK(w[1].warnings().front().find("rank 0") != std::string::npos);
  std::vector<std::byte> into(data.size());
  result<> received = error(errc::pending);
  calls.spawn(note_receive(transfer(w[1], pair_of(configs)), into, {.from = 0}, received));
  std::vector<std::byte> little_came(little.size());
  result<> other_received = error(errc::pending);
  calls.spawn(note_receive(transfer(w[1], beside), little_came, {.from = 0}, other_received));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(is(received, {.code = errc::full,
                      .op = "activations 0->1",
                      .rank = 1,
                      .role = "receiver",
                      .begun = false,
                      .peer = 0,
                      .tag = 0}));
  CHECK(other_received);
  CHECK(little_came == little);
}

TEST_CASE("a group that sends more parts ahead than are kept fails with full on all its ranks") {
  world w(2);
  auto op = led_by(0, {star(64)});
  op.kind = collective_kind::broadcast;
  std::vector<std::vector<std::byte>> data{pattern(5'000'000, 3), std::vector<std::byte>(5'000'000)};
  std::vector<result<>> outcomes(4, error(errc::pending));
  const auto call = [](collective g, std::span<std::byte> bytes, result<>& outcome) -> task<> {
    outcome = co_await attempt(g.broadcast(bytes));
  };
  const collective leader(w[0], op);
  const collective member(w[1], op);
  scope calls(w.clock);
  calls.spawn(call(leader, data[0], outcomes[0]));
  pass(w, late_ns);
  calls.spawn(call(member, data[1], outcomes[1]));
  calls.spawn(call(leader, data[0], outcomes[2]));
  pass(w, late_ns);
  CHECK(calls.running() == 0);
  CHECK(is(outcomes[1], {.code = errc::full, .op = "gradients 0->1", .rank = 1, .role = "worker"}));
  CHECK(is(outcomes[2], {.code = errc::full, .op = "gradients 0->1", .rank = 0, .role = "leader", .peer = 1}));
}

TEST_CASE("a receive that gets only its first part times out, and names the bytes that arrived") {
  world w(2);
  auto op = pair_of({chunked(2'048, 4)});
  op.timeout = 8s;
  const transfer in(w[1], op);
  const auto declared = actors::declare_edge("activations", 0, 1, "");
  actors::stamp s{.op = declared.id(),
                  .generation = actors::first_generation(declared, w.incarnations),
                  .digest = op.configs.front()->digest(),
                  .total_bytes = 8'192,
                  .source = 0};
  const std::vector<std::byte> part(2'048);
  static_cast<void>(w.links[0].send(1, link::channel::data, actors::bytes_of(s), part, nullptr));
  std::vector<std::byte> into(8'192);
  result<> received = error(errc::pending);
  scope calls(w.clock);
  const time_ns began = w.clock.now();
  calls.spawn(note_receive(in, into, {.from = 0}, received));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(is(received, {.code = errc::timeout,
                      .peer = 0,
                      .unmet = awaited::payload,
                      .done_bytes = 2'048,
                      .whole_bytes = 8'192,
                      .quotes = "the rest of the message did not arrive in time"}));
  CHECK(w.clock.now() - began >= 8'000'000'000);
  CHECK(w.clock.now() - began < 9'500'000'000);
}
