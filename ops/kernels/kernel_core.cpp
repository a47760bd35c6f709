#include <parley/ops/kernels/kernel_core.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <utility>

namespace parley::ops {

using runtime::errc;
using tuning::kernel_plan;

kernel_core::kernel_core(tunable_context& context, std::string name, const std::vector<std::string>& ids,
                         std::vector<std::string> families)
    : context_(context), name_(std::move(name)) {
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
    auto text = tuning::parameters_text(key);
    if (!text) {
      by_key_.erase(key);
      runtime::raise({errc::bad_argument, "kernel " + name_ + ": " + text.reason().text});
    }
    // Different keys may have the same text.
    auto& entry = entries_[text.value()];
    if (entry == nullptr) {
      entry = std::make_unique<kernel_entry>();
      entry->parameters = std::move(text).value();
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
  const tuning::result_entry* known = context_.remembered(name_, e.parameters);
  e.looked_up = context_.version();  // again, because the lookup may have opened a file
  if (known == nullptr) return;
  const auto solution = find(known->solution);
  if (!solution) {
    e.passed_over = "`" + known->solution + "` of the results file is none of its implementations";
    context_.warn("kernel " + name_ + ", " + e.parameters + ": " + e.passed_over + "; it is tuned again");
    return;
  }
  e.winner = *solution;
  e.decided = true;
  e.time_ms = known->time_ms;
  e.why = known->pins_default() ? "pinned in the results file" : "remembered";
  context_.note(2, name_ + " " + e.parameters + ": " + ids_[e.winner] + ", " + e.why);
}

void kernel_core::check_caller(const kernel_entry& e) const {
  if (e.runs_now != nullptr) runtime::refuse_own_call(title_of(e), *e.runs_now);
  runtime::check_call(context_.where(), title_of(e));
}

/// False if there is no choice. If a switch is the cause, the entry stays undecided, because the switch may be different at the next call.
bool kernel_core::has_choice(kernel_entry& e, outputs o) {
  const auto on = [this](const implementation& i) { return context_.is_family_enabled(i.family); };
  if (ids_.size() == 1) {
    e.decided = true;
    e.why = "it has no other implementation";
  } else if (o == outputs::cannot) {
    e.why = "NUMERICAL_CHECK is on, and the kernel declares no outputs";
    if (!std::exchange(warned_of_check_, true))
      context_.warn("kernel " + name_ +
                    ": NUMERICAL_CHECK is on, but the kernel declares no outputs; only its default runs");
  } else if (std::none_of(implementations_.begin() + 1, implementations_.end(), on)) {
    e.why = "the families of all its other implementations are switched off";
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

kernel_tuning::kernel_tuning(kernel_core& core, kernel_entry& e, kernel_outputs outputs)
    : core_(core), entry_(e), outputs_(std::move(outputs)),
      plan_(core.ids().size(), core.context().settings(),
            core.context().is_numerics_check_enabled() ? kernel_plan::checks::against_default
                                                       : kernel_plan::checks::none) {
  entry_.being_tuned = true;
  tunable_context& context = core_.context();
  for (std::size_t i = 1; i < core_.ids().size(); ++i) {
    const std::string& family = core_.implementations()[i].family;
    if (!context.is_family_enabled(family)) plan_.drop(i, "family " + family + " is switched off");
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
  const time_ns took_ns = core_.context().where().precise_now() - began_ns_;
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
  plan_.ended(std::max(static_cast<double>(took_ns), 1.0));  // a clock that did not tick is no proof of zero cost
}

std::uint32_t kernel_tuning::finish() {
  const tuning::decision best = plan_.decide(core_.ids());
  entry_.winner = static_cast<std::uint32_t>(best.winner);
  entry_.decided = true;
  entry_.why = best.sentence;
  if (!entry_.passed_over.empty()) entry_.why += "; " + entry_.passed_over;
  tunable_context& context = core_.context();
  const std::string title = core_.name() + " " + entry_.parameters;
  context.note(2, title + ": " + core_.ids()[best.winner] + ", " + entry_.why);
  for (std::size_t i = 0; i < core_.ids().size(); ++i) {
    const tuning::aggregate& a = plan_.result_of(i);
    context.note(3, title + ":   " + core_.ids()[i] + ": " +
                        (a.measured() ? std::to_string(a.time_ns / 1e6) + " ms, " + std::to_string(a.count) + " runs"
                                      : a.detail));
  }
  if (const tuning::aggregate& a = plan_.result_of(best.winner); a.measured()) {
    entry_.time_ms = a.time_ns / 1e6;
    context.learn({core_.name(), entry_.parameters, core_.ids()[best.winner], entry_.time_ms});
  }
  if (outputs_.updated()) outputs_.restore(before_);
  return entry_.winner;
}

}  // namespace parley::ops
