#pragma once
/// Which earlier steps a step has to wait for, found from the memory that each of them names.
///
///     buffer_order<step> order;
///     order.add(mine, {bytes, buffer_use::read}, [&](const std::shared_ptr<step>& earlier, bool data) { … });
///     order.remove(mine, {bytes, buffer_use::read}, keep_as_writer);        // once it has ended
///
/// A reader waits for the last writer of each byte, and depends on its `data`; a writer waits for the last writer and for all
/// who read since. Memory is named by its bytes: overlaps count, whatever object they belong to. One `add` costs
/// O(log n + overlaps). A writer that failed can stay, so that those who read later what it did not bring hear of it.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
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

template <class Step>
class buffer_order {
 public:
  using handle = std::shared_ptr<Step>;

  /// Calls `wait_for(earlier, data)`, perhaps more than once for the same one, never for `step` itself.
  template <class WaitFor>
  void add(const handle& step, const buffer_access& a, const WaitFor& wait_for) {
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
        at = pieces_.emplace_hint(at, reached, piece{gap_end, nullptr, {}});
      }
      touch(at->second, step, a.use, wait_for);
      reached = at->second.end;
      ++at;
    }
  }

  enum class afterwards : std::uint8_t { forgotten, still_the_writer };
  void remove(const Step& step, const buffer_access& a, afterwards then) noexcept {
    if (a.bytes.empty()) return;
    const place from = begin_of(a.bytes);
    const place to = from + a.bytes.size();
    for (auto at = pieces_.lower_bound(from); at != pieces_.end() && at->first < to;) {
      piece& p = at->second;
      std::erase_if(p.readers, [&](const handle& r) { return r.get() == &step; });
      if (p.writer.get() == &step && then == afterwards::forgotten) p.writer.reset();
      at = p.writer == nullptr && p.readers.empty() ? pieces_.erase(at) : std::next(at);
    }
  }

  /// In how many pieces it knows memory; none once all steps have ended well.
  std::size_t size() const noexcept { return pieces_.size(); }

 private:
  using place = std::uintptr_t;
  struct piece {
    place end;
    handle writer;
    std::vector<handle> readers;  // since
  };

  static place begin_of(std::span<const std::byte> bytes) noexcept {
    return reinterpret_cast<place>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
  }

  // Afterwards no piece lies across `at`.
  void split(place at) {
    auto after = pieces_.upper_bound(at);
    if (after == pieces_.begin()) return;
    auto& [begin, whole] = *std::prev(after);
    if (begin == at || whole.end <= at) return;
    pieces_.emplace_hint(after, at, whole);
    whole.end = at;
  }

  template <class WaitFor>
  static void touch(piece& p, const handle& step, buffer_use use, const WaitFor& wait_for) {
    if (p.writer != nullptr && p.writer != step) wait_for(p.writer, use != buffer_use::write);
    if (use == buffer_use::read) {
      p.readers.push_back(step);
      return;
    }
    for (const handle& reader : p.readers) {
      if (reader != step) wait_for(reader, false);
    }
    p.readers.clear();
    p.writer = step;
  }

  std::map<place, piece> pieces_;
};

}  // namespace parley::runtime
