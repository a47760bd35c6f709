#pragma once
/// The place of an op on a rank, for the op's handles. It leads to the op's end of the current generation. So handles stay valid when a
/// rank of the op has come back as a new process and the other ranks have called `rejoin`.
///
///     op_ref<group_end> at(host, end);
///     at->fail(why);                            // ends all calls until …
///     at.rejoin();                              // … an end of the next generation replaces it; false: it need not be replaced
///
/// An `End` is an `op_end`. Its `is_current()` says whether its generation is that of the present processes of its ranks. Its
/// `next_generation(…)` retires it and returns its successor.
#include <memory>
#include <utility>

namespace parley::ops {

class op_end;
struct op_host;
/// Makes room on the rank for one more end. False: the other ranks have declared this rank dead, so no generation follows.
bool make_room_on(op_host& host);
/// Keeps `next`, the successor of `ended`, and ends it if ranks of its op are gone.
void replace_on(op_host& host, op_end& ended, std::unique_ptr<op_end> next);

template <class End>
class op_ref {
 public:
  op_ref() = default;  // for a rank that has no part in the op
  op_ref(op_host& host, End& first) noexcept : host_(&host), now_(&first) {}

  explicit operator bool() const noexcept { return now_ != nullptr; }
  End& operator*() const noexcept {
    while (now_->followed_by_ != nullptr) now_ = static_cast<End*>(now_->followed_by_);
    return *now_;
  }
  End* operator->() const noexcept { return &**this; }

  template <class... More>
  bool rejoin(More&&... more) const {
    End& ended = **this;
    if (ended.is_current() || !make_room_on(*host_)) return false;
    replace_on(*host_, ended, ended.next_generation(std::forward<More>(more)...));
    return true;
  }

 private:
  op_host* host_ = nullptr;
  mutable End* now_ = nullptr;
};

}  // namespace parley::ops
