#include <parley/ops/common_terms.hpp>

#include <parley/actors/rank_list.hpp>

#include <algorithm>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;

// ---- comparing --------------------------------------------------------------------------------------------------------

runtime::flow_work term_comparison::start(runtime::dataflow& flow, p2p& messages, const route& with, numbers mine,
                                          check_function check) {
  exchange& e = *all_.emplace_back(
      std::make_unique<exchange>(exchange{messages.generation_with(with.peer), std::move(mine), {}}));
  e.theirs.resize(e.mine.size());
  std::vector<runtime::flow_work> both;
  both.push_back(messages.start(flow, {p2p::isend(e.mine, {.to = with.peer, .tag = with.tag_out}),
                                       p2p::irecv(e.theirs, {.from = with.peer, .tag = with.tag_in})}));
  both.push_back(flow.compute({runtime::reads(e.theirs)}, [&e, check = std::move(check)] { check(e.mine, e.theirs); },
                              {.name = "comparing with rank " + std::to_string(with.peer),
                               .where = runtime::compute_options::place::actor_thread}));
  return flow.together(both);
}

// ---- asking -----------------------------------------------------------------------------------------------------------

namespace {

constexpr std::size_t most_words = 1000;  // bytes, of what another rank says
constexpr std::size_t most_runs = 8;      // of calls, that a neighbour may be behind

}  // namespace

neighbours::neighbours(actors::services& s, p2p messages, options o)
    : timer(&on_time), services_(s), messages_(std::move(messages)), options_(std::move(o)) {
  const rank_id self = s.net.rank();
  declaration_.name = options_.op;
  declaration_.participants = {{self, "neighbour"}};
  std::erase(options_.listed, self);
  std::sort(options_.listed.begin(), options_.listed.end());
  options_.listed.erase(std::unique(options_.listed.begin(), options_.listed.end()), options_.listed.end());
  for (const rank_id r : options_.listed) peers_.push_back({.rank = r, .incarnation = s.incarnations.of(r)});
  s.mail.bind<neighbour_question>(
      actor(), [this](runtime::envelope from, neighbour_question&& q) { return answer(from.source, q); });
  s.mail.bind<neighbour_refusal>(actor(), [this](runtime::envelope from, neighbour_refusal&& r) {
    if (find(from.source) != nullptr) refuse(from.source, r.why.substr(0, most_words));
    return errc::none;
  });
}

neighbours::~neighbours() { services_.mail.unbind(actor()); }

// The same on all ranks, whomever they list.
std::uint64_t neighbours::actor() const noexcept {
  actors::op_declaration named;
  named.name = options_.op;
  return actors::number_of(named.id(), actors::part::participant);
}

neighbours::peer_state* neighbours::find(rank_id peer) noexcept {
  const auto at =
      std::lower_bound(peers_.begin(), peers_.end(), peer, [](const peer_state& p, rank_id r) { return p.rank < r; });
  return at == peers_.end() || at->rank != peer ? nullptr : &*at;
}

// Another process counts its calls from the start.
void neighbours::meet(peer_state& p) noexcept {
  const std::uint64_t now = services_.incarnations.of(p.rank);
  if (now == p.incarnation) return;
  p.incarnation = now;
  p.first_call = calls_;
  p.heard_under.reset();
}

void neighbours::expect(rank_id peer) {
  peer_state* const p = find(peer);
  if (p == nullptr) return;
  meet(*p);
  if (p->heard_under == terms_now()) return;
  p->awaited = true;
  ask_until_ns_ = runtime::deadline_of(services_.ex.now(), options_.timeout_ns);
  if (linked()) return;
  pauses_.restart();
  services_.ex.arm(*this, services_.ex.now() + pauses_.next(services_.jitter));
}

void neighbours::heard(rank_id peer) noexcept {
  peer_state* const p = find(peer);
  if (p == nullptr) return;
  p->awaited = false;
  p->heard_under = terms_now();
}

void neighbours::call(std::uint64_t terms, const std::function<std::string()>& words) {
  for (peer_state& p : peers_) meet(p);
  ++calls_;
  if (runs_.empty() || runs_.back().terms != terms) {
    if (runs_.size() == most_runs) runs_.erase(runs_.begin());
    runs_.push_back({calls_, terms, words()});
  }
  runs_.back().last = calls_;
}

void neighbours::ask() noexcept {
  const time_ns now = services_.ex.now();
  bool any = false;
  // Of calls that are told apart by their terms those who wait for us should know, too: they may think that they know ours.
  for (const peer_state& p : peers_) {
    any = any || p.awaited;
    if (!p.awaited && calls_ == 0) continue;
    neighbour_question q;
    if (calls_ != 0) {
      q.call = calls_ - p.first_call;
      q.terms = runs_.back().terms;
      q.words = runs_.back().words;
    }
    static_cast<void>(services_.mail.send(p.rank, actor(), 0, q));
  }
  if (any && now < ask_until_ns_) services_.ex.arm(*this, now + pauses_.next(services_.jitter));
}

errc neighbours::answer(rank_id from, const neighbour_question& q) {
  const std::string self = std::to_string(services_.net.rank());
  const std::string asks = std::to_string(from);
  const std::string title = "op " + options_.op + ": ";
  peer_state* const p = find(from);
  if (p == nullptr) {
    const std::string why = title + "rank " + asks + " has rank " + self + " as a neighbour, and rank " + self +
                            " has " + actors::listed(options_.listed) + " as its own; let both name each other";
    if (!refused_) actors::warn(services_, why);
    for (const rank_id r : options_.listed) refuse(r, why);
    if (!refused_) refused_ = error{errc::declaration_mismatch, why};
    tell(from, why);
    return errc::none;
  }
  meet(*p);
  if (q.call == 0) return errc::none;
  // What the two do in the same call; one that is behind, or far ahead, says nothing.
  const std::uint64_t number = q.call + p->first_call;
  const auto run = std::find_if(runs_.begin(), runs_.end(), [&](const run_of_calls& r) { return number <= r.last; });
  if (run == runs_.end() || (run == runs_.begin() && runs_.size() == most_runs) || run->terms == q.terms)
    return errc::none;
  const std::string why = title + "rank " + asks + " calls with " + q.words.substr(0, most_words / 2) + ", and rank " +
                          self + " with " + run->words + "; give all ranks the same";
  refuse(from, why);
  tell(from, why);
  return errc::none;
}

void neighbours::refuse(rank_id peer, const std::string& why) {
  if (!refused_) refused_ = error{errc::declaration_mismatch, why};
  peer_state& p = *find(peer);
  p.awaited = false;
  if (!std::exchange(p.refused, true)) messages_.refuse(peer, *refused_);
}

void neighbours::tell(rank_id peer, const std::string& why) {
  neighbour_refusal r;
  r.why = why;
  static_cast<void>(services_.mail.send(peer, actor(), 0, r));
}

void neighbours::throw_refused() const {
  if (refused_) runtime::raise(*refused_);
}

void neighbours::begin_anew() noexcept {
  calls_ = 0;
  runs_.clear();
  refused_.reset();
  for (peer_state& p : peers_) p = {.rank = p.rank, .incarnation = services_.incarnations.of(p.rank)};
}

bool rejoin(p2p& messages, neighbours* around) {
  if (!messages.rejoin()) return false;
  if (around != nullptr) around->begin_anew();
  return true;
}

}  // namespace parley::ops
