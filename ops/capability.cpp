#include <parley/ops/capability.hpp>

#include <exception>

namespace parley::ops {

using runtime::errc;

capability_function asked_now(const capability_function& capable, runtime::rank_id self) {
  if (!capable) return {};
  try {
    return [answer = capable(self)](runtime::rank_id) { return answer; };
  } catch (...) {
    return
        [thrown = std::current_exception()](runtime::rank_id) -> std::vector<bool> { std::rethrow_exception(thrown); };
  }
}

capabilities capabilities_of(std::string_view what, runtime::rank_id self, const std::vector<const op_config*>& configs,
                             const capability_function& capable) {
  capabilities found;
  found.available = tuning::bits(configs.size(), tuning::bit::set);
  const auto leave_out = [&](std::size_t i, const std::string& why) {
    found.available.clear(i);
    found.missing.push_back(configs[i]->id() + ": " + why);
  };
  const auto ask_each = [&](auto&& why_not) {
    for (std::size_t i = 1; i < configs.size(); ++i) {  // c0 is always there
      const std::string why = why_not(i);
      if (!why.empty()) leave_out(i, why);
    }
  };
  if (!capable) {
    ask_each([&](std::size_t i) -> std::string {
      try {
        const auto can = configs[i]->available();
        return can ? std::string() : can.reason().what();
      } catch (...) {
        return "asking for it threw " + runtime::describe(std::current_exception()).what();
      }
    });
    return found;
  }
  std::vector<bool> answer;
  std::string thrown;
  try {
    answer = capable(self);
  } catch (...) {
    thrown = "the capability function threw " + runtime::describe(std::current_exception()).what();
  }
  if (thrown.empty() && answer.size() != configs.size())
    runtime::raise({errc::bad_argument, std::string(what) + ": the capability function of rank " +
                                            std::to_string(self) + " answers for " + std::to_string(answer.size()) +
                                            " configs, but the op has " + std::to_string(configs.size()) +
                                            "; give one answer per config, in their order"});
  ask_each([&](std::size_t i) -> std::string {
    if (!thrown.empty()) return thrown;
    return answer[i] ? "" : "the capability function of rank " + std::to_string(self) + " says that it has it not";
  });
  return found;
}

std::vector<actors::wire_limit> limits_of(const std::vector<tuning::demands>& demanded,
                                          const tuning::constraints& user) {
  std::vector<actors::wire_limit> all;
  for (std::size_t i = 1; i < demanded.size(); ++i) {  // c0 is always allowed
    for (const tuning::broken_constraint& b : tuning::broken_by(demanded[i], user)) {
      actors::wire_limit l;
      l.config = static_cast<std::uint32_t>(i);
      l.kind = b.kind;
      l.largest_bytes = b.largest_bytes;
      l.needs = b.needs;
      l.allowed = b.allowed;
      all.push_back(l);
    }
  }
  return all;
}

}  // namespace parley::ops
