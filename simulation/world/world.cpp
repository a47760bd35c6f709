#include <parley/simulation/world/world.hpp>

#include <parley/actors/services.hpp>
#include <parley/ops/job/rank_foundation.hpp>

#include <algorithm>

namespace parley::simulation {

using actors::evidence;

world::world(world_options o, interference* weather)
    : options_(std::move(o)), settings_(ops::rank::complete(options_.settings, options_.ranks)),
      stage_(options_.ranks, {.seed = options_.seed,
                              .order = options_.order,
                              .starved = options_.starved,
                              .inside = options_.order_inside,
                              .starved_task = options_.starved_task,
                              .offsets = options_.offsets}),
      network_(stage_, options_.ranks, options_.link, weather), news_(options_.seed, purpose::fault, 999) {
  for (rank_id r = 0; r < options_.ranks; ++r) nodes_.push_back(std::make_unique<node>(*this, r));
}

// Ends the ranks before the members that they use. Destroys suspended coroutines.
world::~world() {
  before_end = nullptr;
  before_meeting = after_meeting = nullptr;
  end_job();
}

void world::start_all(std::function<void(rank_id)> launch) {
  ++job_;
  launch_ = std::move(launch);
  std::vector<std::uint64_t> made;
  for (rank_id r = 0; r < ranks(); ++r)
    made.push_back(runtime::incarnation_of(runtime::mix(options_.seed ^ runtime::mix(job_ * 0x10001 + r)), 0));
  incarnations_ = std::move(made);
  for (rank_id r = 0; r < ranks(); ++r) {
    network_.revive(r);
    nodes_[r]->first_life = network_.known_life(r, r);
  }
  for (rank_id r = 0; r < ranks(); ++r) stage_.as(r, [&] { start(r); });
  for (rank_id r = 0; r < ranks(); ++r) stage_.as(r, [&] { launch_(r); });
}

void world::start(rank_id r) {
  node& n = *nodes_[r];
  ops::rank_foundation on{stage_.clock(r), network_[r], &n.disk, incarnations_, {}};
  on.mail.job = runtime::mix(options_.seed + job_);  // each job has its own name, as under `parley run`
  on.mail.window = options_.control_window;
  if (!options_.offsets.empty()) {
    for (rank_id host = 0; host < ranks(); ++host) on.hosts.push_back(host);
  }
  on.give_up = [this, r](rank_id peer, const std::string& why) {
    hear_before_link(r, peer, evidence::found_dead, {why, {}});
    network_.break_connection(r, peer);
  };
  // A heartbeat is visible only on its own host. With clock offsets, each rank is on its own host.
  on.stands_still = [this](rank_id peer) {
    return nodes_[peer]->rank && options_.offsets.empty() ? stage_.stands_still(peer) : 0;
  };
  auto settings = settings_;
  if (options_.of_rank) {
    ops::rank_settings own = options_.settings;
    options_.of_rank(r, job_, own);
    settings = ops::rank::complete(std::move(own), options_.ranks);
  }
  n.rank = std::make_unique<ops::rank>(std::move(on), std::move(settings));
  n.rank->services().breaks = options_.breaks;
  n.fenced.clear();
  n.begin(ranks(), *n.rank);
  network_[r].on_failure(&n);
  n.programs = std::make_unique<runtime::scope>(stage_.clock(r));
  n.left = false;
  ++n.life;
}

void world::hear_before_link(rank_id who, rank_id peer, evidence of, const actors::peer_report& what) {
  nodes_[who]->link_follows = true;
  nodes_[who]->peers().hear(peer, of, what);
  nodes_[who]->link_follows = false;
}

std::size_t world::programs() const noexcept {
  std::size_t n = 0;
  for (const auto& one : nodes_) n += one->programs ? one->programs->running() : 0;
  return n;
}

bool world::all_ended() const noexcept {
  const auto runs = [&](rank_id r) { return nodes_[r]->programs && nodes_[r]->programs->running() != 0; };
  for (rank_id asked = 0; asked < ranks(); ++asked, runs_ = (runs_ + 1) % ranks()) {
    if (runs(runs_)) return false;
  }
  return true;
}

void world::end_job() {
  for (rank_id r = 0; r < ranks(); ++r) {
    node& n = *nodes_[r];
    if (!n.rank) continue;
    end_process(r);
  }
}

void world::end_process(rank_id r) {
  node& n = *nodes_[r];
  if (before_end) before_end(r);
  network_.crash(r, [&] {
    n.programs.reset();
    n.end();
    n.rank.reset();
  });
  ++n.life;
}

void world::crash(rank_id r) {
  node& n = *nodes_[r];
  if (!n.rank) return;
  end_process(r);
  n.disk.crash();
  tell_crash(r);
}

void world::exit(rank_id r) {
  node& n = *nodes_[r];
  if (!n.rank) return;
  if (before_end) before_end(r);
  stage_.freeze(r, runtime::never);
  network_.crash(r, [&] {
    network_.forget_transfers_of(r);
    static_cast<void>(n.programs.release());
    n.end();
    static_cast<void>(n.rank.release());
  });
  n.exited = true;
  ++n.life;
  tell_crash(r);
}

void world::tell_crash(rank_id r) {
  const std::uint64_t life = nodes_[r]->life;
  for (rank_id other = 0; other < ranks(); ++other) {
    if (other == r || !nodes_[other]->rank) continue;
    stage_.at(stage_.now() + options_.detection_ns, other, [this, other, r, life] { notice(other, r, life); });
  }
}

void world::fail(rank_id r, const runtime::error& why) {
  if (!nodes_[r]->rank) return;
  const runtime::root_cause cause = nodes_[r]->rank->cause_of(why);
  const std::uint64_t life = nodes_[r]->life;
  crash(r);
  for (rank_id other = 0; other < ranks(); ++other) {
    if (other == r || !nodes_[other]->rank) continue;
    const std::uint64_t its = nodes_[other]->life;
    stage_.at(stage_.now() + options_.link.latency_ns, other, [this, other, r, cause, life, its] {
      node& n = *nodes_[other];
      if (n.rank && n.life == its && nodes_[r]->life == life + 1) n.hear_left(r, cause);
    });
  }
}

// A rank leaves only after it has settled, so all that it sent has arrived.
void world::leave(rank_id r) {
  node& n = *nodes_[r];
  if (!n.rank) return;
  n.left = true;
  end_process(r);
  const std::uint64_t life = n.life;
  for (rank_id other = 0; other < ranks(); ++other) {
    if (other == r || !nodes_[other]->rank) continue;
    stage_.at(stage_.now() + options_.link.latency_ns, other, [this, other, r, life] { notice(other, r, life); });
  }
}

void world::restart(rank_id r, time_ns absent_ns) {
  if (!nodes_[r]->rank) return;
  crash(r);
  in_this_job(stage_.now() + absent_ns, [this, r] { come_back(r); });
}

void world::come_back(rank_id r) {
  stage_.thaw(r);
  network_.come_back(r);
  const std::uint64_t before = incarnations_.of(r);
  incarnations_.replace(r, runtime::incarnation_of(runtime::mix(before), runtime::restarts_of(before) + 1));
  stage_.as(r, [&] {
    start(r);
    launch_(r);
  });
  const std::uint64_t life = nodes_[r]->life;
  for (rank_id other = 0; other < ranks(); ++other) {
    if (other == r) continue;
    const time_ns heard = stage_.now() + news_.between(0, options_.detection_ns);
    const std::uint64_t its = nodes_[other]->life;
    if (nodes_[other]->rank && nodes_[other]->given_up != its) {
      stage_.at(heard, other, [this, other, r, life, its] {
        if (nodes_[r]->life == life && nodes_[other]->life == its) meet(other, r);
      });
    } else {
      stage_.at(stage_.now() + options_.detection_ns, r, [this, other, r, life, its] {
        if (nodes_[r]->life == life) notice(r, other, its);
      });
    }
  }
}

void world::meet(rank_id who, rank_id peer) {
  if (before_meeting) before_meeting(who, peer);
  hear_before_link(who, peer, evidence::newer_process);
  network_.let_go(who, peer);
  if (after_meeting) after_meeting(who, peer);
}

std::uint64_t world::returns(rank_id known_to, const std::vector<rank_id>& members) const noexcept {
  std::uint64_t all = 0;
  for (const rank_id m : members) all += network_.known_life(known_to, m) - nodes_[m]->first_life;
  return all;
}

void world::pause(rank_id r, time_ns span) {
  node& n = *nodes_[r];
  if (!n.rank) return;
  const time_ns until = stage_.now() + span;
  stage_.freeze(r, until);
  if (span < options_.detection_ns) return;
  // The others declare the rank dead while it is stopped. It is fenced as soon as it continues.
  hold_dead(r, stage_.now() + options_.detection_ns, until,
            "it was stopped for " + std::to_string(span / 1'000'000) + " ms");
}

// All ranks know it as soon as they read the verdict that `by` has published. They read eight times within the detection time.
void world::suspect(rank_id r, rank_id by) {
  if (!nodes_[r]->rank || !nodes_[by]->rank) return;
  const std::string why = "an op of rank " + std::to_string(by) + " had no answer from it";
  nodes_[by]->rank->services().give_up(r, why);
  const time_ns read = stage_.now() + options_.detection_ns / 8;
  hold_dead(r, read, read, why);
}

void world::hold_dead(rank_id r, time_ns known_ns, time_ns fenced_ns, const std::string& why) {
  const std::uint64_t life = nodes_[r]->life;
  nodes_[r]->given_up = life;
  for (rank_id other = 0; other < ranks(); ++other) {
    if (other == r || !nodes_[other]->rank) continue;
    stage_.at(known_ns, other, [this, other, r, life] { notice(other, r, life); });
  }
  stage_.at(fenced_ns, r, [this, r, life, why] {
    if (nodes_[r]->life == life) fence(r, why);
  });
}

void world::fence(rank_id r, const std::string& why) {
  nodes_[r]->fenced = why;
  nodes_[r]->peers().see_whether_fenced();
  if (on_fenced) on_fenced(r);
}

void world::set_pace(rank_id r, pace p) {
  stage_.slow_down(r, p == pace::slow ? 1'000 : 0);
  if (on_pace) on_pace(r, p);
}

void world::befall(const mishap& m, time_ns began_ns) {
  const time_ns from = began_ns + m.at_ns;
  switch (m.what) {
    case mishap::kind::clog:
    case mishap::kind::cut: break;  // the weather handles these
    case mishap::kind::pause: in_this_job(from, [this, m] { pause(m.rank, m.for_ns); }); break;
    case mishap::kind::slow:
      in_this_job(from, [this, m] { set_pace(m.rank, pace::slow); });
      in_this_job(from + m.for_ns, [this, m] { set_pace(m.rank, pace::usual); });
      break;
    case mishap::kind::crash: in_this_job(from, [this, m] { crash(m.rank); }); break;
    case mishap::kind::restart: in_this_job(from, [this, m] { restart(m.rank, m.for_ns); }); break;
    case mishap::kind::suspect:
      in_this_job(from, [this, m] { stage_.at(stage_.now(), m.to, [this, m] { suspect(m.rank, m.to); }); });
      break;
  }
}

void world::in_this_job(time_ns when, std::function<void()> does) {
  stage_.at(when, nobody, [this, does = std::move(does), job = job_] {
    if (job_ == job) does();
  });
}

void world::notice(rank_id who, rank_id lost, std::uint64_t life) {
  if (nodes_[who]->rank && nodes_[lost]->life == life) network_.give_up(who, lost);
}

// Here the rendezvous and the heartbeat are as quick as the link, so a rank learns the true reason at once.
void world::node::on_peer_failed(rank_id peer) noexcept {
  if (!begun()) return;
  const node& other = *owner.nodes_[peer];
  if (other.rank) {
    peers().hear(peer, evidence::link_broke, {"it did not answer for too long", {}});
  } else if (other.left) {
    hear_left(peer, {peer, {}});
  } else {
    peers().hear(peer, evidence::said_dead, {other.exited ? "its program has called exit" : "it has crashed", {}});
  }
}

void world::node::close_link(rank_id peer) noexcept {
  if (!link_follows) owner.network_.give_up(self, peer);
}

std::optional<std::uint64_t> world::node::meet(rank_id peer) {
  owner.network_.meet(self, peer);
  return owner.incarnations_.of(peer);
}

}  // namespace parley::simulation
