#pragma once
/// Which earlier steps a step has to wait for, found from the memory that each of them names.
///
///     buffer_order<std::shared_ptr<step>> order;
///     auto at = order.add(mine, {bytes, buffer_use::read}, [&](const std::shared_ptr<step>& earlier, bool data) { … });
///     order.remove(*mine, {bytes, buffer_use::read}, at, buffer_order<…>::afterwards::forgotten);      // once it has ended
///
/// A reader waits for the last writer of each byte, and depends on its `data`; a writer waits for the last writer and for all
/// who read since. Memory is named by its bytes: overlaps count, whatever object they belong to. One `add` costs
/// O(log n + overlaps). A writer that failed can stay, so that those who read later what it did not bring hear of it. Steps are removed
/// after those that they wait for. `Handle` is a pointer that keeps its step.
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
  write,   ///< what was there is not needed
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
    std::vector<Handle> readers;  // since
    bool idle() const noexcept { return writer == nullptr && readers.empty(); }
  };
  using pieces = std::map<place, piece>;

 public:
  /// Where a step stands with one access: what `remove` finds it by.
  using mark = typename pieces::iterator;

  /// Calls `wait_for(earlier, data)`, perhaps more than once for the same one, never for `step` itself.
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

  /// Whether `add` would have nobody to wait for.
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

  /// Of how many pieces of memory somebody has to know; none once all steps have ended well.
  std::size_t size() const noexcept { return pieces_.size() - idle_count_; }

 private:
  static place begin_of(std::span<const std::byte> bytes) noexcept {
    return reinterpret_cast<place>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
  }

  // Afterwards a piece begins at `from`, one ends at `to`, and nothing lies between that is in none. The first of them.
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

  // Afterwards no piece lies across `at`.
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

  // Programs name the same buffers again and again: a piece that nobody uses stays for a while, with what its list of readers has
  // grown to. A step may name one twice.
  void note_idle(piece& p) noexcept {
    if (p.linked()) return;
    idle_.push_back(p);
    ++idle_count_;
  }

  // Not while a step leaves: what it has named is still to be looked at.
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
  intrusive_list<piece> idle_;  // the one that has been so for longest first
  std::size_t idle_count_ = 0;
};

}  // namespace parley::runtime
