#pragma once
/// How long the simulated kernels of a rank take, and configs that are made of nothing else.
///
///     kernel_times times({.noise_per_thousand = 30, .drift_per_second = 5}, dice(seed, purpose::kernel, rank));
///     config_ptr c = config_from("timed:fast:20000:1", times, rank);      // 20 us and 1 ns a byte
///
/// | text | is |
/// |---|---|
/// | `direct`, `chunked:BYTES:N`, `put[:BYTES]`, `get[:BYTES]` | the library's own |
/// | `timed:NAME:NS[:PICOSECONDS_PER_BYTE]` | the payload goes whole, and then the receiver computes for so long |
/// | `failing:NAME:NS:ROLE:AFTER` | the same; `sender` or `receiver` throws from its AFTER-th run on, rehearsals included |
/// | `hanging:NAME:NS:ROLE` | the same; that role never ends by itself in rehearsals |
/// | `corrupting:NAME:NS` | the same; the receiver alters what came |
/// | `torn:NAME:AFTER` | a put in two halves; from its AFTER-th run on its sender throws between them |
/// | `on:RANK:…` | any of these, which only that rank can run |
#include <parley/ops/config.hpp>
#include <parley/ops/group_config.hpp>
#include <parley/runtime/executor.hpp>
#include <parley/simulation/dice.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace parley::simulation {

using runtime::rank_id;
using runtime::time_ns;

struct kernel_model {
  std::uint64_t noise_per_thousand = 0;      ///< up to so much longer, each time
  std::uint64_t drift_per_second = 0;        ///< so many thousandths slower after each second
  std::uint64_t straggler_per_thousand = 0;  ///< how often a kernel takes ten times as long
};

class kernel_times {
 public:
  kernel_times(kernel_model m, dice luck) noexcept : model_(m), luck_(luck) {}
  /// What a kernel that takes `usual` takes now. `slowness` of its rank: thousandths on top.
  time_ns draw(time_ns usual, time_ns now) noexcept {
    std::int64_t thousandths = 1000 + static_cast<std::int64_t>(slowness);
    if (model_.noise_per_thousand != 0)
      thousandths += static_cast<std::int64_t>(luck_.below(model_.noise_per_thousand + 1));
    thousandths += static_cast<std::int64_t>(model_.drift_per_second) * (now / 1'000'000'000);
    if (luck_.chance(model_.straggler_per_thousand)) thousandths *= 10;
    return usual * thousandths / 1000;
  }
  std::uint64_t slowness = 0;

 private:
  kernel_model model_;
  dice luck_;
};

/// `timed:fast:20000` of `on:1:timed:fast:20000`, and whether `self` can run it.
struct config_text {
  std::string_view text;
  bool available = true;
};
config_text text_for(std::string_view text, rank_id self);

/// Throws `bad_argument` that names the text.
ops::config_ptr config_from(std::string_view text, kernel_times& times);
/// `star[:BYTES]`, `chain[:BYTES]`, `timed:NAME:NS`.
ops::group_config_ptr group_config_from(std::string_view text, kernel_times& times);
/// What a `timed` config takes for so many bytes, without noise; 0 for others.
time_ns usual_time_of(std::string_view text, std::uint64_t bytes);

}  // namespace parley::simulation
