#pragma once
/// Leases and gates (docs/protocol.md, State and guards): with them, ops without headers of parley agree on a change of config. Pure state,
/// one set per op and tuning key: it sends nothing, waits for nothing and knows no clock.
///
///     lease_writer w(generation, c0, participants);        // on the leader: the only one who appends to the log
///     w.prepare();                                         // campaign c = length of the log + 1
///     lease_answer a = reader.on_prepare(w.letter_to(0), margin);      // "nothing >= a.from without a lease"
///     w.on_answer(0, a);  …  if (w.all_promised()) w.schedule({{trial, 8}}, old);
///     reader.on_schedule(w.letter_to(0));                  // lifts the gate
///     if (reader.may_start()) run(reader.start().digest);
///
/// Handlers are idempotent, so letters may be lost, repeated or late. Every letter carries the part of the log that its receiver has not
/// acknowledged, so a later letter repairs a lost one. A letter changes nothing if it is of another generation, has a gap, or contradicts
/// an earlier one (S5).
#include <parley/runtime/invariant.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace parley::actors {

/// `count` invocations in a row with one config.
struct lease_segment {
  std::uint64_t digest = 0;
  std::uint64_t count = 0;
  PARLEY_FIELDS(digest, count)
  friend bool operator==(const lease_segment&, const lease_segment&) = default;
};

/// The result of one campaign. A scheduled entry covers all invocations from `from` on: first its segments, then `tail`, without end. An
/// entry with trials has the previous config as its tail, so the trials end even if no message arrives (a dead-man's switch).
struct lease_entry {
  enum class kind : std::uint8_t { scheduled, aborted, last = aborted };
  kind what = kind::aborted;
  std::uint64_t from = 0;
  std::vector<lease_segment> segments;
  std::uint64_t tail = 0;
  std::uint64_t round = 0;  ///< round of rehearsals that all members make before invocation `from`; 0: none
  PARLEY_FIELDS(what, from, segments, tail, round)
  friend bool operator==(const lease_entry&, const lease_entry&) = default;
};

/// The config of one invocation, and its part in the schedule.
struct lease {
  enum class part : std::uint8_t { steady, trial, last_trial };
  std::uint64_t invocation = 0;
  std::uint64_t digest = 0;
  part of = part::steady;
};

/// The append-only assignment, invocation -> config (S1). An invocation that no entry covers runs the default.
class lease_log {
 public:
  explicit lease_log(std::uint64_t default_digest) noexcept : default_digest_(default_digest) {}

  lease assigned(std::uint64_t invocation) const noexcept;
  /// The config that runs for ever unless an entry is appended.
  std::uint64_t tail() const noexcept;
  std::size_t size() const noexcept { return entries_.size(); }
  const std::vector<lease_entry>& entries() const noexcept { return entries_; }
  std::vector<lease_entry> suffix(std::size_t after) const;

  void append(lease_entry e) { entries_.push_back(std::move(e)); }
  enum class merge_result : std::uint8_t { longer, nothing_new, gap, contradiction };
  merge_result merge(std::uint64_t after, const std::vector<lease_entry>& suffix);

 private:
  std::uint64_t default_digest_;
  std::vector<lease_entry> entries_;
};

/// The low bits of a generation, which count the generations of one op, so that they can be distinguished and ordered.
inline constexpr std::uint64_t generation_counter = 0xffff;
constexpr std::uint64_t generation_after(std::uint64_t g) noexcept {
  return (g & ~generation_counter) | ((g + 1) & generation_counter);
}
constexpr bool is_later_generation(std::uint64_t g, std::uint64_t than) noexcept {
  return (g & ~generation_counter) == (than & ~generation_counter) && g > than;
}

/// A message from the writer to one reader.
struct lease_letter {
  enum class kind : std::uint8_t { nothing, prepare, schedule };
  kind what = kind::nothing;
  std::uint64_t generation = 0;
  std::uint64_t campaign = 0;  ///< in a prepare
  std::uint64_t after = 0;     ///< how many entries of the log precede `entries`
  std::vector<lease_entry> entries;
  friend bool operator==(const lease_letter&, const lease_letter&) = default;
};

/// The reader's answer to a letter.
struct lease_answer {
  enum class kind : std::uint8_t {
    none,            ///< no answer: the letter changes nothing and needs no reply
    promise,         ///< no invocation >= `from` starts here without a lease of `campaign`
    refuse,          ///< this rank cannot join the campaign
    known,           ///< the log has arrived, up to `known`
    new_generation,  ///< a later generation has begun: this one ends
    contradiction,   ///< the writer contradicts an earlier letter (S1): it cannot be trusted any more
  };
  kind what = kind::none;
  std::uint64_t generation = 0;
  std::uint64_t campaign = 0;
  std::uint64_t from = 0;
  std::uint64_t known = 0;  ///< length of the log here
  friend bool operator==(const lease_answer&, const lease_answer&) = default;
};

/// A participant's side. The op holds it, so a promise outlives any actor.
class lease_reader {
 public:
  lease_reader(std::uint64_t generation, std::uint64_t default_digest, runtime::noticed_at here = {}) noexcept
      : generation_(generation), log_(default_digest), here_(here) {}

  /// True if the next invocation may start now; false if it has to wait at the gate.
  bool may_start() const noexcept { return !gate_ || next_ < gate_->from || log_.size() >= gate_->campaign; }
  /// Begins the next invocation. Throws `invariant_broken` if it may not start.
  lease start();

  /// `margin`: how many more invocations may start before the schedule must have arrived.
  lease_answer on_prepare(const lease_letter& l, std::uint64_t margin);
  lease_answer on_schedule(const lease_letter& l);
  /// The unresolved promise, to be sent again; if there is none, the known length of the log.
  lease_answer repeated() const noexcept;

  struct gate {
    std::uint64_t campaign = 0;
    std::uint64_t from = 0;
    friend bool operator==(const gate&, const gate&) = default;
  };
  std::uint64_t generation() const noexcept { return generation_; }
  std::uint64_t next() const noexcept { return next_; }
  const std::optional<gate>& gated() const noexcept { return gate_; }
  const lease_log& log() const noexcept { return log_; }

 protected:  // so that the tests' mutants can break it
  lease_answer say(lease_answer::kind what) const noexcept;
  std::uint64_t generation_;
  std::uint64_t next_ = 0;
  std::optional<gate> gate_;
  lease_log log_;
  runtime::noticed_at here_;
};

/// The leader's side: the only writer of the log. The op holds it. If the log is lost, the generation ends, and the next generation begins
/// with an empty log, so that no number is used twice in one generation.
class lease_writer {
 public:
  lease_writer(std::uint64_t generation, std::uint64_t default_digest, std::size_t participants,
               runtime::noticed_at here = {})
      : generation_(generation), log_(default_digest), readers_(participants), here_(here) {}

  /// `prepare`, `abort` and `schedule` throw `invariant_broken` if the rules forbid the step.
  void prepare();
  /// Allowed only while the campaign's entry does not exist.
  void abort();
  /// Appends the entry, which later letters carry. Allowed only once all have promised. Returns k, the largest promise: the entry applies
  /// from invocation k on.
  std::uint64_t schedule(std::vector<lease_segment> segments, std::uint64_t tail, std::uint64_t round = 0);

  enum class heard : std::uint8_t {
    noted,     ///< nothing to do
    complete,  ///< that was the last promise
    refused,   ///< the campaign has to be aborted
    broken,    ///< the promise has changed (S7) or the answer is impossible: do not trust this participant
  };
  heard on_answer(std::size_t participant, const lease_answer& a);
  /// The letter that this participant still needs. It stays the same until an answer changes it.
  lease_letter letter_to(std::size_t participant) const;

  bool preparing() const noexcept { return preparing_; }
  bool all_promised() const noexcept;
  bool promised(std::size_t participant) const noexcept { return readers_[participant].promise.has_value(); }
  /// k, once all have promised.
  std::uint64_t first() const noexcept;
  std::uint64_t campaign() const noexcept { return log_.size() + 1; }
  std::uint64_t generation() const noexcept { return generation_; }
  const lease_log& log() const noexcept { return log_; }
  std::size_t known(std::size_t participant) const noexcept { return readers_[participant].known; }

 private:
  struct reader {
    std::optional<std::uint64_t> promise;  // in the present campaign
    std::size_t known = 0;                 // length of the log that it has acknowledged
  };
  void resolve(lease_entry e);
  std::uint64_t generation_;
  lease_log log_;
  std::vector<reader> readers_;
  runtime::noticed_at here_;
  bool preparing_ = false;
};

}  // namespace parley::actors
