#pragma once
/// Decides when an actor of an op repeats a step after an exception. Its actions follow from the op's state, so it can repeat them: a
/// little later, and a few times in a row. If the actor makes no progress, it gives up.
///
///     catch (...) {
///       const auto pause = tries.after(progress, services.jitter);
///       if (!pause) return give_up(what);                // named, to the user
///       again_at = now + *pause;
///     }
///
/// `progress` is any number that grows when the actor makes progress. When it has grown, the count of failures starts again.
#include <parley/runtime/random.hpp>
#include <parley/runtime/time/backoff.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace parley::actors {

class retry_policy {
 public:
  static constexpr std::size_t most_in_a_row = 3;

  /// Call it after an exception. Returns the time to wait before the next try; empty after too many failures in a row.
  std::optional<runtime::time_ns> after(std::uint64_t progress, runtime::random_stream& jitter) noexcept {
    if (std::exchange(progress_, progress) != progress) {
      in_a_row_ = 0;
      pauses_.restart();
    }
    ++failures_;
    if (++in_a_row_ > most_in_a_row) return std::nullopt;
    return pauses_.next(jitter);
  }
  /// The total number of failures.
  std::size_t failures() const noexcept { return failures_; }

 private:
  std::uint64_t progress_ = 0;
  std::size_t in_a_row_ = 0;
  std::size_t failures_ = 0;
  runtime::backoff<1'000'000'000, 60'000'000'000> pauses_;
};

}  // namespace parley::actors
