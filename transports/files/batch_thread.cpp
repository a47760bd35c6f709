#include <parley/transports/files/batch_thread.hpp>

#include <csignal>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <system_error>

namespace parley::transports {

namespace {

constexpr int most_of_a_thread = 10;  // the work runs at most a tenth of the time

}  // namespace

batch_thread::~batch_thread() {
  if (!thread_.joinable()) return;
  if (::getpid() != process_) {  // in a forked child this thread does not exist
    thread_.detach();
    return;
  }
  {
    const std::lock_guard hold(state_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

runtime::result<> batch_thread::ask() {
  {
    const std::lock_guard hold(state_);
    asked_ = true;
  }
  if (!thread_.joinable()) return start();
  changed_.notify_all();
  return {};
}

runtime::result<> batch_thread::start() {
  process_ = ::getpid();
  // Block all signals in the new thread: the program's own threads handle them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  runtime::result<> started;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    started = runtime::error{runtime::errc::unavailable, std::string("no thread could be started: ") + e.what()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void batch_thread::run() {
  using namespace std::chrono;
  std::unique_lock hold(state_);
  while (!ending_) {
    changed_.wait(hold, [this] { return ending_ || asked_; });
    changed_.wait_for(hold, nanoseconds(wait_ns_), [this] { return ending_; });
    if (ending_) return;
    asked_ = false;
    hold.unlock();
    const auto began = steady_clock::now();
    work_();
    const auto pause = (most_of_a_thread - 1) * (steady_clock::now() - began) - nanoseconds(wait_ns_);
    hold.lock();
    if (pause.count() > 0) changed_.wait_for(hold, pause, [this] { return ending_; });
  }
}

}  // namespace parley::transports
