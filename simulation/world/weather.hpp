#pragma once
/// The faults of one run, as values: how messages fare, what befalls ranks, and in which order things are done. A tape is
/// drawn from a scenario and a seed; a failing one is made smaller and saved.
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

/// Something that befalls a rank, or the way from one rank to another, at a time.
struct mishap {
  enum class kind : std::uint8_t {
    clog,     ///< nothing passes from `rank` to `to` for so long, then all of it does
    cut,      ///< control messages from `rank` to `to` are lost for so long
    pause,    ///< `rank` is stopped, like SIGSTOP
    slow,     ///< `rank` needs a microsecond for each thing it does
    crash,    ///< `rank` ends
    restart,  ///< `rank` ends, and comes back as a new process after so long
    suspect,  ///< an op of `to` finds `rank`, which lives, to be as good as dead, and so all hold it dead
    last = suspect
  };
  kind what = kind::clog;
  rank_id rank = 0;
  rank_id to = 0;
  time_ns at_ns = 0;
  time_ns for_ns = 0;
  std::uint64_t after =
      0;  ///< what befalls a rank: once so many messages have come in all, and not at a time; 0: at its time
  friend bool operator==(const mishap&, const mishap&) = default;
  /// Whether `rank` ends by it, or others take it for dead, as they do with one that is stopped for so long.
  bool is_death(time_ns detection_ns) const noexcept;
};
std::string_view name(mishap::kind k) noexcept;

struct tape {
  std::uint64_t lose = 0;  ///< of a thousand control messages
  std::uint64_t double_control = 0;
  std::uint64_t delay_control = 0;
  std::uint64_t delay_data = 0;
  std::uint64_t double_data = 0;  ///< beyond what the contract of links allows, as the model of edges has it
  time_ns longest_delay_ns = 100'000;
  std::uint64_t disk_fails = 0;  ///< of a thousand calls
  std::uint64_t disk_room = 0;   ///< bytes; 0: as much as anybody wants
  std::uint64_t disk_locks = 0;  ///< of a thousand results files
  std::uint64_t disk_tears = 0;  ///< of a thousand crashes
  std::uint64_t noise = 0;       ///< of kernels, see kernel_model, as drift and stragglers are
  std::uint64_t drift = 0;
  std::uint64_t stragglers = 0;
  // Fault points of the product, for all of the run; 0: as the scenario has it.
  std::uint64_t window = 0;
  std::uint64_t window_bytes = 0;
  std::uint64_t control_window = 0;
  std::optional<std::uint64_t> promise_margin{};
  std::uint64_t hurry = 0;           ///< of a thousand pauses before something is said again
  std::uint64_t early_timeouts = 0;  ///< of a thousand calls, until all is healed
  ordering order = ordering::arrival;
  rank_id starved = 0;
  bool inside = false;             ///< the order holds inside ranks as well
  std::uint64_t starved_task = 1;  ///< of each rank, then
  bool skewed = false;             ///< clocks of hosts of their own
  std::vector<mishap> mishaps;
  /// Whether something has befallen that rank by then for which others hold it dead: they notice one that is stopped after so long.
  bool has_lost(rank_id r, time_ns by_ns, time_ns detection_ns) const noexcept;
  bool has(mishap::kind k) const noexcept;
};

/// What has happened to messages of one type.
struct message_counts {
  std::uint64_t sent = 0;
  std::uint64_t lost = 0;
  std::uint64_t doubled = 0;
  std::uint64_t reordered = 0;
  std::uint64_t delayed = 0;
  message_counts& operator+=(const message_counts& o) noexcept;
};
/// By type of message, and by the state that its op was in.
using coverage = std::map<std::string, std::array<message_counts, op_state_count>>;
void add(coverage& to, const coverage& more);

/// What a message is called: `offer`, `credit`, `data`, `poison`, …
std::string_view type_of(const parcel& p) noexcept;
inline constexpr std::string_view nameless_type =
    "other control";  ///< a message without a name in `type_of`; none of ours is

/// Sees, and may change, what is delivered: checkers and mutants.
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
    std::array<std::uint64_t, runtime::link::channels> highest{};  // delivered so far
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
  // By type: the few that there are are looked through as fast.
  std::vector<const char*> types_;  // the names that `type_of` gives
  std::vector<std::array<message_counts, op_state_count>> seen_;
};

}  // namespace parley::simulation
