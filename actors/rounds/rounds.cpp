#include <parley/actors/rounds/rounds.hpp>

#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/rank_list.hpp>

#include <algorithm>
#include <exception>
#include <iterator>
#include <span>
#include <utility>

namespace parley::actors {

using runtime::errc;
using runtime::error;
using runtime::result;
using runtime::task;
using runtime::time_ns;

namespace {

error error_of(std::uint8_t code, std::string text) {
  return {runtime::errc_of(code, errc::malformed), std::move(text)};
}

/// Never empty: for an error without a text, returns its name.
std::string text_of(const error& why) { return why.text().empty() ? why.what() : why.text(); }

round_outcome failure_outcome(std::uint64_t call, std::uint32_t round, const error& why,
                              const std::optional<round_body>& late = {}) {
  round_outcome o;
  o.what = late ? round_outcome::kind::late : round_outcome::kind::failed;
  o.call = call;
  o.round = round;
  o.code = static_cast<std::uint8_t>(why.code());
  o.text = text_of(why);
  if (late) o.body = *late;
  return o;
}

}  // namespace

rounds::rounds(services& s, const op_declaration& op, options o)
    : services_(s), options_(std::move(o)), op_(op.id()), generation_(first_generation(op, s.incarnations)),
      leader_(op.leader) {
  for (const op_participant& p : op.participants) members_.push_back(p.rank);
  said_.resize(members_.size());
  for (round_said& none : said_) none.what = round_said::kind::known;
  if (members_.size() == 1) return;
  const auto mine = [this](const runtime::envelope& from) { return from.generation == generation_; };
  if (leads()) {
    s.mail.bind<round_said>(number_of(op_, part::coordinator), [this, mine](runtime::envelope from, round_said&& m) {
      if (mine(from)) on_said(from.source, std::move(m));
      return errc::none;
    });
  } else {
    const std::uint64_t here = number_of(op_, part::participant);
    s.mail.bind<round_outcome>(here, [this, mine](runtime::envelope from, round_outcome&& m) {
      if (mine(from) && from.source == leader_) on_outcome(std::move(m));
      return errc::none;
    });
    s.mail.bind<round_question>(here, [this, mine](runtime::envelope from, round_question&& m) {
      if (mine(from) && from.source == leader_) on_question(m);
      return errc::none;
    });
  }
  s.actors.spawn(repeat());
}

rounds::~rounds() { retire(); }

void rounds::retire() noexcept {
  if (std::exchange(retired_, true)) return;
  services_.mail.unbind(number_of(op_, part::coordinator));
  services_.mail.unbind(number_of(op_, part::participant));
}

task<result<rounds::outcome>> rounds::exchange(std::uint64_t call, std::uint32_t round, round_body body,
                                               time_ns timeout_ns) {
  const time_ns longer_ns = leads() || timeout_ns >= runtime::never / 2 ? timeout_ns : timeout_ns + timeout_ns / 8;
  time_limit limit{.deadline = services_.until(longer_ns), .late_soon = runtime::never};
  const time_ns asked_before_ns = services_.asked_before(longer_ns);
  if (asked_before_ns != 0 && limit.deadline != runtime::never) limit.late_soon = limit.deadline - asked_before_ns;
  if (leads()) {
    auto led = co_await lead(call, round, std::move(body), limit);
    co_return led;
  }
  auto followed = co_await follow(call, round, std::move(body), limit);
  co_return followed;
}

void rounds::ask_if_late(time_limit& t, const std::vector<rank_id>& silent) const {
  if (services_.ex.now() < t.late_soon) return;
  t.late_soon = runtime::never;
  if (options_.on_late_soon) options_.on_late_soon(silent);
}

std::string rounds::said_by(const std::vector<rank_id>& silent) const {
  return options_.said_by ? options_.said_by(silent) : std::string();
}

std::optional<error> rounds::failure_of(std::uint64_t call) const {
  const auto at = failed_.find(call);
  return at == failed_.end() || at->second.late ? std::nullopt : std::optional(at->second.why);
}

bool rounds::was_late(std::uint64_t call) const {
  const auto at = failed_.find(call);
  return at != failed_.end() && at->second.late;
}

/// Of a call in `failed_`.
result<rounds::outcome> rounds::ended(std::uint64_t call) const {
  const failed_call& f = failed_.at(call);
  if (!f.late) return f.why;
  return outcome{outcome::kind::late, *f.late, f.why.text()};
}

void rounds::fail(const error& why) noexcept {
  const bool says_more = why.code() == errc::peer_restarted || why.code() == errc::fenced;
  if (broken_ && !says_more) return;
  broken_ = why;
  for (kept_outcome& k : kept_) k.unknown_to.clear();
  changed_.tell();
}

bool rounds::owes_messages() const noexcept {
  return !broken_ && (std::any_of(kept_.begin(), kept_.end(), [](const auto& k) { return !k.unknown_to.empty(); }) ||
                      std::any_of(failed_.begin(), failed_.end(), [](const auto& f) { return f.second.untold(); }));
}

void rounds::note(std::uint64_t call, failed_call f) {
  failed_.insert_or_assign(call, std::move(f));
  if (failed_.size() <= most_failures) return;
  if (failed_.begin()->first < passed_) {
    forgotten_ = std::max(forgotten_, failed_.begin()->first + 1);
    failed_.erase(failed_.begin());
  } else {
    failed_.erase(std::prev(failed_.end()));  // a member that reaches that call asks again
  }
}

// ---- the leader -------------------------------------------------------------------------------------------------------

void rounds::on_said(rank_id from, round_said&& m) {
  const auto at = std::find(members_.begin(), members_.end(), from);
  if (at == members_.end() || from == leader_) return;
  using kind = round_said::kind;
  if (m.what == kind::known) {
    for (kept_outcome& k : kept_) {
      const bool it_is = k.what.call == m.call && (k.failed() ? m.code != 0 : m.code == 0 && k.what.round == m.round);
      if (it_is) k.unknown_to.erase(from);
    }
    std::erase_if(kept_, [](const auto& k) { return k.failed() && k.unknown_to.empty(); });
    return;
  }
  const round_outcome* const last = last_agreed();
  const auto failed = failed_.find(m.call);
  if (m.what == kind::failed) {
    // The member repeats this until it is answered.
    const error why = error_of(m.code, "rank " + std::to_string(from) + ": " + m.text);
    if (failed != failed_.end() && failed->second.whom == told::everybody) {
      send(from, part::participant, failure_outcome(m.call, m.round, failed->second.why, failed->second.late));
    } else if (last != nullptr && last->call > m.call) {
      send(from, part::participant, failure_outcome(m.call, m.round, why));
    } else {
      conclude_failed(m.call, m.round, why);
    }
    return;
  }
  if (m.what == kind::said) {
    if (failed != failed_.end())
      return send(from, part::participant, failure_outcome(m.call, m.round, failed->second.why, failed->second.late));
    if (last != nullptr && last->call == m.call) {
      if (last->round == m.round) return send(from, part::participant, *last);
      if (last->round > m.round) return;  // late: this member has already sent something newer
    }
    if (m.call < passed_)
      return send(from, part::participant, broken_ ? failure_outcome(m.call, m.round, *broken_) : apart_alone(m));
  }
  said_[static_cast<std::size_t>(at - members_.begin())] = std::move(m);
  changed_.tell();
}

/// The outcome for a member that was the only one with something to say about a call.
round_outcome rounds::apart_alone(const round_said& m) const {
  const std::string me = "rank " + std::to_string(leader_);
  if (m.call < forgotten_)
    return failure_outcome(m.call, m.round,
                           {errc::closed, me + " has failed in " + std::to_string(most_failures) +
                                              " calls since then and no longer knows how this one ended"});
  round_outcome o;
  o.what = round_outcome::kind::apart;
  o.call = m.call;
  o.round = m.round;
  o.text = me;
  try {
    o.body = options_.known(std::span(&m.body, 1));
  } catch (...) {
    return failure_outcome(m.call, m.round, runtime::describe(std::current_exception()));
  }
  return o;
}

const round_outcome* rounds::last_agreed() const noexcept {
  const auto at = std::find_if(kept_.begin(), kept_.end(), [](const auto& k) { return !k.failed(); });
  return at == kept_.end() ? nullptr : &at->what;
}

void rounds::conclude(round_outcome o) {
  kept_outcome made;
  made.what = std::move(o);
  // A failure ends only this call. When a call ends without failure, no member is in an earlier call.
  std::erase_if(kept_, [&](const auto& k) {
    return k.what.call == made.what.call || (!made.failed() && k.what.call < made.what.call);
  });
  const auto failed = [](const auto& k) { return k.failed(); };
  if (std::cmp_equal(std::count_if(kept_.begin(), kept_.end(), failed), most_failures))
    kept_.erase(std::find_if(kept_.begin(), kept_.end(), failed));
  for (const rank_id r : members_) {
    if (r == leader_) continue;
    made.unknown_to.insert(r);
    send(r, part::participant, made.what);
  }
  kept_.push_back(std::move(made));
  work_.tell();
}

void rounds::conclude_failed(std::uint64_t call, std::uint32_t round, const error& why) {
  note(call, {why});
  conclude(failure_outcome(call, round, why));
  if (options_.on_failed) options_.on_failed(call);
  changed_.tell();
}

/// The call ends without an agreement, because not all members have spoken.
rounds::outcome rounds::conclude_late(std::uint64_t call, std::uint32_t round, const round_body& mine,
                                      std::string text) {
  round_body known;
  if (late_calls_++ >= most_late_calls) {
    std::vector<rank_id> others;
    known = options_.known(bodies_of(call, round, mine, others));
  }
  const error why(errc::timeout, std::move(text));
  note(call, {.why = why, .late = known});
  conclude(failure_outcome(call, round, why, known));
  return {outcome::kind::late, std::move(known), why.text()};
}

bool rounds::has_said(std::size_t member, std::uint64_t call, std::uint32_t round) const {
  const round_said& m = said_[member];
  return m.what == round_said::kind::said && m.call == call && m.round == round;
}

bool rounds::has_spoken(std::size_t member, std::uint64_t call, std::uint32_t round) const {
  const round_said& m = said_[member];
  return members_[member] == leader_ || (m.what == round_said::kind::passed && m.call >= call) ||
         has_said(member, call, round);
}

std::vector<round_body> rounds::bodies_of(std::uint64_t call, std::uint32_t round, const round_body& mine,
                                          std::vector<rank_id>& others) const {
  std::vector<round_body> bodies;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] == leader_) {
      bodies.push_back(mine);
    } else if (has_said(i, call, round)) {
      bodies.push_back(said_[i].body);
    } else {
      others.push_back(members_[i]);
    }
  }
  return bodies;
}

/// All members have spoken.
result<rounds::outcome> rounds::conclude_spoken(std::uint64_t call, std::uint32_t round, const round_body& mine) {
  late_calls_ = 0;
  std::vector<rank_id> nothing_to_say;
  const std::vector<round_body> bodies = bodies_of(call, round, mine, nothing_to_say);
  round_outcome o;
  o.call = call;
  o.round = round;
  if (!nothing_to_say.empty()) {
    o.what = round_outcome::kind::apart;
    o.text = listed(nothing_to_say);
  }
  try {
    o.body = nothing_to_say.empty() ? options_.merge(bodies) : options_.known(bodies);
  } catch (...) {
    const error why = runtime::describe(std::current_exception());
    conclude_failed(call, round, why);
    return why;
  }
  outcome mine_too;
  mine_too.what = o.what == round_outcome::kind::apart ? outcome::kind::apart : outcome::kind::agreed;
  mine_too.body = o.body;
  mine_too.text = o.text;
  conclude(std::move(o));
  return mine_too;
}

task<result<rounds::outcome>> rounds::lead(std::uint64_t call, std::uint32_t round, round_body body, time_limit t) {
  reminder<> question;
  for (;;) {
    if (broken_) co_return *broken_;
    if (failed_.contains(call)) co_return ended(call);
    std::vector<rank_id> silent;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (!has_spoken(i, call, round)) silent.push_back(members_[i]);
    }
    if (silent.empty()) co_return conclude_spoken(call, round, body);
    if (services_.ex.is_over(t.deadline))
      co_return conclude_late(call, round, body,
                              listed(silent) + " did not finish this invocation in time" + said_by(silent));
    ask_if_late(t, silent);
    if (question.is_due(services_)) {
      round_question q;
      q.call = call;
      for (const rank_id r : silent) send(r, part::participant, q);
      question.said(services_);
    }
    const time_ns next_at = std::min({question.when(), t.late_soon, t.deadline});
    auto woken = co_await changed_.next(next_at);
    if (!woken && woken.code() != errc::timeout) co_return woken.reason();
  }
}

// ---- the others -------------------------------------------------------------------------------------------------------

task<result<rounds::outcome>> rounds::follow(std::uint64_t call, std::uint32_t round, round_body body, time_limit t) {
  round_said mine;
  mine.call = call;
  mine.round = round;
  mine.body = std::move(body);
  const std::vector<rank_id> leader{leader_};
  reminder<> word;
  for (;;) {
    if (broken_) co_return *broken_;
    if (failed_.contains(call)) co_return ended(call);
    if (latest_ && latest_->call == call && latest_->round == round) {
      outcome o;
      o.what = latest_->what == round_outcome::kind::apart ? outcome::kind::apart : outcome::kind::agreed;
      o.body = std::move(latest_->body);
      o.text = std::move(latest_->text);
      latest_.reset();
      co_return o;
    }
    if (services_.ex.is_over(t.deadline))
      co_return error::in_words(
          errc::timeout, {.peer = leader_, .unmet = runtime::awaited::members},
          "rank " + std::to_string(leader_) + ", the leader, has not answered in time" + said_by(leader));
    ask_if_late(t, leader);
    if (word.is_due(services_)) {
      send(leader_, part::coordinator, mine);
      word.said(services_);
    }
    const time_ns next_at = std::min({word.when(), t.late_soon, t.deadline});
    auto woken = co_await changed_.next(next_at);
    if (!woken && woken.code() != errc::timeout) co_return woken.reason();
  }
}

void rounds::on_outcome(round_outcome&& m) {
  round_said known;
  known.what = round_said::kind::known;
  known.call = m.call;
  known.round = m.round;
  known.code = m.code;
  send(leader_, part::coordinator, known);
  const auto failed = failed_.find(m.call);
  const bool is_late = m.what == round_outcome::kind::late;
  if (is_late || m.what == round_outcome::kind::failed) {
    if (failed != failed_.end()) failed->second.answered = true;
    if (failed != failed_.end() || m.call < passed_) return;
    failed_call f{error_of(m.code, std::move(m.text))};
    if (is_late) f.late = std::move(m.body);
    note(m.call, std::move(f));
    if (options_.on_failed && !is_late) options_.on_failed(m.call);
  } else {
    if (m.call < passed_) return;
    latest_ = std::move(m);
  }
  changed_.tell();
}

void rounds::on_question(const round_question& m) {
  if (m.call >= passed_) {
    asked_ = m.call;
    return;
  }
  if (const auto why = failure_of(m.call)) return say_failure(m.call, *why);
  round_said gone;
  gone.what = round_said::kind::passed;
  gone.call = m.call;
  send(leader_, part::coordinator, gone);
}

void rounds::say_failure(std::uint64_t call, const error& why) {
  round_said m;
  m.what = round_said::kind::failed;
  m.call = call;
  m.code = static_cast<std::uint8_t>(why.code());
  m.text = text_of(why);
  send(leader_, part::coordinator, m);
}

// ---- both -------------------------------------------------------------------------------------------------------------

void rounds::passed(std::uint64_t call) {
  passed_ = std::max(passed_, call + 1);
  if (asked_ && *asked_ < passed_) {
    round_question q;
    q.call = *std::exchange(asked_, std::nullopt);
    on_question(q);
  }
  if (!leads()) return;
  // Members that have already spoken wait for an answer.
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (said_[i].what != round_said::kind::said || said_[i].call >= passed_) continue;
    round_said again = std::exchange(said_[i], round_said{});
    said_[i].what = round_said::kind::known;
    on_said(members_[i], std::move(again));
  }
}

void rounds::failed(std::uint64_t call, const error& why, told whom) {
  if (members_.size() == 1 || broken_ || failed_.contains(call)) return;
  if (leads()) {
    const error said{why.code(), "rank " + std::to_string(leader_) + ": " + text_of(why)};
    if (whom == told::everybody) return conclude_failed(call, 0, said);
    return note(call, {said, whom});
  }
  note(call, {why, whom, false});
  if (whom != told::everybody) return;
  say_failure(call, why);
  work_.tell();
}

/// Repeats the messages that must arrive and that no call waits for.
task<> rounds::repeat() {
  reminder<> again;
  for (;;) {
    auto woken = co_await work_.next(owes_messages() ? again.when() : runtime::never);
    if (!woken && woken.code() != errc::timeout) co_return;
    if (woken) again.restart();
    again.said(services_);
    if (woken) continue;
    for (const kept_outcome& k : kept_) {
      for (const rank_id r : k.unknown_to) send(r, part::participant, k.what);
    }
    for (const auto& [call, f] : failed_) {
      if (f.untold()) say_failure(call, f.why);
    }
  }
}

}  // namespace parley::actors
