#pragma once
/// What the actors of one rank share. Everything is owned by the rank and outlives its ops.
#include <parley/actors/clock_book.hpp>
#include <parley/actors/edge/early_allowance.hpp>
#include <parley/actors/edge/kept_parts.hpp>
#include <parley/actors/policy.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/time/backoff.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/scope.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace parley::actors {

/// Takes the data messages of one op on this rank.
class data_sink {
 public:
  virtual void on_data(const stamp& s, runtime::arrival&& message) noexcept = 0;

 protected:
  ~data_sink() = default;
};

/// Gives each data message to its op. What comes for an op that this rank has not declared yet waits, bounded: of an op of which there
/// was more than that nothing is kept, its senders are told, and who declares it later hears that its messages are not all there.
class data_hub final : public runtime::link::handler {
 public:
  explicit data_hub(runtime::link& net) : net_(net) { net_.listen(runtime::link::channel::data, this); }
  data_hub(const data_hub&) = delete;
  data_hub& operator=(const data_hub&) = delete;
  ~data_hub() { net_.listen(runtime::link::channel::data, nullptr); }

  void bind(std::uint64_t op, data_sink& sink);
  void unbind(std::uint64_t op);
  void on_arrival(runtime::arrival&& message) noexcept override;

  /// How many bytes may wait, and who tells the sender of a part that it was refused: not of each one.
  void keep_up_to(std::uint64_t bytes, std::function<void(const stamp& refused)> tell) {
    early_limit_ = bytes;
    tell_refused_ = std::move(tell);
  }
  /// Whether some of what came in that generation before the op was declared here was refused.
  bool has_lost(std::uint64_t op, std::uint64_t generation) const noexcept {
    const auto at = lost_.find(op);
    return at != lost_.end() && at->second.generation == generation;
  }

  struct counters {
    std::uint64_t malformed = 0;
    std::uint64_t early = 0;    ///< came before their op was declared
    std::uint64_t refused = 0;  ///< more of those than there is room for
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  data_sink* sink_of(std::uint64_t op) const noexcept;
  [[gnu::noinline]] void find_sink(const stamp& s, runtime::arrival&& message) noexcept;
  [[gnu::noinline]] void keep_early(const stamp& s, runtime::arrival&& message) noexcept;
  void refuse(const stamp& s) noexcept;
  runtime::link& net_;
  std::uint64_t latest_op_ = 0;
  data_sink* latest_ = nullptr;  // messages come in runs for one op
  struct id_hash {               // they are hashes already
    using is_avalanching = void;
    std::size_t operator()(std::uint64_t id) const noexcept { return id; }
  };
  // By op. A few are looked through as fast, and take less memory; once they were more they are in the map.
  static constexpr std::size_t few = 8;
  std::vector<std::pair<std::uint64_t, data_sink*>> few_sinks_;
  boost::unordered_flat_map<std::uint64_t, data_sink*, id_hash> sinks_;
  std::unordered_map<std::uint64_t, kept_parts> early_;
  std::uint64_t early_bytes_ = 0;
  std::uint64_t early_limit_ = most_early_bytes;
  struct loss {
    std::uint64_t generation = 0;
    std::uint64_t refused = 0;
  };
  static constexpr std::size_t most_lost = 4096;           // ops of which that is known
  static constexpr std::uint64_t tell_refused_every = 64;  // parts: what is said may get lost
  std::unordered_map<std::uint64_t, loss> lost_;           // only looked up
  std::function<void(const stamp&)> tell_refused_;
  counters counters_;
};

/// The payload of one invocation at one of its ends, which may be looked at while it is told of.
struct payload_seen {
  enum class what : std::uint8_t {
    sent,         ///< of an edge
    received,     ///< of an edge, whole
    contributed,  ///< by a member of a group that gathers
    gathered,     ///< by its leader, a block for each of the others; `tag` is the member's place
    agreed,       ///< what each member of a group has in the end, and all have alike
  } end = what::sent;
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::span<const std::byte> bytes{};
};
/// Sees what calls send, and have brought: a simulation that compares the ends.
class payload_watcher {
 public:
  virtual void on_payload(rank_id at, const payload_seen& seen) = 0;

 protected:
  ~payload_watcher() = default;
};

struct participant_state;
struct decision_record;
class inquiries;

/// A rule of the protocol that a simulated rank breaks on purpose, to see that a checker notices (simulation/mutants.hpp).
enum class broken_rule : std::uint8_t {
  none,
  own_stamp_only,          ///< a stamp matches the receive of its own invocation, and none before it
  look_ahead_not_awaited,  ///< a worker that has not heard which config its invocation has runs the default
};

struct services {
  runtime::executor& ex;
  runtime::scope& actors;  ///< where the actors of all ops live
  runtime::link& net;
  runtime::router& mail;
  data_hub& data;
  runtime::flight_recorder& flight;
  runtime::incarnations incarnations;  ///< from the roster
  std::uint64_t validators_hash = 0;
  clock_book clocks{};
  runtime::pause_chance jitter{ex.rng(runtime::streams::jitter).next(), net.rank()};  ///< of what is said again
  std::uint64_t repeated = 0;  ///< how often a reminder has sent something again (letters/reminder.hpp)
  std::uint64_t early_bytes = most_early_bytes;   ///< per edge, and of all ops that are not declared yet
  runtime::time_ns detection_ns = 2'000'000'000;  ///< how long a rank that lives may be silent; 0: as long as it likes
  /// The number of the first invocation of each stream, on all ranks: tests begin shortly before a stamp's 32 bits are used up.
  std::uint64_t first_invocation = 0;
  std::uint32_t patience = 1;  ///< how many times as long as it says each time-out is, from 1 on
  /// Of a thousand calls: those that end after as good as no time. A fault point, for simulations.
  std::uint32_t early_timeouts = 0;
  /// How many more calls a promise leaves free; nothing: as many as their pace asks for. Tests meet gates with a small one.
  std::optional<std::uint64_t> promise_margin{};
  broken_rule breaks = broken_rule::none;        ///< a fault point, for simulations
  std::vector<std::string>* warnings = nullptr;  ///< what the user of this rank should know; null: nobody listens

  /// Asks other ranks what they do (inquiries.hpp); null: nobody does.
  inquiries* asks = nullptr;

  /// Called when a call of an op ends with an error that its caller gets; may be empty.
  std::function<void(const runtime::error& why)> on_call_failed{};

  /// Called when a participant of this rank has learned a decision; may be empty.
  std::function<void(const participant_state& of, const decision_record& what)> on_decided{};

  payload_watcher* watcher = nullptr;  ///< null: nobody looks

  early_allowances allowances{};
  /// What this rank may send to `peer` before that has answered for the op.
  early_allowance& allowance_for(rank_id peer) {
    return allowances.of(peer, early_share(early_bytes, net.world_size()));
  }

  /// `peer` counts as dead for the whole rank: what an end has found out about it leaves nothing else. Its ops with that peer end. Of
  /// this rank itself: all its ops end, and it has no connection any more.
  std::function<void(rank_id peer, const std::string& why)> give_up{};

  /// Takes in what became of other ranks, and ends all ops of a rank that the others hold dead, where nobody has told it so yet; may be
  /// empty.
  std::function<void(runtime::errc)> hear_news{};

  /// A time-out as this rank takes it: PARLEY_PATIENCE times as long as its op says.
  runtime::time_ns patient(runtime::time_ns span) const noexcept {
    return span >= runtime::never / patience ? runtime::never : span * patience;
  }
  /// When a wait that begins now ends at the latest.
  runtime::time_ns until(runtime::time_ns span) const noexcept { return ex.deadline_in(patient(span)); }

  /// The same of a call.
  runtime::time_ns deadline_of(runtime::time_ns span) noexcept {
    constexpr std::uint64_t early_ns = 200'000;
    const bool early = early_timeouts != 0 && jitter.below(1000) < early_timeouts;
    return early ? ex.deadline_in(static_cast<runtime::time_ns>(jitter.below(early_ns))) : until(span);
  }

  /// How long before a wait of that span runs out its peers are asked what they do, so that their answers are here by then; 0: that is
  /// too short a time for an answer.
  runtime::time_ns asked_before(runtime::time_ns span) const noexcept {
    constexpr runtime::time_ns longest_ns = 500'000'000;
    constexpr runtime::time_ns shortest_ns = 4'000'000;
    const runtime::time_ns part = patient(span) / 4;
    return part < shortest_ns ? 0 : part < longest_ns ? part : longest_ns;
  }

  /// Before a call's error is put into words: who comes back after the others have given it up meets broken connections, and peers
  /// that have gone, before it hears why; and whose connection broke may have said what it ended with.
  void about_to_fail(runtime::errc why) const {
    if (hear_news) hear_news(why);
  }

  void call_failed(const runtime::error& why) const {
    if (on_call_failed && why.code() != runtime::errc::cancelled) on_call_failed(why);
  }

  /// A step of the agreement, for the flight recorder.
  void note_step(runtime::flight_event what, std::uint64_t op, std::uint64_t generation, runtime::flight_record about) {
    about.op = op;
    about.generation = generation;
    about.what = what;
    about.ended_ns += about.began_ns = clocks.local(ex.now());
    flight.add(about);
  }

  /// What a message to `to` says of our clock, and what one from `from` says of theirs.
  clock_stamp clock_for(rank_id to) {
    return clocks.same_host(to) ? clock_stamp{} : clocks.stamp_for(to, ex.precise_now());
  }
  void note_clock(rank_id from, const clock_stamp& s) {
    if (!clocks.same_host(from)) clocks.note(from, s, ex.precise_now());
  }
};

/// Adds to `total` what this rank's thread is busy with until it ends: the agreement's own work, which is part of what tuning
/// costs (N4).
class busy_until_end {
 public:
  busy_until_end(const services& s, runtime::time_ns& total) noexcept
      : ex_(s.ex), total_(total), began_ns_(s.ex.precise_now()) {}
  busy_until_end(const busy_until_end&) = delete;
  busy_until_end& operator=(const busy_until_end&) = delete;
  ~busy_until_end() { total_ += ex_.precise_now() - began_ns_; }

 private:
  runtime::executor& ex_;
  runtime::time_ns& total_;
  runtime::time_ns began_ns_;
};

inline constexpr std::size_t most_warnings = 100;
inline void warn(services& s, std::string text) {
  if (s.warnings == nullptr || s.warnings->size() > most_warnings) return;
  if (s.warnings->size() == most_warnings)
    text = "there are more warnings than the " + std::to_string(most_warnings) + " that are kept";
  s.warnings->push_back(std::move(text));
}

}  // namespace parley::actors
