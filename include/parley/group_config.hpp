#pragma once
/// A group config: one way for a leader and its workers to do a collective, with an implementation per role in one object.
///
///     auto configs = {configs::star(), configs::star(256_KiB), configs::chain(64_KiB)};      // the first one is the default, c0
///
///     class own final : public group_config {
///      public:
///       own() : group_config({.name = "own", .wire_class = "own"}) {}
///       task<> lead(group_call& g) const override;      // collects, combines, returns
///       task<> work(group_call& g) const override;
///     };
///
/// Both implementations derive what they send and expect from the config's parameters and what `g` says alone. A receive that
/// gets another cut than it asked for ends the invocation with `config_failed` on all ranks. They throw `failure` to give up.
/// Whatever they wait for, parts or something of their own, ends when the call does: at its deadline, or because another rank failed it.
/// Reductions combine in the order of the places, so that a result has the same bits under every config and in every run.
/// Calls of 0 bytes never reach them.
///
/// On a device (`.memory` of the op) `data` and `scratch` are addresses that the processor may not follow: configs touch them by `combine` and
/// `copy` alone, which the device does in their order, and before what is sent of them afterwards.
#include <parley/actors/group/group_invocation.hpp>
#include <parley/error.hpp>
#include <parley/ops/core/op_config.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/summand.hpp>
#include <parley/task.hpp>
#include <parley/tuning/numbers.hpp>

#include <boost/container/small_vector.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::ops {

using runtime::rank_id;

/// What a group does together, and what a call's buffer holds.
enum class collective_kind : std::uint8_t {
  all_reduce,  ///< everyone's contribution before, the combination after, in place
  broadcast,   ///< the leader's data, afterwards everywhere
  gather,      ///< the leader's: one block per place; a worker's: its own block
};
std::string_view name(collective_kind c) noexcept;

/// Combines two runs of whole elements: into = into (+) from.
using combine_function = void (*)(std::span<std::byte> into, std::span<const std::byte> from);
/// What the leader does between collecting and returning, with the combined data.
using between_function = std::function<runtime::task<>(std::span<std::byte>)>;

/// What a call of a group throws, with the rank whose doing it was: of this group, or of another that its leader spoke with in
/// between.
class group_failure : public runtime::failure {
 public:
  group_failure(runtime::error why, const actors::group_fault& what) : failure(std::move(why)), what_(what) {}
  rank_id culprit() const noexcept { return what_.culprit; }
  const actors::group_fault& what_happened() const noexcept { return what_; }

 private:
  actors::group_fault what_;
};

/// What one call consists of, apart from the transport.
struct group_work {
  collective_kind what = collective_kind::all_reduce;
  std::span<std::byte> data{};
  std::uint64_t total_bytes = 0;  ///< the tuning size: of a gather, all blocks together
  std::size_t element_bytes = 1;
  combine_function combine = nullptr;
  between_function between{};
  tuning::number_type numbers = tuning::number_type::bytes;  ///< how the data of two configs is compared
  runtime::summand sums = runtime::summand::none;  ///< what a device can add up, where `combine` is a sum of those
  std::span<const std::byte> own{};  ///< of a gather's leader on a device: what is to be brought into its block
  actors::call_type type = actors::call_type::any;  ///< what all ranks have to call with (ops/core/call_type.hpp)
};

/// One invocation as an implementation sees it. Participants are named by their place: 0 .. size() - 1, ranks ascending.
class group_call {
 public:
  using mark = actors::group_invocation::mark;
  /// Of an invocation that runs two configs each has lanes of its own.
  enum class pass : std::uint8_t { first, second };
  group_call(actors::group_invocation& inv, std::span<const rank_id> members, rank_id self, rank_id leader,
             const group_work& work, pass which = pass::first, runtime::memory_space* device = nullptr);

  collective_kind what() const noexcept { return work_.what; }
  std::size_t size() const noexcept { return members_.size(); }
  std::size_t self() const noexcept { return self_; }
  std::size_t leader() const noexcept { return leader_; }
  std::span<std::byte> data() const noexcept { return work_.data; }
  std::uint64_t total_bytes() const noexcept { return work_.total_bytes; }
  /// Of a gather: each place's share.
  std::uint64_t block_bytes() const noexcept { return work_.total_bytes / members_.size(); }
  std::uint64_t element_bytes() const noexcept { return work_.element_bytes; }
  /// The largest number of whole elements that fits `bytes`, at least one; 0 means all.
  std::uint64_t piece_bytes(std::uint64_t bytes) const noexcept;
  void combine(std::span<std::byte> into, std::span<const std::byte> from) {
    if (device_ == nullptr) {
      work_.combine(into, from);
    } else {
      computing_ = true;
      device_->add(into, from, work_.sums);
    }
  }
  void copy(std::span<std::byte> to, std::span<const std::byte> from) {
    if (device_ == nullptr) {
      std::memmove(to.data(), from.data(), from.size());
    } else {
      computing_ = true;
      device_->assign(to, from);
    }
  }
  /// Memory that lives as long as the call, where the data lies.
  std::span<std::byte> scratch(std::size_t bytes);

  /// `offset` counts within `total_bytes`. Two parts with one source, lane and offset are one: the second is dropped.
  static constexpr std::uint32_t lanes = actors::group_invocation::lanes / 2;
  mark send(std::size_t to, std::uint64_t offset, std::span<const std::byte> part, std::uint32_t lane = 0) {
    return inv_.send(members_[to], offset, part, own(lane));
  }
  mark receive(std::size_t from, std::uint64_t offset, std::span<std::byte> into, std::uint32_t lane = 0) {
    return inv_.receive(members_[from], offset, into, own(lane));
  }
  mark posted() const noexcept { return inv_.posted(); }
  /// Waits for everything posted up to `m`, or at all. Throws what the invocation failed with.
  actors::group_invocation::step until(mark m) noexcept { return inv_.until(m); }
  /// The same of those that were sent: what is to be received may come much later, when the leader is done in between.
  actors::group_invocation::step until_sent(mark m) noexcept { return inv_.until_sent(m); }
  actors::group_invocation::step drain() noexcept { return inv_.drain(); }

  /// At the leader, once everything is combined and before anything is returned.
  bool has_between() const noexcept { return static_cast<bool>(work_.between); }
  runtime::task<> between();
  bool between_ran() const noexcept { return between_ran_; }
  /// Whether a device was given something to do.
  bool computing() const noexcept { return computing_; }

 private:
  // One too many is one for the invocation, too.
  std::uint32_t own(std::uint32_t lane) const noexcept { return lane < lanes ? first_lane_ + lane : 2 * lanes; }
  actors::group_invocation& inv_;
  std::span<const rank_id> members_;
  std::size_t self_;
  std::size_t leader_;
  const group_work& work_;
  std::uint32_t first_lane_;
  runtime::memory_space* device_;
  struct scratch_block {
    explicit scratch_block(std::size_t size) : bytes(size), at(runtime::frame_pool::allocate(size)) {}
    scratch_block(scratch_block&& other) noexcept : bytes(other.bytes), at(std::exchange(other.at, nullptr)) {}
    scratch_block& operator=(scratch_block&&) = delete;
    ~scratch_block() {
      if (at != nullptr) runtime::frame_pool::release(at, bytes);
    }
    std::size_t bytes;
    void* at;
  };
  boost::container::small_vector<scratch_block, 2> scratch_;
  std::vector<std::unique_ptr<runtime::memory_space::block>> device_scratch_;
  bool between_ran_ = false;
  bool computing_ = false;
};

class group_config : public op_config {
 public:
  virtual runtime::task<> lead(group_call& g) const = 0;
  virtual runtime::task<> work(group_call& g) const = 0;
  /// Which collectives it has implementations for.
  virtual bool does(collective_kind) const noexcept { return true; }
  /// Whether its leader can do something with what was combined before anybody has it.
  virtual bool returns_later() const noexcept { return true; }
  /// What it demands on the rank that demands most, in a group of that many.
  virtual tuning::demands demands_of(collective_kind, std::size_t) const { return demands(); }

 protected:
  explicit group_config(tuning::config_identity identity) : op_config(std::move(identity)) {}
};

using group_config_ptr = std::shared_ptr<const group_config>;

}  // namespace parley::ops

namespace parley::configs {

/// Everyone with the leader, in pieces of `chunk_bytes` or in one: while one piece comes the one before returns.
ops::group_config_ptr star(std::uint64_t chunk_bytes = 0);
/// Along a ring of places, and once more around it with the result: each rank talks to two. Not for gather.
ops::group_config_ptr chain(std::uint64_t chunk_bytes = 65'536);
/// Along a binomial tree whose root is the leader: each rank talks to at most log2(size) others, for twice that many steps. So
/// that sums are formed in the order of the places here, too, contributions travel as they are. For up to 1,024 places.
ops::group_config_ptr tree();

/// Everyone sends to everyone, and each forms the sum itself: one step, and `size()` times the memory. Only for all_reduce, and nothing
/// can be done in between.
ops::group_config_ptr one_shot();
/// Each place forms the sum of its own share of the data, of which the others send it theirs, and gives it to them, in pieces of
/// `chunk_bytes` or whole: twice as many bytes leave a rank as it has, whatever the size of the group. Only for all_reduce, and
/// nothing can be done in between.
ops::group_config_ptr two_shot(std::uint64_t chunk_bytes = 0);

}  // namespace parley::configs

namespace parley::ops {

/// One made of two functions. Throws `bad_argument` naming the role whose function is null.
using group_function = runtime::task<> (*)(group_call& g);
group_config_ptr grouped(tuning::config_identity identity, group_function lead, group_function work);

}  // namespace parley::ops
