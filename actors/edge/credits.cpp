#include <parley/actors/edge/credits.hpp>
#include <parley/runtime/invariant.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

std::uint64_t credits_given::give(std::uint64_t index) {
  runtime::invariant(may_give(), {"S8", "no credit is given while a revoke is unanswered (R4)", {}});
  runtime::invariant(may_leave(index), {"S8", "credits are given for ascending receives (R3)", {}});
  out_.push_back(index);
  return ++last_number_;
}

void credits_given::begun(std::uint64_t count) noexcept {
  out_.erase(out_.begin(), std::lower_bound(out_.begin(), out_.end(), count));
}

std::uint64_t credits_given::revoke() noexcept {
  if (!revoking_) revoking_ = last_number_;
  return *revoking_;
}

bool credits_given::answered(std::uint64_t number) noexcept {
  if (revoking_ != number) return false;
  revoking_.reset();
  out_.clear();  // R4: no credit was given since the revoke
  return true;
}

bool credits_held::take(held_credit c, std::uint64_t next) {
  if (c.index < next || c.number <= revoked_ || held_.size() >= most) return false;
  const auto at = std::lower_bound(held_.begin(), held_.end(), c.index,
                                   [](const held_credit& h, std::uint64_t index) { return h.index < index; });
  if (at != held_.end() && at->index == c.index) return false;
  held_.insert(at, std::move(c));
  return true;
}

const held_credit* credits_held::find(std::uint64_t index, std::uint64_t bytes) const noexcept {
  if (held_.empty() || held_.front().index != index || held_.front().capacity < bytes) return nullptr;
  return &held_.front();
}

bool credits_held::has(std::uint64_t index, std::uint64_t bytes) const noexcept {
  return std::any_of(held_.begin(), held_.end(),
                     [=](const held_credit& h) { return h.index == index && h.capacity >= bytes; });
}

void credits_held::begun(std::uint64_t index) noexcept {
  const auto over = [index](const held_credit& h) { return h.index <= index; };
  held_.erase(held_.begin(), std::find_if_not(held_.begin(), held_.end(), over));
}

void credits_held::revoke(std::uint64_t number) noexcept {
  revoked_ = std::max(revoked_, number);
  std::erase_if(held_, [this](const held_credit& h) { return h.number <= revoked_; });
}

}  // namespace parley::actors
