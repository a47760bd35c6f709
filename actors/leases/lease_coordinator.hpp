#pragma once
/// The coordinator's part for an op without headers. The coordinator actor merges offers, judges trials and decides. This class starts the
/// trials, and makes the decided config of a key the tail of that key's log.
///
///     lease_coordinator leases(services, coordinator_state, make_id, trial_path::rehearsals);
///     leases.start();                       // on the leader's rank; `leases` lives in the op and outlives its actor
///     leases.key_seen(bytes);               // the first invocation of a size
///
/// Trials are rehearsals or leased. Rehearsals are rounds on scratch buffers. They run apart from the user's calls, or between calls,
/// before a call that a separate campaign names. Leased trials are real invocations: the log entry of one campaign holds their whole
/// schedule, with the previous config as its tail. A decision takes one more campaign, and after it there is no control traffic
/// (docs/protocol.md, Ops without headers). One search meets at most two gates (N2).
///
/// A call waits for this class only at a gate, or while a round between calls is made before it. If a participant does not promise in time,
/// or refuses, the campaign is aborted and tried again later.
///
/// If something throws here, such as the user's function that makes communicators, schedules stay in force, and campaigns in preparation
/// are aborted, so that no gate stays shut. The actor continues from the op's state, a few times (retry_policy.hpp). If it makes no
/// progress, the tuning of the op ends, and the user is warned. If the log is lost, the generation ends on every participant.
#include <parley/actor.hpp>
#include <parley/actors/agreement/coordinator.hpp>
#include <parley/actors/agreement/retry_policy.hpp>
#include <parley/actors/leases/lease.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/services.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace parley::actors {

enum class trial_path : std::uint8_t {
  rehearsals,     ///< on scratch buffers: costs the user's calls nothing
  between_calls,  ///< like rehearsals, but before a call that all members agree on: delays that call
  leased,         ///< on real invocations
};

/// An event on this rank that the coordinator has to handle.
struct lease_news {
  std::uint64_t bytes = 0;  ///< a size that is new; 0: no new size
  bool is_key = false;
};

class lease_coordinator {
 public:
  /// Makes the id of a communicator for rehearsals; may throw. Empty: rehearsals need none.
  using id_maker = std::function<std::vector<std::byte>()>;

  lease_coordinator(services& s, coordinator_state& state, id_maker make_id, trial_path path);
  lease_coordinator(const lease_coordinator&) = delete;
  lease_coordinator& operator=(const lease_coordinator&) = delete;
  ~lease_coordinator() { state_.on_change = nullptr; }

  /// Starts its actor.
  void start();
  /// For rehearsals: each candidate is compared with the default on known numbers before it is timed.
  void compare_candidates() noexcept { comparing_ = true; }
  void key_seen(std::uint64_t bytes) { post({bytes, true}); }
  /// Ends this generation on every participant and begins the next one with an empty log.
  void end_generation(const std::string& why);
  /// The op has failed: from now on nothing is sent.
  void stop() noexcept { stopped_ = true; }
  /// Stops for good: another object replaces this one.
  void retire() noexcept {
    stop();
    actor_.stop();
  }

  /// True if an answer is still missing.
  bool owes_messages() const noexcept;
  std::uint64_t generation() const noexcept { return generation_; }
  time_ns round_trip_ns() const noexcept { return round_trip_ns_; }
  /// The log of a size; null before its first invocation.
  const lease_log* log_of(std::uint64_t bytes) const noexcept;

  struct counters {
    std::uint64_t campaigns = 0;
    std::uint64_t scheduled = 0;
    std::uint64_t aborted = 0;
    std::uint64_t halted = 0;  ///< schedules of leased trials that were cut short because a trial timed out
    std::uint64_t rounds = 0;
    std::uint64_t failed_rounds = 0;
    std::uint64_t broken_promises = 0;  ///< answers that contradict an earlier promise, or are impossible (S7)
  };
  const counters& statistics() const noexcept { return counters_; }
  /// How often an exception was caught.
  std::size_t restarts() const noexcept { return tries_.failures(); }

 private:
  using actor = runtime::actor<received<lease_reply>, received<rehearsed>, received<lease_ended>,
                               received<lease_leaving>, lease_news>;
  using address = runtime::address<received<lease_reply>, received<rehearsed>, received<lease_ended>,
                                   received<lease_leaving>, lease_news>;

  /// A message that waits for its answer. The message is repeated until then, and the answer shows how long the round trip took.
  struct asked {
    time_ns first_ns = 0;
    reminder<> again{};
    std::uint64_t what = 0;  // identifies the message: a new number means a new message
  };
  enum class purpose : std::uint8_t { trials, rehearsals, halt, decision };
  struct key_state {
    key_state(std::uint32_t k, std::uint64_t b, lease_writer w, std::size_t participants)
        : key(k), bytes(b), writer(std::move(w)), asks(participants) {}
    std::uint32_t key;
    std::uint64_t bytes;
    lease_writer writer;
    std::vector<asked> asks;
    purpose for_what = purpose::decision;
    bool at_once = false;  // the campaign must stop trials that fail
    time_ns prepared_ns = 0;
    time_ns retry_at_ns = 0;
    runtime::backoff<1'000'000'000, 60'000'000'000> retry_pauses{};
    std::uint64_t rehearsal_index = 0;
    std::set<std::uint64_t> rehearsed;  // digests that every participant has run
    std::set<std::uint64_t> compared;   // digests with the same results as the default
    std::set<std::uint64_t> late;       // digests of rehearsals that timed out with all members in them
    bool cut_short = false;             // some trials of the latest schedule will never run
    bool halted = false;                // the rest of the trials was cancelled; those that had begun end by themselves
    std::vector<rehearsal_run> aside;   // runs of a round that waited for a call in vain
  };
  struct round_state {
    std::uint64_t number = 0;
    key_state* of = nullptr;  // null: no round is in progress
    rehearse letter;
    std::vector<asked> asks;
    std::vector<bool> heard;    // members that have replied
    std::vector<bool> holding;  // members that wait for the call at which the round is made
    std::vector<bool> begun;    // members that have reached that call
    std::vector<bool> done;
    bool scheduled = false;  // the log names that call
    std::vector<bool> failed;
    std::vector<std::uint64_t> at;  // each member's progress, as reported
    std::vector<bool> not_at_it;    // members that, after a reported failure, said that they wait for their call
    std::optional<std::pair<std::size_t, rehearsed>> failure;  // the earliest failure, and its member
    time_ns judged_at_ns = 0;                                  // not judged before: others may fail in the same run
    time_ns given_up_at_ns = 0;  // judged then, even if a member has not reported its progress
    time_ns began_ns = 0;
  };

  static runtime::task<> coordinate(actor& self, lease_coordinator& c);
  template <class M>
  void hear();
  void post(lease_news n) { static_cast<void>(actor_.try_send(n)); }
  void on(received<lease_reply>& m);
  void on(received<rehearsed>& m);
  void on(received<lease_ended>& m);
  void on(received<lease_leaving>& m);
  void on(lease_news& m);

  void advance();
  void advance(key_state& k);
  void check_deadlines();
  void send_due();
  void failed(const runtime::error& what) noexcept;
  void pause_or_give_up(const runtime::error& what);
  time_ns next_event() const noexcept;

  std::vector<rehearsal_run> fetch_trials(key_state& k, std::uint64_t first_index);
  std::vector<rehearsal_run> comparisons(key_state& k, const search& c);
  void note_failure(std::size_t participant, const rehearsed& m);
  bool is_first_failure() const noexcept;
  void note_unlike(std::size_t participant, const std::vector<unlike_run>& unlike);
  void start_round(key_state& k, std::vector<rehearsal_run> runs);
  /// True if a member wants to leave and makes no more calls: then no round begins.
  bool somebody_leaves() const noexcept;
  bool between_calls() const noexcept { return round_.letter.when == rehearse::moment::scheduled; }
  bool is_waited_for() const noexcept;
  bool is_in_the_way(const key_state& of) const noexcept;
  void rehearse_next(key_state& k, const search& c);
  bool blames(key_state& k, rehearsed::kind how, std::uint64_t digest);
  void fail_round(std::size_t participant, rehearsed::kind how, std::uint64_t at, const std::string& text);
  void fail_run(const key_state& k, rank_id where, const rehearsal_run& run);
  void connect_anew();
  bool may_try(const search& c) const noexcept;
  void prepare(key_state& k, purpose p);
  void schedule(key_state& k);
  void append_entry(key_state& k);
  void abort(key_state& k);
  void quarantine(const key_state& k, std::uint64_t digest, const std::string& why);
  bool schedules_what_failed(const key_state& k, const search& c) const;
  bool has_failed(const search& c, std::uint64_t digest) const;

  template <class M>
  void send(std::size_t participant, const M& m);
  bool due(asked& a, std::uint64_t what);
  void answered(asked& a);
  std::size_t place(rank_id rank) const noexcept;
  runtime::noticed_at here() const { return {state_.declaration.id(), services_.net.rank()}; }
  std::size_t size() const noexcept { return state_.declaration.participants.size(); }
  time_ns first_pause_ns() const noexcept;

  services& services_;
  coordinator_state& state_;
  id_maker make_id_;
  trial_path path_;
  bool comparing_ = false;
  std::uint64_t generation_;
  std::vector<std::unique_ptr<key_state>> keys_;
  round_state round_;
  std::uint64_t connection_ = 0;  // of the communicator for rehearsals
  bool connected_ = false;        // that communicator can be used
  std::vector<std::uint8_t> connection_id_;
  std::size_t connections_failed_ = 0;  // in a row
  time_ns round_trip_ns_ = 0;
  std::vector<asked> endings_;  // of the previous generation, one for each participant
  std::vector<bool> ended_;
  std::string ending_why_;
  struct leaving {
    std::uint64_t turn = 0;
    bool unanswered = false;
  };
  std::vector<leaving> leaving_;  // for each participant, see lease_messages.hpp
  bool stopped_ = false;
  std::uint64_t progress_ = 0;
  retry_policy tries_;
  time_ns resume_at_ns_ = 0;  // after an exception; `never`: the actor has given up
  address actor_;
  counters counters_;
};

}  // namespace parley::actors
