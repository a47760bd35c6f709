#pragma once
/// Words in a GPU's memory that tell its streams that a message has arrived. Each flag belongs to one expected receive. It is down until
/// this rank's processor sets it at the end of the receive, or the GPU of the message's sender sets it earlier.
///
///     cuda_flags flags(gpu, /*device=*/0);
///     std::uint64_t one = flags.expect(buffer);        // down from here on; send `one` to the sender with the buffer's key
///     flags.hold(stream, buffer);                      // work enqueued into `stream` from here on waits for the flag
///     flags.came(one, errc::none);                     // the receive has ended: sets the flag, even if the sender has set it
///
/// A flag's number contains the index of its word and the value that sets it. Values ascend, so that a word is reused without being
/// cleared. The word of a failed receive is not reused, because the sender may still set it. `expect` throws `full` when all words are
/// used up. The constructor throws `unavailable` on a device that cannot wait for words. The destructor sets all flags that are down.
/// One thread.
#include <parley/transports/cuda/cuda_driver.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace parley::transports {

class cuda_flags {
 public:
  static constexpr std::uint32_t words = 4096;

  /// Returns when the words are cleared.
  cuda_flags(cuda_driver& driver, int device);
  ~cuda_flags();
  cuda_flags(const cuda_flags&) = delete;
  cuda_flags& operator=(const cuda_flags&) = delete;

  std::uint64_t expect(std::span<const std::byte> memory);
  /// The flags of all receives expected into memory that overlaps `memory`.
  std::vector<std::uint64_t> down_for(std::span<const std::byte> memory) const;
  bool is_down(std::uint64_t flag) const noexcept;
  /// The flag of the oldest expected receive whose memory has the same beginning as `memory` and is at least as long; 0: none.
  std::uint64_t oldest_for(std::span<const std::byte> memory) const noexcept;
  /// Makes the stream wait for all receives expected into that memory, or for one flag.
  runtime::errc hold(cuda_stream stream, std::span<const std::byte> memory) noexcept;
  runtime::errc hold(cuda_stream stream, std::uint64_t flag) noexcept;
  void came(std::uint64_t flag, runtime::errc outcome) noexcept;

  /// For peers: all words, and the word and value that a flag stands for. Check flags that a peer sent by `is_one`.
  std::span<std::byte> memory() const noexcept { return words_.bytes(); }
  static bool is_one(std::uint64_t flag) noexcept { return flag != 0 && flag >> 32U < words; }
  static std::size_t offset_of(std::uint64_t flag) noexcept { return sizeof(std::uint32_t) * (flag >> 32U); }
  static std::uint32_t value_of(std::uint64_t flag) noexcept { return static_cast<std::uint32_t>(flag); }

 private:
  struct expected {
    std::span<const std::byte> memory;
    std::uint64_t flag;
    bool holds;  // whether a stream waits for it
  };
  template <class Is>
  runtime::errc hold_for(cuda_stream stream, const Is& is_it) noexcept;
  void set(const expected& e) noexcept;
  runtime::errc finish() noexcept;

  cuda_driver& driver_;
  int device_;
  cuda_memory words_;
  cuda_stream stream_;
  std::vector<std::uint64_t> free_;  // the last flag of each free word; the word's next value is 1 higher
  std::uint32_t used_ = 0;           // words that have been used at all
  std::vector<expected> down_;
};

}  // namespace parley::transports
