#pragma once
/// An op on one rank, in one generation, as the rank sees it. The rank keeps all of them in one list, which it walks to end ops with a rank
/// that is gone, to say what waits, to leave, and to report what was decided. An op overrides what it has; the defaults have nothing.
///
///     class my_end final : public op_end { … };
///     my_end& mine = *self.attach(std::make_unique<my_end>(self.services(), …));
///
/// An end lives as long as its rank, also when its generation has ended, because calls may still be leaving it. op_place.hpp leads a handle
/// from there to the end of the next generation.
#include <parley/actors/declaration.hpp>
#include <parley/agreement.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/runtime/record/waiting_call.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace parley::actors {
struct coordinator_state;
struct participant_state;
}  // namespace parley::actors

namespace parley::ops {

class op_end {
 public:
  /// The list is in this order; ends of one kind are in the order in which they were made.
  enum class kind : std::uint8_t { sender, receiver, batch, group, without_headers, other };

  explicit op_end(kind k = kind::other) noexcept : kind_(k) {}
  op_end(const op_end&) = delete;
  op_end& operator=(const op_end&) = delete;
  virtual ~op_end() = default;
  bool is(kind k) const noexcept { return kind_ == k; }
  /// Whether its generation has. Calls may still be leaving it.
  bool has_ended() const noexcept { return ended_; }
  bool is_collective() const noexcept { return is(kind::group) || is(kind::without_headers); }

  virtual const actors::op_declaration& declaration() const noexcept = 0;
  /// Of an op whose configs are tried and decided on as those of a transfer are.
  virtual const actors::participant_state* as_participant() const noexcept { return nullptr; }
  /// The state of this rank's coordinator, which keeps the errors of each rank's rehearsals. Null on ranks that do not lead.
  virtual const actors::coordinator_state* coordinator() const noexcept { return nullptr; }
  /// Of an op that decides in another way: what it has decided, and the decisions' names in results files.
  virtual std::vector<std::pair<std::string, ops::decision>> decisions() const { return {}; }

  /// Whether its calls fail when this rank is gone.
  virtual bool ends_with(rank_id r) const noexcept = 0;
  /// Whether this generation ends when this rank comes back as a new process.
  virtual bool restarts_with(rank_id r) const noexcept { return ends_with(r); }
  /// Ends all calls and those to come. `why.began_with()` is the rank to blame; null: this one.
  virtual void fail(const runtime::error& why) noexcept = 0;

  /// Its calls that wait for something. Ops that it is made of list their own.
  virtual void list_waiting(runtime::waiting_list&) {}
  /// How far this rank is, for another one whose call of this key or tag runs out of time: `has made 5 calls of it`. Empty: nothing to say.
  virtual std::string progress_in_words(std::uint32_t) const { return {}; }

  /// Whether others have not acknowledged its control messages yet, or it rehearses.
  virtual bool owes_messages() const noexcept { return false; }
  /// Tells others what they could not ask after this rank has left. False while they need this rank.
  virtual bool may_leave() { return true; }
  /// For how long others may still take what this rank sent and what would be lost with it. 0: they have it all. Asks them.
  virtual time_ns untaken_ns() { return 0; }
  /// Messages that a receiver has not taken: the receiver, and a line about them.
  virtual void list_undelivered(std::vector<std::pair<rank_id, std::string>>&) {}
  /// A line for each other thing that others have not taken or have refused, and that no call has reported.
  virtual void list_left_over(std::vector<std::string>&) {}
  /// Aborts the communicator of its rehearsals.
  virtual void abandon() noexcept {}
  /// Messages for flow control that it has sent.
  virtual std::uint64_t flow_messages() const noexcept { return 0; }

 private:
  friend struct op_host;
  template <class End>
  friend class op_place;
  kind kind_;
  bool ended_ = false;
  op_end* followed_by_ = nullptr;  // of the generation that follows, for handles
};

}  // namespace parley::ops
