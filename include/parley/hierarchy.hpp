#pragma once
/// Collectives of all ranks in two levels: inside groups, and between their leaders. Each group, and the group of the leaders, finds the
/// fastest of its configs while the program runs, and then runs that one. A level waits only for ranks that take part in it.
///
///     hierarchy all(self, {.name = "gradients", .leads = [](rank_id r) { return r % 4 == 0; }});
///     co_await all.all_reduce(gradients);                                      // in place: the same bits on all ranks
///     co_await all.all_reduce_each(weights, biases);                           // several buffers together
///
/// A group is a leader and the ranks that follow it, up to the next leader; groups may differ in size. Ranks can also be grouped by a
/// common property, such as their kind of GPU, so that each kind gets its own config:
///
///     hierarchy by_kind(self, {.name = "gradients", .group_by = [&](rank_id r) { return self.kind_of(r); }});
///
/// A worker that spawns its call can compute while the leaders communicate. Sums are formed in the order of the ranks inside a group, and
/// then in the order of the groups. So a result has the same bits in every run and with every config.
///
/// Every rank must make the same calls in the same order, with the same sizes. Several calls may be in flight at once. A call takes its
/// place in the order of every level when it is made. So leaders combine the parts of one call even if the groups are ready in different
/// orders.
///
/// Failure and cancellation: see collective.hpp. A failure in one group reaches all other groups through their leaders; later calls run as
/// usual. The timeout holds for the first level. Each further level may take a quarter of the timeout longer, so that the first report
/// names the missing ranks. When a rank comes back as a new process, all others call `rejoin`.
///
/// Small buffers are packed for an exchange; `copies` counts the copies. With `.memory` of a GPU, all buffers of a call must lie in that
/// memory; sums are formed as in collective.hpp.
#include <parley/collective.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::ops {

class rank;

struct hierarchy_options {
  std::string name;
  std::function<bool(rank_id)> leads{};            ///< rank 0 must lead; empty: only rank 0 leads, in one group
  std::function<std::string(rank_id)> group_by{};  ///< instead: equal results form a group, led by its lowest rank
  std::vector<group_config_ptr> inside{configs::star(), configs::star(65'536), configs::chain(), configs::tree()};
  std::vector<group_config_ptr> between{configs::star(), configs::star(65'536), configs::chain(),
                                        configs::tree(), configs::one_shot(),   configs::two_shot(65'536)};
  tuning::constraints constraints{};        ///< limits of this rank's user for every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory = nullptr;  ///< where the buffers lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::uint64_t depth = 1;  ///< calls that a rank may have in flight before it must wait
  /// If several buffers are summed together, those with fewer bytes than this are packed into one. 0: all are summed in place.
  std::uint64_t pack_below = 65'536;
  std::string dtype{};
};

/// The groups into which these options divide the world, each led by its first rank, or an error. Every rank gets the same result.
runtime::result<std::vector<std::vector<rank_id>>> groups_of(const hierarchy_options& op, rank_id world_size);

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op.
class hierarchy {
 public:
  /// A handle of no op: this rank takes no part.
  hierarchy() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  hierarchy(rank& self, const hierarchy_options& op);
  bool leads() const noexcept { return leads_; }
  /// The number of ranks in this rank's group.
  std::size_t group_size() const noexcept { return group_size_; }
  std::size_t groups() const noexcept { return groups_.size(); }
  /// Like `collective::rejoin`. Call it on all other ranks when any rank has restarted.
  bool rejoin();

  template <class Combine = std::plus<>, writable_buffer B>
  runtime::task<> all_reduce(B&& data, collective_call_options o = {}) {
    return reduce(collective::reduction<Combine, std::ranges::range_value_t<B>>(data), o);
  }
  /// All-reduces several buffers of one type together. Each large buffer has its own exchange, in place; these exchanges run at the same
  /// time. Small buffers are packed into one exchange (`hierarchy_options::pack_below`).
  template <class Combine = std::plus<>, writable_buffer B, writable_buffer... More>
  runtime::task<> all_reduce_each(B&& first, More&&... more) {
    using T = std::ranges::range_value_t<B>;
    return all_reduce_list<Combine, T>({std::span<T>(first), std::span<T>(more)...});
  }
  template <class Combine = std::plus<>, class T>
  runtime::task<> all_reduce_list(const std::vector<std::span<T>>& buffers, collective_call_options o = {}) {
    std::vector<std::span<T>> alone;
    std::vector<std::span<T>> small;
    for (const std::span<T> b : buffers) (b.size_bytes() < pack_below_ ? small : alone).push_back(b);
    if (small.size() == 1) alone.push_back(std::exchange(small, {})[0]);
    std::vector<group_work> all;
    for (const std::span<T> b : alone) all.push_back(collective::reduction<Combine, T>(b));
    std::vector<std::span<std::byte>> packed;
    for (const std::span<T> b : small) packed.push_back(std::as_writable_bytes(b));
    if (!small.empty()) all.push_back(collective::reduction<Combine, T>(std::span<T>()));
    return reduce_together(std::move(all), std::move(packed), o);
  }
  /// Sends the data of rank 0 to all ranks.
  template <writable_buffer B>
  runtime::task<> broadcast(B&& data, collective_call_options o = {}) {
    return give(collective::giving(std::as_writable_bytes(std::span(data)),
                                   collective::element_of<std::ranges::range_value_t<B>>()),
                o);
  }
  /// Copies `mine` of every rank into `all` on every rank, in the order of the ranks.
  template <readable_buffer Mine, writable_buffer All>
  runtime::task<> all_gather(Mine&& mine, All&& all, collective_call_options o = {}) {
    static_assert(std::is_same_v<std::ranges::range_value_t<Mine>, std::ranges::range_value_t<All>>);
    return gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)),
                  collective::element_of<std::ranges::range_value_t<All>>(), o);
  }
  /// Sums `data` of all ranks and gives rank r the r-th of the equal parts, in `mine`. Overwrites `data` with the whole sum: it runs an
  /// all-reduce and copies this rank's part.
  template <class Combine = std::plus<>, writable_buffer B>
  runtime::task<> reduce_scatter(B&& data, std::span<std::ranges::range_value_t<B>> mine,
                                 collective_call_options o = {}) {
    using T = std::ranges::range_value_t<B>;
    return scatter<Combine, T>(std::span<T>(data), mine, o);
  }
  /// The decisions for one kind of call, and requests for new searches (agreement.hpp): one entry for each level in which this rank takes
  /// part, in the order in which the levels run. An all-reduce runs inside the group, then between the leaders; a broadcast runs in the
  /// other order; an all-gather (`collective_kind::gather`) runs both. `bytes` is the size of the data that a call combines, broadcasts, or
  /// gathers from all ranks together. For a broadcast or an all-gather, these functions throw `unavailable` until this rank has made the
  /// first such call, because the ranks begin to agree on these kinds with that call.
  std::vector<agreement> agreed(collective_kind does = collective_kind::all_reduce) const;
  std::vector<ops::decision> decision(std::uint64_t bytes, collective_kind does = collective_kind::all_reduce) const;
  runtime::task<std::vector<ops::decision>> decided(std::uint64_t bytes, decided_options o = {},
                                                    collective_kind does = collective_kind::all_reduce) const {
    return until_decided(agreed_for(bytes, does), o);
  }
  /// The number of copies that the library has made in this rank's memory, to pack and unpack small buffers, to assemble an all-gather's
  /// data, and to copy this rank's part of a reduce-scatter.
  std::uint64_t copies() const noexcept { return copies_; }

 private:
  template <class Combine, class T>
  runtime::task<> scatter(std::span<T> data, std::span<T> mine, collective_call_options o) {
    check_place(std::as_bytes(mine));
    co_await reduce(collective::reduction<Combine, T>(data), o, share_fits(mine.size(), data.size(), "reduce_scatter"));
    co_await copy(std::as_writable_bytes(mine), std::as_bytes(data.subspan(self_ * mine.size(), mine.size())));
  }
  enum class level : std::uint8_t { inside, between, up_inside, up_between, down_inside, down_between };
  static bool is_inside(level l) noexcept {
    return l == level::inside || l == level::up_inside || l == level::down_inside;
  }
  struct levels;
  class turns;
  /// Declares the level when it is first used, so that a program that only sums exchanges nothing about gathering.
  collective& at(level which);
  bool has_group() const noexcept { return group_size_ > 1; }
  bool among_leaders() const noexcept { return leads_ && groups() > 1; }
  bool has_part_in(level l) const noexcept { return is_inside(l) ? has_group() : among_leaders(); }
  struct step {
    level which;
    std::uint64_t bytes;
  };
  /// The levels that a call runs, in order. `share`: one rank's bytes in an all-gather of `bytes`.
  std::vector<step> steps_of(collective_kind does, std::uint64_t bytes, std::uint64_t share) const;
  struct agreed_step {
    agreement with;
    std::uint64_t bytes;
  };
  std::vector<agreed_step> agreed_for(std::uint64_t bytes, collective_kind does) const;
  static runtime::task<std::vector<ops::decision>> until_decided(std::vector<agreed_step> steps, decided_options o);
  /// `fits`: if it is an error, the call fails with it, but only after it has taken its place among the other calls.
  runtime::task<> reduce(group_work work, collective_call_options o, runtime::result<> fits = {});
  runtime::task<> reduce_in(turns& mine, group_work work, runtime::result<> fits);
  /// If `packed` is not empty, the last entry of `all` is the sum of the packed buffers.
  runtime::task<> reduce_together(std::vector<group_work> all, std::vector<std::span<std::byte>> packed,
                                  collective_call_options o);
  runtime::task<> reduce_packed(turns& mine, group_work work, std::vector<std::span<std::byte>> parts);
  runtime::memory_space& memory() const noexcept;
  runtime::task<> copy(std::span<std::byte> to, std::span<const std::byte> from);
  void check_place(std::span<const std::byte> buffer, std::size_t alignment = 1) const;
  runtime::task<> give(group_work work, collective_call_options o);
  runtime::task<> gather(std::span<const std::byte> mine, std::span<std::byte> all, collective::element of,
                         collective_call_options o);
  runtime::task<> gather_in(turns& taken, std::span<const std::byte> mine, std::span<std::byte> all,
                            collective::element of);
  runtime::result<> share_fits(std::size_t share, std::size_t all, const char* what) const;
  /// Copies blocks in the order of groups and places into the order of ranks.
  runtime::task<> unpad(std::span<const std::byte> padded, std::span<std::byte> all, std::size_t share_bytes);
  std::string name_;
  rank_id self_ = 0;
  rank_id world_size_ = 1;
  std::uint64_t pack_below_ = 0;
  bool leads_ = false;
  std::size_t group_size_ = 1;
  std::size_t largest_ = 1;
  std::vector<std::vector<rank_id>> groups_;  // of the world; each is led by its first rank
  std::shared_ptr<levels> levels_;
  std::uint64_t copies_ = 0;
};

}  // namespace parley::ops
