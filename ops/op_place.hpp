#pragma once
/// Where an op stands on a rank: its end of the current generation, and those whose generations have ended, as calls may still be
/// leaving them. Handles refer to the place, so that they go on when a rank of the op has come back as a new process and its
/// other ranks have called `rejoin`.
///
///     op_place<group_end> at(std::make_unique<group_end>(services, options), keeper);
///     at->fail(why, restarted);                 // ends all calls until …
///     at.rejoin();                              // … another end takes the place; false where none has to
///
/// An `End` says whether it `is_current()`: whether its generation is that of the processes which are in the places of its ranks now. Its
/// `next_generation(…)` retires it, and answers the end that follows.
#include <memory>
#include <utility>
#include <vector>

namespace parley::ops {

/// What a place asks of the rank that keeps it.
struct place_keeper {
  /// Whether the others hold this rank dead: then no generation follows.
  virtual bool is_fenced() const noexcept = 0;
  /// Ends ops that have just been made with ranks that are gone.
  virtual void end_if_lost() noexcept = 0;

 protected:
  ~place_keeper() = default;
};

template <class End>
class op_place {
 public:
  op_place(std::unique_ptr<End> first, place_keeper& keeper) noexcept : keeper_(keeper), now_(std::move(first)) {}

  End& operator*() const noexcept { return *now_; }
  End* operator->() const noexcept { return now_.get(); }

  /// Those whose generations have ended, the latest first.
  template <class Visit>
  void for_each_ended(const Visit& visit) const {
    for (auto e = ended_.rbegin(); e != ended_.rend(); ++e) visit(**e);
  }

  template <class... More>
  bool rejoin(More&&... more) {
    if (keeper_.is_fenced() || now_->is_current()) return false;
    ended_.reserve(ended_.size() + 1);
    std::unique_ptr<End> next = now_->next_generation(std::forward<More>(more)...);
    ended_.push_back(std::exchange(now_, std::move(next)));
    keeper_.end_if_lost();
    return true;
  }

 private:
  place_keeper& keeper_;
  std::vector<std::unique_ptr<End>> ended_;
  std::unique_ptr<End> now_;
};

}  // namespace parley::ops
