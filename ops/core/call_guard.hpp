#pragma once
#include <exception>

namespace parley::ops {

class neighbours;

/// Tells the neighbours when a call fails. It tells them at once, with two exceptions: a call that was cancelled or torn down (the program
/// may be ending, and its end tells them), and a call that ended because a rank is gone. In both cases the next call on this rank tells
/// them.
class call_guard {
 public:
  explicit call_guard(neighbours* of) noexcept : of_(of) {}
  call_guard(const call_guard&) = delete;
  call_guard& operator=(const call_guard&) = delete;
  ~call_guard();
  /// Does nothing if `thrown` is null. Otherwise throws `thrown`, or the failure on another rank that ended this call.
  void end(const std::exception_ptr& thrown);

 private:
  neighbours* of_;  // null: there are no neighbours, or the call has ended
};

}  // namespace parley::ops
