#pragma once
/// The faults of one run as values: faults of messages, faults of ranks, and the order in which coroutines run. A tape is drawn from a
/// scenario and a seed. A failing tape is made smaller and saved.
///
///     tape t = draw(scenario, seed);
///     weather w(t, seed, ranks);        // an `interference` for a network
///     w.begin(line);
///     w.calm();                               // from now on every message arrives, in time
#include <parley/simulation/checkers/op_states.hpp>
#include <parley/simulation/world/dice.hpp>
#include <parley/simulation/world/network.hpp>
#include <parley/simulation/world/stage.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::simulation {

/// A fault of a rank, or of the way from one rank to another, at a given time.
struct mishap {
  enum class kind : std::uint8_t {
    clog,     ///< messages from `rank` to `to` are held back for `for_ns`, then all arrive
    cut,      ///< control messages from `rank` to `to` are lost for `for_ns`
    pause,    ///< `rank` is stopped, like SIGSTOP
    slow,     ///< each step of `rank` takes a microsecond
    crash,    ///< `rank` ends
    restart,  ///< `rank` ends, and a new process takes its place after `for_ns`
    suspect,  ///< an op of `to` gives up `rank`, which lives, so all others declare `rank` dead
    last = suspect
  };
  kind what = kind::clog;
  rank_id rank = 0;
  rank_id to = 0;
  time_ns at_ns = 0;
  time_ns for_ns = 0;
  std::uint64_t after =
      0;  ///< for mishaps of ranks: happens once so many messages have been delivered in all; 0: happens at `at_ns`
  friend bool operator==(const mishap&, const mishap&) = default;
  /// True if the mishap ends `rank` permanently, or makes the others declare it dead, as a pause of `detection_ns` or longer does.
  bool is_death(time_ns detection_ns) const noexcept;
};
std::string_view name(mishap::kind k) noexcept;

struct tape {
  std::uint64_t lose = 0;  ///< of a thousand control messages
  std::uint64_t double_control = 0;
  std::uint64_t delay_control = 0;
  std::uint64_t delay_data = 0;
  std::uint64_t double_data = 0;  ///< the contract of links forbids this; the model of edges doubles data as well
  time_ns longest_delay_ns = 100'000;
  std::uint64_t disk_fails = 0;  ///< of a thousand calls
  std::uint64_t disk_room = 0;   ///< bytes; 0: unlimited
  std::uint64_t disk_locks = 0;  ///< of a thousand results files
  std::uint64_t disk_tears = 0;  ///< of a thousand crashes
  std::uint64_t noise = 0;       ///< of kernels, as `drift` and `stragglers`; see kernel_model
  std::uint64_t drift = 0;
  std::uint64_t stragglers = 0;
  // Fault points inside parley, for the whole run; 0: the scenario's value.
  std::uint64_t window = 0;
  std::uint64_t window_bytes = 0;
  std::uint64_t control_window = 0;
  std::optional<std::uint64_t> promise_margin{};
  std::uint64_t hurry = 0;           ///< of a thousand pauses before a retry, which become almost none
  std::uint64_t early_timeouts = 0;  ///< of a thousand calls, until all faults end
  ordering order = ordering::arrival;
  rank_id starved = 0;
  bool inside = false;             ///< `order` also holds among the tasks of a rank
  std::uint64_t starved_task = 1;  ///< of each rank, if `inside`
  bool skewed = false;             ///< each rank is on its own host, with its own clock offset
  std::vector<mishap> mishaps;
  /// True if, by `by_ns`, rank `r` was hit by a mishap that makes the others declare it dead. A pause counts once it has lasted
  /// `detection_ns`.
  bool has_lost(rank_id r, time_ns by_ns, time_ns detection_ns) const noexcept;
  bool has(mishap::kind k) const noexcept;
};

/// Counts of the messages of one type.
struct message_counts {
  std::uint64_t sent = 0;
  std::uint64_t lost = 0;
  std::uint64_t doubled = 0;
  std::uint64_t reordered = 0;
  std::uint64_t delayed = 0;
  message_counts& operator+=(const message_counts& o) noexcept;
};
/// Counts by message type and by the state of the message's op.
using coverage = std::map<std::string, std::array<message_counts, op_state_count>>;
void add(coverage& to, const coverage& more);

/// The name of a message's type: `offer`, `credit`, `data`, `poison`, …
std::string_view type_of(const parcel& p) noexcept;
inline constexpr std::string_view nameless_type =
    "other control";  ///< of a message type that `type_of` does not know; parley has none such

/// Sees every message, and may change those that are delivered. Checkers and mutants are taps.
class wire_tap {
 public:
  virtual bool on_deliver(parcel&) { return true; }
  virtual void on_send(const parcel&, const fate&) {}

 public:
  wire_tap() = default;
  wire_tap(const wire_tap&) = delete;
  wire_tap& operator=(const wire_tap&) = delete;
  virtual ~wire_tap() = default;
};

class weather final : public interference {
 public:
  weather(const tape& t, std::uint64_t seed, rank_id ranks) noexcept : tape_(t), seed_(seed), ranks_(ranks) {}
  /// A job begins now: the times of mishaps count from here.
  void begin(const timeline& line) noexcept {
    line_ = &line;
    began_ns_ = line.now();
    calm_ = false;
    states_.begin_job();
  }
  fate judge(const parcel& p) override;
  bool deliver(parcel& p) override;
  time_ns landing(rank_id from, rank_id to, time_ns usual) override;
  void calm() noexcept { calm_ = true; }
  void tap(wire_tap& t) { taps_.push_back(&t); }
  coverage seen() const;

 private:
  struct way {
    explicit way(dice d) noexcept : luck(d) {}
    dice luck;
    std::array<std::uint64_t, runtime::link::channels> highest{};  // number of the last message delivered, by channel
  };
  way& way_of(rank_id from, rank_id to);
  message_counts& counts_of(const parcel& p, op_state when);
  const tape& tape_;
  std::uint64_t seed_;
  rank_id ranks_;
  const timeline* line_ = nullptr;
  time_ns began_ns_ = 0;
  bool calm_ = true;
  boost::unordered_flat_map<std::uint64_t, way> ways_;
  std::vector<wire_tap*> taps_;
  op_states states_;
  // Counts by type. There are few types, so a linear search is fast enough.
  std::vector<const char*> types_;  // the names that `type_of` gives
  std::vector<std::array<message_counts, op_state_count>> seen_;
};

}  // namespace parley::simulation
