#pragma once
/// How long the simulated kernels of a rank take, and configs that are made of nothing else.
///
///     kernel_times times({.noise_per_thousand = 30, .drift_per_second = 5}, dice(seed, purpose::kernel, rank));
///     config_ptr c = config_from("timed:fast:20000:1", times, rank);      // 20 us and 1 ns a byte
///
/// | text | is |
/// |---|---|
/// | `direct`, `chunked:BYTES:N`, `put[:BYTES]`, `get[:BYTES]`, `by_piece[:N]` | the library's own |
/// | `timed:NAME:NS[:PICOSECONDS_PER_BYTE]` | the payload goes whole, and then the receiver computes for so long |
/// | `drifting:NAME:NS[:PICOSECONDS_PER_BYTE]` | the same, and it takes longer and longer where the model drifts |
/// | `failing:NAME:NS:ROLE:AFTER` | the same; `sender` or `receiver` throws from its AFTER-th run on, rehearsals included |
/// | `hanging:NAME:NS:ROLE` | the same; that role never ends by itself in rehearsals |
/// | `corrupting:NAME:NS[:AFTER]` | the same; from its AFTER-th run on the receiver alters what came |
/// | `torn:NAME:AFTER` | a put in two halves; from its AFTER-th run on its sender throws between them |
/// | `on:RANK:…` | any of these, which only that rank can run |
/// | `abi:RANK:N:…` | a timed one, which that rank has with another ABI of its wire class than the others |
#include <parley/ops/config.hpp>
#include <parley/ops/group_config.hpp>
#include <parley/runtime/executor.hpp>
#include <parley/simulation/dice.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace parley::simulation {

using runtime::rank_id;
using runtime::time_ns;

struct kernel_model {
  std::uint64_t noise_per_thousand = 0;      ///< up to so much longer, each time
  std::uint64_t drift_per_second = 0;        ///< of kernels that drift: so many thousandths slower in each second
  std::uint64_t straggler_per_thousand = 0;  ///< how often a kernel takes ten times as long
  time_ns drift_until_ns = runtime::never;   ///< when that ends, and they stay as slow as they are
  /// By how many thousandths a kernel that drifts is slower at a time.
  std::int64_t drifted(time_ns now) const noexcept {
    return static_cast<std::int64_t>(drift_per_second) * (std::min(now, drift_until_ns) / 1'000'000) / 1000;
  }
};
enum class steadiness : std::uint8_t { steady, drifting };

class kernel_times {
 public:
  kernel_times(kernel_model m, dice luck) noexcept : model_(m), luck_(luck) {}
  /// What a kernel that takes `usual` takes now. `slowness` of its rank: thousandths on top.
  time_ns draw(time_ns usual, time_ns now, steadiness how = steadiness::steady) noexcept {
    std::int64_t thousandths = 1000 + static_cast<std::int64_t>(slowness);
    if (model_.noise_per_thousand != 0)
      thousandths += static_cast<std::int64_t>(luck_.below(model_.noise_per_thousand + 1));
    if (how == steadiness::drifting) thousandths += model_.drifted(now);
    if (luck_.chance(model_.straggler_per_thousand)) thousandths *= 10;
    return usual * thousandths / 1000;
  }
  std::uint64_t slowness = 0;

 private:
  kernel_model model_;
  dice luck_;
};

/// `timed:fast:20000` of `on:1:timed:fast:20000`, whether `self` can run it, and the ABI that it has there.
struct config_text {
  std::string_view text;
  bool available = true;
  std::uint32_t abi = 1;
};
config_text text_for(std::string_view text, rank_id self);

/// Throws `bad_argument` that names the text.
ops::config_ptr config_from(std::string_view text, kernel_times& times, std::uint32_t abi = 1);
/// `star[:BYTES]`, `chain[:BYTES]`, `tree`, `one_shot`, `two_shot[:BYTES]`, and the timed ones of above, good and bad: a worker computes, and roles
/// are `leader` and `workerPLACE`, by its place among the group's ranks.
ops::group_config_ptr group_config_from(std::string_view text, kernel_times& times, std::uint32_t abi = 1);
/// What a `timed` config takes for so many bytes, without noise, or a `drifting` one once that has ended; 0 for others.
time_ns usual_time_of(std::string_view text, std::uint64_t bytes, const kernel_model& model = {});

}  // namespace parley::simulation
