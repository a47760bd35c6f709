#pragma once
/// Runs work that would block a rank's thread, such as writing a file, on a separate thread. The work starts after a short wait;
/// all requests during that wait are one batch.
///
///     batch_thread writer([&] { write_file(); });
///     auto asked = writer.ask();     // `write_file` runs 250 ms from now, on the writer's own thread
///
/// The work runs at most a tenth of the time. The destructor waits for work that is running; requested work that has not begun
/// does not run. In a forked child nothing runs. The work must not throw.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace parley::transports {

class batch_thread {
 public:
  static constexpr runtime::time_ns default_wait_ns = 250'000'000;

  explicit batch_thread(std::function<void()> work, runtime::time_ns wait_ns = default_wait_ns)
      : work_(std::move(work)), wait_ns_(wait_ns) {}
  batch_thread(const batch_thread&) = delete;
  batch_thread& operator=(const batch_thread&) = delete;
  ~batch_thread();

  /// Requests one run of the work. `unavailable` if no thread could be started; the next call tries again.
  runtime::result<> ask();

 private:
  runtime::result<> start();
  void run();

  std::function<void()> work_;
  runtime::time_ns wait_ns_;
  std::mutex state_;
  std::condition_variable changed_;
  bool asked_ = false;
  bool ending_ = false;
  pid_t process_ = 0;
  std::thread thread_;
};

}  // namespace parley::transports
