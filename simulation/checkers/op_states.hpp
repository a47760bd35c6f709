#pragma once
/// How far each op has come in agreeing, as the wire shows it: the states of its coordinator (docs/protocol.md, State and guards).
///
///     op_states states;
///     states.see(p)          // every message, as it leaves: op_state::warming, that of its op before what it says counts
///
/// An op whose search for one size has ended and for another has not is in the state of the message that was sent last.
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
  preparing,   ///< a lease: promises are asked for
  running,     ///< trials, real or rehearsed
  collecting,  ///< those of a round have all been made, and their rows are on their way
  idle,        ///< decided
  ended,       ///< of a generation after which another one has begun
  last = ended
};
inline constexpr std::size_t op_state_count = static_cast<std::size_t>(op_state::last) + 1;
std::string_view name(op_state s) noexcept;

/// Whose message it is, as `op_declaration::id` counts; none: of no op.
std::optional<std::uint64_t> op_of(const parcel& p) noexcept;

class op_states {
 public:
  void begin_job() { ops_.clear(); }
  op_state see(const parcel& p);

 private:
  struct generations {
    std::uint64_t latest = 0;
    op_state state = op_state::offering;
    bool stamped = false;  ///< its messages say themselves when a round is complete
    std::set<std::uint64_t> all{};
  };
  boost::unordered_flat_map<std::uint64_t, generations> ops_;
};

}  // namespace parley::simulation
