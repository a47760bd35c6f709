#pragma once
/// The interface through which a rank uses an op in one generation. The rank keeps the ends of all its ops in one list. It walks the list
/// to end ops with a rank that is gone, to list calls that wait, to leave, and to report decisions. An op overrides the functions that
/// concern it; the defaults do nothing.
///
///     class my_end final : public op_end { … };
///     my_end& mine = *self.attach(std::make_unique<my_end>(self.services(), …));
///
/// An end lives as long as its rank, even after its generation has ended, because some of its calls may not have returned yet. A handle
/// finds the end of the next generation through op_ref.hpp.
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
  /// The list is sorted by kind. Ends of one kind are in the order of their creation, but an end of a later generation directly follows the
  /// end that it replaces.
  enum class kind : std::uint8_t { sender, receiver, batch, group, without_headers, other };

  explicit op_end(kind k = kind::other) noexcept : kind_(k) {}
  op_end(const op_end&) = delete;
  op_end& operator=(const op_end&) = delete;
  virtual ~op_end() = default;
  bool is(kind k) const noexcept { return kind_ == k; }
  /// True if its generation has ended. Some of its calls may not have returned yet.
  bool has_ended() const noexcept { return ended_; }
  bool is_collective() const noexcept { return is(kind::group) || is(kind::without_headers); }

  virtual const actors::op_declaration& declaration() const noexcept = 0;
  /// The state of this rank's participant, if the op agrees on configs in the way of a transfer; else null.
  virtual const actors::participant_state* as_participant() const noexcept { return nullptr; }
  /// The state of this rank's coordinator, which keeps the errors of each rank's rehearsals. Null on ranks that do not lead.
  virtual const actors::coordinator_state* coordinator() const noexcept { return nullptr; }
  /// For an op that agrees in another way: its decisions, each with its name in results files.
  virtual std::vector<std::pair<std::string, ops::decision>> decisions() const { return {}; }

  /// True if its calls fail when rank `r` is gone.
  virtual bool ends_with(rank_id r) const noexcept = 0;
  /// True if this generation ends when rank `r` comes back as a new process.
  virtual bool restarts_with(rank_id r) const noexcept { return ends_with(r); }
  /// Ends all of its calls, now and in future. `why.began_with()` is the rank to blame; null: this rank.
  virtual void fail(const runtime::error& why) noexcept = 0;

  /// Appends the calls of this op that wait for something. Ops that this op is made of append their own calls.
  virtual void list_waiting(runtime::waiting_list&) {}
  /// This rank's progress: `has made 5 calls of it`. Another rank asks for it when its call of this key or tag times out. Empty: nothing to
  /// say.
  virtual std::string progress_in_words(std::uint32_t) const { return {}; }

  /// True if other ranks have not acknowledged its control messages yet, or a rehearsal is running.
  virtual bool owes_messages() const noexcept { return false; }
  /// Sends other ranks the information that they could not ask for once this rank has left. Returns false while they need this rank.
  virtual bool may_leave() { return true; }
  /// The longest time that this rank waits, before it leaves, for other ranks to receive messages that would be lost with it; 0: they have
  /// received everything. Also asks those ranks.
  virtual time_ns untaken_ns() { return 0; }
  /// Appends the messages that were not received: for each receiver, its rank and a line of text.
  virtual void list_undelivered(std::vector<std::pair<rank_id, std::string>>&) {}
  /// Appends a line for each other thing that ranks have not received or have refused, if no call has reported it.
  virtual void list_left_over(std::vector<std::string>&) {}
  /// Aborts the communicator of its rehearsals.
  virtual void abandon() noexcept {}
  /// The number of flow control messages that it has sent.
  virtual std::uint64_t flow_messages() const noexcept { return 0; }

 private:
  friend struct op_host;
  template <class End>
  friend class op_ref;
  kind kind_;
  bool ended_ = false;
  op_end* followed_by_ = nullptr;  // the end of the next generation, for handles
};

}  // namespace parley::ops
