#pragma once
/// The state of each op's agreement, read from the wire. The states are those of its coordinator (docs/protocol.md, State and guards).
///
///     op_states states;
///     states.see(p)          // for every message when it is sent: the state of its op before this message, such as op_state::warming
///
/// If an op searches for several sizes, its state is that of the last sent message.
#include <parley/simulation/world/network.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

namespace parley::simulation {

enum class op_state : std::uint8_t {
  none,        ///< the message belongs to no op
  offering,    ///< nothing has been merged yet
  warming,     ///< candidates are made ready
  preparing,   ///< the leader asks for promises for a lease
  running,     ///< trials, real or rehearsed
  collecting,  ///< all trials of a round were made, and their rows are in flight
  idle,        ///< decided
  ended,       ///< the message belongs to a generation that has ended
  last = ended
};
inline constexpr std::size_t op_state_count = static_cast<std::size_t>(op_state::last) + 1;
std::string_view name(op_state s) noexcept;

/// The op of a message, as `op_declaration::id` counts; none: the message belongs to no op.
std::optional<std::uint64_t> op_of(const parcel& p) noexcept;

class op_states {
 public:
  void begin_job() { ops_.clear(); }
  op_state see(const parcel& p);

 private:
  struct generations {
    std::uint64_t latest = 0;
    op_state state = op_state::offering;
    bool stamped = false;  ///< its stamps say when a round is complete
    std::set<std::uint64_t> all{};
  };
  boost::unordered_flat_map<std::uint64_t, generations> ops_;
};

}  // namespace parley::simulation
