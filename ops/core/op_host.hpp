#pragma once
/// The part of a rank that its ops use: the router and the data path, the services of actors, results, and the ends of all ops.
/// Programs see `rank`; the ops, with their handles and ends, use this class. Internal to ops.
///
///     op_host& host = …;                                  // of a rank
///     my_end& end = host.add(std::make_unique<my_end>(host.services_, …));
///     host.end_if_lost();                                 // ends it if ranks are lost already; later losses end it, too
#include <parley/actors/inquiries.hpp>
#include <parley/actors/membership/losses.hpp>
#include <parley/actors/services.hpp>
#include <parley/machine.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/core/op_ref.hpp>
#include <parley/ops/edges/declared_edge.hpp>
#include <parley/ops/edges/edge_in.hpp>
#include <parley/ops/edges/edge_out.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/job/rank_settings.hpp>
#include <parley/ops/job/results_store.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/scope.hpp>
#include <parley/tunable_context.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace parley::ops {

class rank;

struct op_host final : edge_host {
  /// `on_call_failed` must outlive the host; its value may change.
  op_host(const std::function<void(const runtime::error&)>& on_call_failed, rank_foundation on,
          std::shared_ptr<const rank_settings> settings);
  op_host(const op_host&) = delete;
  op_host& operator=(const op_host&) = delete;
  static op_host& of(rank& self) noexcept;

  rank_id id() const noexcept override { return net_.rank(); }
  runtime::executor& where() const noexcept override { return executor_; }
  actors::data_hub& data() noexcept override { return data_; }
  runtime::router& mail() noexcept override { return mail_; }
  actors::services& services() noexcept override { return services_; }
  std::weak_ptr<bool> alive() const noexcept override { return alive_; }
  std::string kind_of(rank_id r) const { return r < kinds_.size() ? kinds_[r] : std::string(); }
  rank_id world_size() const noexcept { return net_.world_size(); }
  void check_new(const actors::op_declaration& op) const;
  void declare_once(const actors::op_declaration& op);
  void note_group(const actors::op_declaration& op);
  void note_idle(const std::string& op);
  declared_edge& declare(edge_options o, declared_edge::end which);
  edge_out& add_out(edge_options o) override;
  edge_in& add_in(edge_options o) override;
  void put_aside(edge_end& ended) override { static_cast<op_end&>(ended).ended_ = true; }
  /// See op_ref.hpp.
  void replace(op_end& ended, std::unique_ptr<op_end> next);
  /// Adds the end behind the other ends of its kind.
  template <class End>
  End& add(std::unique_ptr<End> end) {
    End& added = *end;
    const auto is_before = [](op_end::kind k, const auto& e) { return k < e->kind_; };
    ops_.insert(std::upper_bound(ops_.begin(), ops_.end(), added.kind_, is_before), std::move(end));
    return added;
  }
  /// The ends of ops in their current generations.
  auto ops() const noexcept {
    return ops_ | std::views::filter([](const auto& e) { return !e->ended_; }) |
           std::views::transform([](const auto& e) -> op_end& { return *e; });
  }
  /// See `rank::on_lost` and `rank::on_fenced`.
  void lose(rank_id lost, std::string_view why, actors::departure how = actors::departure::died) noexcept;
  void fence(std::string_view why) noexcept;
  /// Ends the ops with a lost rank. `gone` is null if the loss was known before.
  void end_after(const actors::loss* gone, std::string_view why) noexcept;
  void end_ops_with(const actors::loss& l, runtime::errc code) noexcept;
  void note_undelivered(op_end& e);
  void refuse_early(const actors::stamp& s);
  /// Ends the ops whose ranks are lost, or all ops if this rank is fenced. Called after an end was made.
  void end_if_lost() noexcept;
  void complete(edge_options& o, const actors::op_declaration& op);
  tuning::plan_options plan_for(const runtime::memory_space* memory) const noexcept;
  void warn_not_compared(const std::string& op, const tuning::constraints& allowed, std::string_view why);
  template <class Configs>
  std::vector<actors::remembered_best> remember(const actors::op_declaration& op, const Configs& configs) {
    if (results_.remembered().entries().empty()) return {};
    std::vector<std::string> ids;
    for (const auto& c : configs) ids.push_back(c->id());
    return remember(op, ids);
  }
  std::vector<actors::remembered_best> remember(const actors::op_declaration& op, const std::vector<std::string>& ids);
  results_store::options results_options() const;
  tunable_context& make_kernels() const;
  void keep_decision(const actors::participant_state& of, const actors::decision_record& d);
  void tell_of(const actors::participant_state& of, const actors::decision_record& d) const;
  void dump_after_fault(std::string_view why) noexcept;
  actors::inquiries::own_knowledge what_is_known();
  runtime::waiting_list waiting() const;
  runtime::result<std::string> dump_flight(std::string_view why, const std::string& folder = {});

  runtime::executor& executor_;
  runtime::link& net_;
  std::shared_ptr<const rank_settings> settings_;
  machine machine_;
  std::vector<std::string> kinds_;
  runtime::flight_recorder flight_;
  time_ns next_fault_dump_ns_ = 0;
  runtime::storage* disk_ = nullptr;
  runtime::router mail_;
  actors::data_hub data_;
  actors::services services_;
  actors::inquiries asks_;
  bool leaving_ = false;
  mutable results_store results_;
  mutable std::unique_ptr<tunable_context> kernels_;
  std::unordered_set<std::uint64_t> declared_ = std::unordered_set<std::uint64_t>(2);  // ids of all ops; mostly few
  std::map<std::string, std::vector<actors::declared_by_name>, std::less<>> groups_declared_;
  std::list<declared_edge> declared_edges_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<std::unique_ptr<op_end>> ops_;  // by kind; with those of ended generations, each before its successor
  actors::losses losses_;
  std::uint64_t restarts_heard_ = 0;
  bool ranks_come_back_ = false;
  bool warned_of_early_ = false;
  std::vector<std::pair<rank_id, std::string>> undelivered_;  // receiver and text, of edges that have ended since
  std::optional<std::string> fenced_;
  runtime::scope actors_;  // last: the actors end before the members that they use
};

/// Fails unless the timeout is positive. A timeout of more than 292 years has wrapped around to a negative one.
runtime::result<> check_timeout(std::string_view op, std::chrono::nanoseconds timeout);

// The options that all edges of an op have in common.
template <class Op>
edge_options options_of(const Op& op, const rank_settings& settings, const machine& on) {
  edge_options o;
  o.on = &on;
  o.name = op.name;
  o.configs = op.configs;
  o.dtype = op.dtype;
  o.timeout_ns = op.timeout.count();
  o.memory = op.memory;
  o.can_run = op.can_run;
  o.constraints = tuning::both(op.constraints, settings.constraints);
  return o;
}

}  // namespace parley::ops
