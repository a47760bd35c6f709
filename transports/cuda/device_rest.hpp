#pragma once
/// Who frees memory of a device waits until all of its streams have come to rest, and holds CUDA's locks meanwhile: whoever calls CUDA then
/// waits, too. Where a stream waits for a message that this process has to bring, both would wait for ever. So such memory is freed while
/// no stream of this process waits for a message, and none begins to.
///
///     device_rest& rest = device_rest::of_this_process();
///     rest.begin_wait();                              // a stream is about to wait for a message
///     rest.end_waits(1);                              // that has come
///     const device_rest::quiet now(rest, 10s);        // in another thread, around what frees
///
/// A stream that always waits for some message delays it up to the limit; then it is done all the same, and keeps nobody from beginning to
/// wait: a message that has to come may need that. Else whoever begins to wait is kept for `longest` at most. Any thread.
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace parley::transports {

class device_rest {
 public:
  static constexpr std::chrono::milliseconds longest{10'000};
  static device_rest& of_this_process();

  void begin_wait();
  void end_waits(std::size_t n) noexcept;

  class quiet {
   public:
    quiet(device_rest& of, std::chrono::milliseconds limit);
    ~quiet();
    quiet(const quiet&) = delete;
    quiet& operator=(const quiet&) = delete;
    /// Whether no stream waits; else the limit had passed.
    bool at_rest() const noexcept { return at_rest_; }

   private:
    device_rest& of_;
    bool at_rest_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t waiting_ = 0;
  std::size_t quiet_ = 0;
};

}  // namespace parley::transports
