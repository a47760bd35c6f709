#pragma once
/// Collectives of a leader and its workers, in one group or in several: all-reduce, broadcast or gather, each group running
/// one config of several, the fastest, found out while the program runs.
///
///     collective gradients(self, {
///         .name    = "gradients",                           // of all ranks, led by rank 0, unless `role` or `groups` say otherwise
///         .configs = {configs::star(), configs::star(256_KiB), configs::chain()},
///         .depth   = 2});                                   // calls that a rank may have under way before it must wait
///     co_await gradients.all_reduce(values);                // in place: the same bits on all ranks, in every run
///
/// Ranks that are idle exchange nothing and may not call. Calls are matched in the order in which each rank makes them, and
/// all ranks of a group bring the same size. With several `groups` each leads, tunes and fails on its own; who has no role
/// function has the first rank of each group as its leader. A call throws `failure`, which names op, rank and invocation, and who was late,
/// died, failed or called otherwise. A call that fails fails on every rank of the group; the next one goes on.
///
/// When a rank of a group comes back as a new process, its calls fail with `peer_restarted`. Then each of its other ranks calls `rejoin`,
/// where its program is ready to begin again, and the new process declares the op as ever: all count and agree anew.
///
/// A worker learns the config of call i from what the leader sent with call i - depth. That is no wait of its own as long as
/// no more than `depth` calls are under way. A broadcast may have depth 0: its first message is the leader's.
///
/// A call is charged from its last start, or from the end of the call before where that came later, to its last end. Where calls
/// overlap a trial runs between calls of other configs, so that this is how soon a call is done, not how many are done in a second: a
/// config that takes longer alone, and of which several run side by side for little more, loses. Who knows that it would do better
/// lists it alone.
///
/// On a GPU (`.memory`) its own kernel forms the sums, in the same order: of integers, `float`, `double`, `f16`, `bf16` and complex numbers; other elements
/// and functions throw `bad_argument`. A call comes after what `cuda_copies::after` said of its buffer.
#include <parley/actors/declaration.hpp>
#include <parley/agreement.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/core/op_place.hpp>
#include <parley/role.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::ops {

class group_end;
class hierarchy;
class rank;

struct collective_options {
  std::string name;
  std::function<ops::role(rank_id)> role{};    ///< empty: the first rank of each group leads
  std::vector<std::vector<rank_id>> groups{};  ///< empty: one, of all ranks that are not idle
  collective_kind kind = collective_kind::all_reduce;
  std::vector<group_config_ptr> configs{configs::star()};
  tuning::constraints constraints{};        ///< what this rank's user demands of all configs but the default
  capability_function can_run{};            ///< which configs a rank can run; empty: they are asked themselves
  runtime::memory_space* memory = nullptr;  ///< where its buffers lie, such as a GPU's; null: in host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::uint64_t depth = 1;  ///< calls that a rank may have under way before it must wait
  std::string dtype{};
  std::vector<rank_id> restart_group{};  ///< further ranks whose restart ends the generation of all groups
};

/// `size` consecutive ranks each; the last group has what is left.
std::vector<std::vector<rank_id>> groups_of(rank_id size, rank_id world_size);

/// The participants of each group, or `role_conflict` / `bad_argument` saying which ranks and why. The same on all ranks.
runtime::result<std::vector<std::vector<actors::op_participant>>> form_groups(const collective_options& op,
                                                                              rank_id world_size);

struct collective_call_options {
  std::chrono::nanoseconds timeout{};  ///< 0: the op's
};

/// A light handle of the op, which ends with its rank; copies of it are handles of the same op.
class collective {
 public:
  /// Of no op: this rank is idle in it.
  collective() = default;
  /// On all ranks. Throws `bad_argument` or `role_conflict`, on every rank alike, when the options cannot work.
  collective(rank& self, const collective_options& op);
  bool idle() const noexcept { return !place_; }
  bool leads() const noexcept;
  std::size_t size() const noexcept;
  /// After `peer_restarted`: enters the generation that has begun. False when none has, or this rank is idle. One that is fenced, or
  /// has lost another rank of the group since, fails again.
  bool rejoin();

  /// Combines the contributions of all, place by place, with `Combine`: a stateless function object of two elements, of the same
  /// type on all ranks, as are the elements (call_type.hpp).
  template <class Combine = std::plus<>, writable_buffer B>
  runtime::task<> all_reduce(B&& data, collective_call_options o = {}) {
    return run(collective_kind::all_reduce, reduction<Combine, std::ranges::range_value_t<B>>(data), o);
  }
  /// The same; the leader does something with the combined data before it is returned, such as combining it with that of
  /// other leaders. Workers give no function. Throws `bad_argument` where one of the op's configs leaves no room for that.
  template <class Combine = std::plus<>, writable_buffer B, class T = std::ranges::range_value_t<B>>
  runtime::task<> all_reduce(B&& data, std::function<runtime::task<>(std::span<std::ranges::range_value_t<B>>)> between,
                             collective_call_options o = {}) {
    group_work work = reduction<Combine, T>(data);
    work.between = [between = std::move(between)](std::span<std::byte> combined) {
      return between(std::span<T>(reinterpret_cast<T*>(combined.data()), combined.size() / sizeof(T)));
    };
    return run_with_pause(std::move(work), o);
  }
  template <writable_buffer B>
  runtime::task<> broadcast(B&& data, collective_call_options o = {}) {
    return run(collective_kind::broadcast,
               giving(std::as_writable_bytes(std::span(data)), element_of<std::ranges::range_value_t<B>>()), o);
  }
  /// `mine` of every rank, in the order of the ranks, into the leader's `all`, which holds `size()` times as much. A worker's
  /// call may end before the leader has it; its `mine` may be reused then.
  template <writable_buffer B>
  runtime::task<> gather(B&& mine, std::span<std::ranges::range_value_t<B>> all = {}, collective_call_options o = {}) {
    return gather_bytes(std::as_writable_bytes(std::span(mine)), std::as_writable_bytes(all),
                        element_of<std::ranges::range_value_t<B>>(), o);
  }

  /// What its ranks have agreed on, and wishes about it (agreement.hpp). `bytes` is what a call combines, spreads or gathers in all.
  /// Throw `bad_argument` on an idle rank.
  agreement agreed() const;
  ops::decision decision(std::uint64_t bytes) const { return agreed().decision(bytes); }
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return agreed().decided(bytes, o);
  }

  /// Of the current generation; null on an idle rank.
  const group_end* details() const noexcept;

 private:
  friend hierarchy;
  template <class Combine, class T>
  static group_work reduction(std::span<T> data) {
    static_assert(std::is_empty_v<Combine>, "a rank makes its own `Combine`: one with members would lack their values");
    group_work work;
    work.data = std::as_writable_bytes(data);
    work.total_bytes = work.data.size();
    work.element_bytes = sizeof(T);
    work.numbers = std::is_same_v<T, runtime::f16>    ? tuning::number_type::f16
                   : std::is_same_v<T, runtime::bf16> ? tuning::number_type::bf16
                                                      : tuning::number_type_for<T>();
    work.type = call_type_of<T, Combine>();
    if constexpr (std::is_same_v<Combine, std::plus<>> || std::is_same_v<Combine, std::plus<T>>)
      work.sums = runtime::summand_for<T>();
    work.combine = [](std::span<std::byte> into, std::span<const std::byte> from) {
      T* const a = reinterpret_cast<T*>(into.data());
      const T* const b = reinterpret_cast<const T*>(from.data());
      for (std::size_t i = 0; i < into.size() / sizeof(T); ++i) a[i] = static_cast<T>(Combine{}(a[i], b[i]));
    };
    return work;
  }
  struct element {
    std::size_t bytes;
    actors::call_type type;
  };
  template <class T>
  static element element_of() noexcept {
    return {sizeof(T), call_type_of<T>()};
  }
  static group_work giving(std::span<std::byte> data, element of);
  group_end& end() const;
  group_end& end(collective_kind wanted) const;
  runtime::task<> run(collective_kind what, group_work work, collective_call_options o) const;
  runtime::task<> run_with_pause(group_work work, collective_call_options o) const;
  runtime::task<> gather_bytes(std::span<std::byte> mine, std::span<std::byte> all, element of,
                               collective_call_options o) const;
  group_work gathering(std::span<std::byte> mine, std::span<std::byte> all, element of) const;
  std::string name_;
  runtime::rank_id self_ = 0;
  op_place<group_end> place_;
};

}  // namespace parley::ops
