#include <parley/simulation/checkers/rank_views.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/runtime/record/flight_recorder.hpp>

#include <string>
#include <utility>
#include <vector>

namespace parley::simulation {

lease_view gates_of(std::size_t job, rank_id r, ops::symmetric_end& end) {
  lease_view v;
  v.job = job;
  v.rank = r;
  v.op = end.declaration().name;
  v.title = end.declaration().title();
  v.gates_met = end.leases().statistics().gates_met;
  v.leads = end.leads();
  if (!v.leads) return v;
  v.led = end.lease_coordinator()->statistics();
  for (const auto& k : end.assigned()->searches()) {
    v.searches += k->number();
    v.excluded += k->excluded().size();
  }
  return v;
}

participant_view view_of(std::size_t job, rank_id r, const actors::participant_state& p, bool ended) {
  participant_view v;
  v.job = job;
  v.rank = r;
  v.ended = ended;
  v.op = p.declaration.name;
  v.title = p.declaration.title();
  v.id = p.declaration.id();
  v.generation = p.generation;
  v.c0 = p.declaration.default_digest;
  v.leads = p.declaration.leader == r;
  v.edge = p.declaration.participants.front().role == "sender";
  for (const auto& m : p.declaration.participants) v.members.push_back(m.rank);
  v.candidates = p.candidates;
  v.ready = p.ready;
  v.instead = p.instead;
  v.ids = p.ids;
  for (std::size_t i = 0; i < p.configs.size(); ++i) {
    v.classes.emplace_back(p.configs[i].digest, p.configs[i].identity.wire_class);
    if (p.available.test(i)) v.available.insert(p.configs[i].digest);
  }
  v.decisions = p.decisions;
  return v;
}

void add_searches(run_record& into, std::size_t job, const ops::rank& self, std::size_t first_participant) {
  each_search(self, [&](const ops::edge_agreement& a, const actors::search& c) {
    search_view v;
    v.job = job;
    v.title = a.op + " " + std::to_string(a.sender) + "->" + std::to_string(a.receiver);
    for (std::size_t i = first_participant; i < into.participants.size(); ++i) {
      const participant_view& p = into.participants[i];
      if (p.leads && p.op == a.op && (!a.group.empty() || p.members.back() == a.receiver)) {
        v.op = p.id;
        v.generation = p.generation;
      }
    }
    v.key = c.key();
    v.bucket = c.bucket();
    v.searches_again = c.searches_again();
    v.search = c.number();
    v.search_began_ns = c.search_began_ns();
    v.where = c.where();
    v.digest = c.chosen().digest;
    v.invocations = c.invocations();
    v.winner = c.chosen().config;
    v.why = c.chosen().why;
    v.progress = c.progress();
    for (const tuning::aggregate& g : c.aggregates())
      v.why += "; " + std::to_string(g.time_ns) + " ns of " + std::to_string(g.count) + " " + g.detail;
    v.source = c.chosen().source;
    v.cost_ns = c.cost_ns();
    into.searches.push_back(std::move(v));
  });
}

void add_flights(run_record& into, std::size_t job, const ops::rank& self) {
  const std::vector<runtime::flight_record> flights = self.flight().in_order();
  if (const std::uint64_t lost = self.flight().total() - flights.size(); lost != 0)
    into.flights_lost[{job, self.id()}] += lost;
  for (const runtime::flight_record& f : flights) {
    if (runtime::is_transfer(f.what)) into.flights.push_back({job, self.id(), f});
  }
}

void add_views(run_record& into, const ops::rank& self, std::size_t job) {
  const std::size_t first = into.participants.size();
  for (const actors::participant_state* p : self.participants())
    into.participants.push_back(view_of(job, self.id(), *p, false));
  add_searches(into, job, self, first);
  for (const actors::participant_state* p : self.ended_participants())
    into.participants.push_back(view_of(job, self.id(), *p, true));
  add_flights(into, job, self);
  for (const ops::op_end* e : self.ops()) {
    if (e->is(ops::op_end::kind::other)) into.other_ops.insert(std::string(op_of(e->declaration().title())));
  }
}

}  // namespace parley::simulation
