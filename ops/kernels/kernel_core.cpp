#include <parley/ops/kernels/kernel_core.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace parley::ops {

using runtime::errc;
using tuning::guided_plan;
using tuning::kernel_plan;

const tuning::result_entry* remembered(tunable_context& context, std::string_view name, const kernel_entry& e) {
  const tuning::result_entry* known = context.remembered(name, e.parameters);
  for (const std::string& text : e.other_texts) {
    if (known == nullptr) known = context.remembered(name, text);
  }
  return known;
}

kernel_core::kernel_core(tunable_context& context, std::string name, const std::vector<std::string>& ids,
                         std::vector<std::string> families, key_texts texts, kernel_device* device)
    : context_(context), name_(std::move(name)), texts_(std::move(texts)), device_(device) {
  const std::string title = "kernel " + name_;
  if (auto key = tuning::checked({name_}); !key) runtime::raise({errc::bad_argument, title + ": " + key.reason().text});
  if (ids.empty())
    runtime::raise({errc::bad_argument, title + " has no implementation; list at least its default, first"});
  append(identities_of(ids), families);
  for_all_keys_ = ids_.size();
  claim_ = context_.claim(name_);
}

std::vector<tuning::config_identity> kernel_core::identities_of(const std::vector<std::string>& ids) const {
  std::vector<tuning::config_identity> all;
  for (const std::string& id : ids) {
    auto parsed = tuning::parse_config_id(id);
    if (!parsed) runtime::raise({errc::bad_argument, "kernel " + name_ + ": " + parsed.reason().text});
    all.push_back(std::move(parsed).value());
  }
  return all;
}

void kernel_core::append(std::vector<tuning::config_identity> added, const std::vector<std::string>& families) {
  const auto listed = tuning::catalogue::make(std::move(added));
  if (!listed) runtime::raise({errc::bad_argument, "kernel " + name_ + ": " + listed.reason().text});
  for (std::size_t i = 0; i < listed.value().size(); ++i) {
    const tuning::catalogue::entry& c = listed.value()[i];
    number_of_.emplace(c.id, static_cast<std::uint32_t>(ids_.size()));
    implementations_.push_back({c.identity, c.id, c.digest, families[i]});
    ids_.push_back(c.id);
  }
  for (const std::string& family : std::set<std::string>(families.begin(), families.end()))
    context_.meet_family(family);
}

std::vector<std::uint32_t> kernel_core::set_own(kernel_entry& e, const std::vector<std::string>& ids,
                                                const std::vector<std::string>& families, others o) {
  std::vector<tuning::config_identity> identities = identities_of(ids), added;
  std::vector<std::string> texts, families_of_added;
  std::set<std::string> met;  // a list may name one twice
  for (std::size_t i = 0; i < ids.size(); ++i) {
    texts.push_back(tuning::config_id(identities[i]));
    const auto known = number_of_.find(texts.back());
    if (!met.insert(texts.back()).second) continue;
    if (known == number_of_.end()) {
      added.push_back(std::move(identities[i]));
      families_of_added.push_back(families[i]);
    } else if (known->second < for_all_keys_) {
      runtime::raise({errc::bad_argument, "kernel " + name_ + ": " + ids[i] + " exists for all keys already"});
    }
  }
  if (!added.empty()) append(std::move(added), families_of_added);
  if (o == others::wanted) e.own.clear();
  e.has_all_own = e.has_all_own || o == others::wanted;
  std::vector<std::uint32_t> numbers;
  for (const std::string& text : texts) {
    numbers.push_back(number_of_.find(text)->second);
    if (std::find(e.own.begin(), e.own.end(), numbers.back()) == e.own.end()) e.own.push_back(numbers.back());
  }
  return numbers;
}

std::vector<std::uint32_t> kernel_core::candidates(const kernel_entry& e) const {
  std::vector<std::uint32_t> all(for_all_keys_);
  std::iota(all.begin(), all.end(), std::uint32_t{0});
  all.insert(all.end(), e.own.begin(), e.own.end());
  return all;
}

std::optional<std::uint32_t> kernel_core::find(std::string_view solution) const noexcept {
  if (solution == tuning::pinned_default) return 0;
  const auto known = number_of_.find(solution);
  return known == number_of_.end() ? std::nullopt : std::optional(known->second);
}

kernel_entry& kernel_core::look_up(const tuning::kernel_key& key) {
  kernel_entry*& found = by_key_[key];
  if (found == nullptr) {
    std::vector<std::string> texts;
    if (texts_) {
      texts = texts_(key);
    } else {
      auto text = tuning::parameters_text(key);
      if (!text) {
        by_key_.erase(key);
        runtime::raise({errc::bad_argument, "kernel " + name_ + ": " + text.reason().text});
      }
      texts.push_back(std::move(text).value());
    }
    // Different keys may have the same text.
    auto& entry = entries_[texts.front()];
    if (entry == nullptr) {
      entry = std::make_unique<kernel_entry>();
      entry->parameters = texts.front();
      entry->other_texts.assign(texts.begin() + 1, texts.end());
      entry->title = name_ + ", " + entry->parameters;
    }
    found = entry.get();
  }
  latest_key_ = key;
  latest_ = found;
  return *found;
}

// What exists for some keys only is asked for anew, because it may not exist for this one.
std::optional<std::uint32_t> kernel_core::find(const kernel_entry& e, const std::string& solution,
                                               const own_source& own) const {
  const auto parsed = tuning::parse_config_id(solution);
  const std::string id = parsed ? tuning::config_id(parsed.value()) : solution;
  const auto known = find(id);
  if (!own || (known && *known < for_all_keys_)) return known;
  own({id}, others::not_wanted);
  const auto found = find(id);
  const bool exists = found && std::find(e.own.begin(), e.own.end(), *found) != e.own.end();
  return exists ? found : std::nullopt;
}

void kernel_core::recall(kernel_entry& e, const own_source& own) {
  if (e.looked_up == context_.version()) return;
  e.looked_up = context_.version();
  const tuning::result_entry* const known = remembered(context_, name_, e);
  e.looked_up = context_.version();  // again, because the lookup may have opened a file
  if (follow_rule(e, own) || known == nullptr) return;
  const auto solution = find(e, known->solution, own);
  if (!solution) {
    e.passed_over = "`" + known->solution + "` of the results file is none of its implementations";
    context_.warn("kernel " + name_ + ", " + e.parameters + ": " + e.passed_over + "; it is tuned again");
    return;
  }
  if (const std::string why = why_left_out(e, *solution); !why.empty()) {
    e.passed_over = "`" + known->solution + "` of the results file is not run, because " + why;
    return;
  }
  e.winner = *solution;
  e.decided = true;
  e.time_ms = known->time_ms;
  e.why = known->pins_default() ? "pinned in the results file" : "remembered";
  context_.note(2, name_ + " " + e.parameters + ": " + ids_[e.winner] + ", " + e.why);
}

kernel_core::ruled kernel_core::rule_of(const kernel_entry& e, const own_source& own) const {
  const tuning::rule* const rule = context_.rule_for(name_, e.parameters);
  if (rule == nullptr) return {};
  ruled all{rule->place, find(e, rule->config, own)};
  const std::string forbidden = all.implementation ? why_left_out(e, *all.implementation) : std::string();
  if (all.implementation && forbidden.empty()) return all;
  all.why_not = rule->place + " names " + rule->config + ", which is " +
                (all.implementation ? "not run, because " + forbidden : "none of its implementations");
  all.implementation.reset();
  return all;
}

// Returns whether a rule has decided.
bool kernel_core::follow_rule(kernel_entry& e, const own_source& own) {
  const ruled by = rule_of(e, own);
  if (!by.implementation) {
    if (by.place.empty()) return false;
    e.passed_over = by.why_not;
    context_.warn("kernel " + name_ + ", " + e.parameters + ": " + e.passed_over);
    return false;
  }
  e.winner = *by.implementation;
  e.decided = true;
  e.why = by.place + " names it";
  context_.note(2, name_ + " " + e.parameters + ": " + ids_[e.winner] + ", " + e.why);
  return true;
}

void kernel_core::check_caller(const kernel_entry& e) const {
  if (e.runs_now != nullptr) runtime::refuse_own_call(title_of(e), *e.runs_now);
  runtime::check_call(context_.where(), title_of(e));
}

/// False if there is no choice. If a switch is the cause, the entry stays undecided, because the switch may be different at the next call.
bool kernel_core::has_choice(kernel_entry& e, outputs o, bool knows_own) {
  const std::vector<std::uint32_t> all = candidates(e);
  bool any = false;
  for (std::size_t i = 1; i < all.size() && !any; ++i) any = why_left_out(e, all[i]).empty();
  if (all.size() == 1 && knows_own) {
    e.decided = true;
    e.why = "it has no other implementation";
  } else if (o == outputs::cannot) {
    e.why = "NUMERICAL_CHECK is on, and the kernel declares no outputs";
    if (!std::exchange(warned_of_check_, true))
      context_.warn("kernel " + name_ +
                    ": NUMERICAL_CHECK is on, but the kernel declares no outputs; only its default runs");
  } else if (!any && knows_own) {
    e.why = "none of its other implementations may run: " + why_left_out(e, all[1]);
  } else {
    e.why.clear();
    return true;
  }
  return false;
}

kernel_core::way kernel_core::prepare(kernel_entry& e, outputs o, const own_source& own) {
  check_caller(e);
  if (e.decided) return way::run_winner;
  recall(e, own);
  if (e.decided || e.being_tuned) return way::run_winner;
  if (own && !e.has_all_own && context_.is_tuning_enabled()) own(winners_nearby(e), others::wanted);
  if (!has_choice(e, o, !own || e.has_all_own)) return way::run_winner;
  if (context_.is_tuning_enabled()) {
    const std::string not_now = device_ == nullptr ? std::string() : device_->why_not_now();
    if (not_now.empty()) return way::tune;
    e.why = "it could not be tuned yet: " + not_now;
    return way::run_winner;
  }
  e.why = "tuning is switched off";
  if (context_.is_record_untuned_enabled()) context_.note_untuned(name_ + "," + e.parameters);
  return way::run_winner;
}

// ---- trials -----------------------------------------------------------------------------------------------------------

std::vector<std::string> kernel_core::winners_nearby(const kernel_entry& e) const {
  return context_.solutions_near(name_, e.parameters, guided_plan::finalists);
}

namespace {

std::vector<tuning::config_identity> identities_of(const kernel_core& core,
                                                   const std::vector<std::uint32_t>& candidates) {
  std::vector<tuning::config_identity> all(candidates.size());
  if (all.size() <= guided_plan::most_of_all) return all;
  for (std::size_t place = 0; place < all.size(); ++place)
    all[place] = core.implementations()[candidates[place]].identity;
  return all;
}

tuning::settings limits_of(const kernel_core& core, kernel_tuning::extent tries) {
  tuning::settings limits = core.context().settings();
  if (tries == kernel_tuning::extent::part_of_all) limits.max_search_duration_ms = 0;
  return limits;
}

/// What is likely to be good: winners of similar keys, and the first of the key's own implementations.
guided_plan::options options_of(const kernel_core& core, const kernel_entry& e,
                                const std::vector<std::uint32_t>& candidates) {
  constexpr std::size_t likely = 16;
  guided_plan::options o;
  if (core.device() != nullptr) o.where = kernel_plan::place::device;
  const std::size_t own = candidates.size() - core.for_all_keys();
  // Those for all keys, such as a library's own choice, are few if there are others.
  for (std::size_t i = 1; own != 0 && i < core.for_all_keys(); ++i) o.hints.push_back(i);
  for (std::size_t i = 0; i < std::min(likely, own); ++i) o.hints.push_back(core.for_all_keys() + i);
  for (const std::string& winner : core.winners_nearby(e)) {
    const auto known = core.find(winner);
    const auto at = std::find(candidates.begin(), candidates.end(), known.value_or(0));
    if (known && at != candidates.end()) o.hints.push_back(static_cast<std::size_t>(at - candidates.begin()));
  }
  return o;
}

}  // namespace

// Ranks share only what exists on all of them.
std::vector<std::uint32_t> kernel_tuning::candidates_of(const kernel_core& core, const kernel_entry& e, extent tries) {
  std::vector<std::uint32_t> all = core.candidates(e);
  if (tries == extent::part_of_all) all.resize(core.for_all_keys());
  return all;
}

kernel_tuning::kernel_tuning(const kernel_core& core, kernel_entry& e, kernel_outputs outputs, extent tries)
    : core_(core), entry_(e), candidates_(candidates_of(core, e, tries)), outputs_(std::move(outputs)),
      plan_(
          identities_of(core, candidates_), limits_of(core, tries),
          core.context().is_numerics_check_enabled() ? kernel_plan::checks::against_default : kernel_plan::checks::none,
          options_of(core, e, candidates_)) {
  since_ns_ = core.context().where().precise_now();
  for (std::size_t place = 1; place < candidates_.size(); ++place) {
    if (std::string why = core_.why_left_out(e, candidates_[place]); !why.empty()) plan_.drop(place, std::move(why));
  }
  if (outputs_.updated()) before_ = outputs_.save();
  entry_.being_tuned = true;  // the last statement: a constructor that throws has no destructor to take it back
}

void kernel_tuning::leave_out(std::size_t implementation, std::string why) {
  const auto at = std::find(candidates_.begin(), candidates_.end(), implementation);
  if (at != candidates_.end()) plan_.drop(static_cast<std::size_t>(at - candidates_.begin()), std::move(why));
}

std::optional<tuning::trial> kernel_tuning::next() {
  const auto step = plan_.next();
  if (!step) return step;
  step_ = *step;
  using act = tuning::trial_kind;
  const bool compared = step_.what == act::reference || step_.what == act::check;
  if (compared && outputs_.updated()) outputs_.restore(before_);
  if (compared && !outputs_.updated()) outputs_.fill();
  if (!compared) core_.context().evict(core_.device());
  if (core_.device() != nullptr) timer_.emplace(*core_.device());
  began_ns_ = core_.context().where().precise_now();
  tuning::trial of_kernel = step_;
  of_kernel.candidate = candidates_[step_.candidate];
  return of_kernel;
}

void kernel_tuning::end(const std::exception_ptr& thrown) {
  const auto leave_out = [this](const std::string& why) {
    core_.context().warn("kernel " + core_.name() + ", " + entry_.parameters + ": " + id_of(step_.candidate) +
                         " is left out: " + why);
    plan_.failed(why);
  };
  if (thrown) {
    const runtime::error why = runtime::describe(thrown);
    if (step_.candidate == 0 || why.code() == errc::cancelled) {
      restore_outputs();
      std::rethrow_exception(thrown);
    }
    return leave_out("it throws: " + why.what());
  }
  const double on_device_ns = timer_ ? took_on_device_ns() : 0;
  const time_ns ended_ns = core_.context().where().precise_now();
  if (timer_) began_ns_ = ended_ns - static_cast<time_ns>(on_device_ns);
  timer_.reset();
  if (step_.what == tuning::trial_kind::reference) reference_ = outputs_.save();
  if (step_.what == tuning::trial_kind::check) {
    std::string wrong = outputs_.compare(reference_, core_.context().settings().check);
    if (!wrong.empty()) return leave_out("wrong numbers: " + wrong);
  }
  plan_.ended(began_ns_, ended_ns);
}

// After a fault, or with a kernel that never ends, CUDA lets a process do nothing more on that GPU.
double kernel_tuning::took_on_device_ns() {
  try {
    timer_->end();
    return timer_->took_ns();
  } catch (const runtime::failure& f) {
    const std::string& id = id_of(step_.candidate);
    std::string what = "kernel " + core_.name() + ", " + entry_.parameters + ": the GPU failed while " + id +
                       " ran: " + std::string(f.reason().text());
    if (step_.candidate != 0)
      what += "; start again with a rule that leaves it out: " + core_.name() + "," + entry_.parameters + ",^" + id;
    runtime::raise({f.reason().code(), what});
  }
}

void kernel_tuning::restore_outputs() {
  if (outputs_.updated()) outputs_.restore(before_);
}

std::vector<tuning::aggregate> kernel_tuning::times() {
  restore_outputs();
  std::vector<tuning::aggregate> all(core_.ids().size());
  for (std::size_t place = 0; place < candidates_.size(); ++place) all[candidates_[place]] = plan_.result_of(place);
  return all;
}

// Of very many implementations, only those that were compared or failed. The default is one of them.
bool kernel_tuning::is_worth_a_line(std::size_t place) const {
  return candidates_.size() <= guided_plan::most_of_all ||
         plan_.result_of(place).status != tuning::aggregate_status::not_tried;
}

ops::decision kernel_tuning::decision_of(const tuning::decision& best) const {
  const tunable_context& context = core_.context();
  const rank_id self = context.ordinal();
  ops::decision d;
  d.decided = true;
  d.config = d.here = id_of(best.winner);
  d.digest = core_.implementations()[candidates_[best.winner]].digest;
  d.time_ns = plan_.result_of(best.winner).time_ns;
  d.why = entry_.why;
  d.ranks.push_back({self, d.config});
  d.confidence = best.confidence;
  d.search = d.version = 1;
  d.trials = plan_.timed_runs();
  d.cost_ns = static_cast<double>(context.where().precise_now() - since_ns_);
  for (std::size_t place = 0; place < candidates_.size(); ++place) {
    const tuning::aggregate& a = plan_.result_of(place);
    if (!is_worth_a_line(place)) {
      ++d.left_out;
      continue;
    }
    const auto runs = static_cast<std::uint32_t>(a.count);
    candidate_evidence& e = d.evidence.emplace_back();
    e.config = id_of(place);
    e.digest = core_.implementations()[candidates_[place]].digest;
    e.time_ns = a.time_ns;
    e.spread_ns = a.spread_ns;
    e.repetitions = runs;
    e.status = tuning::name(a.status);
    e.detail = a.detail;
    e.proposer = self;
    e.ranks.push_back({self, a.time_ns, a.fastest_ns, a.spread_ns, runs, e.status, {}});
  }
  return d;
}

std::uint32_t kernel_tuning::finish() {
  std::vector<std::string> names;
  for (const std::uint32_t i : candidates_) names.push_back(core_.ids()[i]);
  const tuning::decision best = plan_.decide(names);
  entry_.winner = candidates_[best.winner];
  entry_.decided = true;
  entry_.why = best.sentence;
  if (!entry_.passed_over.empty()) entry_.why += "; " + entry_.passed_over;
  tunable_context& context = core_.context();
  const std::string title = core_.name() + " " + entry_.parameters;
  context.note(2, title + ": " + core_.ids()[entry_.winner] + ", " + entry_.why);
  for (std::size_t place = 0; place < candidates_.size(); ++place) {
    const tuning::aggregate& a = plan_.result_of(place);
    if (!is_worth_a_line(place)) continue;
    context.note(3, title + ":   " + id_of(place) + ": " +
                        (a.measured() ? std::to_string(a.time_ns / 1e6) + " ms, " + std::to_string(a.count) + " runs"
                                      : a.detail));
  }
  if (const tuning::aggregate& a = plan_.result_of(best.winner); a.measured()) {
    entry_.time_ms = a.time_ns / 1e6;
    context.learn({core_.name(), entry_.parameters, core_.ids()[entry_.winner], entry_.time_ms}, decision_of(best));
  }
  restore_outputs();
  return entry_.winner;
}

}  // namespace parley::ops
