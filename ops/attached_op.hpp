#pragma once
/// An op that a rank keeps without knowing what it is: what a rank has to be able to say to it.
///
///     class my_end final : public attached_op { … };
///     op_place<attached_op>& place = self.attach(std::make_unique<my_end>(self.services(), …));
///
/// It lives as long as the rank, is told of ranks that are gone, and holds back a rank that leaves while it owes messages. When a rank
/// of the op has come back as a new process, `place.rejoin()` puts another one in its place (op_place.hpp).
#include <parley/actors/declaration.hpp>
#include <parley/ops/agreement.hpp>
#include <parley/runtime/error.hpp>
#include <parley/runtime/identifiers.hpp>
#include <parley/runtime/waiting_call.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace parley::actors {
struct participant_state;
}

namespace parley::ops {

class attached_op {
 public:
  attached_op() = default;
  attached_op(const attached_op&) = delete;
  attached_op& operator=(const attached_op&) = delete;
  virtual ~attached_op() = default;
  virtual const actors::op_declaration& declaration() const noexcept = 0;
  /// Of one whose configs are tried and decided on as those of a transfer are.
  virtual const actors::participant_state* participant() const noexcept { return nullptr; }
  /// Of one that decides in another way: what it has decided, and what that is called in results files.
  virtual std::vector<std::pair<std::string, ops::decision>> decisions() const { return {}; }
  /// Whether it cannot do without this rank.
  virtual bool has(runtime::rank_id r) const noexcept = 0;
  /// A rank that it has is gone, or this one was fenced: what waits ends with `why`.
  virtual void fail(const runtime::error& why) noexcept = 0;
  virtual bool owes_messages() const noexcept = 0;
  /// Its calls that wait for something; those of the ops that it is made of list their own.
  virtual void list_waiting(runtime::waiting_list&) {}
  /// How far this rank is in it, for another one whose call runs out of time: `has made 5 calls of it`. Empty: nothing to say.
  virtual std::string progress_in_words() const { return {}; }
  virtual bool is_current() const { return true; }
  /// Retires this one.
  virtual std::unique_ptr<attached_op> next_generation() { return nullptr; }
};

}  // namespace parley::ops
