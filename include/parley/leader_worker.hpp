#pragma once
/// Collectives of a leader and its workers, in one group or in several: all-reduce, broadcast or gather, each group running
/// one config of several, the fastest, found out while the program runs.
///
///     auto gradients = self.declare(leader_worker{
///         .name    = "gradients",
///         .role    = [](rank_id r) { return r == 0 ? "leader" : r < 4 ? "worker" : "idle"; },
///         .configs = {star(), star(256_KiB), chain()},
///         .depth   = 2});                                   // calls that a rank may have under way before it must wait
///     co_await gradients.all_reduce(std::span(values));     // in place: the same bits on all ranks, in every run
///
/// Ranks that are idle exchange nothing and may not call. Calls are matched in the order in which each rank makes them, and
/// all ranks of a group bring the same size. With several `groups` each leads, tunes and fails on its own; who has no role
/// function has the first rank of each group as its leader. Awaiting a call throws `failure` as group.hpp says.
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

struct leader_worker {
  std::string name;
  std::function<std::string(rank_id)> role{};
  std::vector<std::vector<rank_id>> groups{};  ///< empty: one, of all ranks that are not idle, and `role` must be given
  std::vector<rank_id> coupled{};              ///< further ranks whose restart ends the generation of all groups
  collective does = collective::all_reduce;
  std::vector<group_config_ptr> configs{star()};
  std::uint64_t depth = 1;
  capability_function capable{};  ///< which configs a rank can run; empty: they are asked themselves
  std::string dtype{};
  time_ns timeout_ns = 30'000'000'000;
  tuning::constraints allowed{};            ///< what this rank's user demands of all configs but the default
  runtime::memory_space* memory = nullptr;  ///< where its buffers lie, such as a GPU's; null: in host memory
};

/// `size` consecutive ranks each; the last group has what is left.
std::vector<std::vector<rank_id>> groups_of(rank_id size, rank_id world_size);

/// The participants of each group, or `role_conflict` / `bad_argument` saying which ranks and why. The same on all ranks.
runtime::result<std::vector<std::vector<actors::op_participant>>> form_groups(const leader_worker& op,
                                                                              rank_id world_size);

template <class T>
concept group_element = std::is_trivially_copyable_v<T>;

struct group_call_options {
  time_ns timeout_ns = 0;  ///< 0: the op's
};

/// What `declare` gives back; a light handle that lives as long as its rank.
class rank_group {
 public:
  bool idle() const noexcept { return !place_; }
  bool leads() const noexcept;
  std::size_t size() const noexcept;
  /// After `peer_restarted`: enters the generation that has begun. False when none has, or this rank is idle. One that is fenced, or
  /// has lost another rank of the group since, fails again.
  bool rejoin();

  /// Combines the contributions of all, place by place, with `Combine`: a stateless function object of two elements, of the same
  /// type on all ranks, as are the elements (call_type.hpp).
  template <class Combine = std::plus<>, group_element T>
  runtime::task<> all_reduce(std::span<T> data, group_call_options o = {}) {
    return run(collective::all_reduce, reduction<Combine, T>(data), o);
  }
  /// The same; the leader does something with the combined data before it is returned, such as combining it with that of
  /// other leaders. Workers give no function. Throws `bad_argument` where one of the op's configs leaves no room for that.
  template <class Combine = std::plus<>, group_element T>
  runtime::task<> all_reduce(std::span<T> data, std::function<runtime::task<>(std::span<T>)> between,
                             group_call_options o = {}) {
    group_work work = reduction<Combine, T>(data);
    work.between = [between = std::move(between)](std::span<std::byte> combined) {
      return between(std::span<T>(reinterpret_cast<T*>(combined.data()), combined.size() / sizeof(T)));
    };
    return run_with_pause(std::move(work), o);
  }
  template <group_element T>
  runtime::task<> broadcast(std::span<T> data, group_call_options o = {}) {
    return run(collective::broadcast, giving(std::as_writable_bytes(data), element_of<T>()), o);
  }
  /// `mine` of every rank, in the order of the ranks, into the leader's `all`, which holds `size()` times as much. A worker's
  /// call may end before the leader has it; its `mine` may be reused then.
  template <group_element T>
  runtime::task<> gather(std::span<T> mine, std::span<T> all = {}, group_call_options o = {}) {
    return gather(std::as_writable_bytes(mine), std::as_writable_bytes(all), element_of<T>(), o);
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
  friend rank;
  template <class Combine, class T>
  static group_work reduction(std::span<T> data) {
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
  group_end& end(collective wanted) const;
  runtime::task<> run(collective what, group_work work, group_call_options o) const;
  runtime::task<> run_with_pause(group_work work, group_call_options o) const;
  runtime::task<> gather(std::span<std::byte> mine, std::span<std::byte> all, element of, group_call_options o) const;
  group_work gathering(std::span<std::byte> mine, std::span<std::byte> all, element of) const;
  std::string name_;
  runtime::rank_id self_ = 0;
  op_place<group_end> place_;
};

}  // namespace parley::ops
