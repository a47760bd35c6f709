#include <parley/simulation/stage.hpp>

#include <algorithm>
#include <bit>

namespace parley::simulation {

std::string_view name(ordering o) noexcept {
  constexpr std::string_view names[] = {"arrival", "shuffled", "latest", "starving"};
  return names[static_cast<std::size_t>(o)];
}

wake_times::wake_times(rank_id ranks) : wakes_(std::bit_ceil(std::max<std::size_t>(ranks, 2))) {
  winners_.resize(2 * wakes_.size());
  for (std::size_t i = 0; i < wakes_.size(); ++i) winners_[wakes_.size() + i] = static_cast<rank_id>(i);
  for (std::size_t i = wakes_.size() - 1; i != 0; --i) winners_[i] = winners_[2 * i];
}

rank_id wake_times::earlier(rank_id a, rank_id b) const noexcept {
  const wake& one = wakes_[a];
  const wake& other = wakes_[b];
  return other.when < one.when || (other.when == one.when && other.order < one.order) ? b : a;
}

void wake_times::set(rank_id r, time_ns when, std::uint64_t order) noexcept {
  wakes_[r] = {when, order};
  for (std::size_t i = (wakes_.size() + r) / 2; i != 0; i /= 2) {
    const rank_id winner = earlier(winners_[2 * i], winners_[2 * i + 1]);
    if (winner != r && winners_[i] == winner) return;
    winners_[i] = winner;
  }
}

stage::stage(rank_id ranks, options o) : options_(std::move(o)), wakes_(ranks), luck_(options_.seed, purpose::order) {
  for (rank_id r = 0; r < ranks; ++r) {
    // Ranks draw different numbers for the same purpose, as processes do.
    auto& p = *players_.emplace_back(std::make_unique<player>(runtime::mix(options_.seed + 0x100000001b3U * (r + 1))));
    if (r < options_.offsets.size()) p.offset = options_.offsets[r];
    p.clock.advance_to(p.offset);
    if (!options_.inside) continue;
    if (options_.order == ordering::shuffled) {
      p.clock.choose_by([this](std::size_t ready) { return static_cast<std::size_t>(luck_.below(ready)); });
    } else if (options_.order == ordering::latest) {
      p.clock.choose_by([](std::size_t ready) { return ready - 1; });
    }
  }
}

stage::~stage() = default;

void stage::at(time_ns when, rank_id where, std::unique_ptr<event> e) {
  queue_.push(std::max(when, now_), where, std::move(e));
}

void stage::catch_up(rank_id r) {
  player& p = *players_[r];
  p.clock.advance_to(now_ + p.offset);
}

// After something has happened to `r`: whether it is ready, and when its timers want to be looked at.
void stage::look_at(rank_id r) {
  player& p = *players_[r];
  if (p.frozen_until > now_) return;
  if (p.clock.ready()) {
    if (!p.listed) ready_.push_back(r);
    p.listed = true;
  }
  const time_ns timer = p.clock.next_timer();
  const time_ns when = timer == runtime::never ? timer : std::max(timer - p.offset, now_);
  if (when != wakes_.of(r)) wakes_.set(r, when, queue_.take_order());
}

// Its timers are due.
void stage::wake(rank_id r) {
  now_ = std::max(now_, wakes_.next());
  if (players_[r]->frozen_until > now_) return wakes_.set(r, runtime::never, 0);  // `thaw` looks
  ++steps_;
  note(static_cast<std::uint64_t>(now_) ^ std::uint64_t{r} << 48U);
  catch_up(r);
  look_at(r);
}

std::size_t stage::choose_rank() {
  const std::size_t n = ready_.size();
  switch (options_.order) {
    case ordering::arrival: break;
    case ordering::shuffled: return static_cast<std::size_t>(luck_.below(n));
    case ordering::latest: return n - 1;
    case ordering::starving: return n > 1 && ready_.front() == options_.starved ? 1 : 0;
  }
  return 0;
}

time_ns stage::next() const noexcept { return ready_.empty() ? std::min(queue_.next(), wakes_.next()) : now_; }

bool stage::step() {
  if (!ready_.empty()) {
    const std::size_t chosen = choose_rank();
    const rank_id r = ready_[chosen];
    if (chosen == 0) {
      ready_.pop_front();
    } else {
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    player& p = *players_[r];
    p.listed = false;
    if (p.frozen_until > now_) return true;
    ++steps_;
    note(std::uint64_t{r} << 32U | 1U);
    catch_up(r);
    p.clock.step();
    if (p.turn_ns != 0) freeze(r, now_ + p.turn_ns);
    look_at(r);
    return true;
  }
  const time_ns wakes = wakes_.next();
  if (wakes < queue_.next() || (wakes == queue_.next() && wakes != runtime::never && wakes_.order() < queue_.order())) {
    wake(wakes_.first());
    return true;
  }
  if (queue_.empty()) return false;
  event_queue::entry e = queue_.pop();
  now_ = std::max(now_, e.when);
  if (e.where == nobody) {
    e.what->happen();
    return true;
  }
  player& p = *players_[e.where];
  if (p.frozen_until > now_) {
    p.held.push_back(std::move(e.what));
    return true;
  }
  ++steps_;
  note(static_cast<std::uint64_t>(now_) ^ std::uint64_t{e.where} << 48U);
  catch_up(e.where);
  e.what->happen();
  look_at(e.where);
  return true;
}

void stage::run_to(time_ns t) {
  while (next() <= t && step()) {}
  now_ = std::max(now_, t);
}

void stage::freeze(rank_id r, time_ns until) {
  player& p = *players_[r];
  if (until <= p.frozen_until || until <= now_) return;
  p.frozen_until = until;
  if (until == runtime::never) return;
  at(until, nobody, [this, r] {
    if (players_[r]->frozen_until <= now_) thaw(r);
  });
}

void stage::thaw(rank_id r) {
  player& p = *players_[r];
  p.frozen_until = now_;
  // In the order in which they came, and before what comes from now on.
  for (auto& e : std::exchange(p.held, {})) queue_.push(now_, r, std::move(e));
  look_at(r);
}

}  // namespace parley::simulation
