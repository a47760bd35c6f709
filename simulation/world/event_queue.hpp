#pragma once
/// The queue of a simulated world: events, and one wake-up time for each rank, which may be moved at any time.
///
///     event_queue queue(ranks);
///     queue.push(when, rank, std::make_unique<ring>());
///     queue.wake(rank, when);                       // replaces the rank's earlier wake-up time; `never`: no wake-up
///     while (queue.next() <= now) { auto e = queue.pop(); … }        // e.what is an event; null: wake rank e.where
///
/// Entries leave in the order of their times. Entries of one nanosecond leave in the order in which they were added; a wake-up counts as
/// added when it was last moved. The queue is a calendar: distant entries lie in slots, 64 on each level, as in a `timer_wheel`, and only
/// the entries of the next few nanoseconds are sorted. So the cost of adding and taking does not depend on the number of entries.
#include <parley/identifiers.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace parley::simulation {

using runtime::rank_id;
using runtime::time_ns;

struct event : runtime::frame_pool::pooled {
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  virtual ~event() = default;
  virtual void happen() = 0;
};

/// The rank of events that happen to no rank in particular, such as bytes that a network card writes.
inline constexpr rank_id nobody = static_cast<rank_id>(-1);

class event_queue {
 public:
  struct entry {
    time_ns when;
    rank_id where;
    std::unique_ptr<event> what;
  };
  explicit event_queue(rank_id ranks = 0) : wakes_(ranks) {}
  event_queue(const event_queue&) = delete;
  event_queue& operator=(const event_queue&) = delete;
  ~event_queue();

  void push(time_ns when, rank_id where, std::unique_ptr<event> what) {
    put({when, ++last_order_, what.release(), where});
  }
  void wake(rank_id r, time_ns when) {
    wish& w = wakes_[r];
    if (when != w.when) {
      w.when = when;
      w.order = ++last_order_;
      first_ = nullptr;
    }
    if (when < w.soonest.when) enter(r);
  }
  time_ns next() {
    const item* const i = first();
    return i == nullptr ? runtime::never : i->when;
  }
  /// The rank of the entry `ahead` places behind the next one, or `nobody` if that entry is not known yet. For prefetching memory.
  rank_id whom(std::size_t ahead) const noexcept {
    return taken_ + ahead < here_.size() ? here_[taken_ + ahead].where : nobody;
  }
  /// Requires that the queue is not empty.
  entry pop();

 private:
  // An event, or a wake-up if `what` is null.
  struct item {
    time_ns when;
    std::uint64_t order;
    event* what;
    rank_id where;
  };
  // An item in the list of a slot.
  struct waiting : item, runtime::frame_pool::pooled {
    waiting(const item& i, waiting* n) noexcept : item(i), next(n) {}
    waiting* next;
  };
  // The wake-up time of a rank. Moving it does not search for the item of the earlier time: that item stays in the queue and is checked
  // when it becomes the first. At most two items of a rank are useful: its next one, and one behind that; `find_first` drops the others.
  struct wish {
    struct place {
      time_ns when = runtime::never;
      std::uint64_t order = 0;
    };
    time_ns when = runtime::never;
    std::uint64_t order = 0;
    place soonest{};
    place later{};
  };
  static constexpr unsigned window_bits = 5;  // items of the same 2^5 ns are sorted together
  static constexpr unsigned slot_bits = 6;
  static constexpr unsigned level_count = 10;
  struct level {
    std::uint64_t used = 0;
    std::array<waiting*, 64> slots{};
  };

  static std::uint64_t window_of(time_ns when) noexcept { return static_cast<std::uint64_t>(when) >> window_bits; }
  static bool later(const item& a, const item& b) noexcept {
    return a.when != b.when ? a.when > b.when : a.order > b.order;
  }
  void put(const item& i);
  waiting*& slot_of(std::uint64_t window);
  void enter(rank_id r);
  const item* first() { return first_ != nullptr ? first_ : find_first(); }
  const item* find_first();
  void drop_first() noexcept;
  bool open_next();

  // The open window: its items when it was opened, sorted, of which the first `taken_` are gone, and the items added since, as a heap.
  std::vector<item> here_;
  std::size_t taken_ = 0;
  std::vector<item> added_;
  const item* first_ = nullptr;  // the first item of `here_` and `added_`; null: not known
  std::uint64_t window_ = 0;     // number of the open window
  std::uint32_t used_ = 0;       // bit l is set if level l is not empty
  std::array<std::unique_ptr<level>, level_count> levels_;
  std::vector<wish> wakes_;
  std::uint64_t last_order_ = 0;
};

}  // namespace parley::simulation
