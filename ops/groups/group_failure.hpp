#pragma once
/// The exception of a group's call. It keeps the fault as the protocol knows it, so that a leader of two groups can pass the fault on from
/// one to the other.
#include <parley/actors/group/group_invocation.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <utility>

namespace parley::ops {

class group_failure : public runtime::failure {
 public:
  group_failure(runtime::error why, const actors::group_fault& what) : failure(std::move(why)), what_(what) {}
  /// The rank that caused it. That rank is in this group, or in another group with which the leader communicated in `between`.
  runtime::rank_id culprit() const noexcept { return what_.culprit; }
  const actors::group_fault& what_happened() const noexcept { return what_; }

 private:
  actors::group_fault what_;
};

}  // namespace parley::ops
