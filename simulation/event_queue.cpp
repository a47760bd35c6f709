#include <parley/simulation/event_queue.hpp>

#include <algorithm>
#include <bit>
#include <utility>

namespace parley::simulation {

event_queue::~event_queue() {
  const auto destroy = [](const std::vector<item>& items, std::size_t from) {
    for (std::size_t i = from; i < items.size(); ++i) delete items[i].what;
  };
  destroy(here_, taken_);
  destroy(added_, 0);
  for (const auto& l : levels_) {
    if (l == nullptr) continue;
    for (const auto& slot : l->slots) destroy(slot, 0);
  }
}

void event_queue::put(const item& i) {
  const std::uint64_t window = window_of(i.when);
  if (window <= window_) {
    added_.push_back(i);
    std::push_heap(added_.begin(), added_.end(), later);
    return;
  }
  const auto l = static_cast<unsigned>(63 - std::countl_zero(window ^ window_)) / slot_bits;
  const auto slot = static_cast<unsigned>(window >> (l * slot_bits)) & 63U;
  if (levels_[l] == nullptr) [[unlikely]]
    levels_[l] = std::make_unique<level>();
  level& at = *levels_[l];
  std::vector<item>& items = at.slots[slot];
  if ((at.used >> slot & 1U) == 0) {
    at.used |= std::uint64_t{1} << slot;
    used_ |= 1U << l;
    if (!at.spare.empty()) {
      items = std::move(at.spare.back());
      at.spare.pop_back();
    }
  }
  items.push_back(i);
}

void event_queue::enter(rank_id r) {
  wish& w = wakes_[r];
  w.later = std::exchange(w.soonest, {w.when, w.order});
  put({w.when, w.order, nullptr, r});
}

const event_queue::item* event_queue::first() {
  for (;;) {
    const item* i = taken_ < here_.size() ? &here_[taken_] : nullptr;
    if (!added_.empty() && (i == nullptr || later(*i, added_.front()))) i = &added_.front();
    if (i == nullptr) {
      if (!open_next()) return nullptr;
      continue;
    }
    if (i->what != nullptr) return i;
    wish& w = wakes_[i->where];
    const bool is_of_use = i->order == w.soonest.order;
    if (is_of_use && i->order == w.order) return i;
    const rank_id where = i->where;
    drop_first();
    if (!is_of_use) continue;
    w.soonest = std::exchange(w.later, {});
    if (w.when < w.soonest.when) enter(where);
  }
}

void event_queue::drop_first() noexcept {
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

// The slots of a level are later than all that is in the levels below it.
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
    std::vector<item> items = std::move(lowest.slots[slot]);
    if (l == 0) {
      here_.swap(items);
    } else {
      for (const item& i : items) {
        if (window_of(i.when) == window_) {
          here_.push_back(i);
        } else {
          put(i);
        }
      }
      items.clear();
    }
    lowest.spare.push_back(std::move(items));
    if (here_.empty()) continue;
    std::sort(here_.begin(), here_.end(), [](const item& a, const item& b) { return later(b, a); });
    return true;
  }
  return false;
}

}  // namespace parley::simulation
