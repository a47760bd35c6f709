#include <parley/simulation/world/stage.hpp>

#include <algorithm>

namespace parley::simulation {

std::string_view name(ordering o) noexcept {
  constexpr std::string_view names[] = {"arrival", "shuffled", "latest", "starving"};
  return names[static_cast<std::size_t>(o)];
}

stage::stage(rank_id ranks, options o) : options_(std::move(o)), queue_(ranks), luck_(options_.seed, purpose::order) {
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
    } else if (options_.order == ordering::starving) {
      p.clock.choose_by([this, &clock = p.clock](std::size_t ready) {
        std::size_t first = 0;
        while (first + 1 < ready && clock.task_of(first) == options_.starved_task) ++first;
        return first;
      });
    }
  }
}

stage::~stage() = default;

void stage::at(time_ns when, rank_id where, std::unique_ptr<event> e) {
  queue_.push(std::max(when, now_), where, std::move(e));
}

void stage::catch_up(rank_id r) {
  player& p = *players_[r];
  acting_ = r;
  p.clock.advance_to(now_ + p.offset);
}

// After something has happened to `r`: lists it if it is ready, and sets its wake-up to its next timer.
void stage::look_at(rank_id r) {
  player& p = *players_[r];
  acting_ = nobody;
  if (ends_computing(p) > now_) stay_busy(r);
  if (p.frozen_until > now_) return;
  if (p.clock.ready()) {
    if (!p.listed) ready_.push(rank_id{r});
    p.listed = true;
  }
  const time_ns timer = p.clock.holds_clock() ? runtime::never : p.clock.next_timer();
  const time_ns when = timer == runtime::never ? timer : std::max(timer - p.offset, now_);
  queue_.wake(r, when);
}

// The thread of `r` computes. Events that arrive during that time are handled afterwards, with all their consequences, before timers of `r`
// fire.
void stage::stay_busy(rank_id r) {
  player& p = *players_[r];
  p.clock.hold_clock(true);
  ++p.computed;
  freeze(r, ends_computing(p));
}

// Removes and returns the ready rank that runs first under `order`.
rank_id stage::take_ready() {
  const std::size_t n = ready_.size();
  std::size_t chosen = 0;
  switch (options_.order) {
    case ordering::arrival: break;
    case ordering::shuffled: chosen = static_cast<std::size_t>(luck_.below(n)); break;
    case ordering::latest: chosen = n - 1; break;
    case ordering::starving: chosen = n > 1 && ready_[0] == options_.starved ? 1 : 0; break;
  }
  return ready_.take(static_cast<std::uint32_t>(chosen));
}

// From time to time returns memory to the heap that the ranks needed only when they began.
void stage::count_step() noexcept {
  constexpr std::uint64_t now_and_then = std::uint64_t{1} << 18U;
  if (++steps_ % now_and_then == 0) runtime::frame_pool::trim();
}

// Resumes one coroutine of `r`.
void stage::turn(rank_id r) {
  player& p = *players_[r];
  p.listed = false;
  if (p.frozen_until > now_) return;
  count_step();
  note(std::uint64_t{r} << 32U | 1U);
  catch_up(r);
  p.clock.step();
  if (p.turn_ns != 0) freeze(r, now_ + p.turn_ns);
  look_at(r);
}

// Handles one event, or the due timers of a rank.
void stage::happen(event_queue::entry e) {
  now_ = std::max(now_, e.when);
  if (e.where == nobody) return e.what->happen();
  player& p = *players_[e.where];
  if (p.frozen_until > now_) {
    if (e.what == nullptr) return queue_.wake(e.where, runtime::never);  // `thaw` sets it again
    if (p.held == nullptr) p.held = std::make_unique<std::vector<std::unique_ptr<event>>>();
    p.held->push_back(std::move(e.what));
    return;
  }
  count_step();
  note(static_cast<std::uint64_t>(now_) ^ std::uint64_t{e.where} << 48U);
  catch_up(e.where);
  if (e.what != nullptr) e.what->happen();
  look_at(e.where);
}

// Prefetches the memory of ranks whose turn is soon, because no cache holds the memory of thousands of ranks: first the rank's `player`,
// then the frame that holds its earliest timer.
void stage::fetch_ahead() noexcept {
  constexpr std::size_t line = 64;
  const auto fetch = [](const void* from, std::size_t lines) {
    for (std::size_t i = 0; i < lines; ++i) __builtin_prefetch(static_cast<const char*>(from) + i * line, 1);
  };
  constexpr std::size_t far = 8;
  constexpr std::size_t near = 4;
  if (const rank_id r = queue_.whom(far); r != nobody) fetch(players_[r].get(), sizeof(player) / line);
  if (const rank_id r = queue_.whom(near); r != nobody) {
    constexpr std::size_t lines = 8;
    constexpr std::size_t before = 5;  // lines before the timer, which lies near the end of its frame
    const runtime::timer* const t = players_[r]->clock.earliest_timer();
    if (t != nullptr) fetch(reinterpret_cast<const char*>(t) - before * line, lines);
  }
}

bool stage::step() {
  if (ready_.size() != 0) {
    turn(take_ready());
  } else if (queue_.next() != runtime::never) {
    fetch_ahead();
    happen(queue_.pop());
  } else {
    return false;
  }
  return true;
}

void stage::run_to(time_ns t) {
  while (next() <= t && step()) {}
  now_ = std::max(now_, t);
}

void stage::freeze(rank_id r, time_ns until) {
  player& p = *players_[r];
  if (until <= p.frozen_until || until <= now_) return;
  if (p.frozen_until <= now_) p.frozen_since = now_;
  p.frozen_until = until;
  if (until == runtime::never) return;
  at(until, nobody, [this, r] {
    if (players_[r]->frozen_until <= now_) thaw(r);
  });
}

void stage::thaw(rank_id r) {
  player& p = *players_[r];
  p.frozen_until = now_;
  p.clock.end_computing(now_ + p.offset);
  // Held events happen in the order of their arrival, before any event that arrives from now on.
  if (const auto held = std::exchange(p.held, nullptr)) {
    for (auto& e : *held) queue_.push(now_, r, std::move(e));
  }
  if (p.clock.holds_clock()) {  // this event happens after the held ones, once no rank is ready
    at(now_, r, [&p, computed = p.computed] {
      if (p.computed == computed) p.clock.hold_clock(false);
    });
  }
  look_at(r);
}

}  // namespace parley::simulation
