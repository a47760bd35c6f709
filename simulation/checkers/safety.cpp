#include <parley/actors/agreement/participant.hpp>
#include <parley/simulation/checkers/excuses.hpp>
#include <parley/simulation/checkers/families.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>

namespace parley::simulation {

namespace {

// A leader that assigned an invocation twice would have run it twice.
struct one_assignment final : checker {
  using checker::checker;
  void look() const {
    book_.each_invocation([this](const generation_key&, std::span<const flight_view* const> flights) {
      for (std::size_t i = 0; i < flights.size(); ++i) {
        const flight_view& f = *flights[i];
        if (!is_sender(f) || f.record.digest == 0) continue;
        const auto before =
            std::find_if(flights.begin(), flights.begin() + static_cast<std::ptrdiff_t>(i),
                         [&](const flight_view* b) { return b->rank == f.rank && b->record.digest != 0; });
        if (*before != &f)
          violated(book_.where(f) + ": began twice, with " + book_.class_of((*before)->record.digest) + " and " +
                   book_.class_of(f.record.digest));
      }
    });
  }
};

struct one_wire_class final : checker {
  using checker::checker;
  void look() const {
    book_.each_invocation([this](const generation_key& generation, std::span<const flight_view* const> flights) {
      const flight_view* first = nullptr;
      for (const flight_view* f : flights) {
        if (f->record.digest == 0) continue;
        // If a call fails because another rank declared its op differently, its flight names the rank's own default, but ran no config.
        if (!ran_well(*f) && book_.is_misdeclared(generation)) continue;
        if (first == nullptr) first = f;
        if (f->record.digest != first->record.digest &&
            book_.class_of(f->record.digest) != book_.class_of(first->record.digest))
          violated(book_.where(*f) + ": ran " + book_.class_of(f->record.digest) + ", and rank " +
                   std::to_string(first->rank) + " ran " + book_.class_of(first->record.digest));
      }
    });
  }
};

struct only_warmed final : checker {
  using checker::checker;
  void look() const {
    for (const flight_view& f : book_.r.flights) {
      const std::uint64_t d = f.record.digest;
      const participant_view* const p = book_.find(f);
      if (d == 0 || p == nullptr || d == p->c0 || is_rehearsal(f.record) || !ran_well(f)) continue;
      const bool warmed =
          std::find(p->ready.begin(), p->ready.end(), d) != p->ready.end() ||
          std::any_of(p->instead.begin(), p->instead.end(), [&](const auto& i) { return i.second == d; });
      if (!warmed) violated(book_.where(f) + ": ran " + book_.class_of(d) + ", which this rank has not warmed");
    }
    if (book_.r.play != nullptr && !book_.r.play->results && book_.r.flights_lost.empty()) look_at_order();
  }

 private:
  // A rehearsed config must have been rehearsed before it ran. Runs with results files are exempt, because a results file may allow a
  // config.
  void look_at_order() const {
    std::map<std::tuple<std::size_t, rank_id, std::uint64_t, std::uint64_t, std::uint64_t>, time_ns> rehearsed_ns;
    const auto key = [](const flight_view& f) {
      return std::make_tuple(f.job, f.rank, f.record.op, f.record.generation, f.record.digest);
    };
    for (const flight_view& f : book_.r.flights) {
      if (!is_rehearsal(f.record) || !ran_well(f)) continue;
      const auto [first, is_new] = rehearsed_ns.emplace(key(f), f.record.ended_ns);
      if (!is_new) first->second = std::min(first->second, f.record.ended_ns);
    }
    for (const flight_view& f : book_.r.flights) {
      const participant_view* const p = book_.find(f);
      if (is_rehearsal(f.record) || p == nullptr || f.record.digest == p->c0) continue;
      const auto first = rehearsed_ns.find(key(f));
      // Compares end times, because a receive begins before its config is known.
      if (first != rehearsed_ns.end() && f.record.ended_ns < first->second)
        violated(book_.where(f) + ": ran " + book_.class_of(f.record.digest) + " before it was rehearsed there");
    }
  }
};

struct inside_intersection final : checker {
  using checker::checker;
  void look() const {
    for (const search_view& c : book_.r.searches) {
      const auto at = book_.members.find({c.job, c.op, c.generation});
      if (at == book_.members.end() || c.where != actors::search::stage::decided) continue;
      for (const participant_view* p : at->second) {
        const auto same_wire = [&](std::uint64_t d) { return book_.class_of(d) == book_.class_of(c.digest); };
        if (c.digest == p->c0 || std::any_of(p->available.begin(), p->available.end(), same_wire)) continue;
        violated(c.title + ", " + c.key + ": " + c.winner + " was decided, which rank " + std::to_string(p->rank) +
                 " does not have");
      }
    }
    for (const flight_view& f : book_.r.flights) {
      const participant_view* const p = book_.find(f);
      if (p == nullptr || !is_sender(f) || f.record.digest == 0 || f.record.digest == p->c0) continue;
      if (is_rehearsal(f.record) || p->candidates.empty()) continue;
      if (std::find(p->candidates.begin(), p->candidates.end(), f.record.digest) == p->candidates.end() &&
          std::none_of(p->instead.begin(), p->instead.end(),
                       [&](const auto& i) { return i.second == f.record.digest; }))
        violated(book_.where(f) + ": ran " + book_.class_of(f.record.digest) + ", which is no candidate");
    }
  }
};

struct own_generation final : checker {
  using checker::checker;
  void look() const {
    for (const flight_view& f : book_.r.flights) {
      if (book_.find(f) != nullptr) continue;
      const bool declared = book_.declared.contains({f.job, f.record.op, f.rank});
      violated(book_.where(f) + (declared ? ": the op was never in generation " + hex(f.record.generation) + " there"
                                          : ": the op was never declared there"));
    }
  }
};

// A decision counts only trials that every participant ran to its end.
struct complete_rows final : checker {
  using checker::checker;
  void look() const {
    std::map<std::pair<generation_key, std::uint64_t>, std::uint32_t> complete;
    book_.each_invocation([&](const generation_key& generation, std::span<const flight_view* const> flights) {
      if (std::none_of(flights.begin(), flights.end(),
                       [](const flight_view* f) { return (f->record.flags & timed) != 0; }))
        return;
      std::set<rank_id> well;
      std::uint64_t digest = 0;
      for (const flight_view* f : flights) {
        digest = digest != 0 ? digest : f->record.digest;
        if (ran_well(*f)) well.insert(f->rank);
      }
      const auto at = book_.members.find(generation);
      if (at == book_.members.end()) return;
      const auto& members = at->second.front()->members;
      if (well.size() == members.size()) ++complete[{at->first, digest}];
    });
    // All keys of one op together have at most as many repetitions as there were complete trials.
    std::map<std::pair<generation_key, std::uint64_t>, std::uint32_t> counted;
    for (const participant_view& p : book_.r.participants) {
      if (!p.leads) continue;
      for (const actors::decision_record& d : p.decisions) {
        for (const actors::wire_evidence& e : d.evidence) {
          if (e.status == "measured") counted[{{p.job, p.id, p.generation}, e.digest}] += e.repetitions;
        }
      }
    }
    for (const auto& [key, n] : counted) {
      if (!all_recorded(key.first) || is_rehearsed_by_a_program(key.first)) continue;
      const auto at = complete.find(key);
      // Rehearsals of ops without headers leave no record on their ranks. The simulated library has counted them.
      const auto on_scratch = book_.r.rehearsed.find(key.second);
      const std::uint32_t there =
          (at == complete.end() ? 0 : at->second) + (on_scratch == book_.r.rehearsed.end() ? 0 : on_scratch->second);
      if (n > there)
        violated("op " + hex(std::get<1>(key.first)) + ": " + std::to_string(n) + " repetitions of " +
                 book_.class_of(key.second) + " were counted, and all participants ran only " + std::to_string(there));
    }
  }

 private:
  // A killed process left no record, and a full recorder lacks the oldest records.
  bool all_recorded(const generation_key& generation) const {
    const std::vector<const participant_view*>& seen = book_.members.at(generation);
    const auto has_all_of = [&](rank_id r) {
      return std::any_of(seen.begin(), seen.end(), [r](const participant_view* p) { return p->rank == r; }) &&
             !book_.r.flights_lost.contains({std::get<0>(generation), r});
    };
    const std::vector<rank_id>& members = seen.front()->members;
    return std::all_of(members.begin(), members.end(), has_all_of);
  }
  // True if the op is without headers and rehearses over the program's own library, which does not count rehearsals.
  bool is_rehearsed_by_a_program(const generation_key& generation) const {
    const std::string& op = book_.members.at(generation).front()->op;
    return book_.r.play != nullptr && book_.r.play->ops.empty() &&
           std::any_of(book_.r.leases.begin(), book_.r.leases.end(), [&](const lease_view& v) { return v.op == op; });
  }
};

struct one_decision final : checker {
  using checker::checker;
  void look() const {
    for (const auto& [op, members] : book_.members) {
      const auto& ranks = book_.ranks_of(*members.front());
      if (any_ended(members) || may_disagree(book_.r, ranks)) continue;
      std::map<std::string, known> latest;
      std::map<std::string, std::size_t> knowing;
      const auto stayed = static_cast<std::size_t>(
          std::count_if(members.begin(), members.end(), [](const participant_view* p) { return !p->left; }));
      for (const participant_view* p : members) {
        // A rank that was gone before others had ended does not know later decisions.
        if (p->left) continue;
        for (const actors::decision_record& d : p->decisions) {
          ++knowing[d.key];
          const auto [at, first] = latest.emplace(d.key, known(p, &d));
          if (!first && at->second.second->version != d.version) know_otherwise({p, &d}, at->second);
        }
      }
      for (const auto& [key, n] : knowing) {
        if (n != stayed)
          violated(members.front()->title + ", " + key + ": only " + std::to_string(n) + " of " +
                   std::to_string(stayed) + " participants know the decision");
      }
    }
  }
  // Decisions of one version must be equal, also on ranks that have died, left, or do not know a later version yet.
  void look_at_versions() const {
    for (const auto& [op, members] : book_.members) {
      std::map<std::pair<std::string, std::uint32_t>, known> of_version;
      for (const participant_view* p : members) {
        for (const actors::decision_record& d : p->decisions) {
          const auto [at, first] = of_version.emplace(std::pair(d.key, d.version), known(p, &d));
          if (!first && at->second.second->digest != d.digest) know_otherwise({p, &d}, at->second);
        }
      }
    }
  }

 private:
  using known = std::pair<const participant_view*, const actors::decision_record*>;
  std::string words_of(const known& k) const {
    return "rank " + std::to_string(k.first->rank) + " knows " + book_.class_of(k.second->digest) + " version " +
           std::to_string(k.second->version);
  }
  void know_otherwise(const known& one, const known& other) const {
    violated(one.first->title + ", " + one.second->key + ": " + words_of(one) + ", and " + words_of(other));
  }
};

}  // namespace

void check_safety(const record_book& b, std::vector<violation>& found) {
  one_assignment(b, found, "S1").look();
  one_wire_class(b, found, "S2").look();
  only_warmed(b, found, "S3").look();
  inside_intersection(b, found, "S4").look();
  own_generation(b, found, "S5").look();
  complete_rows(b, found, "S6").look();
}

void check_versions(const record_book& b, std::vector<violation>& found) {
  one_decision(b, found, "agreement").look_at_versions();
}

void check_decisions(const record_book& b, std::vector<violation>& found) {
  one_decision(b, found, "agreement").look();
}

}  // namespace parley::simulation
