#pragma once
/// Whether a run does not come to rest: its ranks answer each other, or themselves, without an end, and nothing that was asked for
/// comes of it.
///
///     idle_steps idle(ranks);
///     stage.run_until([&] { return done() || idle.too_many(stage.steps(), calls.size()); }, limit);
#include <parley/runtime/identifiers.hpp>

#include <cstdint>
#include <string>

namespace parley::simulation {

class idle_steps {
 public:
  explicit idle_steps(runtime::rank_id ranks) noexcept : most_(of_all + of_each * ranks) {}
  /// `progress`: of what grows as long as a run gets on.
  bool too_many(std::uint64_t steps, std::uint64_t progress) noexcept {
    if (progress != progress_) {
      progress_ = progress;
      since_ = steps;
    }
    over_ = over_ || steps - since_ > most_;
    return over_;
  }
  bool over() const noexcept { return over_; }
  std::string text() const {
    return "since the last of " + std::to_string(progress_) + " calls has ended its ranks have done " +
           std::to_string(most_) + " things, and there is no end of it";
  }

 private:
  static constexpr std::uint64_t of_all = 1'000'000;
  static constexpr std::uint64_t of_each = 10'000;
  std::uint64_t most_;
  std::uint64_t progress_ = 0;
  std::uint64_t since_ = 0;
  bool over_ = false;
};

}  // namespace parley::simulation
