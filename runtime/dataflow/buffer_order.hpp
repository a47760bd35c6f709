#pragma once
/// Finds the earlier steps that a step must wait for, from the memory that each step names.
///
///     buffer_order<std::shared_ptr<step>> order;
///     auto at = order.add(mine, {bytes, buffer_use::read}, [&](const std::shared_ptr<step>& earlier, bool data) { … });
///     order.remove(*mine, {bytes, buffer_use::read}, at, buffer_order<…>::afterwards::forgotten);      // once it has ended
///
/// A reader waits for the last writer of each byte, and depends on the writer's `data`. A writer waits for the last writer and for all
/// readers since then. Memory is compared by address, so overlaps of different objects also count. One `add` costs O(log n + overlaps). A
/// writer that failed can stay, so that later readers know that it did not write. Remove a step after the steps that it waits for. `Handle`
/// is a pointer that keeps its step alive.
#include <parley/runtime/intrusive_list.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

namespace parley::runtime {

enum class buffer_use : std::uint8_t {
  read,
  write,   ///< does not need the old content
  update,  ///< reads and writes
};

struct buffer_access {
  std::span<const std::byte> bytes;
  buffer_use use = buffer_use::read;
};

template <std::ranges::contiguous_range B>
buffer_access reads(const B& buffer) {
  return {std::as_bytes(std::span(buffer)), buffer_use::read};
}
template <std::ranges::contiguous_range B>
buffer_access writes(const B& buffer) {
  return {std::as_bytes(std::span(buffer)), buffer_use::write};
}
/// Reads and writes.
template <std::ranges::contiguous_range B>
buffer_access updates(const B& buffer) {
  return {std::as_bytes(std::span(buffer)), buffer_use::update};
}

template <class Handle>
class buffer_order {
  using place = std::uintptr_t;
  struct piece : list_hook {
    place begin = 0;
    place end = 0;
    Handle writer;
    std::vector<Handle> readers;  // since the last write
    bool idle() const noexcept { return writer == nullptr && readers.empty(); }
  };
  using pieces = std::map<place, piece>;

 public:
  /// The place of one access; `remove` needs it.
  using mark = typename pieces::iterator;

  /// Calls `wait_for(earlier, data)` for each step that `step` waits for; `data`: `step` needs what `earlier` writes. May call `wait_for`
  /// more than once for one step, but never for `step` itself.
  template <class WaitFor>
  mark add(const Handle& step, const buffer_access& a, const WaitFor& wait_for) {
    if (a.bytes.empty()) return pieces_.end();
    const place from = begin_of(a.bytes);
    const place to = from + a.bytes.size();
    auto at = pieces_.lower_bound(from);
    if (at == pieces_.end() || at->first != from || at->second.end != to) [[unlikely]]
      at = cut_out(from, to);
    for (const mark first = at;; ++at) {
      touch(at->second, step, a.use, wait_for);
      if (at->second.end == to) return first;
    }
  }

  /// True if `add` would find nothing to wait for.
  bool is_free(const buffer_access& a) const {
    if (a.bytes.empty() || size() == 0) return true;
    const place from = begin_of(a.bytes);
    const place to = from + a.bytes.size();
    auto at = pieces_.lower_bound(from);
    if (at != pieces_.begin() && std::prev(at)->second.end > from) --at;
    for (; at != pieces_.end() && at->first < to; ++at) {
      const piece& p = at->second;
      if (p.writer != nullptr || (a.use != buffer_use::read && !p.readers.empty())) return false;
    }
    return true;
  }

  enum class afterwards : std::uint8_t { forgotten, still_the_writer };
  void remove(const typename Handle::element_type& gone, const buffer_access& a, mark at, afterwards then) noexcept {
    if (a.bytes.empty()) return;
    const place to = begin_of(a.bytes) + a.bytes.size();
    for (;; ++at) {
      piece& p = at->second;
      if (p.readers.size() == 1 && p.readers.front().get() == &gone) [[likely]] {
        p.readers.pop_back();
      } else if (!p.readers.empty()) {
        std::erase_if(p.readers, [&](const Handle& r) { return r.get() == &gone; });
      }
      if (p.writer.get() == &gone && then == afterwards::forgotten) p.writer.reset();
      if (p.idle()) note_idle(p);
      if (p.end == to) return;
    }
  }

  /// Number of pieces of memory that are in use; 0 once all steps have ended without failure.
  std::size_t size() const noexcept { return pieces_.size() - idle_count_; }

 private:
  static place begin_of(std::span<const std::byte> bytes) noexcept {
    return reinterpret_cast<place>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
  }

  // Cuts and adds pieces until one piece begins at `from`, one ends at `to`, and there is no gap between them. Returns the first of these
  // pieces.
  [[gnu::noinline]] mark cut_out(place from, place to) {
    forget_idle();
    split(from);
    split(to);
    auto at = pieces_.lower_bound(from);
    auto first = pieces_.end();
    for (place reached = from; reached < to; ++at) {
      if (at == pieces_.end() || at->first > reached)
        at = insert(at, reached, at == pieces_.end() ? to : std::min(at->first, to));
      if (reached == from) first = at;
      reached = at->second.end;
    }
    return first;
  }

  // Cuts the piece around `at`, so that no piece crosses `at`.
  void split(place at) {
    auto after = pieces_.upper_bound(at);
    if (after == pieces_.begin()) return;
    auto& [begin, whole] = *std::prev(after);
    if (begin == at || whole.end <= at) return;
    piece& upper = insert(after, at, whole.end)->second;
    upper.writer = whole.writer;
    upper.readers = whole.readers;
    whole.end = at;
    if (upper.idle()) note_idle(upper);
  }

  mark insert(mark hint, place from, place end) {
    const auto made = pieces_.try_emplace(hint, from);
    made->second.begin = from;
    made->second.end = end;
    return made;
  }

  // Programs name the same buffers again and again, so an unused piece stays for a while, with the capacity of its list of readers. The
  // piece may be idle already, because a step may name it twice.
  void note_idle(piece& p) noexcept {
    if (p.linked()) return;
    idle_.push_back(p);
    ++idle_count_;
  }

  // Not called while a step is removed, because `remove` must still look at the pieces that the step named.
  void forget_idle() noexcept {
    for (; idle_count_ > most_idle; --idle_count_) pieces_.erase(idle_.pop_front().begin);
  }

  template <class WaitFor>
  void touch(piece& p, const Handle& step, buffer_use use, const WaitFor& wait_for) {
    if (p.linked()) {
      p.unlink();
      --idle_count_;
    }
    if (p.writer != nullptr && p.writer != step) wait_for(p.writer, use != buffer_use::write);
    if (use == buffer_use::read) {
      p.readers.push_back(step);
      return;
    }
    for (const Handle& reader : p.readers) {
      if (reader != step) wait_for(reader, false);
    }
    p.readers.clear();
    p.writer = step;
  }

  static constexpr std::size_t most_idle = 64;
  pieces pieces_;
  intrusive_list<piece> idle_;  // longest idle first
  std::size_t idle_count_ = 0;
};

}  // namespace parley::runtime
