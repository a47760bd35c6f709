#pragma once
/// Which earlier steps a step has to wait for, found from the memory that each of them names.
///
///     buffer_order<std::shared_ptr<step>> order;
///     order.add(mine, {bytes, buffer_use::read}, [&](const std::shared_ptr<step>& earlier, bool data) { … });
///     order.remove(*mine, {bytes, buffer_use::read}, buffer_order<…>::afterwards::forgotten);      // once it has ended
///
/// A reader waits for the last writer of each byte, and depends on its `data`; a writer waits for the last writer and for all
/// who read since. Memory is named by its bytes: overlaps count, whatever object they belong to. One `add` costs
/// O(log n + overlaps). A writer that failed can stay, so that those who read later what it did not bring hear of it.
/// `Handle` is a pointer that keeps its step.
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
 public:
  buffer_order() { spare_.reserve(most_spare); }

  /// Calls `wait_for(earlier, data)`, perhaps more than once for the same one, never for `step` itself.
  template <class WaitFor>
  void add(const Handle& step, const buffer_access& a, const WaitFor& wait_for) {
    if (a.bytes.empty()) return;
    const place from = begin_of(a.bytes);
    const place to = from + a.bytes.size();
    split(from);
    split(to);
    place reached = from;
    auto at = pieces_.lower_bound(from);
    while (reached < to) {
      if (at == pieces_.end() || at->first > reached) {
        const place gap_end = at == pieces_.end() ? to : std::min(at->first, to);
        at = insert(at, reached, gap_end);
      }
      touch(at->second, step, a.use, wait_for);
      reached = at->second.end;
      ++at;
    }
  }

  enum class afterwards : std::uint8_t { forgotten, still_the_writer };
  void remove(const typename Handle::element_type& gone, const buffer_access& a, afterwards then) noexcept {
    if (a.bytes.empty()) return;
    const place from = begin_of(a.bytes);
    const place to = from + a.bytes.size();
    for (auto at = pieces_.lower_bound(from); at != pieces_.end() && at->first < to;) {
      piece& p = at->second;
      std::erase_if(p.readers, [&](const Handle& r) { return r.get() == &gone; });
      if (p.writer.get() == &gone && then == afterwards::forgotten) p.writer.reset();
      const auto following = std::next(at);
      if (p.writer == nullptr && p.readers.empty()) drop(at);
      at = following;
    }
  }

  /// In how many pieces it knows memory; none once all steps have ended well.
  std::size_t size() const noexcept { return pieces_.size(); }

 private:
  using place = std::uintptr_t;
  struct piece {
    place end;
    Handle writer;
    std::vector<Handle> readers;  // since
  };
  using pieces = std::map<place, piece>;

  static place begin_of(std::span<const std::byte> bytes) noexcept {
    return reinterpret_cast<place>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
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
  }

  // Pieces come and go with every step: their nodes, and what their lists of readers have grown to, are used again.
  typename pieces::iterator insert(typename pieces::iterator hint, place from, place end) {
    if (spare_.empty()) return pieces_.emplace_hint(hint, from, piece{end, nullptr, {}});
    auto node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = from;
    node.mapped().end = end;
    return pieces_.insert(hint, std::move(node));
  }
  void drop(typename pieces::iterator at) noexcept {
    if (spare_.size() == most_spare) {
      pieces_.erase(at);
    } else {
      spare_.push_back(pieces_.extract(at));
    }
  }

  template <class WaitFor>
  static void touch(piece& p, const Handle& step, buffer_use use, const WaitFor& wait_for) {
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

  static constexpr std::size_t most_spare = 64;
  pieces pieces_;
  std::vector<typename pieces::node_type> spare_;  // of pieces that nobody uses
};

}  // namespace parley::runtime
