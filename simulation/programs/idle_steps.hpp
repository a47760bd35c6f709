#pragma once
/// Ends a run that never comes to rest, because its ranks send messages to each other or wake themselves for ever without progress.
///
///     idle_steps idle(world, [&] { return calls.size(); });
///     if (!idle.run_until(over, limit)) …         // like that of the stage; `idle.over()`: there was no progress
///     for (const violation& v : idle.violations(record)) …
///
/// Progress is measured by the number of payloads that have arrived, and by a count of the caller, such as calls that have ended. One of
/// the two must grow while the ranks make a million steps, and ten thousand more for each rank.
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/simulation/checkers/checkers.hpp>
#include <parley/simulation/world/world.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace parley::simulation {

class idle_steps {
 public:
  idle_steps(world& w, std::function<std::uint64_t()> calls)
      : world_(w), calls_(std::move(calls)), most_(of_all + of_each * w.ranks()) {}
  /// For a program that does not count its calls: the entries that its ops write to the flight recorders count instead.
  explicit idle_steps(world& w)
      : idle_steps(w, [&w] {
          std::uint64_t noted = 0;
          for (rank_id r = 0; r < w.ranks(); ++r) noted += w.find(r) == nullptr ? 0 : w.find(r)->flight().total();
          return noted;
        }) {}

  template <class Holds>
  bool run_until(Holds holds, time_ns limit) {
    return world_.stage().run_until([&] { return too_many() || holds(); }, limit) && !over_;
  }
  void run_to(time_ns t) {
    if (!world_.stage().run_until([this] { return too_many(); }, t)) world_.stage().run_to(t);
  }
  bool over() const noexcept { return over_; }
  /// The violations that the checkers find. If the run was ended for lack of progress, only the violation `rest`.
  std::vector<violation> violations(const run_record& record) const {
    if (!over_) return check(record);
    return {{"rest", "the last " + std::to_string(most_) +
                         " things that its ranks have done brought no payload and ended no call"}};
  }

 private:
  static constexpr std::uint64_t of_all = 1'000'000;
  static constexpr std::uint64_t of_each = 10'000;
  // Looks at the progress only after each `most_` steps.
  bool too_many() {
    const std::uint64_t steps = world_.stage().steps();
    if (over_ || steps - since_ <= most_) return over_;
    const std::uint64_t progress = world_.network().payloads() + calls_();
    over_ = std::exchange(progress_, progress) == progress;
    since_ = steps;
    return over_;
  }

  world& world_;
  std::function<std::uint64_t()> calls_;
  std::uint64_t most_;
  std::uint64_t since_ = 0;
  std::uint64_t progress_ = 0;
  bool over_ = false;
};

}  // namespace parley::simulation
