// Thousands of ops: four ranks in one process declare 10,000 transfers each, whose senders and receivers rotate.
//
//     many_ops --only bytes [--ops N]                 declared: bytes per op and rank, time for all; then all of them used
//     many_ops --only calls [--declared N] [--ops N] [--iterations N]   one send and its receive, a new op of --ops each time, all decided
//     many_ops --only direct [--iterations N]            the same over the same links by the config alone
//
// `bytes` counts the heap memory that declaring an op takes on one rank, including its handle and its name. Its
// second figure is for ops that have been used, which also hold actors, flow control and the results of their
// agreement.
#include <parley/bench/by_itself.hpp>
#include <parley/bench/keys.hpp>
#include <parley/bench/measure.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/parley.hpp>
#include <parley/runtime/time/poller.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/runtime/wire/router.hpp>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::runtime;
using parley::rank_id;

constexpr rank_id ranks = 4;

/// A link between the ranks of one process: a message is delivered at the receiver's next poll.
class crowd_link final : public link, public poller {
 public:
  crowd_link(std::vector<std::unique_ptr<crowd_link>>& all, rank_id rank)
      : all_(all), rank_(rank), event_(eventfd(0, EFD_CLOEXEC)) {}
  ~crowd_link() override { close(event_); }
  crowd_link(const crowd_link&) = delete;
  crowd_link& operator=(const crowd_link&) = delete;

  rank_id rank() const noexcept override { return rank_; }
  rank_id world_size() const noexcept override { return ranks; }
  void listen(channel on, handler* to) override { handlers_[std::size_t(on)] = to; }
  void on_failure(failure_handler*) override {}
  errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            completion*) override {
    auto& inbox = all_[to]->inbox_;
    if (header.size() + payload.size() <= arrival::inline_bytes) {
      inbox.emplace_back(on, arrival(header, payload));
    } else {
      auto* copy = new std::byte[payload.size()];
      std::copy(payload.begin(), payload.end(), copy);
      inbox.emplace_back(on, arrival(all_[to].get(), header, payload.size(), copy, false));
    }
    return errc::none;
  }
  errc fetch(arrival&& message, std::span<std::byte> into, completion*) override {
    const arrival taken = std::move(message);
    std::copy(taken.payload().begin(), taken.payload().end(), into.begin());
    return errc::none;
  }
  void cancel(completion&) override {}
  const counters& statistics() const noexcept override { return counted_; }

  bool poll() override {
    if (inbox_.empty()) return false;
    delivering_.swap(inbox_);
    for (auto& [on, message] : delivering_) {
      if (handler* to = handlers_[std::size_t(on)]) to->on_arrival(std::move(message));
    }
    delivering_.clear();
    return true;
  }
  arm_state arm() override { return inbox_.empty() ? arm_state::armed : arm_state::busy; }
  int event_fd() const override { return event_; }

 private:
  void release(const void* held, bool) noexcept override { delete[] static_cast<const std::byte*>(held); }
  std::vector<std::unique_ptr<crowd_link>>& all_;
  rank_id rank_;
  int event_;
  std::array<handler*, channels> handlers_{};
  std::vector<std::pair<channel, arrival>> inbox_;
  std::vector<std::pair<channel, arrival>> delivering_;
  counters counted_;
};

struct crowd {
  explicit crowd(reactor& loop) : loop_(loop) {
    parley::ops::rank_settings settings;
    settings.plan.budget_fraction = 1e3;
    // Under valgrind everything takes about 50 times as long. The longer pause keeps timed calls as rare, per call,
    // as without it.
    settings.plan.drift.pause_ns *= 50;
    settings.flight_records = 1'024;
    for (rank_id r = 0; r < ranks; ++r) links.push_back(std::make_unique<crowd_link>(links, r));
    for (rank_id r = 0; r < ranks; ++r) {
      loop.attach(*links[r]);
      members.push_back(std::make_unique<parley::rank>(
          parley::ops::rank_foundation{loop, *links[r], nullptr, {{1, 2, 3, 4}}, {}}, settings));
    }
  }
  ~crowd() {
    transfers = {};
    members.clear();
    for (auto& l : links) loop_.detach(*l);
  }
  static rank_id sender(std::size_t op) { return rank_id(op % ranks); }
  static rank_id receiver(std::size_t op) { return rank_id((op + 1) % ranks); }
  // Each rank declares all ops, and is the sender or the receiver in half of them.
  void declare(std::size_t count) {
    const std::vector configs{parley::configs::direct(), parley::configs::chunked(64 << 10)};
    for (auto& t : transfers) t.reserve(count);
    for (std::size_t op = 0; op < count; ++op) {
      parley::transfer_options declared{.name = "op" + std::to_string(op), .configs = configs};
      declared.edges = {{sender(op), receiver(op)}, {sender(op + 2), receiver(op + 2)}};
      for (rank_id r = 0; r < ranks; ++r) transfers[r].emplace_back(*members[r], declared);
    }
  }
  void pair_up(std::size_t count) {
    for (std::size_t op = 0; op < count; ++op) {
      const rank_id from = sender(op);
      const rank_id to = receiver(op);
      pairs.push_back({from, to, transfers[from][op], transfers[to][op]});
    }
  }
  std::size_t decided() const {
    std::size_t count = 0;
    for (const auto& m : members) count += keys_of(*m).decided;
    return count;
  }
  std::uint64_t mail_sent() const {
    std::uint64_t sent = 0;
    for (const auto& m : members) sent += m->mail().statistics().sent;
    return sent;
  }

  reactor& loop_;
  std::vector<std::unique_ptr<crowd_link>> links;
  std::vector<std::unique_ptr<parley::rank>> members;
  std::array<std::vector<parley::transfer>, ranks> transfers;
  // The parts of an op that `use` needs, so that the count has calls only and no bookkeeping of this program.
  struct pair {
    rank_id from, to;
    parley::transfer& out;
    parley::transfer& in;
  };
  std::vector<pair> pairs;
};

task<> use(crowd& all, std::size_t first, std::size_t count, std::size_t ops) {
  std::array<std::uint64_t, 1> out{1};
  std::array<std::uint64_t, 1> in{};
  std::size_t op = first % ops;
  for (std::size_t n = 0; n < count; ++n) {
    crowd::pair& next = all.pairs[op];
    co_await next.out.send(out, {.to = next.to});
    co_await next.in.receive(in, {.from = next.from});
    if (++op == ops) op = 0;
    if (in != out) give_up("a transfer brought the wrong word");
    ++out[0];
  }
}

void bytes(std::size_t ops) {
  reactor loop;
  crowd all(loop);
  const std::size_t before = heap_bytes();
  const std::int64_t start = now_ns();
  all.declare(ops);
  report("many_ops_declare", double(now_ns() - start) / ranks, "ns");
  report("many_ops_bytes", double(heap_bytes() - before) / double(ops * ranks), "bytes");
  if (all.mail_sent() != 0) give_up("ops that nobody has used exchanged messages");
  all.pair_up(ops);
  run(loop, use(all, 0, ops, ops));
  report("many_ops_used_bytes", double(heap_bytes() - before) / double(ops * ranks), "bytes");
}

void calls(std::size_t declared, std::size_t ops, std::size_t iterations) {
  constexpr std::size_t most_rounds = 1'000;
  reactor loop;
  crowd all(loop);
  all.declare(declared);
  all.pair_up(ops);
  for (std::size_t round = 0; all.decided() != ops; ++round) {
    if (round == most_rounds) give_up("the ranks did not agree on all ops");
    run(loop, use(all, 0, ops, ops));
  }
  for (auto& m : all.members) run(loop, m->settle(1s));
  run(loop, use(all, 0, 2 * ops, ops));
  const std::int64_t start = now_ns();
  counted([&] { run(loop, use(all, 0, iterations, ops)); });
  report("many_ops_call", double(now_ns() - start) / double(iterations), "ns");
}

// The config without an op, over the same links between the same ranks.
void direct(std::size_t iterations) {
  reactor loop;
  std::vector<std::unique_ptr<crowd_link>> links;
  for (rank_id r = 0; r < ranks; ++r) links.push_back(std::make_unique<crowd_link>(links, r));
  for (auto& l : links) loop.attach(*l);
  lone_inbox box;
  links[1]->listen(link::channel::data, &box);
  run(loop, direct_by_itself(*links[0], *links[1], box, 1'000));
  const std::int64_t start = now_ns();
  counted([&] { run(loop, direct_by_itself(*links[0], *links[1], box, std::int64_t(iterations))); });
  report("many_ops_direct", double(now_ns() - start) / double(iterations), "ns");
  for (auto& l : links) loop.detach(*l);
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "bytes");
  pin_to_core(0);
  if (only == "bytes")
    bytes(std::size_t(given.number("ops", 10'000)));
  else if (only == "calls")
    calls(std::size_t(given.number("declared", 10'000)), std::size_t(given.number("ops", 1'000)),
          std::size_t(given.number("iterations", 100'000)));
  else if (only == "direct")
    direct(std::size_t(given.number("iterations", 100'000)));
  else
    give_up("--only takes bytes, calls or direct, not " + only);
}
