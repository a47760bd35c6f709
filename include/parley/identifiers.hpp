#pragma once
/// Defines the basic types and constants of ranks and times.
///
///     parley::runtime::rank_id peer = 3;
///     parley::runtime::time_ns deadline = executor.deadline_in(5'000'000);   // 5 ms from now
#include <chrono>
#include <cstdint>
#include <limits>

namespace parley::runtime {

/// A rank: one participant of the job. Ranks count from 0.
using rank_id = std::uint32_t;

/// A point in time on an executor's clock, or a time span, in nanoseconds. Across executors only differences have a meaning.
using time_ns = std::int64_t;

/// A timeout that never expires. Programs write other timeouts with `std::chrono`: `5s`, `20ms`.
inline constexpr std::chrono::nanoseconds no_timeout = std::chrono::nanoseconds::max();

/// The deadline of a wait without a limit.
inline constexpr time_ns never = std::numeric_limits<time_ns>::max();

/// The deadline of a wait that begins at `now` and may last `span`; `never` if the sum would overflow. Calls use the executor's
/// `deadline_in`, which reads the clock first.
constexpr time_ns deadline_of(time_ns now, time_ns span) noexcept { return span >= never - now ? never : now + span; }

inline namespace literals {
using namespace std::chrono_literals;
constexpr time_ns operator""_ns(unsigned long long n) { return static_cast<time_ns>(n); }
constexpr time_ns operator""_us(unsigned long long n) { return static_cast<time_ns>(n) * 1'000; }
constexpr time_ns operator""_ms(unsigned long long n) { return static_cast<time_ns>(n) * 1'000'000; }
constexpr time_ns operator""_s(unsigned long long n) { return static_cast<time_ns>(n) * 1'000'000'000; }
constexpr std::uint64_t operator""_KiB(unsigned long long n) { return n << 10U; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) { return n << 20U; }
}  // namespace literals

}  // namespace parley::runtime
