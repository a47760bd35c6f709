#pragma once
/// The objects that all actors of one rank share. The rank owns them, and they outlive the rank's ops.
#include <parley/actors/clock_book.hpp>
#include <parley/actors/edge/early_allowance.hpp>
#include <parley/actors/edge/undeclared_parts.hpp>
#include <parley/actors/policy.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/time/backoff.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/scope.hpp>
#include <parley/tuning/planners/time_model.hpp>
#include <parley/tuning/results/rules.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace parley::actors {

/// Receives the data messages of one op on this rank.
class data_sink {
 public:
  virtual void on_data(const stamp& s, runtime::arrival&& message) noexcept = 0;

 protected:
  ~data_sink() = default;
};

/// Gives each data message to its op. Messages for an op that this rank has not declared yet are kept, up to a limit. If there is no room
/// for a message, the hub drops all messages of its op and reports that to the senders. A later declaration of the op can ask whether
/// messages were lost (`has_lost`).
class data_hub final : public runtime::link::handler {
 public:
  explicit data_hub(runtime::link& net) : net_(net) { net_.listen(runtime::link::channel::data, this); }
  data_hub(const data_hub&) = delete;
  data_hub& operator=(const data_hub&) = delete;
  ~data_hub() { net_.listen(runtime::link::channel::data, nullptr); }

  void bind(std::uint64_t op, data_sink& sink);
  void unbind(std::uint64_t op);
  void on_arrival(runtime::arrival&& message) noexcept override;

  /// Sets how many bytes are kept, and the function that reports a refused part to its sender. `tell` is called for one in 64 refused
  /// parts.
  void keep_up_to(std::uint64_t bytes, std::function<void(const stamp& refused)> tell) {
    early_limit_ = bytes;
    tell_refused_ = std::move(tell);
  }
  /// True if messages of that generation were refused before the op was declared here.
  bool has_lost(std::uint64_t op, std::uint64_t generation) const noexcept {
    const auto at = lost_.find(op);
    return at != lost_.end() && at->second.generation == generation;
  }

  struct counters {
    std::uint64_t malformed = 0;
    std::uint64_t early = 0;    ///< arrived before their op was declared
    std::uint64_t refused = 0;  ///< early parts that were dropped for lack of room
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  data_sink* sink_of(std::uint64_t op) const noexcept;
  [[gnu::noinline]] void find_sink(const stamp& s, runtime::arrival&& message) noexcept;
  [[gnu::noinline]] void keep_early(const stamp& s, runtime::arrival&& message) noexcept;
  void refuse(const stamp& s) noexcept;
  runtime::link& net_;
  std::uint64_t latest_op_ = 0;
  data_sink* latest_ = nullptr;  // consecutive messages are mostly for one op
  struct id_hash {               // op ids are hashes already
    using is_avalanching = void;
    std::size_t operator()(std::uint64_t id) const noexcept { return id; }
  };
  // By op. A short vector is searched as fast as a map and takes less memory. With more entries, all entries are in the map.
  static constexpr std::size_t few = 8;
  std::vector<std::pair<std::uint64_t, data_sink*>> few_sinks_;
  boost::unordered_flat_map<std::uint64_t, data_sink*, id_hash> sinks_;
  std::unordered_map<std::uint64_t, undeclared_parts> early_;
  std::uint64_t early_bytes_ = 0;
  std::uint64_t early_limit_ = most_early_bytes;
  struct loss {
    std::uint64_t generation = 0;
    std::uint64_t refused = 0;
  };
  static constexpr std::size_t most_lost = 4096;           // ops whose losses are remembered
  static constexpr std::uint64_t tell_refused_every = 64;  // one refused part in so many is reported: reports get lost
  std::unordered_map<std::uint64_t, loss> lost_;           // never iterated
  std::function<void(const stamp&)> tell_refused_;
  counters counters_;
};

/// The payload of one invocation at one of its ends. It is valid during the call of `payload_watcher::on_payload`.
struct payload_seen {
  enum class what : std::uint8_t {
    sent,         ///< sent on an edge
    received,     ///< received on an edge, whole
    contributed,  ///< contributed by a member of a group that gathers
    gathered,     ///< gathered by the group's leader, one block from each other member; `tag` is the member's place
    agreed,       ///< the common result of all members of a group
  } end = what::sent;
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::span<const std::byte> bytes{};
};
/// Sees the payloads that calls send and receive; a simulation compares both ends with it.
class payload_watcher {
 public:
  virtual void on_payload(rank_id at, const payload_seen& seen) = 0;

 protected:
  ~payload_watcher() = default;
};

struct op_declaration;
struct participant_state;
struct decision_record;
class inquiries;

/// A protocol rule that a simulated rank breaks on purpose, to check that a checker notices (simulation/mutants.hpp).
enum class broken_rule : std::uint8_t {
  none,
  own_stamp_only,          ///< a stamp matches the receive of its own invocation, but not those before it
  look_ahead_not_awaited,  ///< a worker that has not learned an invocation's config runs the default
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
  runtime::pause_chance jitter{ex.rng(runtime::streams::jitter).next(), net.rank()};  ///< varies pauses before resends
  std::uint64_t repeated = 0;                    ///< how often reminders have repeated a message (letters/reminder.hpp)
  std::uint64_t early_bytes = most_early_bytes;  ///< limit of early data: per edge, and for all undeclared ops
  runtime::time_ns detection_ns = 2'000'000'000;  ///< how long a living rank may be silent; 0: without limit
  /// The number of the first invocation of each stream, on all ranks. Tests start shortly before a stamp's 32 bits overflow.
  std::uint64_t first_invocation = 0;
  std::uint32_t patience = 1;  ///< factor by which all timeouts are extended; at least 1
  /// How many of 1,000 calls time out within 0.2 ms. A fault point, for simulations.
  std::uint32_t early_timeouts = 0;
  /// The margin of a lease promise, in calls; empty: it is computed from the rate of calls. Tests set a small value to reach gates.
  std::optional<std::uint64_t> promise_margin{};
  broken_rule breaks = broken_rule::none;        ///< a fault point, for simulations
  std::vector<std::string>* warnings = nullptr;  ///< warnings for the user of this rank; null: dropped

  /// Asks other ranks for their progress (inquiries.hpp); null: no questions.
  inquiries* asks = nullptr;

  /// Called when a call of an op ends with an error for its caller; may be empty.
  std::function<void(const runtime::error& why)> on_call_failed{};

  /// Called when a participant of this rank has learned a decision; may be empty.
  std::function<void(const participant_state& of, const decision_record& what)> on_decided{};
  /// The user's rules for an op; empty: there are none.
  std::function<std::vector<tuning::rule>(const op_declaration& op)> rules_of{};

  /// The times that searches of this rank have decided on, by what edges have in common.
  std::map<std::string, tuning::time_model, std::less<>> times_of{};

  payload_watcher* watcher = nullptr;  ///< null: payloads are not watched

  early_allowances allowances{};
  /// The allowance for messages to `peer` of an op for which `peer` has not answered yet.
  early_allowance& allowance_for(rank_id peer) {
    return allowances.of(peer, early_share(early_bytes, net.world_size()));
  }

  /// An end of an op calls this when it must declare `peer` dead for the whole rank: this rank's ops with `peer` end. If `peer` is this
  /// rank itself, all of its ops and connections end.
  std::function<void(rank_id peer, const std::string& why)> give_up{};

  /// Reads pending news about other ranks. Ends all ops if the others have declared this rank dead and it does not know that yet. May be
  /// empty.
  std::function<void(runtime::errc)> hear_news{};

  /// A timeout as this rank applies it: PARLEY_PATIENCE times the op's timeout.
  runtime::time_ns patient(runtime::time_ns span) const noexcept {
    return span >= runtime::never / patience ? runtime::never : span * patience;
  }
  /// The deadline of a wait that begins now.
  runtime::time_ns until(runtime::time_ns span) const noexcept { return ex.deadline_in(patient(span)); }

  /// The deadline of a call that begins now; `early_timeouts` may shorten it.
  runtime::time_ns deadline_of(runtime::time_ns span) noexcept {
    constexpr std::uint64_t early_ns = 200'000;
    const bool early = early_timeouts != 0 && jitter.below(1000) < early_timeouts;
    return early ? ex.deadline_in(static_cast<runtime::time_ns>(jitter.below(early_ns))) : until(span);
  }

  /// How long before the end of a wait of that span this rank asks its peers for their progress, so that the answers arrive in time. 0: the
  /// span is too short for an answer.
  runtime::time_ns asked_before(runtime::time_ns span) const noexcept {
    constexpr runtime::time_ns longest_ns = 500'000'000;
    constexpr runtime::time_ns shortest_ns = 4'000'000;
    const runtime::time_ns part = patient(span) / 4;
    return part < shortest_ns ? 0 : part < longest_ns ? part : longest_ns;
  }

  /// Called before a call's error is put into words, so that the error can name its cause. A rank that continues after the others declared
  /// it dead sees broken connections and missing peers before it receives the reason. And a peer with a broken connection may have reported
  /// the error that ended it.
  void about_to_fail(runtime::errc why) const {
    if (hear_news) hear_news(why);
  }

  void call_failed(const runtime::error& why) const {
    if (on_call_failed && why.code() != runtime::errc::cancelled) on_call_failed(why);
  }

  /// Adds a step of the agreement to the flight recorder.
  void note_step(runtime::flight_event what, std::uint64_t op, std::uint64_t generation, runtime::flight_record about) {
    about.op = op;
    about.generation = generation;
    about.what = what;
    about.ended_ns += about.began_ns = clocks.local(ex.now());
    flight.add(about);
  }

  /// The clock stamp for a message to `to`; `note_clock` processes the stamp of a message from `from`.
  clock_stamp clock_for(rank_id to) {
    return clocks.same_host(to) ? clock_stamp{} : clocks.stamp_for(to, ex.precise_now());
  }
  void note_clock(rank_id from, const clock_stamp& s) {
    if (!clocks.same_host(from)) clocks.note(from, s, ex.precise_now());
  }
};

/// Adds the time until its destruction to `total`: this thread's work for the agreement itself, which counts as a cost of tuning (N4).
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
    text = "there are more than " + std::to_string(most_warnings) + " warnings; the others are not kept";
  s.warnings->push_back(std::move(text));
}

}  // namespace parley::actors
