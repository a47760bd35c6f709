#pragma once
/// Collectives of all ranks in two levels: inside groups, and between their leaders. Each group, and the group of the leaders,
/// runs one config of several, the fastest, found out while the program runs; no level waits for anybody who has no part in it.
///
///     hierarchy all(self, {.name = "gradients", .leads = [](rank_id r) { return r % 4 == 0; }});
///     co_await all.all_reduce(gradients);                                      // in place: the same bits on all ranks
///     co_await all.all_reduce_each(weights, biases);                           // several buffers together
///
/// A group is a leader and the ranks behind it, up to the next leader; the last one may be smaller. Or ranks are grouped by what
/// they have in common, such as the GPU that they compute on, so that each kind gets a config of its own:
///
///     hierarchy by_kind(self, {.name = "gradients", .group_by = [&](rank_id r) { return self.kind_of(r); }});
///
/// A worker that spawns its call computes while the leaders talk. Sums are formed inside a group in the order of its ranks, and then in the order of the
/// groups: the same bits in every run, whatever the configs.
///
/// Every rank makes the same calls in the same order, with the same sizes; several may be under way at once. A call has its place on
/// every level from when it is made: whatever is ready first, leaders put together what belongs together. Failure and cancellation:
/// see collective.hpp; a failure in one group reaches all others through their leaders, and the calls after it go on. The timeout is that
/// of the first level; each further one may take a quarter of it longer, so that whoever knows who is missing speaks first. Small
/// buffers are packed for an exchange; copies are counted. When a rank comes back as a new process, all others `rejoin`.
/// On a GPU (`.memory`) all of a call's buffers lie there; sums as in collective.hpp.
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
  std::function<bool(rank_id)> leads{};            ///< rank 0 always does; empty: it alone, so that there is one group
  std::function<std::string(rank_id)> group_by{};  ///< instead: equal answers are a group, led by its lowest rank
  std::vector<group_config_ptr> inside{configs::star(), configs::star(65'536), configs::chain(), configs::tree()};
  std::vector<group_config_ptr> between{configs::star(), configs::star(65'536), configs::chain(),
                                        configs::tree(), configs::one_shot(),   configs::two_shot(65'536)};
  tuning::constraints constraints{};        ///< what this rank's user demands of all configs but the default
  capability_function can_run{};            ///< which configs a rank can run; empty: they are asked themselves
  runtime::memory_space* memory = nullptr;  ///< where its buffers lie, such as a GPU's; null: in host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::uint64_t depth = 1;  ///< calls that a rank may have under way before it must wait
  /// Of several buffers that are summed together, those of fewer bytes are copied into one piece and back; 0: all stay in place.
  std::uint64_t pack_below = 65'536;
  std::string dtype{};
};

/// The groups that it makes of the world, each led by its first rank, or what is wrong. The same on all ranks.
runtime::result<std::vector<std::vector<rank_id>>> groups_of(const hierarchy_options& op, rank_id world_size);

/// A light handle of the op, which ends with its rank; copies of it are handles of the same op.
class hierarchy {
 public:
  /// Of no op: this rank is idle in it.
  hierarchy() = default;
  /// On all ranks. Throws `bad_argument` or `role_conflict`, on every rank alike, when the options cannot work.
  hierarchy(rank& self, const hierarchy_options& op);
  bool leads() const noexcept { return leads_; }
  /// Of this rank's group.
  std::size_t group_size() const noexcept { return group_size_; }
  std::size_t groups() const noexcept { return groups_.size(); }
  /// As `collective::rejoin`; on all ranks, whoever has restarted.
  bool rejoin();

  template <class Combine = std::plus<>, writable_buffer B>
  runtime::task<> all_reduce(B&& data, collective_call_options o = {}) {
    return reduce(collective::reduction<Combine, std::ranges::range_value_t<B>>(data), o);
  }
  /// Several buffers of one type, together: large ones in place, each in an exchange of its own beside the others; small ones
  /// are packed into one exchange (`hierarchy_options::pack_below`).
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
  /// From rank 0 to all.
  template <writable_buffer B>
  runtime::task<> broadcast(B&& data, collective_call_options o = {}) {
    return give(collective::giving(std::as_writable_bytes(std::span(data)),
                                   collective::element_of<std::ranges::range_value_t<B>>()),
                o);
  }
  /// `mine` of every rank, in the order of the ranks, into `all` of every rank.
  template <readable_buffer Mine, writable_buffer All>
  runtime::task<> all_gather(Mine&& mine, All&& all, collective_call_options o = {}) {
    static_assert(std::is_same_v<std::ranges::range_value_t<Mine>, std::ranges::range_value_t<All>>);
    return gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)),
                  collective::element_of<std::ranges::range_value_t<All>>(), o);
  }
  /// The sum of all `data`, of which rank r keeps the r-th of equal parts. `data` is overwritten: it is an all-reduce, of which a copy
  /// takes this rank's part.
  template <class Combine = std::plus<>, writable_buffer B>
  runtime::task<> reduce_scatter(B&& data, std::span<std::ranges::range_value_t<B>> mine,
                                 collective_call_options o = {}) {
    using T = std::ranges::range_value_t<B>;
    return scatter<Combine, T>(std::span<T>(data), mine, o);
  }
  /// What the levels that this rank has a part in have agreed on for one kind of call, and wishes about it (agreement.hpp), in the
  /// order in which they run: inside its group, then between the leaders; a broadcast goes the other way, and an all-gather
  /// (`collective_kind::gather`) both. `bytes` is what a call combines, spreads or gathers in all. Throw `unavailable` before the first
  /// broadcast or all-gather is called, as nothing is exchanged about these until then.
  std::vector<agreement> agreed(collective_kind does = collective_kind::all_reduce) const;
  std::vector<ops::decision> decision(std::uint64_t bytes, collective_kind does = collective_kind::all_reduce) const;
  runtime::task<std::vector<ops::decision>> decided(std::uint64_t bytes, decided_options o = {},
                                                    collective_kind does = collective_kind::all_reduce) const {
    return until_decided(agreed_for(bytes, does), o);
  }
  /// That the library has made in this rank's memory: of small buffers, to make several of them one, and back; of what an all-gather
  /// brings together, and of a reduce-scatter's part.
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
  /// Declared when it is first called: who only sums exchanges nothing about gathering.
  collective& at(level which);
  bool has_group() const noexcept { return group_size_ > 1; }
  bool among_leaders() const noexcept { return leads_ && groups() > 1; }
  bool has_part_in(level l) const noexcept { return is_inside(l) ? has_group() : among_leaders(); }
  struct step {
    level which;
    std::uint64_t bytes;
  };
  /// What a call is made of, in the order in which it runs. `share`: what one rank brings to an all-gather of `bytes`.
  std::vector<step> steps_of(collective_kind does, std::uint64_t bytes, std::uint64_t share) const;
  struct agreed_step {
    agreement with;
    std::uint64_t bytes;
  };
  std::vector<agreed_step> agreed_for(std::uint64_t bytes, collective_kind does) const;
  static runtime::task<std::vector<ops::decision>> until_decided(std::vector<agreed_step> steps, decided_options o);
  /// `fits`: what this rank asks for is refused, once the call has its place among the others.
  runtime::task<> reduce(group_work work, collective_call_options o, runtime::result<> fits = {});
  runtime::task<> reduce_in(turns& mine, group_work work, runtime::result<> fits);
  /// The last of `all` is of what is packed, if anything is.
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
  /// From blocks by group and place to blocks by rank.
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
