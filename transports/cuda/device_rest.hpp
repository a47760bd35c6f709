#pragma once
/// Separates two things that deadlock together: freeing device memory, and streams that wait for messages. A CUDA call that frees device
/// memory waits until all streams of the device are idle, and holds CUDA's locks while it waits, so other CUDA calls also wait. If a stream
/// waits for a message that this process must receive, both wait for ever. So memory is freed while no stream of this process waits for a
/// message, and no stream may begin to wait until the memory is freed.
///
///     device_rest& rest = device_rest::of_this_process();
///     rest.begin_wait();                              // a stream is about to wait for a message
///     rest.end_waits(1);                              // the message has arrived
///     const device_rest::quiet now(rest, 10s);        // in another thread, around the call that frees
///
/// If some stream always waits, the constructor of `quiet` returns at its limit, and the caller frees the memory anyway. Such a `quiet`
/// does not block `begin_wait`, because a message that must arrive may need a stream that waits. Otherwise `begin_wait` blocks while a
/// `quiet` exists, for at most `longest`. Any thread.
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
    /// True if no stream waits for a message; false if the limit passed first.
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
