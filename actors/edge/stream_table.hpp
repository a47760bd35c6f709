#pragma once
/// The streams of one end of an edge, one for each tag. A stream is found by its id. Iteration is in the order of creation.
///
///     stream_table<stream> streams;
///     stream* known = streams.find(id);            // null for a new one
///     stream& made = streams.add(id);              // throws `bad_argument` past `most`
///     for (auto& s : streams) …                    // unique_ptr<stream>
///
/// A stream lasts as long as its edge, because its invocations are numbered. So use tags for a few flows, not to number messages: each tag
/// takes a few hundred bytes, and there are at most `most`.
#include <parley/error.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace parley::actors {

inline constexpr std::size_t most_tags = 65'536;  ///< plus one stream for rehearsals

template <class Stream>
class stream_table {
 public:
  static constexpr std::size_t most = most_tags + 1;

  Stream* find(std::uint64_t id) noexcept {
    if (all_.size() > few) {
      const auto at = places_.find(id);
      return at == places_.end() ? nullptr : at->second;
    }
    for (auto& s : all_) {
      if (s->id == id) return s.get();
    }
    return nullptr;
  }
  bool full() const noexcept { return all_.size() >= most; }
  Stream& add(std::uint64_t id) {
    if (full())
      runtime::raise({runtime::errc::bad_argument,
                      "an op uses more than " + std::to_string(most_tags) + " tags between two ranks; use fewer"});
    all_.push_back(std::make_unique<Stream>());
    all_.back()->id = id;
    if (all_.size() == few + 1) {
      for (auto& s : all_) places_[s->id] = s.get();
    } else if (all_.size() > few) {
      places_[id] = all_.back().get();
    }
    return *all_.back();
  }
  std::size_t size() const noexcept { return all_.size(); }
  /// In the order of creation.
  Stream& operator[](std::size_t place) noexcept { return *all_[place]; }
  auto begin() const noexcept { return all_.begin(); }
  auto end() const noexcept { return all_.end(); }

 private:
  static constexpr std::size_t few = 8;  // searching a vector of this many streams is as fast as the map
  std::vector<std::unique_ptr<Stream>> all_;
  boost::unordered_flat_map<std::uint64_t, Stream*> places_;
};

}  // namespace parley::actors
