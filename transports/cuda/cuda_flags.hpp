#pragma once
/// Words in a GPU's memory by which its streams see that a message has come: each stands for one receive that is expected, is down
/// until that has ended, and is set by this rank's processor or, sooner, by the device of the message's sender.
///
///     cuda_flags flags(gpu, /*device=*/0);
///     std::uint64_t one = flags.expect(buffer);        // down from here on; `one` goes to the sender with the buffer's key
///     flags.hold(stream, buffer);                      // what `stream` gets from here on waits for it
///     flags.came(one, errc::none);                     // the receive has ended: it is set, whoever else has set it
///
/// A flag's number has the place of its word and the value that sets it; values ascend, so that a word is used again without being
/// cleared. One whose receive failed is not used again: its sender may still set it. When all are used up `expect` throws `full`; on
/// a device that cannot wait for words the constructor throws `unavailable`. Destroying it sets what is down. One thread.
#include <parley/transports/cuda/cuda_driver.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace parley::transports {

class cuda_flags {
 public:
  static constexpr std::uint32_t words = 4096;

  /// Returns once they are cleared.
  cuda_flags(cuda_driver& driver, int device);
  ~cuda_flags();
  cuda_flags(const cuda_flags&) = delete;
  cuda_flags& operator=(const cuda_flags&) = delete;

  std::uint64_t expect(std::span<const std::byte> memory);
  /// Of all receives that are expected into that memory, or into some of it.
  std::vector<std::uint64_t> down_for(std::span<const std::byte> memory) const;
  bool is_down(std::uint64_t flag) const noexcept;
  /// The receive into just that memory that has been expected for longest; 0: none is.
  std::uint64_t oldest_for(std::span<const std::byte> memory) const noexcept;
  /// The stream goes on once all that is expected into that memory has come, or that one.
  runtime::errc hold(cuda_stream stream, std::span<const std::byte> memory) noexcept;
  runtime::errc hold(cuda_stream stream, std::uint64_t flag) noexcept;
  void came(std::uint64_t flag, runtime::errc outcome) noexcept;

  /// For peers: all the words, and which of them a number means. Numbers that peers say are checked by `is_one`.
  std::span<std::byte> memory() const noexcept { return words_.bytes(); }
  static bool is_one(std::uint64_t flag) noexcept { return flag != 0 && flag >> 32U < words; }
  static std::size_t offset_of(std::uint64_t flag) noexcept { return sizeof(std::uint32_t) * (flag >> 32U); }
  static std::uint32_t value_of(std::uint64_t flag) noexcept { return static_cast<std::uint32_t>(flag); }

 private:
  struct expected {
    std::span<const std::byte> memory;
    std::uint64_t flag;
    bool holds;  // some stream
  };
  template <class Is>
  runtime::errc hold_for(cuda_stream stream, const Is& is_it) noexcept;
  void set(const expected& e) noexcept;
  runtime::errc finish() noexcept;

  cuda_driver& driver_;
  int device_;
  cuda_memory words_;
  cuda_stream stream_;
  std::vector<std::uint64_t> free_;  // the numbers that were used last; the next one of a word is 1 more
  std::uint32_t used_ = 0;           // words that have been used at all
  std::vector<expected> down_;
};

}  // namespace parley::transports
