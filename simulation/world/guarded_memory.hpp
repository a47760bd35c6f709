#pragma once
/// Host memory that detects stray writes. Each block has a margin on either side, which reveals writes beyond the block. The last few
/// freed blocks are kept for a while, to reveal writes into them as well.
///
///     guarded_memory guarded;
///     runtime::host_memory_instead instead(guarded);   // ops on this thread allocate from it while `instead` lives
///     …
///     guarded.spoiled();                               // number of blocks with a stray write beside them, or after they were freed
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <vector>

namespace parley::simulation {

class guarded_memory final : public runtime::memory_space {
 public:
  guarded_memory() : below_(runtime::host_memory()) {}
  std::unique_ptr<block> make(std::size_t bytes) override;
  runtime::task<> copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    return below_.copy(to, from);
  }
  void gather(std::span<std::byte> packed, const runtime::memory_pieces& pieces,
              runtime::device_stream stream) override {
    below_.gather(packed, pieces, stream);
  }
  void scatter(const runtime::memory_pieces& pieces, std::span<const std::byte> packed,
               runtime::device_stream stream) override {
    below_.scatter(pieces, packed, stream);
  }
  /// Number of blocks with a stray write so far, freed ones included.
  std::size_t spoiled() const;
  std::size_t made() const noexcept { return made_; }

 private:
  static constexpr std::size_t margin = 64;
  static constexpr std::byte untouched{0xa5};
  static constexpr std::size_t most_gone = 8;
  class guarded_block;
  static bool is_untouched(std::span<const std::byte> bytes) noexcept;
  void keep_for_a_while(std::vector<std::byte> gone);
  runtime::memory_space& below_;
  std::size_t made_ = 0;
  std::size_t spoiled_ = 0;  // among freed blocks
  std::list<const guarded_block*> live_{};
  std::deque<std::vector<std::byte>> gone_{};
};

}  // namespace parley::simulation
