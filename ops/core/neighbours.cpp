#include <parley/ops/core/neighbours.hpp>

#include <parley/actors/rank_list.hpp>
#include <parley/ops/core/call_error.hpp>
#include <parley/tuning/hash.hpp>

#include <algorithm>
#include <array>
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
  std::array both_ways{p2p::isend(e.mine, {.to = with.peer, .tag = with.tag_out}),
                       p2p::irecv(e.theirs, {.from = with.peer, .tag = with.tag_in})};
  for (p2p_operation& o : both_ways) o.remark = with.remark;
  both.push_back(messages.start(flow, both_ways));
  both.push_back(flow.compute({runtime::reads(e.theirs)}, [&e, check = std::move(check)] { check(e.mine, e.theirs); },
                              {.name = "comparing with rank " + std::to_string(with.peer),
                               .where = runtime::compute_options::place::actor_thread}));
  return flow.together(both);
}

// ---- asking -----------------------------------------------------------------------------------------------------------

namespace {

constexpr std::size_t most_words = 1000;  // bytes kept of another rank's text
constexpr std::size_t most_runs = 8;      // of calls that are remembered, for a neighbour that lags behind

}  // namespace

neighbours::neighbours(actors::services& s, std::vector<declared_edge*> edges, options o)
    : services_(s), edges_(std::move(edges)), options_(std::move(o)) {
  const rank_id self = s.net.rank();
  declaration_.name = options_.op;
  declaration_.participants = {{self, "neighbour"}};
  std::erase(options_.listed, self);
  std::sort(options_.listed.begin(), options_.listed.end());
  options_.listed.erase(std::unique(options_.listed.begin(), options_.listed.end()), options_.listed.end());
  for (const rank_id r : options_.listed) peers_.push_back({.rank = r, .incarnation = s.incarnations.of(r)});
  s.mail.bind<actors::neighbour_question>(
      actor(), [this](runtime::envelope from, actors::neighbour_question&& q) { return answer(from.source, q); });
  s.mail.bind<actors::neighbour_refusal>(actor(), [this](runtime::envelope from, actors::neighbour_refusal&& r) {
    if (find(from.source) != nullptr)
      refuse(from.source, error::in_words(errc::declaration_mismatch, about(from.source), r.why.substr(0, most_words)));
    return errc::none;
  });
  s.mail.bind<actors::neighbour_failure>(actor(), [this](runtime::envelope from, actors::neighbour_failure&& f) {
    hear_of_failure(from, f);
    return errc::none;
  });
}

neighbours::~neighbours() { services_.mail.unbind(actor()); }

// The number is the same on all ranks, because it does not depend on their neighbours.
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

// A new process of the peer counts its calls from the start.
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
  ask_for_a_while();
}

std::uint64_t neighbours::declared_hash() const {
  tuning::stable_hash all;
  for (const actors::declared_term& t : options_.declared) all.text(t.name).text(t.value);
  return all.digest() >> (64 - declared_hash_bits);
}

void neighbours::differs(rank_id peer) {
  peer_state* const p = find(peer);
  if (p == nullptr || p->refused) return;
  p->awaited = true;
  p->heard_under.reset();
  ask_until_ns_ = services_.until(options_.timeout_ns);
  question_.restart();
  ask();
}

void neighbours::ask_for_a_while() {
  ask_until_ns_ = services_.until(options_.timeout_ns);
  if (!question_.is_set()) question_.begin(services_);
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
  bool any = false;
  // Once calls have terms, this rank also asks peers that it does not wait for: they may wait for this rank under other terms.
  for (const peer_state& p : peers_) {
    if (closed_) {
      any = any || !p.knows;
      if (!p.knows) tell_failed(p.rank);
      continue;
    }
    any = any || p.awaited;
    if (!p.awaited && calls_ == 0) continue;
    actors::neighbour_question q;
    q.declared = options_.declared;
    if (calls_ != 0) {
      q.call = calls_ - p.first_call;
      q.terms = runs_.back().terms;
      q.words = runs_.back().words;
    }
    static_cast<void>(services_.mail.send(p.rank, actor(), 0, q));
  }
  question_.stop();
  if (any && services_.ex.now() < ask_until_ns_) question_.go_on(services_);
}

// The terms that differ, with both values; empty if none do.
std::string neighbours::declared_otherwise(rank_id from, const actors::neighbour_question& q) const {
  std::string there;
  std::string here;
  const auto add = [](std::string& to, const std::string& name, const std::string* value) {
    to += (to.empty() ? "" : ", ") + name + " " + (value == nullptr ? "none" : *value);
  };
  const auto value_of = [](const std::vector<actors::declared_term>& all, const std::string& name) {
    const auto at = std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.name == name; });
    return at == all.end() ? nullptr : &at->value;
  };
  for (const actors::declared_term& mine : options_.declared) {
    const std::string* const theirs = value_of(q.declared, mine.name);
    if (theirs != nullptr && *theirs == mine.value) continue;
    add(there, mine.name, theirs);
    add(here, mine.name, &mine.value);
  }
  for (const actors::declared_term& theirs : q.declared) {
    if (value_of(options_.declared, theirs.name) != nullptr) continue;
    add(there, theirs.name, &theirs.value);
    add(here, theirs.name, nullptr);
  }
  if (there.empty()) return {};
  return "rank " + std::to_string(from) + " declares " + there.substr(0, most_words / 2) + ", and rank " +
         std::to_string(services_.net.rank()) + " " + here.substr(0, most_words / 2);
}

errc neighbours::answer(rank_id from, const actors::neighbour_question& q) {
  const std::string self = std::to_string(services_.net.rank());
  const std::string asks = std::to_string(from);
  const std::string title = "op " + options_.op + ": ";
  peer_state* const p = find(from);
  if (const std::string differs = declared_otherwise(from, q); p != nullptr && !differs.empty()) {
    const std::string why = title + differs + "; declare the op alike on all its ranks";
    refuse(from, error::in_words(errc::declaration_mismatch, about(from), why));
    tell(from, why);
    return errc::none;
  }
  if (p == nullptr) {
    const std::string differs = declared_otherwise(from, q);
    const std::string why = title + "rank " + asks + " has rank " + self + " as a neighbour, but rank " + self +
                            "'s neighbours are " + actors::listed(options_.listed) + "; " +
                            (differs.empty() ? "list each as a neighbour of the other"
                                             : differs + "; declare the op alike on all its ranks");
    if (!refused_) actors::warn(services_, why);
    const error refused = error::in_words(errc::declaration_mismatch, about(from), why);
    for (const rank_id r : options_.listed) refuse(r, refused);
    if (!refused_) refused_ = refused;
    tell(from, why);
    return errc::none;
  }
  meet(*p);
  if (closed_) tell_failed(from);
  if (q.call == 0) return errc::none;
  // Compares the terms of the same call on both ranks. If this rank is behind or far ahead, it does not know that call's terms, and sends
  // nothing.
  const std::uint64_t number = q.call + p->first_call;
  const auto run = std::find_if(runs_.begin(), runs_.end(), [&](const run_of_calls& r) { return number <= r.last; });
  if (run == runs_.end() || (run == runs_.begin() && runs_.size() == most_runs) || run->terms == q.terms)
    return errc::none;
  const std::string why = title + "rank " + asks + " calls with " + q.words.substr(0, most_words / 2) + ", and rank " +
                          self + " with " + run->words + "; give all ranks the same";
  refuse(from, error::in_words(errc::declaration_mismatch, about(from), why));
  tell(from, why);
  return errc::none;
}

runtime::error_facts neighbours::about(rank_id peer) const {
  return {.op = options_.op, .rank = services_.net.rank(), .peer = peer};
}

void neighbours::refuse(rank_id peer, const error& why) {
  if (!refused_) refused_ = why;
  peer_state& p = *find(peer);
  p.awaited = false;
  if (std::exchange(p.refused, true)) return;
  for (declared_edge* const e : edges_) {
    if (e->peer() == peer && e->failed() == nullptr) e->own_end().refuse(*refused_);
  }
}

void neighbours::tell(rank_id peer, const std::string& why) {
  actors::neighbour_refusal r;
  r.why = why;
  static_cast<void>(services_.mail.send(peer, actor(), 0, r));
}

// ---- calls that have failed -------------------------------------------------------------------------------------------

namespace {
bool is_of_process(const error& why) noexcept {
  return why.code() == errc::peer_failed || why.code() == errc::peer_restarted || why.code() == errc::fenced;
}
// True for the errors of messages that fail only because their edge, or its other end, has ended for another reason.
bool is_of_messages(const error& why) noexcept {
  const errc code = why.code();
  return is_of_process(why) || code == errc::closed || code == errc::timeout || code == errc::cancelled ||
         code == errc::send_failed;
}
}  // namespace

declared_edge* neighbours::edge_with(rank_id peer, bool outwards) const noexcept {
  declared_edge* any = nullptr;
  for (declared_edge* const e : edges_) {
    if (e->peer() != peer) continue;
    if (e->sends() == outwards) return e;
    any = e;
  }
  return any;
}

const error* neighbours::end_of_process() const noexcept {
  for (const declared_edge* const e : edges_) {
    if (e->failed() != nullptr && is_of_process(*e->failed())) return e->failed();
  }
  return nullptr;
}

std::uint64_t neighbours::begin_run() {
  if (run_now_ != 0)
    runtime::raise(
        {errc::bad_argument, "op " + options_.op + ": a run of it is in progress on this rank; await that one first"});
  return run_now_ = ++runs_begun_;
}

void neighbours::throw_refused() {
  const error* const gone = closed_ || given_up_ ? end_of_process() : nullptr;
  if (gone != nullptr) {
    runtime::error_facts about = gone->about();
    about.begun = false;
    runtime::raise(
        error::in_words(gone->code(), std::move(about), gone->text() + "; the call had not begun", gone->began_with()));
  }
  if (given_up_) close(*std::exchange(given_up_, std::nullopt));
  if (refused_) runtime::raise(*refused_);
}

// Called when a message of a call failed after the op had ended. If the op ended because a process is gone, throws that error, with the
// message's progress.
void neighbours::throw_closed(const error& message) const {
  const error* const gone = end_of_process();
  if (gone == nullptr) runtime::raise(*refused_);
  runtime::raise(error::in_words(gone->code(), about_call(gone->about(), message.about()),
                                 gone->text() + "; " + message.what(), gone->began_with()));
}

void neighbours::throw_failed(const std::exception_ptr& thrown) {
  const error why = runtime::describe(thrown);
  if (refused_) {
    if (!std::exchange(closed_, true)) spread();
    if (is_of_messages(why) && !is_of_process(why)) throw_closed(why);
  } else if (why.code() == errc::cancelled || is_of_process(why)) {
    give_up(why);
  } else {
    close(why);
  }
  std::rethrow_exception(thrown);
}

// An error of the call itself keeps its code on all ranks, so that programs can look for that code. The error for a rank that is gone also
// keeps its code.
void neighbours::close(const error& why) {
  if (refused_) return;
  const errc code = why.code();
  const runtime::root_cause* const first = why.began_with();
  const bool is_wrong =
      code == errc::declaration_mismatch || code == errc::bad_argument || code == errc::buffer_too_small;
  const bool is_of_end = code == errc::peer_failed && first != nullptr;
  runtime::error_facts about{.op = options_.op, .rank = services_.net.rank()};
  if (is_of_end) about.peer = first->rank;
  refused_ = error::in_words(is_wrong || is_of_end ? code : errc::closed, about,
                             "op " + options_.op + ": a call has failed on rank " +
                                 std::to_string(services_.net.rank()) + " (" + why.what().substr(0, most_words / 2) +
                                 "), and its messages may still arrive, so this op can make no further calls" +
                                 (is_of_end ? "" : "; declare it again under another name"),
                             first);
  closed_ = true;
  spread();
}

// Leaves the edges as they are: this rank's reports about single messages, such as a refusal, may still be in flight.
void neighbours::spread() {
  for (const peer_state& p : peers_) {
    if (!p.knows) tell_failed(p.rank);
  }
  ask_for_a_while();
}

// Only a failure in the present generation counts. If this rank has left that generation, or has yet to enter it, the sender reports the
// failure again later.
void neighbours::hear_of_failure(const runtime::envelope& from, const actors::neighbour_failure& f) {
  peer_state* const p = find(from.source);
  declared_edge* const edge = edge_with(from.source, false);
  if (p == nullptr || edge == nullptr || edge->own_end().participant().generation != from.generation) return;
  if (f.code == 0 && !closed_) return;  // a reply to a message that this rank has not sent in this generation
  const bool again = std::exchange(p->knows, true);
  if (closed_) {
    if (again && f.code != 0) send_failure(p->rank, {});  // the peer has not heard yet that this rank knows
    return;
  }
  if (!refused_) {
    const runtime::root_cause first{f.began_with, f.its_end.substr(0, most_words)};
    const errc code = runtime::errc_of(f.code, errc::closed);
    refused_ = error::in_words(code, about(code == errc::peer_failed ? first.rank : from.source),
                               f.why.substr(0, most_words), first.what.empty() ? nullptr : &first);
  }
  closed_ = true;
  for (const peer_state& other : peers_) refuse(other.rank, *refused_);
  spread();
  send_failure(p->rank, {});
}

void neighbours::tell_failed(rank_id peer) {
  actors::neighbour_failure f;
  f.code = static_cast<std::uint8_t>(refused_->code());
  f.why = refused_->text();
  if (const runtime::root_cause* const first = refused_->began_with()) {
    f.began_with = first->rank;
    f.its_end = first->what;
  }
  send_failure(peer, f);
}

void neighbours::send_failure(rank_id peer, const actors::neighbour_failure& f) {
  static_cast<void>(services_.mail.send(peer, actor(), edge_with(peer, true)->own_end().participant().generation, f));
}

call_guard::~call_guard() {
  if (of_ != nullptr) of_->give_up({errc::cancelled, "it was torn down"});
}

void call_guard::end(const std::exception_ptr& thrown) {
  neighbours* const of = std::exchange(of_, nullptr);
  if (!thrown) return;
  if (of != nullptr) of->throw_failed(thrown);
  std::rethrow_exception(thrown);
}

void neighbours::begin_anew() noexcept {
  calls_ = 0;
  runs_.clear();
  refused_.reset();
  closed_ = false;
  given_up_.reset();
  run_now_ = 0;
  for (peer_state& p : peers_) p = {.rank = p.rank, .incarnation = services_.incarnations.of(p.rank)};
}

bool rejoin(p2p& messages, neighbours* around) {
  if (!messages.rejoin()) return false;
  if (around != nullptr) around->begin_anew();
  return true;
}

}  // namespace parley::ops
