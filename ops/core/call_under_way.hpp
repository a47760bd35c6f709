#pragma once
#include <exception>

namespace parley::ops {

class neighbours;

/// Of a call that fails neighbours are told at once, or with the next call here where a program that ends, and perhaps tells by that,
/// has cancelled it, or where it ended for a rank that is gone.
class call_under_way {
 public:
  explicit call_under_way(neighbours* of) noexcept : of_(of) {}
  call_under_way(const call_under_way&) = delete;
  call_under_way& operator=(const call_under_way&) = delete;
  ~call_under_way();
  /// Throws it, or what another rank's failure has been told with.
  void end(const std::exception_ptr& thrown);

 private:
  neighbours* of_;  // null where there is none, or it has ended
};

}  // namespace parley::ops
