#include <parley/registration.hpp>

#include <parley/rank.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace parley::ops {

using runtime::errc;

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

role_op register_asymmetric_autotuning(rank& self, const std::string& name,
                                       const std::vector<role_operation>& operations,
                                       const std::vector<role_config>& configs, const role_function& role_fn,
                                       const tuning::constraints& allowed) {
  const std::string title = "op " + name;
  if (!role_fn) runtime::raise({errc::bad_argument, title + " has no role function"});
  const auto operation_of = [&](const std::string& role) {
    return std::find_if(operations.begin(), operations.end(), [&](const auto& o) { return o.role == role; });
  };
  for (const role_operation& o : operations) {
    if (!o.run) runtime::raise({errc::bad_argument, title + ": the operation of role " + o.role + " is null"});
    if (std::count_if(operations.begin(), operations.end(), [&](const auto& p) { return p.role == o.role; }) > 1)
      runtime::raise(
          {errc::role_conflict, title + ": role " + o.role + " has two operations; list further ones as configs"});
  }
  for (const role_config& c : configs) {
    if (!c.run) runtime::raise({errc::bad_argument, title + ": config " + c.name + " of role " + c.role + " is null"});
    if (operation_of(c.role) == operations.end())
      runtime::raise({errc::bad_argument, title + ": config " + c.name + " is for role " + c.role +
                                              ", which has no operation, so no default"});
  }
  role_options o;
  o.name = name;
  o.role = role_fn(self.id());
  o.constraints = allowed;
  const auto operation = operation_of(o.role);
  if (operation == operations.end()) {
    if (o.role == "idle") return {};
    runtime::raise({errc::bad_argument, title + ": rank " + std::to_string(self.id()) + " has the role " + o.role +
                                            ", which has no operation; register one, or call the role idle"});
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
