#pragma once
/// Collectives of a leader and its workers, in one group or in several: all-reduce, broadcast or gather. Each group finds the
/// fastest of its configs while the program runs, and then runs that one.
///
///     collective gradients(self, {
///         .name    = "gradients",                           // of all ranks, led by rank 0, unless `role` or `groups` say otherwise
///         .configs = {configs::star(), configs::star(256_KiB), configs::chain()},
///         .depth   = 2});                                   // calls that a rank may have in flight before it must wait
///     co_await gradients.all_reduce(values);                // in place: the same bits on all ranks, in every run
///
/// Idle ranks exchange nothing and must not call. Calls are matched in the order in which each rank makes them, and all ranks of a
/// group must pass the same size. With several `groups`, each group has its own leader, tunes on its own and fails on its own. Without
/// a role function, the first rank of each group leads.
///
/// Failure: a call throws `failure`. The failure names the op, the rank, the invocation, and the rank to blame: that rank was late, died,
/// failed, or made a different call. A call that fails on one rank fails on every rank of the group. The next call runs as usual.
///
/// Restart: when a rank of a group comes back as a new process, the group's calls fail with `peer_restarted`. Each other rank of the
/// group then calls `rejoin` as soon as its program is ready to begin again, and the new process declares the op as usual. All ranks
/// count calls from 0 again and agree on configs again.
///
/// Depth: a worker learns the config of call i from the leader's message for call i - depth, so a worker with at most `depth` calls in
/// flight does not wait for the config. A broadcast may have depth 0, because the leader sends its first message.
///
/// Times: the time of a call starts when its last rank starts the call, or when the previous call ends if that is later, and ends when its
/// last rank ends the call (docs/protocol.md C20 to C27 have the exact rule). If calls overlap, the calls around a trial run other configs.
/// A trial therefore measures the latency of one call, not the number of calls per second. A config that is slower for one call, but runs
/// several calls at the same time at little extra cost, loses. If such a config is better for your program, list it alone.
///
/// On a GPU (`.memory`) a kernel of parley forms the sums, in the same order. It sums integers, `float`, `double`, `f16`, `bf16` and
/// complex numbers. Other element types and functions throw `bad_argument`. A call runs after the work that `cuda_copies::after` noted for
/// its buffer.
#include <parley/actors/declaration.hpp>
#include <parley/agreement.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/core/op_ref.hpp>
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
  std::vector<std::vector<rank_id>> groups{};  ///< empty: one group of all ranks that are not idle
  collective_kind kind = collective_kind::all_reduce;
  std::vector<group_config_ptr> configs{configs::star()};
  tuning::constraints constraints{};        ///< limits of this rank's user for every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory = nullptr;  ///< where the buffers lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::uint64_t depth = 1;  ///< calls that a rank may have in flight before it must wait
  std::string dtype{};
  std::vector<rank_id> restart_group{};  ///< if one of these ranks restarts, the generation of all groups ends
};

/// Groups of `size` consecutive ranks; the last group may be smaller.
std::vector<std::vector<rank_id>> groups_of(rank_id size, rank_id world_size);

/// The participants of each group, or a `role_conflict` / `bad_argument` that names the ranks and the reason. Every rank gets the same
/// result.
runtime::result<std::vector<std::vector<actors::op_participant>>> form_groups(const collective_options& op,
                                                                              rank_id world_size);

struct collective_call_options {
  std::chrono::nanoseconds timeout{};  ///< 0: the op's timeout
};

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op.
class collective {
 public:
  /// A handle of no op: this rank counts as idle.
  collective() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  collective(rank& self, const collective_options& op);
  bool idle() const noexcept { return !place_; }
  bool leads() const noexcept;
  std::size_t size() const noexcept;
  /// Call it after `peer_restarted`: enters the op's new generation. Returns false if no new generation has begun, or if this rank is idle
  /// or fenced. If the group has lost another rank since then, calls of the new generation also fail.
  bool rejoin();

  /// Combines the data of all ranks element by element, in place and in the order of the ranks. `Combine` is a stateless function
  /// object of two elements. All ranks must use the same `Combine` and the same element type (call_type.hpp).
  template <class Combine = std::plus<>, writable_buffer B>
  runtime::task<> all_reduce(B&& data, collective_call_options o = {}) {
    return run(collective_kind::all_reduce, reduction<Combine, std::ranges::range_value_t<B>>(data), o);
  }
  /// For the leader; its workers call the overload without `between`. The leader runs `between` on the combined data before the
  /// workers receive it, for example to combine it with the data of other leaders. Throws `bad_argument` if a config of the op cannot do
  /// that (`group_config::returns_later`).
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
  /// Copies `mine` of every rank into the leader's `all`, in the order of the ranks. `all` must be `size()` times as large as `mine`;
  /// workers do not pass `all`. A worker's call may end before the leader has the data; the worker may then reuse `mine`.
  template <writable_buffer B>
  runtime::task<> gather(B&& mine, std::span<std::ranges::range_value_t<B>> all = {}, collective_call_options o = {}) {
    return gather_bytes(std::as_writable_bytes(std::span(mine)), std::as_writable_bytes(all),
                        element_of<std::ranges::range_value_t<B>>(), o);
  }

  /// The group's decision, and requests for a new search (agreement.hpp). `bytes` is the size of the data that a call combines,
  /// broadcasts, or gathers from all ranks together. On an idle rank these functions throw `bad_argument`.
  agreement agreed() const;
  ops::decision decision(std::uint64_t bytes) const { return agreed().decision(bytes); }
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return agreed().decided(bytes, o);
  }

  /// The op's end on this rank in the current generation; null on an idle rank.
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
  op_ref<group_end> place_;
};

}  // namespace parley::ops
