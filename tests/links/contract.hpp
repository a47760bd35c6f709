#pragma once
/// The promises of every link (runtime/wire/link.hpp), as small programs for a few ranks. The programs do not know the transport: each
/// transport's test provides an `end` per rank and runs all programs.
///
///     for (const contract_case& c : contract(needs::nothing)) SUBCASE(c.promise) { … c.program(end_of_this_rank) on c.ranks ranks … }
///
/// - Order: none. Messages between two ranks may overtake one another; upper layers number their messages and need no order
///   (ordering.cpp).
/// - At most once: an accepted message arrives once while both ranks live, whole and with its own payload (messages.cpp, ordering.cpp).
/// - Largest message: any length. `contract_limits` says up to which length a transport is tested (`every_size` in messages.cpp,
///   `put_every_size` and `get_every_size` in one_sided.cpp).
/// - Back-pressure: a receiver that does not poll loses nothing; messages wait for it (`ten_thousand` in messages.cpp).
/// - Cancellation: a cancelled operation ends once and harms no other; an abandoned operation no longer touches its memory
///   (messages.cpp, one_sided.cpp).
/// - Death of a peer: an operation in flight with it ends with `peer_failed`, once; what has arrived can be read (deaths.cpp,
///   `towards_the_dead` in one_sided.cpp).
///
/// A transport that lacks what a promise needs (`needs`) tells `contract` so, and `contract` leaves that promise out.
///
/// The end owns the operations and memory that a program starts, and outlives the link, so that a rank may be torn down at any point.
#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/recorder.hpp>
#include <parley/tests/transports/launch/processes.hpp>

#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests {

using runtime::arrival;
using runtime::completion;
using runtime::errc;
using runtime::link;
using runtime::task;
using runtime::time_ns;
using channel = link::channel;

/// The limits of the programs on this transport.
struct contract_limits {
  std::size_t largest_bytes = 1 << 20;
  time_ns detection_ns = 2'000'000'000;  ///< time within which a rank that sends to a dead rank must notice
  errc large_copy = errc::pending;  ///< what a large put or get returns; one that has ended at once cannot be abandoned
  errc to_the_dead =
      errc::peer_failed;  ///< what a send to a rank that was given up returns; pending: its completion reports it
  runtime::late_writes late = runtime::late_writes::fail;  ///< what `withdraw` returns
};

/// One rank of a program, and its way to meet the other ranks without the link.
class end {
 public:
  end(rank_id r, rank_id of, contract_limits l) : rank(r), world(of), limits(l) {}
  end(const end&) = delete;
  end& operator=(const end&) = delete;

  const rank_id rank;
  const rank_id world;
  const contract_limits limits;
  recorder control;
  recorder data;
  failures failed;
  bool overtaken = false;  ///< a message arrived after one that was sent later

  virtual link& wire() = 0;
  virtual runtime::executor& loop() = 0;
  /// Returns a function that tells the time passed since this call, without the time that a busy machine took from this process.
  virtual std::function<time_ns()> stopwatch() = 0;

  void listen() {
    wire().listen(channel::control, &control);
    wire().listen(channel::data, &data);
    wire().on_failure(&failed);
  }
  /// Waits for the condition and keeps polling the link meanwhile.
  template <class Condition>
  task<> until(Condition holds, std::source_location where = std::source_location::current()) {
    const time_ns deadline = loop().deadline_in(60'000'000'000);
    while (!holds()) {
      if (loop().now() > deadline) {
        throw std::runtime_error(std::string(where.file_name()) + ":" + std::to_string(where.line()) +
                                 ": not true in time");
      }
      auto slept = co_await runtime::sleep_until(loop().deadline_in(20'000));
      slept.value();
    }
  }
  /// Returns the outcome of an operation that was started with `done`.
  task<errc> outcome(errc started, const awaited& done) {
    if (started == errc::pending) {
      co_await until([&done] { return done.calls > 0; });
      started = done.outcome;
    }
    PARLEY_EXPECT(done.calls <= 1);
    co_return started;
  }
  /// The parts of `gather`: `bring` hands in this rank's data, `brought` says whether all living ranks have done so, `take` returns all.
  virtual void bring(std::span<const std::byte> mine) = 0;
  virtual bool brought() = 0;
  virtual std::vector<blob> take() = 0;
  /// Returns what each rank brought, in order of rank; empty for a dead rank.
  task<std::vector<blob>> gather(blob mine) {
    bring(mine);
    co_await until([this] { return brought(); });
    co_return take();
  }
  task<> meet() {
    auto all = co_await gather({});
    PARLEY_EXPECT(all.size() == world);
  }
  /// Meets the others, and does not poll the link until all are there.
  task<> stand_still() {
    halt();
    co_await meet();
  }
  /// Never returns.
  task<> die() {
    end_life();
    co_await until([] { return false; });
  }
  /// Waits until the link reports `peer` as failed; keeps sending, because a silent rank may not learn of it.
  task<> until_failed(rank_id peer);

  /// Called before the link is destroyed.
  void forget_arrivals() {
    control.got.clear();
    data.got.clear();
  }
  awaited& operation() { return operations_.emplace_back(); }
  blob& memory(blob bytes) { return memory_.emplace_back(std::move(bytes)); }

 protected:
  ~end() = default;  // NOLINT(cppcoreguidelines-virtual-class-destructor)
  virtual void end_life() = 0;
  /// From the next wait until the next meeting to which this rank brings something, this rank does nothing.
  virtual void halt() = 0;

 private:
  std::deque<awaited> operations_;
  std::deque<blob> memory_;
};

/// A need of a promise that some transports lack.
enum class needs : std::uint8_t {
  nothing = 0,
  death = 1,      ///< a rank can die without the others
  one_sided = 2,  ///< puts, gets and fences
  stopping = 4,   ///< a put or get that has begun can be stopped
  revoking = 8,   ///< withdrawn memory, and the memory of an owner that has ended, is out of reach
};
constexpr needs operator|(needs a, needs b) noexcept {
  return static_cast<needs>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool share(needs a, needs b) noexcept { return (static_cast<unsigned>(a) & static_cast<unsigned>(b)) != 0; }

struct contract_case {
  const char* promise;
  rank_id ranks;
  task<> (*program)(end& self);
  needs what = needs::nothing;
  rank_id dies = static_cast<rank_id>(-1);
  bool mortal() const noexcept { return share(what, needs::death); }
};

std::span<const contract_case> ordering_contract();
std::span<const contract_case> messages_contract();
std::span<const contract_case> one_sided_contract();
std::span<const contract_case> deaths_contract();
/// Returns all promises except those that need what the transport lacks.
inline std::vector<contract_case> contract(needs lacks) {
  std::vector<contract_case> asked;
  for (const auto part : {ordering_contract(), messages_contract(), one_sided_contract(), deaths_contract()})
    std::copy_if(part.begin(), part.end(), std::back_inserter(asked),
                 [lacks](const contract_case& c) { return !share(c.what, lacks); });
  return asked;
}

}  // namespace parley::tests
