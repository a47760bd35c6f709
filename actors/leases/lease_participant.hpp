#pragma once
/// A participant of an op without headers. It knows the config of each invocation, waits at gates, gives promises, and takes part in
/// rehearsals.
///
///     lease_participant mine(services, participant_state, rehearsals);
///     auto begun = co_await mine.start(bytes, deadline);       // result<leased>; no wait, unless a gate is met
///     … run the implementation of begun->what.digest …
///     mine.ended(*begun, start_ns, end_ns, outcome);
///
/// **Keys.** Each size bucket has one log and one counter. That is safe because the calls of such an op are collective: every participant
/// makes the same calls with the same byte counts in the same order, so all participants count alike. The library that the config uses
/// requires that order anyway. If members hold different amounts, all pass one common number of bytes. Calls of all keys start in the order
/// in which they were made. A call that waits at a gate also delays later calls, because the library matches calls only by their order.
///
/// **Promises** are given when messages arrive, never by a coroutine, so that a gate never waits for a call. They are kept here, in the op,
/// and outlive any actor.
///
/// **Rehearsals between calls** are made at calls that the log names: before such a call, once all earlier calls have ended here. That call
/// and later calls wait for the rehearsals.
///
/// A wait at a gate ends with the schedule or the abort; at the deadline, with `timeout` (`missing` names the ranks that have not
/// answered); when the op fails (a peer died, the generation ended); or when the caller is cancelled. In the last three cases the call has
/// not begun, and its number goes to the next call.
#include <parley/actor.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/leases/lease.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/services.hpp>
#include <parley/runtime/coroutines/request.hpp>
#include <parley/runtime/record/waiting_call.hpp>
#include <parley/tuning/key.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace parley::actors {

/// How the op runs candidates apart from the user's calls: on scratch buffers, over a separate communicator.
class rehearsals {
 public:
  /// Makes a communicator from an id that is the same on all members. Throws if that is impossible.
  virtual runtime::task<> connect(std::vector<std::byte> id) = 0;
  /// Throws if the run failed. If the result of a compared run differs from the default's, puts a sentence into `unlike`; the communicator
  /// can still be used.
  virtual runtime::task<> run_scratch(rehearsal_run run, std::uint64_t bytes, std::string& unlike) = 0;
  /// A run has failed, so all work that hangs in the communicator must end. The next `connect` makes another communicator.
  virtual void abandon() noexcept = 0;

 protected:
  ~rehearsals() = default;
};

/// Measures how fast invocations follow each other. The margin of a promise is computed from that rate, so that no call reaches the gate
/// while the answer is in flight.
class start_rate {
 public:
  void note(time_ns at) noexcept {
    for (std::size_t s = 0; s < scales && (count_ & ((std::uint64_t{1} << s) - 1)) == 0; ++s)
      starts_[s][(count_ >> s) % kept] = at;
    ++count_;
  }
  /// The largest number of invocations that have started within a span of that length, among the remembered starts; at most the number of
  /// all starts.
  std::uint64_t most_within(time_ns span_ns) const noexcept;
  std::uint64_t count() const noexcept { return count_; }

 private:
  static constexpr std::size_t kept = 16;
  static constexpr std::size_t scales = 14;
  std::array<std::array<time_ns, kept>, scales> starts_{};  // per scale: the latest of every 2^scale-th start
  std::uint64_t count_ = 0;
};

struct leased {
  std::uint32_t key = 0;
  std::uint64_t bytes = 0;
  lease what;
};

class lease_participant {
 public:
  lease_participant(services& s, participant_state& mine, rehearsals& runs);
  lease_participant(const lease_participant&) = delete;
  lease_participant& operator=(const lease_participant&) = delete;

  class [[nodiscard]] starting : private runtime::waiter, private runtime::timer {
   public:
    starting(lease_participant& p, std::uint64_t bytes, time_ns deadline) noexcept
        : waiter(&on_cancelled), timer(&on_late), participant_(p), bytes_(bytes) {
      when = deadline;
    }
    bool await_ready() { return participant_.start_now(*this); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (!enter(caller)) return false;
      if (when != runtime::never) home->where().arm(*this, when);
      participant_.queue(*this);
      return true;
    }
    runtime::result<leased> await_resume() noexcept {
      if (released_) --participant_.released_;
      if (outcome != runtime::errc::none) return outcome;
      return begun_;
    }

   private:
    friend lease_participant;
    struct place : runtime::list_hook {
      starting* owner = nullptr;
    } place_;
    static void on_cancelled(waiter& self, runtime::errc why) noexcept {
      auto& s = static_cast<starting&>(self);
      s.participant_.leave(s, why);
    }
    static void on_late(timer& self) noexcept {
      auto& s = static_cast<starting&>(self);
      s.participant_.leave(s, runtime::errc::timeout);
    }
    lease_participant& participant_;
    std::uint64_t bytes_;
    time_ns since_ns_ = 0;  // when it was queued
    leased begun_;
    bool released_ = false;
  };
  starting start(std::uint64_t bytes, time_ns deadline) noexcept { return {*this, bytes, deadline}; }
  /// The invocation has run. A trial is reported. A config that failed is no longer assigned.
  void ended(const leased& l, time_ns start_ns, time_ns end_ns, runtime::errc outcome, const std::string& text = {});

  /// Ends all current waits and later calls with `why`.
  void fail(runtime::errc why) noexcept;
  /// Enters the generation that has begun; returns false if there is none. Every participant calls it at the same place of the program, and
  /// all invocations count from 0 again.
  bool rejoin();

  /// Stops for good, after `fail`: an object of a generation with a new process replaces this one.
  void retire() noexcept { rehearser_.stop(); }
  /// True if this rank, which makes no more calls for now, may leave: the other members will not wait for it in a rehearsal. Asks the
  /// coordinator, and repeats the question from time to time. A later call revokes the request.
  bool may_leave();
  bool is_rehearsing() const noexcept { return running_ != nullptr; }

  /// `tell` is called at the first invocation of each key, for a coordinator on this rank.
  void on_new_key(std::function<void(std::uint64_t bytes)> tell) { new_key_ = std::move(tell); }
  /// `tell` is called when this generation has ended.
  void on_generation_ended(std::function<void(const std::string& why)> tell) { generation_ended_ = std::move(tell); }

  /// Adds the calls that have not begun. `of` has what these entries share.
  void list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all);
  /// A text that says for which ranks or events the gate of this key waits.
  std::string missing(std::uint64_t bytes) const;
  /// Like `missing`, as facts: what is awaited, and the first rank that has not answered.
  runtime::awaited unmet(std::uint64_t bytes) const;
  std::optional<rank_id> late(std::uint64_t bytes) const;
  /// The ranks for which the latest gate of this size waits, or waited; none if there has been no gate.
  std::vector<rank_id> awaited(std::uint64_t bytes) const;
  /// True if the next invocation may start now.
  bool open(std::uint64_t bytes) const noexcept;
  /// The invocation that would start next, whether or not it may.
  std::uint64_t next_invocation(std::uint64_t bytes) const noexcept;
  /// How many calls of that key have started; 0 for an unknown key.
  std::uint64_t calls_begun(std::uint32_t key) const noexcept {
    return key < keys_.size() && keys_[key] != nullptr ? keys_[key]->reader.next() : 0;
  }
  std::uint64_t generation() const noexcept { return generation_; }

  struct counters {
    std::uint64_t gates_met = 0;  ///< gates at which an invocation had to wait
    time_ns gate_wait_ns = 0;
    std::uint64_t promises = 0;
    std::uint64_t refusals = 0;
    std::uint64_t rehearsals = 0;
    std::uint64_t rehearsal_stops = 0;  ///< calls before which a round of rehearsals was made
    std::uint64_t dropped = 0;          ///< messages not from the leader, of another generation, or impossible
    std::uint64_t contradictions = 0;   ///< logs that contradict an earlier one (S1)
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  struct key_state {
    key_state(std::uint64_t generation, std::uint64_t c0, runtime::noticed_at here) : reader(generation, c0, here) {}
    lease_reader reader;
    start_rate rate;
    std::uint64_t gate_counted = 0;  // campaign of the last gate that was met
    std::vector<std::uint32_t> waiting_for;
    std::uint64_t waiting_campaign = 0;
    std::uint64_t round = 0;  // the latest round that the log has before an invocation
    std::uint64_t round_from = 0;
  };
  key_state& at(std::uint32_t key);
  const key_state* find(std::uint64_t bytes) const noexcept;
  bool start_now(starting& s);
  void begin(starting& s);
  void stay();
  void note_rounds(key_state& k, std::size_t known) noexcept;
  bool rehearsal_is_due(const key_state& k) const noexcept;
  bool may_begin(const key_state& k) const noexcept;
  void rehearse_between();
  void queue(starting& s);
  void leave(starting& s, runtime::errc why) noexcept;
  void release();
  void meet_gate(starting& s);
  void end_waits(runtime::errc why) noexcept;

  template <class M>
  void hear();
  void on(lease_prepare& m);
  void on(lease_schedule& m);
  void on(lease_waiting& m);
  void on(rehearse& m);
  void on(lease_end& m);
  void on(lease_let_go& m);
  void end_generation(const std::string& why);
  void reply(std::uint32_t key, const lease_answer& a);
  void contradicted();
  template <class M>
  void tell_coordinator(const M& m);
  std::uint64_t margin_of(const key_state& k, time_ns round_trip_ns) const noexcept;

  runtime::task<> run_round(rehearse r);
  runtime::task<> run_each(rehearse r);
  static runtime::task<> run_rounds(runtime::actor<rehearse>& self, lease_participant& p);
  void say_rehearsed(rehearsed::kind what, std::uint64_t at, std::string text);

  services& services_;
  participant_state& mine_;
  rehearsals& runs_;
  std::uint64_t generation_;
  std::uint64_t heard_generation_ = 0;  // of the message in progress
  std::uint64_t later_generation_ = 0;  // a generation that has begun and is not joined yet
  std::array<std::unique_ptr<key_state>, tuning::size_bucket::count> keys_;
  runtime::intrusive_list<starting::place> waiting_;
  time_ns gate_since_ns_ = 0;
  std::size_t released_ = 0;   // calls that may run and have not resumed yet
  std::size_t in_flight_ = 0;  // calls that have begun and not ended
  runtime::errc failed_ = runtime::errc::none;

  runtime::address<rehearse> rehearser_;
  runtime::scope* running_ = nullptr;  // of the rehearsal in progress
  rehearsed state_;                    // this rank's latest report about the round
  std::optional<rehearse> held_;       // the round that waits for its call
  bool between_calls_ = false;         // a round is being made at its call
  std::uint64_t connection_ = 0;
  time_ns rehearsal_ended_ns_ = 0;
  std::uint64_t leaving_turn_ = 0;   // see lease_messages.hpp
  std::uint64_t answered_turn_ = 0;  // the latest turn that the coordinator has answered
  reminder<> leaving_;

  std::function<void(std::uint64_t)> new_key_;
  std::function<void(const std::string&)> generation_ended_;
  counters counters_;
};

}  // namespace parley::actors
