#pragma once
/// Checks of what the protocol promises always holds (S1 to S8, L1, L2, N1 to N4 of docs/protocol.md), in every build.
///
///     invariant(may_start(), {"S2", "an invocation past the gate starts only with a lease", {op, rank}});
///     if (digest != mine) { blame({"S2", "parts of one config", {op, rank}}, s.source);  return errc::config_mismatch; }
///
/// `invariant` is for what only a fault of our own code can break: it reports, then throws `failure{invariant_broken}`, so that
/// the call it stands in fails with the invariant's name instead of going on. `blame` is for what a peer has broken: it counts
/// and reports, and never throws; the caller goes on to an error value. Reports go to the thread's `breach_watch`; without one a
/// fault of our own is written to stderr, and one of a peer is only counted.
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
  std::string_view text;  ///< what should be so
  noticed_at where;
  std::optional<rank_id> culprit = {};  ///< the peer that broke it; nobody: our own code

  /// `invariant S7 broken, op 00000000deadbeef, on rank 1, by rank 0: a promise stays as it is`
  std::string sentence() const;
};

/// How often, on this thread.
struct breach_counts {
  std::uint64_t own = 0;
  std::uint64_t peers = 0;
};
const breach_counts& breaches() noexcept;

/// While it lives it is told of every breach on this thread, instead of the one before it.
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
/// Where nothing may be thrown: reports a fault of our own code and answers whether it holds.
[[nodiscard]] bool holds(bool condition, const breach& b) noexcept;
/// What `culprit` has broken.
void blame(breach b, rank_id culprit) noexcept;

}  // namespace parley::runtime
