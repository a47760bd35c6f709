// How much a decided call costs beyond the chosen implementation. Two ranks run in one process, so that instructions
// can be counted. One iteration is two calls: a send and the receive of its 8 bytes.
//
//     tuned_call --only tuned [--iterations N]     through the op, after both ends have agreed
//     tuned_call --only direct                     the same implementation, `direct`, without an op, over the same link
//     tuned_call --only by_hand                    nothing of parley but the link: the least that `direct` must do
//     tuned_call --only batches                    the same calls as batches of a dataflow, of one operation each
//
// All modes send the same 64-byte header with the same 8 bytes over the same link, so the link's own instructions are
// in each count. `tuned`, `direct` and `by_hand` wait for the arrival in one coroutine. `direct` has a coroutine for
// the config and its parts in flight. `by_hand` has neither: it keeps one message in flight, with no deadline,
// window, early arrivals or cancellation.
//
// `tuned` also counts what must not happen once a decision stands: allocations, and control messages of the
// agreement. It counts flow control messages separately.
#include <parley/actors/edge/part_sender.hpp>
#include <parley/bench/by_itself.hpp>
#include <parley/bench/keys.hpp>
#include <parley/bench/local_link.hpp>
#include <parley/bench/measure.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/parley.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/runtime/wire/router.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

// Every allocation of the program ends in one of these.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): glibc's names for what malloc replaces
extern "C" {
void* __libc_malloc(std::size_t) noexcept;
void* __libc_calloc(std::size_t, std::size_t) noexcept;
void* __libc_realloc(void*, std::size_t) noexcept;
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
static std::uint64_t allocations = 0;
void* malloc(std::size_t bytes) noexcept {
  ++allocations;
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  ++allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) noexcept {
  ++allocations;
  return __libc_realloc(old, bytes);
}
}

namespace {

using namespace parley::bench;
using namespace parley::runtime;
using parley::actors::part_sender;
using parley::actors::stamp;

constexpr std::size_t most_tries = 20'000;
constexpr std::int64_t warm_ups = 2'000;  // also fills the flight recorder below
constexpr std::size_t flight_records = 1'024;

// ---- through the op

struct two_ranks {
  explicit two_ranks(reactor& loop) : loop_(loop), links{local_link(0), local_link(1)} {
    connect(links[0], links[1]);
    parley::ops::rank_settings settings;
    settings.plan.budget_fraction = 1e3;
    // Under valgrind everything takes about 50 times as long. The longer pause keeps timed calls as rare, per call,
    // as without it.
    settings.plan.drift.pause_ns *= 50;
    settings.flight_records = flight_records;
    for (local_link& l : links) {
      loop.attach(l);
      ranks[l.rank()].emplace(parley::ops::rank_foundation{loop, l, nullptr, {{1, 2}}, {}}, settings);
    }
    for (auto& r : ranks) {
      auto configs = {parley::configs::direct(), parley::configs::chunked(64 << 10)};
      transfers.push_back(parley::transfer(*r, {.name = "word", .role = {}, .edges = {{0, 1}}, .configs = configs}));
    }
  }
  ~two_ranks() {
    for (auto& r : ranks) r.reset();
    for (local_link& l : links) loop_.detach(l);
  }
  bool agreed() const { return keys_of(*ranks[0]).decided != 0; }
  std::uint64_t mail_sent() const { return ranks[0]->mail().statistics().sent + ranks[1]->mail().statistics().sent; }
  std::uint64_t flow_sent() const { return ranks[0]->flow_messages() + ranks[1]->flow_messages(); }

  reactor& loop_;
  std::array<local_link, 2> links;
  std::array<std::optional<parley::rank>, 2> ranks;
  std::vector<parley::transfer> transfers;
};

task<> calls(two_ranks& both, std::int64_t count) {
  word out{1};
  word in{};
  for (std::int64_t n = 0; n < count; ++n) {
    co_await both.transfers[0].send(out, {.to = 1});
    co_await both.transfers[1].receive(in, {.from = 0});
    if (in != out) give_up("a transfer brought the wrong word");
    ++out[0];
  }
}

template <class Moves>
void agree(reactor& loop, two_ranks& both, const Moves& moves) {
  for (std::size_t n = 0; !both.agreed(); ++n) {
    if (n == most_tries) give_up("the ranks did not agree");
    run(loop, moves(1));
  }
  run(loop, both.ranks[0]->settle(1s));
  run(loop, both.ranks[1]->settle(1s));
  run(loop, moves(warm_ups));
}

void tuned(std::int64_t count) {
  reactor loop;
  two_ranks both(loop);
  agree(loop, both, [&](std::int64_t n) { return calls(both, n); });

  const std::uint64_t mail_before = both.mail_sent();
  const std::uint64_t flow_before = both.flow_sent();
  const std::uint64_t allocations_before = allocations;
  const std::int64_t start = now_ns();
  counted([&] { run(loop, calls(both, count)); });
  const double ns = double(now_ns() - start) / double(count);
  const std::uint64_t allocated = allocations - allocations_before;
  const std::uint64_t flow = both.flow_sent() - flow_before;
  const std::uint64_t agreement = both.mail_sent() - mail_before - flow;
  report("tuned_call", ns, "ns");
  report("tuned_call_allocations", double(allocated), "in_all");
  report("tuned_call_agreement_messages", double(agreement), "in_all");
  report("tuned_call_flow_messages", double(flow) / double(count), "per_call");
  if (allocated != 0) give_up(std::to_string(allocated) + " allocations in decided calls");
  if (agreement != 0) give_up(std::to_string(agreement) + " control messages in decided calls");
}

// ---- as batches

task<> batches(std::array<parley::p2p, 2>& words, std::int64_t count) {
  scope& here = co_await this_scope;
  dataflow sending(here);
  dataflow receiving(here);
  word out{1};
  word in{};
  for (std::int64_t n = 0; n < count; ++n) {
    auto sent = words[0].start(sending, {parley::p2p::isend(out, {.to = 1})});
    auto came = words[1].start(receiving, {parley::p2p::irecv(in, {.from = 0})});
    co_await sent;
    co_await came;
    if (in != out) give_up("a batch brought the wrong word");
    ++out[0];
  }
  co_await sending.join();
  co_await receiving.join();
}

void batched(std::int64_t count) {
  reactor loop;
  two_ranks both(loop);
  std::array<parley::p2p, 2> words;
  for (std::size_t r = 0; r < 2; ++r)
    words[r] = parley::p2p(
        *both.ranks[r], {.name = "words", .configs = {parley::configs::direct(), parley::configs::chunked(64 << 10)}});
  agree(loop, both, [&](std::int64_t n) { return batches(words, n); });
  const std::uint64_t allocations_before = allocations;
  const std::int64_t start = now_ns();
  counted([&] { run(loop, batches(words, count)); });
  report("batched_call", double(now_ns() - start) / double(count), "ns");
  report("batched_call_allocations", double(allocations - allocations_before) / double(count), "per_call");
}

// ---- without an op

task<> by_hand(std::array<local_link, 2>& links, lone_inbox& box, std::int64_t count) {
  stamp mark;
  mark.total_bytes = sizeof(word);
  word out{1};
  word in{};
  for (std::int64_t n = 0; n < count; ++n) {
    const errc sent =
        links[0].send(1, link::channel::data, parley::actors::bytes_of(mark), std::as_bytes(std::span(out)), nullptr);
    if (sent != errc::none) give_up("a message could not be sent");
    arrival message = co_await lone_inbox::next(box);
    static_cast<void>(links[1].fetch(std::move(message), std::as_writable_bytes(std::span(in)), nullptr));
    if (in != out) give_up("a transfer brought the wrong word");
    ++out[0];
  }
}

task<> direct(std::array<local_link, 2>& links, lone_inbox& box, std::int64_t count) {
  return direct_by_itself(links[0], links[1], box, count);
}

void alone(task<> (*moves)(std::array<local_link, 2>&, lone_inbox&, std::int64_t), std::int64_t count,
           const char* line) {
  reactor loop;
  std::array<local_link, 2> links{local_link(0), local_link(1)};
  connect(links[0], links[1]);
  lone_inbox box;
  links[1].listen(link::channel::data, &box);
  for (local_link& l : links) loop.attach(l);
  run(loop, moves(links, box, warm_ups));
  const std::int64_t start = now_ns();
  counted([&] { run(loop, moves(links, box, count)); });
  report(line, double(now_ns() - start) / double(count), "ns");
  for (local_link& l : links) loop.detach(l);
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "tuned");
  const std::int64_t count = given.number("iterations", 100'000);
  pin_to_core(0);
  if (only == "tuned")
    tuned(count);
  else if (only == "direct")
    alone(direct, count, "direct_call");
  else if (only == "by_hand")
    alone(by_hand, count, "by_hand_call");
  else if (only == "batches")
    batched(count);
  else
    give_up("--only takes tuned, direct, by_hand or batches, not " + only);
}
