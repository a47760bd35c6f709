#pragma once
/// A group config: one way for a leader and its workers to do a collective. One object has the implementations of both roles.
///
///     auto configs = {configs::star(), configs::star(256_KiB), configs::chain(64_KiB)};      // the first one is the default, c0
///
///     class own final : public group_config {
///      public:
///       own() : group_config({.name = "own", .wire_class = "own"}) {}
///       task<> lead(group_call& g) const override;      // collects, combines, sends the result back
///       task<> work(group_call& g) const override;
///     };
///
/// Rules for both implementations:
/// - They decide what to send and to expect from the config's parameters and from `g` alone. If other parts arrive than the receives have
///   asked for, the invocation ends with `config_failed` on all ranks.
/// - They throw `failure` to give up.
/// - All their waits, for parts or for anything else, end when the call ends: at its deadline, or when it fails on another rank.
/// - Reductions combine in the order of the places, so that a result has the same bits under every config and in every run.
/// - Calls of 0 bytes never reach them.
///
/// On a device (`.memory` of the op), `data` and `scratch` are device addresses, which the processor must not dereference. Configs access
/// them only by `combine` and `copy`. The device executes these in order, and before later sends of the same memory.
#include <parley/actors/group/group_invocation.hpp>
#include <parley/error.hpp>
#include <parley/ops/core/op_config.hpp>
#include <parley/ops/groups/scratch_memory.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/summand.hpp>
#include <parley/task.hpp>
#include <parley/tuning/numbers.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace parley::ops {

using runtime::rank_id;

/// The kind of a collective, and the contents of a call's buffer.
enum class collective_kind : std::uint8_t {
  all_reduce,  ///< in place: before the call each rank's data, after it the combined data
  broadcast,   ///< the leader's data, which every rank has after the call
  gather,      ///< on the leader a block for each place; on a worker its own block
};
std::string_view name(collective_kind c) noexcept;

/// Combines two sequences of whole elements: into = into (+) from.
using combine_function = void (*)(std::span<std::byte> into, std::span<const std::byte> from);
/// The leader runs this function on the combined data, after collecting the data and before sending the result back.
using between_function = std::function<runtime::task<>(std::span<std::byte>)>;

/// The data and the functions of one call.
struct group_work {
  collective_kind what = collective_kind::all_reduce;
  std::span<std::byte> data{};
  std::uint64_t total_bytes = 0;  ///< the size for tuning; for a gather, of all blocks together
  std::size_t element_bytes = 1;
  combine_function combine = nullptr;
  between_function between{};
  tuning::number_type numbers = tuning::number_type::bytes;  ///< number type for comparing the results of two configs
  runtime::summand sums = runtime::summand::none;  ///< element type, if `combine` is a sum that a device can form
  std::span<const std::byte> own{};  ///< gather on a device: the leader's own data, to be copied into its block
  actors::call_type type = actors::call_type::any;  ///< must be equal on all ranks (ops/core/call_type.hpp)
};

/// One invocation as an implementation sees it. A participant is named by its place, 0 .. size() - 1, in ascending order of ranks.
class group_call {
 public:
  using ticket = actors::group_invocation::ticket;
  /// If an invocation runs two configs, each run has its own lanes.
  enum class pass : std::uint8_t { first, second };
  group_call(actors::group_invocation& inv, std::span<const rank_id> members, rank_id self, rank_id leader,
             const group_work& work, pass which = pass::first, runtime::memory_space* device = nullptr);

  collective_kind what() const noexcept { return work_.what; }
  std::size_t size() const noexcept { return members_.size(); }
  std::size_t self() const noexcept { return self_; }
  std::size_t leader() const noexcept { return leader_; }
  std::span<std::byte> data() const noexcept { return work_.data; }
  std::uint64_t total_bytes() const noexcept { return work_.total_bytes; }
  /// For a gather: the bytes of each place's block.
  std::uint64_t block_bytes() const noexcept { return work_.total_bytes / members_.size(); }
  std::uint64_t element_bytes() const noexcept { return work_.element_bytes; }
  /// The size of a piece: `bytes` rounded down to whole elements, at least one element. If `bytes` is 0: all of the data.
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
  /// Makes scratch memory in the same space as the data. The scratch memory lives as long as this object.
  std::span<std::byte> scratch(std::size_t bytes);

  /// `offset` counts within `total_bytes`. A second part with the same source, lane and offset counts as a duplicate and is dropped.
  static constexpr std::uint32_t lanes = actors::group_invocation::lanes / 2;
  ticket send(std::size_t to, std::uint64_t offset, std::span<const std::byte> part, std::uint32_t lane = 0) {
    return inv_.send(members_[to], offset, part, own(lane));
  }
  ticket receive(std::size_t from, std::uint64_t offset, std::span<std::byte> into, std::uint32_t lane = 0) {
    return inv_.receive(members_[from], offset, into, own(lane));
  }
  ticket posted() const noexcept { return inv_.posted(); }
  /// Waits until all sends and receives posted up to `m` have ended (`drain`: all of them). Throws the error of the invocation.
  actors::group_invocation::step until(ticket m) noexcept { return inv_.until(m); }
  /// Like `until`, but for sends only: a receive may end much later, after the leader's `between`.
  actors::group_invocation::step until_sent(ticket m) noexcept { return inv_.until_sent(m); }
  actors::group_invocation::step drain() noexcept { return inv_.drain(); }

  /// The leader awaits `between` once everything is combined and before it sends any result back.
  bool has_between() const noexcept { return static_cast<bool>(work_.between); }
  runtime::task<> between();
  bool between_ran() const noexcept { return between_ran_; }
  /// True if `combine` or `copy` has given work to a device.
  bool computing() const noexcept { return computing_; }

 private:
  // A lane that is out of range here is mapped to a lane that is out of range for the invocation.
  std::uint32_t own(std::uint32_t lane) const noexcept { return lane < lanes ? first_lane_ + lane : 2 * lanes; }
  actors::group_invocation& inv_;
  std::span<const rank_id> members_;
  std::size_t self_;
  std::size_t leader_;
  const group_work& work_;
  std::uint32_t first_lane_;
  runtime::memory_space* device_;
  scratch_memory scratch_;
  bool between_ran_ = false;
  bool computing_ = false;
};

class group_config : public op_config {
 public:
  virtual runtime::task<> lead(group_call& g) const = 0;
  virtual runtime::task<> work(group_call& g) const = 0;
  /// True if this config implements that collective.
  virtual bool does(collective_kind) const noexcept { return true; }
  /// True if the leader has all combined data before any rank gets a result, so that `between` can run.
  virtual bool returns_later() const noexcept { return true; }
  /// The config's demands in a group of the given size, on the rank where they are highest.
  virtual tuning::demands demands_of(collective_kind, std::size_t) const { return demands(); }

 protected:
  explicit group_config(tuning::config_identity identity) : op_config(std::move(identity)) {}
};

using group_config_ptr = std::shared_ptr<const group_config>;

}  // namespace parley::ops

namespace parley::configs {

/// Each worker exchanges data with the leader, in pieces of `chunk_bytes` (0: whole). While the leader receives a piece, it sends back the
/// result of the previous piece.
ops::group_config_ptr star(std::uint64_t chunk_bytes = 0);
/// In an all-reduce a partial sum travels from place to place, and each place adds its data. The result, or a broadcast's data, then
/// travels from the leader along all other places. A rank exchanges data with two others, or with up to four if the leader is not place 0.
/// Not for gather.
ops::group_config_ptr chain(std::uint64_t chunk_bytes = 65'536);
/// The data travels along a binomial tree whose root is the leader. Each rank exchanges data with at most log2(size) others (rounded up),
/// and a call takes twice that many steps. The leader receives all contributions uncombined, so that it can form sums in the order of the
/// places. For up to 1,024 places.
ops::group_config_ptr tree();

/// Each rank sends its data to all others and forms the sum itself: one step, but `size()` times the memory. Only for all_reduce, and
/// without `between`.
ops::group_config_ptr one_shot();
/// Each place owns one share of the data. All others send that share to it; it forms the sum and sends the sum back to them, in pieces of
/// `chunk_bytes` (0: whole). In a group of any size, a rank sends at most twice as many bytes as it has. Only for all_reduce, and without
/// `between`.
ops::group_config_ptr two_shot(std::uint64_t chunk_bytes = 0);

}  // namespace parley::configs

namespace parley::ops {

/// Makes a config from two functions. Throws a `bad_argument` that names the role whose function is null.
using group_function = runtime::task<> (*)(group_call& g);
group_config_ptr grouped(tuning::config_identity identity, group_function lead, group_function work);
/// Makes a built-in config from its text: `star`, `chain(chunk_bytes=64KiB)`, `two_shot(chunk_bytes=64KiB)`, `tree`, `one_shot`.
runtime::result<group_config_ptr> named_group_config(std::string_view text);

}  // namespace parley::ops
