#include <parley/simulation/world/event_queue.hpp>

#include <algorithm>
#include <bit>
#include <utility>

namespace parley::simulation {

event_queue::~event_queue() {
  for (; taken_ < here_.size(); ++taken_) delete here_[taken_].what;
  for (const item& i : added_) delete i.what;
  for (const auto& l : levels_) {
    if (l == nullptr) continue;
    for (waiting* w : l->slots) {
      while (w != nullptr) {
        const std::unique_ptr<waiting> first(std::exchange(w, w->next));
        delete first->what;
      }
    }
  }
}

// The slot of a window that is not open yet.
event_queue::waiting*& event_queue::slot_of(std::uint64_t window) {
  const auto l = static_cast<unsigned>(63 - std::countl_zero(window ^ window_)) / slot_bits;
  const auto slot = static_cast<unsigned>(window >> (l * slot_bits)) & 63U;
  if (levels_[l] == nullptr) [[unlikely]]
    levels_[l] = std::make_unique<level>();
  levels_[l]->used |= std::uint64_t{1} << slot;
  used_ |= 1U << l;
  return levels_[l]->slots[slot];
}

void event_queue::put(const item& i) {
  const std::uint64_t window = window_of(i.when);
  if (window > window_) {
    waiting*& slot = slot_of(window);
    slot = new waiting(i, slot);
    return;
  }
  added_.push_back(i);
  std::push_heap(added_.begin(), added_.end(), later);
  first_ = nullptr;
}

void event_queue::enter(rank_id r) {
  wish& w = wakes_[r];
  w.later = std::exchange(w.soonest, {w.when, w.order});
  put({w.when, w.order, nullptr, r});
}

const event_queue::item* event_queue::find_first() {
  for (;;) {
    const item* i = taken_ < here_.size() ? &here_[taken_] : nullptr;
    if (!added_.empty() && (i == nullptr || later(*i, added_.front()))) i = &added_.front();
    if (i == nullptr) {
      if (!open_next()) return nullptr;
      continue;
    }
    if (i->what != nullptr) return first_ = i;
    wish& w = wakes_[i->where];
    const bool is_of_use = i->order == w.soonest.order;
    if (is_of_use && i->order == w.order) return first_ = i;
    const rank_id where = i->where;
    drop_first();
    if (!is_of_use) continue;
    w.soonest = std::exchange(w.later, {});
    if (w.when < w.soonest.when) enter(where);
  }
}

void event_queue::drop_first() noexcept {
  first_ = nullptr;
  if (taken_ < here_.size() && (added_.empty() || !later(here_[taken_], added_.front()))) {
    ++taken_;
    return;
  }
  std::pop_heap(added_.begin(), added_.end(), later);
  added_.pop_back();
}

event_queue::entry event_queue::pop() {
  const item i = *first();
  drop_first();
  if (i.what == nullptr) wakes_[i.where].soonest = std::exchange(wakes_[i.where].later, {});
  return {i.when, i.where, std::unique_ptr<event>(i.what)};
}

// Opens the earliest slot of the lowest level in use, because all items of a level are later than those of the levels below it.
bool event_queue::open_next() {
  here_.clear();
  taken_ = 0;
  while (used_ != 0) {
    const auto l = static_cast<unsigned>(std::countr_zero(used_));
    level& lowest = *levels_[l];
    const auto slot = static_cast<unsigned>(std::countr_zero(lowest.used));
    lowest.used &= lowest.used - 1;
    if (lowest.used == 0) used_ &= used_ - 1;
    const unsigned shift = l * slot_bits;
    window_ = (window_ >> shift >> slot_bits << slot_bits | slot) << shift;
    for (waiting* w = std::exchange(lowest.slots[slot], nullptr); w != nullptr;) {
      waiting* const moving = std::exchange(w, w->next);
      if (const std::uint64_t window = window_of(moving->when); window != window_) {
        waiting*& lower = slot_of(window);
        moving->next = std::exchange(lower, moving);
      } else {
        here_.push_back(*moving);
        delete moving;
      }
    }
    if (here_.empty()) continue;
    std::sort(here_.begin(), here_.end(), [](const item& a, const item& b) { return later(b, a); });
    return true;
  }
  return false;
}

}  // namespace parley::simulation
