#pragma once
/// Checks, in every build, the invariants that the protocol promises (S1 to S8, L1, L2, N1 to N4 of docs/protocol.md).
///
///     invariant(may_start(), {"S2", "an invocation past the gate starts only with a lease", {op, rank}});
///     if (digest != mine) { blame({"S2", "parts of one config", {op, rank}}, s.source);  return errc::config_mismatch; }
///
/// `invariant` is for breaches that only a fault of our own code can cause: it reports the breach, then throws `failure{invariant_broken}`,
/// so that the current call fails with the invariant's name. `blame` is for breaches by a peer: it counts and reports, and never throws;
/// the caller then returns an error value. Reports go to the thread's `breach_watch`. Without one, a fault of our own code is written to
/// stderr, and a peer's is only counted.
///
///     breach_watch watch([&](const breach& b) { seen.emplace_back(b.name); });     // in a test, or in a checker
#include <parley/identifiers.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace parley::runtime {

struct noticed_at {
  std::uint64_t op = 0;
  rank_id rank = 0;
};

/// One invariant that does not hold.
struct breach {
  std::string_view name;  ///< `S7`
  std::string_view text;  ///< what should hold
  noticed_at where;
  std::optional<rank_id> culprit = {};  ///< the peer that broke it; none: parley's code on this rank

  /// `invariant S7 broken, op 00000000deadbeef, on rank 1, by rank 0: a promise stays as it is`
  std::string sentence() const;
};

/// Number of breaches on this thread so far.
struct breach_counts {
  std::uint64_t own = 0;
  std::uint64_t peers = 0;
};
const breach_counts& breaches() noexcept;

/// As long as it lives, a watch receives all breaches on this thread, instead of the watch made before.
class breach_watch {
 public:
  explicit breach_watch(std::function<void(const breach&)> tell);
  breach_watch(const breach_watch&) = delete;
  breach_watch& operator=(const breach_watch&) = delete;
  ~breach_watch();

 private:
  friend void report(const breach& b) noexcept;
  std::function<void(const breach&)> tell_;
  breach_watch* outer_;
};

[[noreturn]] void broken(const breach& b);

inline void invariant(bool holds, const breach& b) {
  if (!holds) [[unlikely]]
    broken(b);
}
/// For code that must not throw: reports a fault of this rank if `condition` is false, and returns `condition`.
[[nodiscard]] bool holds(bool condition, const breach& b) noexcept;
/// Reports that the peer `culprit` broke `b`.
void blame(breach b, rank_id culprit) noexcept;

}  // namespace parley::runtime
