#pragma once
/// Memory with a margin on either side, in which a stray write shows.
///
///     guarded_bytes buffer(1000);
///     op.receive(buffer.inside());
///     CHECK(buffer.clean_beyond(1000));
///
///     guarded_place at;                                  // place.hpp: for arrays, and for ops with `.memory = at.memory()`
///     array<float> x(at, 1000);
///     CHECK(at.clean());
#include <parley/tests/support/devices/memory_of_host.hpp>
#include <parley/tests/support/place.hpp>

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <vector>

namespace parley::tests {

// Bytes of which a part may be written; the rest shows stray writes.
class guarded_bytes {
 public:
  guarded_bytes(std::size_t size, std::size_t margin = 64) : all_(size + 2 * margin, untouched), margin_(margin) {}
  std::size_t size() const { return all_.size() - 2 * margin_; }
  std::span<std::byte> inside() { return std::span(all_).subspan(margin_, size()); }
  /// True if nothing beyond the first `used` bytes inside was written.
  bool clean_beyond(std::size_t used) const {
    const auto is_clean = [](std::byte b) { return b == untouched; };
    const auto begin = all_.begin();
    const auto at = [&](std::size_t i) { return begin + static_cast<std::ptrdiff_t>(i); };
    return std::all_of(begin, at(margin_), is_clean) && std::all_of(at(margin_ + used), all_.end(), is_clean);
  }

  static constexpr std::byte untouched{0xa5};

 private:
  std::vector<std::byte> all_;
  std::size_t margin_;
};

/// Host memory whose blocks have margins.
class guarded_place final : public host_place {
 public:
  runtime::memory_space* memory() noexcept override { return &space_; }
  /// True if nothing was ever written beside a block.
  bool clean() const {
    const auto is_clean = [](const guarded_bytes* b) { return b->clean_beyond(b->size()); };
    return space_.spoiled == 0 && std::all_of(space_.live.begin(), space_.live.end(), is_clean);
  }
  /// The contents of all live blocks.
  std::vector<std::vector<std::byte>> contents() const {
    std::vector<std::vector<std::byte>> all;
    for (guarded_bytes* b : space_.live) all.emplace_back(b->inside().begin(), b->inside().end());
    return all;
  }

 private:
  class space final : public memory_of_host {
   public:
    std::unique_ptr<block> make(std::size_t bytes) override { return std::make_unique<guarded_block>(*this, bytes); }
    std::list<guarded_bytes*> live;
    std::size_t spoiled = 0;  // freed blocks with a stray write

   private:
    class guarded_block final : public block {
     public:
      guarded_block(space& s, std::size_t bytes) : space_(s), bytes_(bytes) {
        const auto inside = bytes_.inside();
        std::fill(inside.begin(), inside.end(), std::byte{});
        place_ = space_.live.insert(space_.live.end(), &bytes_);
      }
      guarded_block(const guarded_block&) = delete;
      guarded_block& operator=(const guarded_block&) = delete;
      ~guarded_block() override {
        space_.spoiled += bytes_.clean_beyond(bytes_.size()) ? 0 : 1;
        space_.live.erase(place_);
      }
      std::span<std::byte> bytes() const noexcept override { return bytes_.inside(); }

     private:
      space& space_;
      mutable guarded_bytes bytes_;
      std::list<guarded_bytes*>::iterator place_;
    };
  };
  space space_;
};

}  // namespace parley::tests
