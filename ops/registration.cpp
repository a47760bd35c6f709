#include <parley/ops/registration.hpp>

#include <parley/ops/rank.hpp>

#include <algorithm>
#include <exception>
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
  paired_transfer op;
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
    // Without a wire class: what another config's halves do on the wire is not known here.
    op.configs.push_back(paired(std::move(named), e.send, e.receive));
  }
  if (op.configs.empty())
    runtime::raise({errc::no_common_config, title + " has no config that both roles implement; give one config_id a "
                                                    "send and a receive function"});
  op.role = [=](rank_id r) -> std::string {
    const std::string role = role_fn(r);
    if (role == send_op || role == "sender") return "sender";
    if (role == recv_op || role == "receiver") return "receiver";
    return "idle";
  };
  made.op = self.declare(op);
  return made;
}

// ---- per role ---------------------------------------------------------------------------------------------------------

struct role_op::state {
  state(rank& r, std::string role_name, std::vector<std::uint64_t> digests, std::vector<std::string> names,
        tuning::plan_options plan)
      : self(r), role(std::move(role_name)),
        assigned(digests.front(), names.front(), {}, {r.id()}, actors::tuning_policy::online, plan) {
    candidates = digests;
    assigned.open(std::move(digests), std::move(names), {}, r.where().now());
  }
  rank& self;
  std::string role;
  std::vector<operation_function> implementations;
  std::vector<std::uint64_t> candidates;
  actors::assignment assigned;
  std::uint64_t next = 0;
};

const actors::campaign* role_op::campaign(std::uint64_t bytes) const noexcept {
  return state_ == nullptr ? nullptr : state_->assigned.find(bytes);
}

const std::string& role_op::role() const noexcept {
  static const std::string none = "idle";
  return state_ == nullptr ? none : state_->role;
}

task<> role_op::run(std::span<std::byte> data) {
  if (state_ == nullptr) runtime::raise({errc::bad_argument, "an idle rank has no operation to run"});
  const std::shared_ptr<state> mine = state_;
  runtime::executor& ex = mine->self.where();
  const std::uint64_t n = mine->next++;
  const auto chosen = mine->assigned.choose(data.size(), 0, n, ex.now());
  const auto at = std::find(mine->candidates.begin(), mine->candidates.end(), chosen.digest);
  const operation_function& implementation =
      mine->implementations[static_cast<std::size_t>(at - mine->candidates.begin())];
  std::exception_ptr thrown;
  actors::wire_row row;
  row.invocation = n;
  row.digest = chosen.digest;
  row.start_ns = ex.precise_now();
  runtime::scope& here = co_await runtime::this_scope;
  runtime::work_meter meter(ex);
  runtime::scope measured(here, {.meter = &meter});
  measured.spawn(implementation(data));
  try {
    co_await measured.join();
  } catch (...) {
    thrown = std::current_exception();
  }
  row.end_ns = row.start_ns + meter.worked_ns();
  const bool gave_up = thrown && runtime::describe(thrown).code() == errc::cancelled;
  row.status = static_cast<std::uint8_t>(thrown ? tuning::row_status::failed : tuning::row_status::ok);
  if (has(chosen.flags, actors::stamp_flags::timed) && gave_up) {
    mine->assigned.withdraw(0, n);
  } else if (has(chosen.flags, actors::stamp_flags::timed)) {
    mine->assigned.add_row(mine->self.id(), row);
  }
  if (!thrown && at == mine->candidates.begin()) mine->assigned.note_default(data.size(), row.end_ns - row.start_ns);
  if (thrown && !gave_up)
    mine->assigned.quarantine(data.size(), chosen.digest, ex.now(), "it threw " + runtime::describe(thrown).what());
  while (actors::campaign* c = mine->assigned.ready_to_judge(ex.now())) mine->assigned.judge(*c, ex.now());
  if (thrown) std::rethrow_exception(thrown);
}

role_op register_asymmetric_autotuning(rank& self, const std::string& name,
                                       const std::vector<role_operation>& operations,
                                       const std::vector<role_config>& configs, const role_function& role_fn) {
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
  const std::string role = role_fn(self.id());
  role_op made;
  const auto operation = operation_of(role);
  if (operation == operations.end()) {
    if (role == "idle") return made;
    runtime::raise({errc::bad_argument, title + ": rank " + std::to_string(self.id()) + " has the role " + role +
                                            ", which has no operation; register one, or call the role idle"});
  }
  std::vector<std::uint64_t> digests{tuning::digest({.name = "operation"})};
  std::vector<std::string> names{"operation"};
  std::vector<operation_function> runs{operation->run};
  for (const role_config& c : configs) {
    if (c.role != role) continue;
    const std::uint64_t digest = tuning::digest({.name = c.name});
    if (std::find(digests.begin(), digests.end(), digest) != digests.end())
      runtime::raise({errc::bad_argument, title + ": role " + role + " has two configs called " + c.name});
    digests.push_back(digest);
    names.push_back(c.name);
    runs.push_back(c.run);
  }
  made.state_ =
      std::make_shared<role_op::state>(self, role, std::move(digests), std::move(names), self.settings().plan);
  made.state_->implementations = std::move(runs);
  return made;
}

// ---- mixed machines ---------------------------------------------------------------------------------------------------

transfer register_heterogeneous_autotuning(rank& self, paired_transfer op, std::vector<config_ptr> configs,
                                           capability_function capability_check) {
  op.configs = std::move(configs);
  op.capable = std::move(capability_check);
  return self.declare(op);
}

rank_group register_heterogeneous_autotuning(rank& self, leader_worker op, std::vector<group_config_ptr> configs,
                                             capability_function capability_check) {
  op.configs = std::move(configs);
  op.capable = std::move(capability_check);
  return self.declare(op);
}

}  // namespace parley::ops
