#include <parley/registration.hpp>

#include <parley/rank.hpp>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::task;

// ---- paired -----------------------------------------------------------------------------------------------------------

registered_pair register_paired_op_autotuning(rank& self, const std::string& send_op, const std::string& recv_op,
                                              const std::vector<paired_entry>& paired_configs,
                                              const role_function& role_fn) {
  const std::string title = "op " + send_op + "+" + recv_op;
  if (!role_fn) runtime::raise({errc::bad_argument, title + " has no role function"});
  std::vector<paired_entry> merged;
  for (const paired_entry& e : paired_configs) {
    const auto same = [&](const paired_entry& m) { return m.config_id == e.config_id; };
    auto at = std::find_if(merged.begin(), merged.end(), same);
    if (at == merged.end()) {
      merged.push_back(e);
      continue;
    }
    if ((e.send != nullptr && at->send != nullptr) || (e.receive != nullptr && at->receive != nullptr))
      runtime::raise({errc::bad_argument, title + ": config " + e.config_id + " has two implementations for one role"});
    if (e.send != nullptr) at->send = e.send;
    if (e.receive != nullptr) at->receive = e.receive;
  }
  registered_pair made;
  transfer_options op;
  op.name = send_op + "+" + recv_op;
  op.configs.clear();
  for (const paired_entry& e : merged) {
    if (e.send == nullptr || e.receive == nullptr) {
      made.left_out.push_back(e.config_id + ": the " + (e.send == nullptr ? "sender" : "receiver") +
                              " has no implementation of it");
      continue;
    }
    auto identity = tuning::parse_config_id(e.config_id);
    if (!identity) runtime::raise({errc::bad_argument, title + ": " + identity.reason().text});
    auto named = std::move(identity).value();
    // Without a wire class, because this code does not know how the two functions cut a payload.
    op.configs.push_back(paired(std::move(named), e.send, e.receive));
  }
  if (op.configs.empty())
    runtime::raise({errc::no_common_config, title + " has no config that both roles implement; give one config_id a "
                                                    "send and a receive function"});
  op.role = [=](rank_id r) {
    const std::string its = role_fn(r);
    if (its == send_op || its == name(role::sender)) return role::sender;
    if (its == recv_op || its == name(role::receiver)) return role::receiver;
    return role::idle;
  };
  made.op = transfer(self, op);
  return made;
}

// ---- per role ---------------------------------------------------------------------------------------------------------

namespace {

const role_operation* operation_of(const std::vector<role_operation>& operations, const std::string& role) {
  const auto at = std::find_if(operations.begin(), operations.end(), [&](const auto& o) { return o.role == role; });
  return at == operations.end() ? nullptr : &*at;
}

/// Throws if the lists cannot work.
void check_lists(const std::string& title, const std::vector<role_operation>& operations,
                 const std::vector<role_config>& configs, const role_function& role_fn) {
  if (!role_fn) runtime::raise({errc::bad_argument, title + " has no role function"});
  for (const role_operation& o : operations) {
    if (std::count_if(operations.begin(), operations.end(), [&](const auto& p) { return p.role == o.role; }) > 1)
      runtime::raise(
          {errc::role_conflict, title + ": role " + o.role + " has two operations; list further ones as configs"});
  }
  for (const role_config& c : configs) {
    if (operation_of(operations, c.role) == nullptr)
      runtime::raise({errc::bad_argument, title + ": config " + c.name + " is for role " + c.role +
                                              ", which has no operation, so no default"});
  }
}

void check_functions(const std::string& title, const std::vector<role_operation>& operations,
                     const std::vector<role_config>& configs, const std::string& of_role = {}) {
  const auto counts = [&](const std::string& role) { return of_role.empty() || role == of_role; };
  for (const role_operation& o : operations) {
    if (counts(o.role) && !o.run)
      runtime::raise({errc::bad_argument, title + ": the operation of role " + o.role + " is null"});
  }
  for (const role_config& c : configs) {
    if (counts(c.role) && !c.run)
      runtime::raise({errc::bad_argument, title + ": config " + c.name + " of role " + c.role + " is null"});
  }
}

std::string no_operation(const std::string& title, rank_id r, const std::string& role) {
  return title + ": rank " + std::to_string(r) + " has the role " + role +
         ", which has no operation; register one, or call the role idle";
}

}  // namespace

role_op register_asymmetric_autotuning(rank& self, const std::string& name,
                                       const std::vector<role_operation>& operations,
                                       const std::vector<role_config>& configs, const role_function& role_fn,
                                       const tuning::constraints& allowed) {
  const std::string title = "op " + name;
  check_lists(title, operations, configs, role_fn);
  check_functions(title, operations, configs);
  role_options o;
  o.name = name;
  o.role = role_fn(self.id());
  o.constraints = allowed;
  const role_operation* const operation = operation_of(operations, o.role);
  if (operation == nullptr) {
    if (o.role == "idle") return {};
    runtime::raise({errc::bad_argument, no_operation(title, self.id(), o.role)});
  }
  const auto add = [&](const std::string& id, const operation_function& run, const tuning::demands& needs) {
    auto identity = tuning::parse_config_id(id);
    if (!identity) runtime::raise({errc::bad_argument, title + ": " + identity.reason().text});
    o.configs.push_back(std::make_shared<role_function_config>(std::move(identity).value(), run, needs));
  };
  add("operation", operation->run, {});
  for (const role_config& c : configs) {
    if (c.role == o.role) add(c.name, c.run, c.needs);
  }
  return {self, o};
}

// ---- roles together ---------------------------------------------------------------------------------------------------

namespace {

/// One function for each role; this rank runs the one of its role.
class combination final : public symmetric_config {
 public:
  combination(tuning::config_identity identity, operation_function run, tuning::demands needs)
      : symmetric_config(std::move(identity)), run_(std::move(run)), needs_(needs) {}
  tuning::demands demands() const override { return needs_; }
  task<> run(symmetric_call, std::span<std::byte> data) const override { return run_(data); }

 private:
  operation_function run_;
  tuning::demands needs_;
};

/// The functions of one role, its operation first.
struct choices {
  std::string role;
  std::vector<std::string> names;
  std::vector<const operation_function*> run;
  std::vector<tuning::demands> needs;
  std::vector<std::string> fits;
};

std::vector<choices> choices_of(const std::vector<role_operation>& operations,
                                const std::vector<role_config>& configs) {
  std::vector<choices> all;
  for (const role_operation& o : operations) {
    choices& its = all.emplace_back(choices{o.role, {"operation"}, {&o.run}, {{}}, {o.fits}});
    for (const role_config& c : configs) {
      if (c.role != o.role) continue;
      its.names.push_back(c.name);
      its.run.push_back(&c.run);
      its.needs.push_back(c.needs);
      its.fits.push_back(c.fits);
    }
  }
  return all;
}

/// A config's id as the value of a parameter: `tiled(rows=64)` becomes `tiled[rows:64]`.
std::string as_value(std::string id) {
  constexpr std::string_view from = "()= ,", to = "[]:++";
  for (char& c : id) {
    if (const std::size_t at = from.find(c); at != std::string_view::npos) c = to[at];
  }
  return id;
}

}  // namespace

symmetric register_coordinated_autotuning(rank& self, const std::string& name,
                                          const std::vector<role_operation>& operations,
                                          const std::vector<role_config>& configs, const role_function& role_fn,
                                          const tuning::constraints& allowed) {
  const std::string title = "op " + name;
  check_lists(title, operations, configs, role_fn);
  const std::string mine = role_fn(self.id());
  check_functions(title, operations, configs, mine);
  symmetric_options o;
  o.name = name;
  o.constraints = allowed;
  for (rank_id r = 0; r < self.world_size(); ++r) {
    const std::string role = role_fn(r);
    if (operation_of(operations, role) != nullptr)
      o.ranks.push_back(r);
    else if (role != "idle")
      runtime::raise({errc::bad_argument, no_operation(title, r, role)});
  }
  if (o.ranks.empty()) return {};
  const std::vector<choices> all = choices_of(operations, configs);
  // Counts through all combinations, the first role's functions fastest.
  std::vector<std::size_t> chosen(all.size());
  const auto next = [&] {
    for (std::size_t role = 0; role < all.size(); ++role) {
      if (++chosen[role] < all[role].names.size()) return true;
      chosen[role] = 0;
    }
    return false;
  };
  const auto fits = [&] {
    for (std::size_t role = 1; role < all.size(); ++role) {
      if (all[role].fits[chosen[role]] != all[0].fits[chosen[0]]) return false;
    }
    return true;
  };
  if (!fits())
    runtime::raise({errc::bad_argument, title + ": the operations of its roles do not fit; give them the same word"});
  do {
    if (!fits()) continue;
    if (o.configs.size() == most_combinations)
      runtime::raise(
          {errc::bad_argument, title + ": its roles have more than " + std::to_string(most_combinations) +
                                   " combinations of configs; list fewer, say which fit together, or let each "
                                   "rank choose by itself (register_asymmetric_autotuning)"});
    tuning::config_identity identity{.name = "together"};
    operation_function run;
    tuning::demands needs;
    for (std::size_t role = 0; role < all.size(); ++role) {
      const choices& c = all[role];
      identity.parameters.emplace_back(c.role, as_value(c.names[chosen[role]]));
      if (c.role != mine) continue;
      run = *c.run[chosen[role]];
      needs = c.needs[chosen[role]];
    }
    auto canonical = tuning::canonical(std::move(identity));
    if (!canonical) runtime::raise({errc::bad_argument, title + ": " + canonical.reason().text});
    o.configs.push_back(std::make_shared<combination>(std::move(canonical).value(), std::move(run), needs));
  } while (next());
  return {self, std::move(o)};
}

// ---- mixed machines ---------------------------------------------------------------------------------------------------

namespace {
template <class Op, class Options, class Config>
Op make_where_capable(rank& self, Options op, std::vector<Config> configs, capability_function capability_check) {
  op.configs = std::move(configs);
  op.can_run = std::move(capability_check);
  return Op(self, std::move(op));
}
}  // namespace

transfer register_heterogeneous_autotuning(rank& self, transfer_options op, std::vector<config_ptr> configs,
                                           capability_function capability_check) {
  return make_where_capable<transfer>(self, std::move(op), std::move(configs), std::move(capability_check));
}

collective register_heterogeneous_autotuning(rank& self, collective_options op, std::vector<group_config_ptr> configs,
                                             capability_function capability_check) {
  return make_where_capable<collective>(self, std::move(op), std::move(configs), std::move(capability_check));
}

symmetric register_heterogeneous_autotuning(rank& self, symmetric_options op, std::vector<symmetric_config_ptr> configs,
                                            capability_function capability_check) {
  return make_where_capable<symmetric>(self, std::move(op), std::move(configs), std::move(capability_check));
}

}  // namespace parley::ops
