#include <parley/simulation/checkers/families.hpp>
#include <parley/simulation/programs/config_text.hpp>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

namespace parley::simulation {

namespace {

// The size under which the op's search lists a call.
std::uint64_t bytes_of_call(const op_spec& op, std::uint64_t size) {
  return op.what == op_spec::kind::group && op.does == "gather" ? size * op.members.size() : size;
}

// Judges only runs in which times depend on the configs alone: without faults that take time, and without stragglers that change medians.
struct fastest final : checker {
  using checker::checker;
  void look() const {
    const tape& t = *book_.r.faults;
    if (kernels_.straggler_per_thousand != 0) return;
    if (t.delay_data != 0 || !t.mishaps.empty() || t.skewed || t.early_timeouts != 0) return;
    for (const search_view& c : book_.r.searches) {
      if (c.where != actors::search::stage::decided || c.source != actors::decision_source::trials) continue;
      if (c.searches_again) continue;  // its decided config has failed
      const op_spec* const op = book_.find(std::string_view(c.title).substr(0, c.title.find(' ')));
      if (op == nullptr || op->in_flight != 1 || is_program(op->what) ||
          !std::all_of(op->configs.begin(), op->configs.end(), is_simulated))
        continue;
      // No call waits for the workers of a gather, so their work before the leader begins is not charged. So all configs may seem equally
      // fast.
      if (op->does == "gather" && c.winner == words(op->configs.front()).text(1)) continue;
      judge(c, *op);
    }
  }

 private:
  static bool is(std::string_view text, std::initializer_list<std::string_view> kinds) {
    return std::any_of(kinds.begin(), kinds.end(), [&](std::string_view k) { return text.starts_with(k); });
  }
  static bool is_sound(std::string_view text) { return is(text, {"timed:", "drifting:"}); }
  static bool is_simulated(std::string_view text) {
    return is_sound(text) || is(text, {"on:", "abi:", "failing:", "hanging:", "corrupting:"});
  }
  static bool drifts(std::string_view text) { return is(text, {"drifting:"}); }
  // For some size of the key, the winner must be among the fastest configs that all ranks can always run. A config that fails later may be
  // faster.
  void judge(const search_view& c, const op_spec& op) const {
    std::string better;
    for (const std::uint64_t size : op.sizes) {
      if (!c.bucket.contains(bytes_of_call(op, size))) continue;
      const std::string* best = nullptr;
      const std::string* winner = nullptr;
      for (const std::string& text : op.configs) {
        const bool sound = is_sound(text);
        if (sound && (best == nullptr || time_of(text, size) < time_of(*best, size))) best = &text;
        const bool everywhere = sound || !is(text, {"on:", "abi:"});
        if (everywhere && words(text).text(1) == c.winner) winner = &text;
      }
      if (best == nullptr) return;
      if (winner != nullptr && time_of(*winner, size) <= time_of(*best, size) + slack_ns(op, *best, size)) return;
      if (winner != nullptr && was_as_slow_when_first_used(c, op, *winner, size)) return;
      better = words(*best).text(1);
    }
    if (!better.empty())
      violated(c.title + ", " + c.key + ": " + c.winner + " was decided, and " + better + " is the fastest: " + c.why);
  }
  time_ns time_of(const std::string& text, std::uint64_t size) const { return usual_time_of(text, size, kernels_); }
  // The time by which the winner may be slower: the noise limit, the noise of the run and, if kernels drift, a drift that is too small to
  // start another search.
  time_ns slack_ns(const op_spec& op, const std::string& best, std::uint64_t size) const {
    const bool drifting = kernels_.drift_per_second != 0 && std::any_of(op.configs.begin(), op.configs.end(), drifts);
    const auto thousandths =
        static_cast<time_ns>(within_noise + kernels_.noise_per_thousand) + (drifting ? unnoticed_drift : 0);
    return (time_of(best, size) + link_ns) * thousandths / 1000;
  }
  // The leader of an op without headers compares calls only with earlier calls, because its trials are made elsewhere. So it cannot see a
  // drift before the first call that ran the decided config.
  bool was_as_slow_when_first_used(const search_view& c, const op_spec& op, std::string_view winner,
                                   std::uint64_t size) const {
    if (op.what != op_spec::kind::symmetric || !drifts(winner)) return false;
    time_ns first = runtime::never;
    for (const flown& its : book_.all_flown) {
      if (its.generation != generation_key{c.job, c.op, c.generation}) continue;
      for (const flight_view* f : its.flights) {
        const runtime::flight_record& one = f->record;
        const bool is_use = one.digest == c.digest && !is_rehearsal(one) && one.began_ns >= c.search_began_ns;
        if (is_use) first = std::min(first, one.began_ns);
      }
    }
    if (first == runtime::never) return true;  // no call ran the winner
    const time_ns steady = usual_time_of(winner, size);
    return time_of(std::string(winner), size) * 1000 <=
           steady * (1000 + kernels_.drifted(first)) / 1000 * (1000 + unnoticed_drift);
  }
  static constexpr std::uint64_t within_noise = 40;
  static constexpr time_ns unnoticed_drift = 600;
  static constexpr time_ns link_ns = 20'000;
  const kernel_model kernels_ = kernels_of(*book_.r.play, *book_.r.faults);
};

}  // namespace

void check_choice(const record_book& b, std::vector<violation>& found) { fastest(b, found, "oracle").look(); }

}  // namespace parley::simulation
