#include <parley/tuning/planners/decide.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <parley/tuning/outcome.hpp>
#include <parley/tuning/planners/noise.hpp>

namespace parley::tuning {

namespace {

double equal_ns(const aggregate& a, const aggregate& b, const decide_options& options) {
  return std::max(options.relative_noise * std::max(a.time_ns, b.time_ns), a.clock_error_ns + b.clock_error_ns);
}

/// True if each repetition of one took longer than each of the other, and that is chance only once in 20 times.
bool are_apart(const aggregate& a, const aggregate& b) {
  if (!(a.fastest_ns > 0) || !(b.fastest_ns > 0)) return false;  // not known
  if (a.fastest_ns <= b.slowest_ns && b.fastest_ns <= a.slowest_ns) return false;
  constexpr double likely_orders = 20;
  double orders = 1;  // of as many repetitions: (a + b) over a
  for (double taken = 1; taken <= double(a.count); ++taken) orders *= (double(b.count) + taken) / taken;
  return orders >= likely_orders;
}

class chooser {
 public:
  chooser(std::span<const aggregate> aggregates, const decide_options& options) : all_(aggregates), options_(options) {}

  decision choose() const {
    if (none_to_choose()) {
      return made(0, decision_reason::only_default, "the default is the only candidate");
    }
    const std::optional<std::size_t> best = fastest();
    if (!best) return keep_current();
    if (usable(0)) {
      if (*best == 0) {
        return made(0, decision_reason::default_is_fastest,
                    fmt::format("the default is the fastest: {}{}", timed(0), next_best()));
      }
      if (!beats(*best, 0)) {
        return made(
            0, decision_reason::within_noise_of_default,
            fmt::format("{} is faster than the default, {}, but not by more than noise, {}, so the default stays",
                        timed(*best), timed(0), time_text(noise_ns(all_[0], all_[*best], options_))));
      }
    }
    for (std::size_t i = 1; i < *best; ++i) {
      if (usable(i) && equals(i, *best) && (!usable(0) || beats(i, 0))) {
        return made(i, decision_reason::first_within_noise,
                    fmt::format("{} is within noise of the fastest, {}, and is earlier in the list{}", timed(i),
                                timed(*best), against_default(i)));
      }
    }
    return made(*best, decision_reason::fastest,
                fmt::format("{} is the fastest{}", timed(*best), against_default(*best)));
  }

 private:
  bool excluded(std::size_t i) const {
    return std::find(options_.excluded.begin(), options_.excluded.end(), i) != options_.excluded.end();
  }
  bool usable(std::size_t i) const {
    return !excluded(i) && all_[i].measured() && std::isfinite(all_[i].time_ns) && all_[i].time_ns > 0;
  }
  bool beats(std::size_t a, std::size_t b) const {
    return all_[b].time_ns - all_[a].time_ns > noise_ns(all_[a], all_[b], options_);
  }
  // Compares only the measured times, even if they scatter: if two candidates cannot be distinguished, the faster one is the better guess.
  bool equals(std::size_t a, std::size_t b) const {
    return all_[a].time_ns - all_[b].time_ns <= equal_ns(all_[a], all_[b], options_);
  }
  bool none_to_choose() const {
    for (std::size_t i = 1; i < all_.size(); ++i) {
      if (!excluded(i)) return false;
    }
    return true;
  }
  std::optional<std::size_t> fastest() const {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (usable(i) && (!best || all_[i].time_ns < all_[*best].time_ns)) best = i;
    }
    return best;
  }
  decision keep_current() const {
    // If the constraint excludes the current config, c0 stays, which is always safe.
    const bool keep = options_.current < all_.size() && !excluded(options_.current);
    const std::size_t winner = keep ? options_.current : 0;
    std::string text = fmt::format("no candidate could be measured, so {} stays", called(winner));
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (!excluded(i) && !all_[i].detail.empty()) {
        text += fmt::format("; {}: {}, {}", called(i), name(all_[i].status), all_[i].detail);
        break;
      }
    }
    return made(winner, decision_reason::nothing_measured, std::move(text));
  }
  std::string called(std::size_t i) const {
    if (i < options_.names.size()) return options_.names[i];
    return i == 0 ? "the default" : fmt::format("candidate {}", i);
  }
  std::string timed(std::size_t i) const { return fmt::format("{} at {}", called(i), time_text(all_[i].time_ns)); }
  std::string next_best() const {
    std::optional<std::size_t> next;
    for (std::size_t i = 1; i < all_.size(); ++i) {
      if (usable(i) && (!next || all_[i].time_ns < all_[*next].time_ns)) next = i;
    }
    return next ? fmt::format("; the next best is {}", timed(*next)) : "; nothing else could be measured";
  }
  std::string against_default(std::size_t i) const {
    if (usable(0)) {
      return fmt::format("; the default takes {}, and a difference of {} would be noise", time_text(all_[0].time_ns),
                         time_text(noise_ns(all_[0], all_[i], options_)));
    }
    if (excluded(0)) return "; the default is excluded by the constraint";
    return fmt::format("; the default could not be measured ({})", name(all_[0].status));
  }
  decision made(std::size_t winner, decision_reason reason, std::string sentence) const {
    std::optional<std::size_t> in_doubt;
    const confidence how = usable(winner) ? confidence_in(winner, in_doubt) : confidence::none;
    if (how == confidence::thin) {
      sentence += fmt::format("; that is based on few measurements: {} was repeated {} times, {} {} times",
                              called(winner), all_[winner].count, called(*in_doubt), all_[*in_doubt].count);
    }
    return {winner, reason, std::move(sentence), std::vector<aggregate>(all_.begin(), all_.end()), how};
  }
  confidence confidence_in(std::size_t winner, std::optional<std::size_t>& in_doubt) const {
    constexpr double fair = 1.65, sure = 2.6;  // standard errors
    std::vector<std::size_t> field;
    bool disturbed = false;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (!usable(i)) continue;
      field.push_back(i);
      disturbed = disturbed || is_disturbed(all_[i]);
    }
    const scatter pooled = scatter_of(all_, field);
    confidence least = confidence::sure;
    for (const std::size_t i : field) {
      if (i == winner) continue;
      const auto known = [&](double errors) {
        return known_as_good(all_[winner], all_[i], {i == 0 ? 0 : options_.relative_noise, pooled, errors});
      };
      const bool few = std::min(all_[winner].count, all_[i].count) < options_.few_repetitions;
      if (few && (disturbed || !known(fair))) {
        in_doubt = i;
        return confidence::thin;
      }
      if (!known(sure)) least = confidence::fair;
    }
    return least;
  }

  std::span<const aggregate> all_;
  const decide_options& options_;
};

}  // namespace

std::string_view name(decision_reason reason) noexcept {
  switch (reason) {
    case decision_reason::fastest: return "fastest";
    case decision_reason::first_within_noise: return "first_within_noise";
    case decision_reason::default_is_fastest: return "default_is_fastest";
    case decision_reason::within_noise_of_default: return "within_noise_of_default";
    case decision_reason::only_default: return "only_default";
    case decision_reason::nothing_measured: return "nothing_measured";
  }
  return "unknown";
}

std::string_view name(confidence how) noexcept {
  switch (how) {
    case confidence::none: return "none";
    case confidence::thin: return "thin";
    case confidence::fair: return "fair";
    case confidence::sure: return "sure";
  }
  return "unknown";
}

double noise_ns(const aggregate& a, const aggregate& b, const decide_options& options) {
  if (are_apart(a, b)) return equal_ns(a, b, options);
  const double scatter = options.spread_factor * (median_error_ns(a) + median_error_ns(b));
  return std::max(equal_ns(a, b, options), scatter + a.clock_error_ns + b.clock_error_ns);
}

decision decide(std::span<const aggregate> aggregates, const decide_options& options) {
  if (aggregates.empty()) throw invalid({fault::empty, "a decision needs at least the default's aggregate"});
  return chooser(aggregates, options).choose();
}

}  // namespace parley::tuning
