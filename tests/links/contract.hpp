#pragma once
/// What every link promises (runtime/wire/link.hpp), as small programs of a few ranks. They know nothing of the transport: each way to
/// move bytes brings an `end` for each rank and runs all of them.
///
///     for (const contract_case& c : contract(needs::nothing)) SUBCASE(c.promise) { … c.program(end_of_this_rank) on c.ranks ranks … }
///
/// | of | is promised | by |
/// |---|---|---|
/// | order | none: messages between two ranks may overtake one another. What is above numbers what it has to tell apart, and does not need it | ordering.cpp |
/// | at most once | each that was accepted comes once while both ranks live, whole and with its own payload | messages.cpp, ordering.cpp |
/// | the largest message | any length; `contract_limits` says how far a transport is tried | `every_size` in messages.cpp, `put_every_size` and `get_every_size` in one_sided.cpp |
/// | back-pressure | a receiver that stands still loses nothing; what has been sent waits for it | `ten_thousand` in messages.cpp |
/// | cancellation | an operation that is cancelled ends once, and harms no other; one that is abandoned touches its memory no more | messages.cpp, one_sided.cpp |
/// | the death of a peer | what is under way with it ends with `peer_failed`, once; what has come of it can be read | deaths.cpp, `towards_the_dead` in one_sided.cpp |
///
/// A transport that by its nature lacks what a promise needs (`needs`) says so to `contract`, and is not asked for it.
///
/// What a program starts is kept in its end, which outlives the link, so that a rank may be torn down anywhere.
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

/// How far a program goes on this transport.
struct contract_limits {
  std::size_t largest_bytes = 1 << 20;
  time_ns detection_ns = 2'000'000'000;  ///< within which a death must show to whoever sends to the dead rank
  errc large_copy = errc::pending;  ///< what a large put or get answers; one that is over at once cannot be given up
  errc to_the_dead =
      errc::peer_failed;  ///< what a send to a rank that is given up answers; pending: its completion says it
  runtime::late_writes late = runtime::late_writes::fail;  ///< what withdrawing memory answers
};

/// One rank of a program, and how it meets the others beside the link.
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
  bool overtaken = false;  ///< a message came behind one that was sent later

  virtual link& wire() = 0;
  virtual runtime::executor& loop() = 0;
  /// Tells how much time has gone by since; what a busy machine took from this process does not count.
  virtual std::function<time_ns()> stopwatch() = 0;

  void listen() {
    wire().listen(channel::control, &control);
    wire().listen(channel::data, &data);
    wire().on_failure(&failed);
  }
  /// Goes on with the link meanwhile.
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
  /// What an operation came to that has been started with `done`.
  task<errc> outcome(errc started, const awaited& done) {
    if (started == errc::pending) {
      co_await until([&done] { return done.calls > 0; });
      started = done.outcome;
    }
    PARLEY_EXPECT(done.calls <= 1);
    co_return started;
  }
  /// The two ends of a `gather`: what this rank brings to it, and whether all that live have brought theirs.
  virtual void bring(std::span<const std::byte> mine) = 0;
  virtual bool brought() = 0;
  virtual std::vector<blob> take() = 0;
  /// What each rank brought, in the order of ranks; nothing for one that is dead.
  task<std::vector<blob>> gather(blob mine) {
    bring(mine);
    co_await until([this] { return brought(); });
    co_return take();
  }
  task<> meet() {
    auto all = co_await gather({});
    PARLEY_EXPECT(all.size() == world);
  }
  /// Meets the others, and does nothing for the link until all are there.
  task<> stand_still() {
    halt();
    co_await meet();
  }
  /// Never returns.
  task<> die() {
    end_life();
    co_await until([] { return false; });
  }
  /// Until the link has given `peer` up; one that says nothing may not be told.
  task<> until_failed(rank_id peer);

  /// Before the link goes.
  void forget_arrivals() {
    control.got.clear();
    data.got.clear();
  }
  awaited& operation() { return operations_.emplace_back(); }
  blob& memory(blob bytes) { return memory_.emplace_back(std::move(bytes)); }

 protected:
  ~end() = default;  // NOLINT(cppcoreguidelines-virtual-class-destructor)
  virtual void end_life() = 0;
  /// From the next wait on nothing of this rank happens until the meeting that it brings something to next.
  virtual void halt() = 0;

 private:
  std::deque<awaited> operations_;
  std::deque<blob> memory_;
};

/// What a promise needs that not every transport has.
enum class needs : std::uint8_t {
  nothing = 0,
  death = 1,      ///< a rank can die without the others
  one_sided = 2,  ///< puts, gets and fences
  stopping = 4,   ///< a put or get that has begun can be stopped
  revoking = 8,   ///< exposed memory is out of reach from when it is withdrawn, or its owner ends
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
/// All that a transport can be asked for which lacks this.
inline std::vector<contract_case> contract(needs lacks) {
  std::vector<contract_case> asked;
  for (const auto part : {ordering_contract(), messages_contract(), one_sided_contract(), deaths_contract()})
    std::copy_if(part.begin(), part.end(), std::back_inserter(asked),
                 [lacks](const contract_case& c) { return !share(c.what, lacks); });
  return asked;
}

}  // namespace parley::tests
