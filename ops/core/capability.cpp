#include <parley/ops/core/capability.hpp>

#include <exception>

namespace parley::ops {

using runtime::errc;

namespace {
void leave_out(capabilities& found, std::size_t i, const op_config& config, const std::string& why) {
  found.available.clear(i);
  found.missing.push_back(config.id() + ": " + why);
}

// The text of an exception of any type that the user's code threw.
std::string thrown_by(std::string_view question) {
  const runtime::error what = runtime::describe(std::current_exception());
  const std::string asked = std::string(question) + " threw ";
  if (what.code() != errc::exception) return asked + what.what();
  return asked + (what.text().empty() ? "an object that is not a std::exception" : "\"" + what.text() + "\"");
}

// Returns a text about the requirements of the config that the machine does not meet; empty if it meets all.
std::string what_lacks(const machine* on, const op_config& config, bool by_name = true) {
  if (on == nullptr) return {};
  if (const auto named = on->lets_run(config.identity().name); by_name && !named) return named.reason().text();
  for (const std::string& r : config.requirements()) {
    if (const auto there = on->has(r); !there) return "it needs " + r + ": " + there.reason().text();
  }
  return {};
}
}  // namespace

void ask_each(capabilities& found, const std::vector<const op_config*>& configs, std::string_view question,
              const std::function<std::string(std::size_t index)>& why_not) {
  for (std::size_t i = 1; i < configs.size(); ++i) {  // the default is available, or the declaration has failed
    if (!found.available.test(i)) continue;
    std::string why;
    try {
      why = why_not(i);
    } catch (...) {
      why = thrown_by(question);
      found.faults.push_back("config " + configs[i]->id() + ": " + why + "; it will not be tried");
    }
    if (!why.empty()) leave_out(found, i, *configs[i], why);
  }
}

namespace {
[[noreturn]] void refuse(std::string_view op, runtime::rank_id self, const op_config& config, const std::string& why) {
  runtime::raise(runtime::error::in_words(
      errc::bad_argument, {.op = std::string(op), .rank = self, .config = config.id()}, std::string(op) + ": " + why));
}

// Otherwise a misspelt name would silently be a capability that every machine has, or one that no machine has.
void check_requirements(std::string_view what, runtime::rank_id self, const op_config& config) {
  std::vector<std::string> required;
  try {
    required = config.requirements();
  } catch (...) {
    return;  // `what_lacks` asks again, and the exception becomes the reason why the config cannot run
  }
  for (const std::string& r : required) {
    const auto known = machine::is_capability(r);
    if (!known) refuse(what, self, config, "config " + config.id() + " requires " + known.reason().text());
  }
}
}  // namespace

namespace {
// The reason why this rank says that it cannot run the default; empty: it can. The default's own name does not count as a requirement: a
// default may be called like a capability, such as `nccl`, without needing it.
std::string why_not_default(const machine* on, const op_config& config, bool asks_itself) {
  const bool by_name = !machine::is_capability(config.identity().name);
  if (std::string lacks = what_lacks(on, config, by_name); !lacks.empty() || !asks_itself) return lacks;
  const auto can = config.available();
  return can ? std::string() : can.reason().what();
}

// Ranks run the default before they have agreed, and fall back to it. So it must run everywhere.
void check_default(std::string_view what, runtime::rank_id self, const machine* on, const op_config& config,
                   bool asks_itself) {
  std::string why;
  try {
    why = why_not_default(on, config, asks_itself);
  } catch (...) {
    why = thrown_by("`available()`");
  }
  if (!why.empty())
    refuse(what, self, config,
           "rank " + std::to_string(self) + " cannot run " + config.id() + ", which is the default and must run on " +
               "every rank: " + why + "; list a config first that all ranks can run");
}
}  // namespace

capabilities capabilities_of(std::string_view what, runtime::rank_id self, const machine* on,
                             const std::vector<const op_config*>& configs, const capability_function& capable) {
  for (const op_config* c : configs) check_requirements(what, self, *c);
  if (!configs.empty()) check_default(what, self, on, *configs[0], !capable);
  capabilities found;
  found.available = tuning::bits(configs.size(), tuning::bit::set);
  ask_each(found, configs, "`requirements()`", [&](std::size_t i) { return what_lacks(on, *configs[i]); });
  if (!capable) {
    ask_each(found, configs, "`available()`", [&](std::size_t i) {
      const auto can = configs[i]->available();
      return can ? std::string() : can.reason().what();
    });
    return found;
  }
  std::vector<bool> answer;
  std::string thrown;
  try {
    answer = capable(self);
  } catch (...) {
    thrown = thrown_by("its capability function, asked about rank " + std::to_string(self) + ",");
    found.faults.push_back(thrown + "; none of its configs but the default will be tried");
  }
  if (thrown.empty() && answer.size() != configs.size())
    runtime::raise({errc::bad_argument, std::string(what) + ": the capability function of rank " +
                                            std::to_string(self) + " returned " + std::to_string(answer.size()) +
                                            " answers, but the op has " + std::to_string(configs.size()) +
                                            " configs; return one answer per config, in their order"});
  if (thrown.empty() && !answer[0])
    refuse(what, self, *configs[0],
           "the capability function of rank " + std::to_string(self) + " says that it cannot run " + configs[0]->id() +
               ", which is the default and must run on every rank; list a config first that all ranks can run");
  for (std::size_t i = 1; i < configs.size(); ++i) {
    if (!found.available.test(i)) continue;
    const std::string why = !thrown.empty() ? thrown
                            : answer[i]     ? ""
                                            : "the capability function of rank " + std::to_string(self) + " says no";
    if (!why.empty()) leave_out(found, i, *configs[i], why);
  }
  return found;
}

void leave_default(capabilities& found, const std::vector<const op_config*>& configs, const std::string& why) {
  for (std::size_t i = 1; i < configs.size(); ++i) {
    if (found.available.test(i)) leave_out(found, i, *configs[i], why);
  }
}

void add_limits(capabilities& found, const std::vector<const op_config*>& configs, const tuning::constraints& user,
                const std::function<tuning::demands(std::size_t index)>& demands_of) {
  for (std::size_t i = 1; i < configs.size(); ++i) {  // c0 is always allowed
    tuning::demands demanded;
    try {
      demanded = demands_of(i);
    } catch (...) {
      if (!found.available.test(i)) continue;  // it has its reason already
      leave_out(found, i, *configs[i], thrown_by("asking for its demands"));
      found.faults.push_back("config " + found.missing.back() + "; it will not be tried");
      continue;
    }
    if (demanded.relative_error != 0) found.inexact.push_back(configs[i]->digest());
    for (const tuning::broken_constraint& b : tuning::broken_by(demanded, user)) {
      actors::wire_limit l;
      l.config = static_cast<std::uint32_t>(i);
      l.kind = b.kind;
      l.largest_bytes = b.largest_bytes;
      l.needs = b.needs;
      l.allowed = b.allowed;
      found.limits.push_back(l);
    }
  }
}

}  // namespace parley::ops
