#include <parley/ops/kernels/kernel_core.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
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
                         std::vector<std::string> families, key_texts texts)
    : context_(context), name_(std::move(name)), texts_(std::move(texts)) {
  const std::string title = "kernel " + name_;
  if (auto key = tuning::checked({name_}); !key) runtime::raise({errc::bad_argument, title + ": " + key.reason().text});
  if (ids.empty())
    runtime::raise({errc::bad_argument, title + " has no implementation; list at least its default, first"});
  std::vector<tuning::config_identity> identities;
  for (const std::string& id : ids) {
    auto parsed = tuning::parse_config_id(id);
    if (!parsed) runtime::raise({errc::bad_argument, title + ": " + parsed.reason().text});
    identities.push_back(std::move(parsed).value());
  }
  const auto listed = tuning::catalogue::make(std::move(identities));
  if (!listed) runtime::raise({errc::bad_argument, title + ": " + listed.reason().text});
  for (std::size_t i = 0; i < listed.value().size(); ++i) {
    const tuning::catalogue::entry& c = listed.value()[i];
    implementations_.push_back({c.identity, c.id, c.digest, std::move(families[i])});
    ids_.push_back(c.id);
  }
  for (const implementation& i : implementations_) context_.meet_family(i.family);
  claim_ = context_.claim(name_);
}

std::optional<std::uint32_t> kernel_core::find(std::string_view solution) const noexcept {
  if (solution == tuning::pinned_default) return 0;
  for (std::uint32_t i = 0; i < ids_.size(); ++i) {
    if (ids_[i] == solution) return i;
  }
  return std::nullopt;
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

void kernel_core::recall(kernel_entry& e) {
  if (e.looked_up == context_.version()) return;
  e.looked_up = context_.version();
  const tuning::result_entry* const known = remembered(context_, name_, e);
  e.looked_up = context_.version();  // again, because the lookup may have opened a file
  if (follow_rule(e) || known == nullptr) return;
  const auto solution = find(known->solution);
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

kernel_core::ruled kernel_core::rule_of(const kernel_entry& e) const {
  const tuning::rule* const rule = context_.rule_for(name_, e.parameters);
  if (rule == nullptr) return {};
  ruled all{rule->place, find(rule->config)};
  const std::string forbidden = all.implementation ? why_left_out(e, *all.implementation) : std::string();
  if (all.implementation && forbidden.empty()) return all;
  all.why_not = rule->place + " names " + rule->config + ", which is " +
                (all.implementation ? "not run, because " + forbidden : "none of its implementations");
  all.implementation.reset();
  return all;
}

// Returns whether a rule has decided.
bool kernel_core::follow_rule(kernel_entry& e) {
  const ruled by = rule_of(e);
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
bool kernel_core::has_choice(kernel_entry& e, outputs o) {
  bool any = false;
  for (std::size_t i = 1; i < ids_.size(); ++i) any = any || why_left_out(e, i).empty();
  if (ids_.size() == 1) {
    e.decided = true;
    e.why = "it has no other implementation";
  } else if (o == outputs::cannot) {
    e.why = "NUMERICAL_CHECK is on, and the kernel declares no outputs";
    if (!std::exchange(warned_of_check_, true))
      context_.warn("kernel " + name_ +
                    ": NUMERICAL_CHECK is on, but the kernel declares no outputs; only its default runs");
  } else if (!any) {
    e.why = "none of its other implementations may run: " + why_left_out(e, 1);
  } else {
    e.why.clear();
    return true;
  }
  return false;
}

kernel_core::way kernel_core::prepare(kernel_entry& e, outputs o) {
  check_caller(e);
  if (e.decided) return way::run_winner;
  recall(e);
  if (e.decided || e.being_tuned) return way::run_winner;
  if (!has_choice(e, o)) return way::run_winner;
  if (context_.is_tuning_enabled()) return way::tune;
  e.why = "tuning is switched off";
  if (context_.is_record_untuned_enabled()) context_.note_untuned(name_ + "," + e.parameters);
  return way::run_winner;
}

// ---- trials -----------------------------------------------------------------------------------------------------------

namespace {
std::vector<tuning::config_identity> identities_of(const kernel_core& core) {
  std::vector<tuning::config_identity> all;
  if (core.ids().size() <= guided_plan::most_of_all) return std::vector<tuning::config_identity>(core.ids().size());
  for (const kernel_core::implementation& i : core.implementations()) all.push_back(i.identity);
  return all;
}
}  // namespace

void kernel_core::note_winner(std::size_t i) const {
  std::erase(recent_winners_, i);
  recent_winners_.insert(recent_winners_.begin(), i);
  if (recent_winners_.size() > guided_plan::finalists) recent_winners_.pop_back();
}

namespace {
tuning::settings limits_of(const kernel_core& core, kernel_tuning::extent tries) {
  tuning::settings limits = core.context().settings();
  if (tries == kernel_tuning::extent::part_of_all) limits.max_search_duration_ms = 0;
  return limits;
}
}  // namespace

kernel_tuning::kernel_tuning(const kernel_core& core, kernel_entry& e, kernel_outputs outputs, extent tries)
    : core_(core), entry_(e), outputs_(std::move(outputs)),
      plan_(
          identities_of(core), limits_of(core, tries),
          core.context().is_numerics_check_enabled() ? kernel_plan::checks::against_default : kernel_plan::checks::none,
          {.hints = core.recent_winners()}) {
  entry_.being_tuned = true;
  since_ns_ = core.context().where().precise_now();
  for (std::size_t i = 1; i < core_.ids().size(); ++i) {
    if (std::string why = core_.why_left_out(e, i); !why.empty()) plan_.drop(i, std::move(why));
  }
  if (outputs_.updated()) before_ = outputs_.save();
}

std::optional<tuning::trial> kernel_tuning::next() {
  const auto step = plan_.next();
  if (!step) return step;
  step_ = *step;
  using act = tuning::trial_kind;
  const bool compared = step_.what == act::reference || step_.what == act::check;
  if (compared && outputs_.updated()) outputs_.restore(before_);
  if (compared && !outputs_.updated()) outputs_.fill();
  if (!compared) core_.context().evict();
  began_ns_ = core_.context().where().precise_now();
  return step;
}

void kernel_tuning::end(const std::exception_ptr& thrown) {
  const time_ns ended_ns = core_.context().where().precise_now();
  const auto leave_out = [this](const std::string& why) {
    core_.context().warn("kernel " + core_.name() + ", " + entry_.parameters + ": " + core_.ids()[step_.candidate] +
                         " is left out: " + why);
    plan_.failed(why);
  };
  if (thrown) {
    const runtime::error why = runtime::describe(thrown);
    if (step_.candidate == 0 || why.code() == errc::cancelled) std::rethrow_exception(thrown);
    return leave_out("it throws: " + why.what());
  }
  if (step_.what == tuning::trial_kind::reference) reference_ = outputs_.save();
  if (step_.what == tuning::trial_kind::check) {
    std::string wrong = outputs_.compare(reference_, core_.context().settings().check);
    if (!wrong.empty()) return leave_out("wrong numbers: " + wrong);
  }
  plan_.ended(began_ns_, ended_ns);
}

void kernel_tuning::restore_outputs() {
  if (outputs_.updated()) outputs_.restore(before_);
}

std::vector<tuning::aggregate> kernel_tuning::times() {
  restore_outputs();
  std::vector<tuning::aggregate> all;
  for (std::size_t i = 0; i < core_.ids().size(); ++i) all.push_back(plan_.result_of(i));
  return all;
}

// Of very many implementations, only those that were compared or failed. The default is one of them.
bool kernel_tuning::is_worth_a_line(std::size_t i) const {
  return core_.ids().size() <= guided_plan::most_of_all ||
         plan_.result_of(i).status != tuning::aggregate_status::not_tried;
}

ops::decision kernel_tuning::decision_of(const tuning::decision& best) const {
  const tunable_context& context = core_.context();
  const rank_id self = context.ordinal();
  ops::decision d;
  d.decided = true;
  d.config = d.here = core_.ids()[best.winner];
  d.digest = core_.implementations()[best.winner].digest;
  d.time_ns = plan_.result_of(best.winner).time_ns;
  d.why = entry_.why;
  d.ranks.push_back({self, d.config});
  d.confidence = best.confidence;
  d.search = d.version = 1;
  d.trials = plan_.timed_runs();
  d.cost_ns = static_cast<double>(context.where().precise_now() - since_ns_);
  for (std::size_t i = 0; i < core_.ids().size(); ++i) {
    const tuning::aggregate& a = plan_.result_of(i);
    if (!is_worth_a_line(i)) {
      ++d.left_out;
      continue;
    }
    const auto runs = static_cast<std::uint32_t>(a.count);
    candidate_evidence& e = d.evidence.emplace_back();
    e.config = core_.ids()[i];
    e.digest = core_.implementations()[i].digest;
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
  const tuning::decision best = plan_.decide(core_.ids());
  entry_.winner = static_cast<std::uint32_t>(best.winner);
  core_.note_winner(best.winner);
  entry_.decided = true;
  entry_.why = best.sentence;
  if (!entry_.passed_over.empty()) entry_.why += "; " + entry_.passed_over;
  tunable_context& context = core_.context();
  const std::string title = core_.name() + " " + entry_.parameters;
  context.note(2, title + ": " + core_.ids()[best.winner] + ", " + entry_.why);
  for (std::size_t i = 0; i < core_.ids().size(); ++i) {
    const tuning::aggregate& a = plan_.result_of(i);
    if (!is_worth_a_line(i)) continue;
    context.note(3, title + ":   " + core_.ids()[i] + ": " +
                        (a.measured() ? std::to_string(a.time_ns / 1e6) + " ms, " + std::to_string(a.count) + " runs"
                                      : a.detail));
  }
  if (const tuning::aggregate& a = plan_.result_of(best.winner); a.measured()) {
    entry_.time_ms = a.time_ns / 1e6;
    context.learn({core_.name(), entry_.parameters, core_.ids()[best.winner], entry_.time_ms}, decision_of(best));
  }
  restore_outputs();
  return entry_.winner;
}

}  // namespace parley::ops
