#include <parley/actors/rounds.hpp>

#include <parley/actors/rank_list.hpp>

#include <algorithm>
#include <exception>
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

/// Never empty: without words of its own an error has its name.
std::string text_of(const error& why) { return why.text().empty() ? why.what() : why.text(); }

round_outcome failure_outcome(std::uint64_t call, std::uint32_t round, const error& why) {
  round_outcome o;
  o.what = round_outcome::kind::failed;
  o.call = call;
  o.round = round;
  o.code = static_cast<std::uint8_t>(why.code());
  o.text = text_of(why);
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
  const time_ns deadline = services_.until(longer_ns);
  if (leads()) {
    auto led = co_await lead(call, round, std::move(body), deadline);
    co_return led;
  }
  auto followed = co_await follow(call, round, std::move(body), deadline);
  co_return followed;
}

std::optional<error> rounds::failure_of(std::uint64_t call) const {
  if (failed_ && failed_->call == call) return failed_->why;
  return std::nullopt;
}

void rounds::fail(const error& why) noexcept {
  if (broken_ && why.code() != errc::peer_restarted) return;
  broken_ = why;
  unknown_to_.clear();
  failure_untold_ = false;
  changed_.tell();
}

// ---- the leader -------------------------------------------------------------------------------------------------------

void rounds::on_said(rank_id from, round_said&& m) {
  const auto at = std::find(members_.begin(), members_.end(), from);
  if (at == members_.end() || from == leader_) return;
  using kind = round_said::kind;
  if (m.what == kind::known) {
    if (latest_ && latest_->call == m.call && latest_->round == m.round) unknown_to_.erase(from);
    return;
  }
  if (m.what == kind::failed) {
    // Repeated until it is answered.
    const error why = error_of(m.code, "rank " + std::to_string(from) + ": " + m.text);
    if (latest_ && latest_->call == m.call && latest_->what == round_outcome::kind::failed) {
      send(from, part::participant, *latest_);
    } else if (latest_ && latest_->call > m.call) {
      send(from, part::participant, failure_outcome(m.call, m.round, why));
    } else {
      conclude_failed(m.call, m.round, why);
    }
    return;
  }
  if (m.what == kind::said) {
    if (latest_ && latest_->call == m.call &&
        (latest_->round == m.round || latest_->what == round_outcome::kind::failed)) {
      send(from, part::participant, *latest_);
      return;
    }
    if (m.call < passed_) {
      const std::string me = "rank " + std::to_string(leader_);
      if (const auto why = failure_of(m.call))
        return send(from, part::participant,
                    failure_outcome(m.call, m.round, {why->code(), me + ": " + text_of(*why)}));
      round_outcome o;
      o.what = round_outcome::kind::apart;
      o.call = m.call;
      o.round = m.round;
      o.text = me;
      return send(from, part::participant, o);
    }
  }
  said_[static_cast<std::size_t>(at - members_.begin())] = std::move(m);
  changed_.tell();
}

void rounds::conclude(round_outcome o) {
  latest_ = std::move(o);
  unknown_to_.clear();
  for (const rank_id r : members_) {
    if (r == leader_) continue;
    unknown_to_.insert(r);
    send(r, part::participant, *latest_);
  }
  work_.tell();
}

void rounds::conclude_failed(std::uint64_t call, std::uint32_t round, const error& why) {
  failed_ = failed_call{call, why};
  conclude(failure_outcome(call, round, why));
  if (options_.on_failed) options_.on_failed(call);
  changed_.tell();
}

/// Nothing while somebody has not spoken.
std::optional<result<rounds::outcome>> rounds::conclude_if_all(std::uint64_t call, std::uint32_t round,
                                                               const round_body& mine) {
  std::vector<round_body> bodies;
  std::vector<rank_id> nothing_to_say;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] == leader_) {
      bodies.push_back(mine);
      continue;
    }
    const round_said& m = said_[i];
    if (m.what == round_said::kind::passed && m.call >= call) {
      nothing_to_say.push_back(members_[i]);
    } else if (m.what == round_said::kind::said && m.call == call && m.round == round) {
      bodies.push_back(m.body);
    } else {
      return std::nullopt;
    }
  }
  round_outcome o;
  o.call = call;
  o.round = round;
  if (!nothing_to_say.empty()) {
    o.what = round_outcome::kind::apart;
    o.text = listed(nothing_to_say);
  } else {
    try {
      o.body = options_.merge(bodies);
    } catch (...) {
      const error why = runtime::describe(std::current_exception());
      conclude_failed(call, round, why);
      return result<outcome>(why);
    }
  }
  outcome mine_too;
  mine_too.what = o.what == round_outcome::kind::apart ? outcome::kind::apart : outcome::kind::agreed;
  mine_too.body = o.body;
  mine_too.text = o.text;
  conclude(std::move(o));
  return result<outcome>(std::move(mine_too));
}

task<result<rounds::outcome>> rounds::lead(std::uint64_t call, std::uint32_t round, round_body body, time_ns deadline) {
  time_ns ask_at = services_.ex.now();
  for (;;) {
    if (broken_) co_return *broken_;
    if (const auto why = failure_of(call)) co_return *why;
    if (auto all = conclude_if_all(call, round, body)) co_return std::move(*all);
    std::vector<rank_id> silent;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const round_said& m = said_[i];
      const bool spoke = members_[i] == leader_ ||
                         (m.what == round_said::kind::said && m.call == call && m.round == round) ||
                         (m.what == round_said::kind::passed && m.call >= call);
      if (!spoke) silent.push_back(members_[i]);
    }
    if (services_.ex.now() >= deadline) {
      const error why{errc::timeout, listed(silent) + " did not come to the end of it in time; see what holds it up, "
                                                      "or allow more time"};
      conclude_failed(call, round, why);
      co_return why;
    }
    if (services_.ex.now() >= ask_at) {
      round_question q;
      q.call = call;
      for (const rank_id r : silent) send(r, part::participant, q);
      ask_at = services_.ex.now() + resend_ns;
    }
    auto woken = co_await changed_.next(std::min(ask_at, deadline));
    if (!woken && woken.code() != errc::timeout) co_return woken.reason();
  }
}

// ---- the others -------------------------------------------------------------------------------------------------------

task<result<rounds::outcome>> rounds::follow(std::uint64_t call, std::uint32_t round, round_body body,
                                             time_ns deadline) {
  round_said mine;
  mine.call = call;
  mine.round = round;
  mine.body = std::move(body);
  time_ns say_at = services_.ex.now();
  for (;;) {
    if (broken_) co_return *broken_;
    if (const auto why = failure_of(call)) co_return *why;
    if (latest_ && latest_->call == call && latest_->round == round) {
      outcome o;
      o.what = latest_->what == round_outcome::kind::apart ? outcome::kind::apart : outcome::kind::agreed;
      o.body = std::move(latest_->body);
      o.text = std::move(latest_->text);
      latest_.reset();
      co_return o;
    }
    if (services_.ex.now() >= deadline)
      co_return error{errc::timeout, "rank " + std::to_string(leader_) + ", which leads, has not answered in time"};
    if (services_.ex.now() >= say_at) {
      send(leader_, part::coordinator, mine);
      say_at = services_.ex.now() + resend_ns;
    }
    auto woken = co_await changed_.next(std::min(say_at, deadline));
    if (!woken && woken.code() != errc::timeout) co_return woken.reason();
  }
}

void rounds::on_outcome(round_outcome&& m) {
  round_said known;
  known.what = round_said::kind::known;
  known.call = m.call;
  known.round = m.round;
  send(leader_, part::coordinator, known);
  if (failed_ && failed_->call == m.call) failure_untold_ = false;
  if (m.call < passed_) return;
  if (m.what == round_outcome::kind::failed) {
    if (failed_ && failed_->call == m.call) return;
    failed_ = failed_call{m.call, error_of(m.code, std::move(m.text))};
    if (options_.on_failed) options_.on_failed(m.call);
  } else {
    latest_ = std::move(m);
  }
  changed_.tell();
}

void rounds::on_question(const round_question& m) {
  if (m.call >= passed_) {
    asked_ = m.call;
    return;
  }
  if (failed_ && failed_->call == m.call) return send(leader_, part::coordinator, failure_said());
  round_said gone;
  gone.what = round_said::kind::passed;
  gone.call = m.call;
  send(leader_, part::coordinator, gone);
}

round_said rounds::failure_said() const {
  round_said m;
  m.what = round_said::kind::failed;
  m.call = failed_->call;
  m.code = static_cast<std::uint8_t>(failed_->why.code());
  m.text = text_of(failed_->why);
  return m;
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
  // Those who have spoken already wait for an answer.
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (said_[i].what != round_said::kind::said || said_[i].call >= passed_) continue;
    round_said again = std::exchange(said_[i], round_said{});
    said_[i].what = round_said::kind::known;
    on_said(members_[i], std::move(again));
  }
}

void rounds::failed(std::uint64_t call, const error& why, told whom) {
  if (members_.size() == 1 || broken_ || failure_of(call)) return;
  if (leads()) {
    failed_ = failed_call{call, why};
    if (whom == told::everybody)
      conclude_failed(call, 0, {why.code(), "rank " + std::to_string(leader_) + ": " + text_of(why)});
    return;
  }
  failed_ = failed_call{call, why};
  if (whom != told::everybody) return;
  failure_untold_ = true;
  send(leader_, part::coordinator, failure_said());
  work_.tell();
}

/// What must arrive, and nobody waits for.
task<> rounds::repeat() {
  for (;;) {
    const bool owing = owes_messages();
    auto woken = co_await work_.next(owing ? services_.ex.now() + resend_ns : runtime::never);
    if (!woken && woken.code() != errc::timeout) co_return;
    if (woken) continue;
    for (const rank_id r : unknown_to_) send(r, part::participant, *latest_);
    if (failure_untold_) send(leader_, part::coordinator, failure_said());
  }
}

}  // namespace parley::actors
