#pragma once
/// Configs of scenarios, written as text `KIND:WORD:NUMBER:...`: the words, the time that the config takes, and the config itself.
///
///     config_ptr c = config_from("timed:fast:20000:1", times);      // 20 us and 1 ns a byte
///
///     const words w("timed:fast:20000");
///     const timing t = timing_of(w, times);
///     co_await t.pass(data.size());
///
/// | text | is |
/// |---|---|
/// | `direct`, `chunked:BYTES:N`, `put[:BYTES]`, `get[:BYTES]`, `by_piece[:N]` | the library's own |
/// | `timed:NAME:NS[:PICOSECONDS_PER_BYTE]` | sends the payload whole, and then the receiver computes for so long |
/// | `drifting:NAME:NS[:PICOSECONDS_PER_BYTE]` | like `timed`, but becomes slower with time if the model drifts |
/// | `failing:NAME:NS:ROLE:AFTER` | like `timed`; `sender` or `receiver` throws from its AFTER-th run on, rehearsals included |
/// | `hanging:NAME:NS:ROLE` | like `timed`; that role hangs until it is cancelled, so its rehearsals never succeed |
/// | `corrupting:NAME:NS[:AFTER]` | like `timed`; from its AFTER-th run on the receiver alters the data |
/// | `torn:NAME:AFTER` | a put in two halves; from its AFTER-th run on its sender throws between them |
/// | `on:RANK:…` | any of these, which only that rank can run |
/// | `abi:RANK:N:…` | a `timed` config; its wire class has ABI N on that rank, and ABI 1 on the others |
#include <parley/config.hpp>
#include <parley/error.hpp>
#include <parley/group_config.hpp>
#include <parley/number_text.hpp>
#include <parley/runtime/time/timers.hpp>
#include <parley/scope.hpp>
#include <parley/simulation/programs/kernels.hpp>
#include <parley/task.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::simulation {

struct words {
  explicit words(std::string_view text) : whole(text) {
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find(':', at), text.size());
      all.push_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  [[noreturn]] void refuse(const std::string& why) const {
    runtime::raise({runtime::errc::bad_argument, "config `" + std::string(whole) + "` of a scenario: " + why});
  }
  std::string text(std::size_t i) const {
    if (i >= all.size()) refuse("a word is missing");
    return std::string(all[i]);
  }
  /// Word `i`, if it is a number.
  std::optional<std::uint64_t> number_if(std::size_t i) const {
    if (i >= all.size()) return std::nullopt;
    return runtime::read_number<std::uint64_t>(all[i], {0, std::numeric_limits<std::uint64_t>::max()});
  }
  std::uint64_t number(std::size_t i) const {
    const auto n = number_if(i);
    if (!n || *n > largest)
      refuse("word " + std::to_string(i + 1) + " must be a number up to " + std::to_string(largest));
    return *n;
  }
  std::uint64_t number(std::size_t i, std::uint64_t otherwise) const { return i < all.size() ? number(i) : otherwise; }
  /// Throws if there are more than `count` words.
  void end_at(std::size_t count) const {
    if (all.size() > count) refuse("`" + std::string(all[count]) + "` is a word too many");
  }
  static constexpr std::uint64_t largest = 10'000'000'000;
  static constexpr std::uint64_t most_ps_per_byte = 1'000'000;
  std::string_view whole;
  std::vector<std::string_view> all;
};

inline steadiness steadiness_of(std::string_view kind) noexcept {
  return kind == "drifting" ? steadiness::drifting : steadiness::steady;
}
/// True if configs of this kind behave well. In other kinds, the word after the time is not a time per byte.
inline bool is_sound(std::string_view kind) noexcept { return kind == "timed" || kind == "drifting"; }

struct timing {
  kernel_times& times;
  time_ns base_ns;
  std::uint64_t ps_per_byte;
  steadiness how = steadiness::steady;
  runtime::task<> pass(std::uint64_t bytes) const {
    runtime::scope& here = co_await runtime::this_scope;
    const time_ns now = here.where().now();
    const time_ns usual = base_ns + static_cast<time_ns>(bytes * ps_per_byte / 1000);
    auto slept = co_await runtime::sleep_until(now + times.draw(usual, now, how));
    if (!slept) runtime::raise(slept.reason());
  }
};

inline timing timing_of(const words& w, kernel_times& times) {
  const std::string kind = w.text(0);
  if (w.text(1).empty()) w.refuse("its name, the second word, is missing");
  const std::uint64_t ps_per_byte = is_sound(kind) ? w.number(3, 0) : 0;
  if (ps_per_byte > words::most_ps_per_byte)
    w.refuse("at most " + std::to_string(words::most_ps_per_byte) + " picoseconds for each byte are possible");
  return {times, static_cast<time_ns>(w.number(2)), ps_per_byte, steadiness_of(kind)};
}

/// `timed:fast:20000` of `on:1:timed:fast:20000`, whether `self` can run it, and its ABI on `self`.
struct config_text {
  std::string_view text;
  bool available = true;
  std::uint32_t abi = 1;
};
config_text text_for(std::string_view text, rank_id self);

/// Throws `bad_argument` that names the text.
ops::config_ptr config_from(std::string_view text, kernel_times& times, std::uint32_t abi = 1);
/// `star[:BYTES]`, `chain[:BYTES]`, `tree`, `one_shot`, `two_shot[:BYTES]`, and the timed kinds of the table above. In timed kinds the
/// workers compute, and roles are `leader` and `workerPLACE`, with the place among the group's ranks.
ops::group_config_ptr group_config_from(std::string_view text, kernel_times& times, std::uint32_t abi = 1);
/// A config of a contextual op: `timed:NAME:NS` or `failing:NAME:NS:RANK:AFTER`.
struct kernel_spec {
  std::string name;
  time_ns takes_ns = 0;
  bool fails = false;
  rank_id fails_on = 0;
  std::uint64_t after = 0;
};
/// Throws `bad_argument` that names the text.
kernel_spec kernel_from(std::string_view text);
/// The time of a `timed` config for so many bytes, without noise, or of a `drifting` one once its drift has ended; 0 for other kinds.
time_ns usual_time_of(std::string_view text, std::uint64_t bytes, const kernel_model& model = {});

}  // namespace parley::simulation
