#pragma once
/// Collectives of all ranks in two levels: inside groups, and between their leaders. Each group, and the group of the leaders,
/// runs one config of several, the fastest, found out while the program runs; no level waits for anybody who has no part in it.
///
///     auto all = self.declare(hierarchical{.name = "gradients", .leads = [](rank_id r) { return r % 4 == 0; }});
///     co_await all.all_reduce(std::span(gradients));                           // in place: the same bits on all ranks
///     co_await all.all_reduce_each(std::span(weights), std::span(biases));     // several buffers in one exchange
///
/// A group is a leader and the ranks behind it, up to the next leader; the last one may be smaller. A worker that spawns its call
/// computes while the leaders talk. Sums are formed inside a group in the order of its ranks, and then in the order of the
/// groups: the same bits in every run, whatever the configs.
///
/// Every rank makes the same calls in the same order, with the same sizes. Failure and cancellation: see group.hpp; a failure in
/// one group reaches all others through their leaders. Several buffers are packed for the exchange, and those copies counted.
#include <parley/ops/leader_worker.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::ops {

class rank;

struct hierarchical {
  std::string name;
  std::function<bool(rank_id)> leads{};  ///< rank 0 always does; empty: it alone, so that there is one group
  std::vector<group_config_ptr> inside{star(), star(65'536), chain(), tree()};
  std::vector<group_config_ptr> between{star(), star(65'536), chain(), tree()};
  std::uint64_t depth = 1;  ///< calls that a rank may have under way before it must wait
  capability_function capable{};
  std::string dtype{};
  time_ns timeout_ns = 30'000'000'000;
  tuning::constraints allowed{};
};

/// The groups that it makes of the world, each led by its first rank, or what is wrong. The same on all ranks.
runtime::result<std::vector<std::vector<rank_id>>> groups_of(const hierarchical& op, rank_id world_size);

/// What `declare` gives back; a light handle that lives as long as its rank.
class hierarchy {
 public:
  bool leads() const noexcept { return leads_; }
  /// Of this rank's group.
  std::size_t group_size() const noexcept { return inside_.idle() ? 1 : inside_.size(); }
  std::size_t groups() const noexcept { return groups_; }

  template <class Combine = std::plus<>, group_element T>
  runtime::task<> all_reduce(std::span<T> data, group_call_options o = {}) {
    if (inside_.idle()) {  // a group of one
      if (!between_.idle()) co_await between_.all_reduce<Combine, T>(data, o);
    } else if (leads_ && !between_.idle()) {
      std::function<runtime::task<>(std::span<T>)> among_leaders = [this, o](std::span<T> sum) {
        return between_.all_reduce<Combine, T>(sum, o);
      };
      co_await inside_.all_reduce<Combine, T>(data, std::move(among_leaders), o);
    } else {
      co_await inside_.all_reduce<Combine, T>(data, o);
    }
  }
  /// Several buffers of one type in one exchange.
  template <class Combine = std::plus<>, group_element T, class... Spans>
  runtime::task<> all_reduce_each(std::span<T> first, Spans... more) {
    std::vector<std::span<T>> buffers{first, std::span<T>(more)...};
    co_await all_reduce_list<Combine, T>(std::move(buffers));
  }
  template <class Combine = std::plus<>, group_element T>
  runtime::task<> all_reduce_list(std::vector<std::span<T>> buffers, group_call_options o = {}) {
    std::vector<T> packed;
    for (const std::span<T> b : buffers) packed.insert(packed.end(), b.begin(), b.end());
    co_await all_reduce<Combine, T>(std::span<T>(packed), o);
    auto from = packed.cbegin();
    for (const std::span<T> b : buffers) {
      std::copy_n(from, b.size(), b.begin());
      from += static_cast<std::ptrdiff_t>(b.size());
    }
    copies_ += 2 * buffers.size();
  }
  /// From rank 0 to all.
  template <group_element T>
  runtime::task<> broadcast(std::span<T> data, group_call_options o = {}) {
    if (!down_between_.idle()) co_await down_between_.broadcast(data, o);
    if (!down_inside_.idle()) co_await down_inside_.broadcast(data, o);
  }
  /// `mine` of every rank, in the order of the ranks, into `all` of every rank.
  template <group_element T>
  runtime::task<> all_gather(std::span<const T> mine, std::span<T> all, group_call_options o = {}) {
    check_share(mine.size(), all.size(), "all_gather");
    // Leaders gather what their groups have, as much as the largest has, so that all their blocks are equal.
    const std::size_t share = mine.size();
    std::vector<T> own(mine.begin(), mine.end());
    std::vector<T> group(leads_ ? largest_ * share : 0);
    if (!up_inside_.idle()) {
      co_await up_inside_.gather(std::span<T>(own), std::span<T>(group).first(leads_ ? group_size() * share : 0), o);
    } else {
      group = std::move(own);
      group.resize(largest_ * share);
    }
    if (leads_ && !up_between_.idle()) {
      std::vector<T> padded(self_ == 0 ? groups_ * largest_ * share : 0);
      co_await up_between_.gather(std::span<T>(group), std::span<T>(padded), o);
      if (self_ == 0) unpad(std::as_bytes(std::span(padded)), std::as_writable_bytes(all), share * sizeof(T));
    } else if (leads_) {
      std::copy_n(group.begin(), all.size(), all.begin());
    }
    co_await broadcast(all, o);
  }
  /// The sum of all `data`, of which rank r keeps the r-th of equal parts. `data` is overwritten.
  template <class Combine = std::plus<>, group_element T>
  runtime::task<> reduce_scatter(std::span<T> data, std::span<T> mine, group_call_options o = {}) {
    check_share(mine.size(), data.size(), "reduce_scatter");
    co_await all_reduce<Combine, T>(data, o);
    std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(self_ * mine.size()), mine.size(), mine.begin());
  }
  /// Buffers that were copied to make several of them one, and back.
  std::uint64_t copies() const noexcept { return copies_; }

 private:
  friend rank;
  void check_share(std::size_t share, std::size_t all, const char* what) const;
  void unpad(std::span<const std::byte> padded, std::span<std::byte> all, std::size_t share_bytes) const;
  std::string name_;
  rank_id self_ = 0;
  rank_id world_size_ = 1;
  bool leads_ = false;
  std::size_t groups_ = 1;
  std::size_t largest_ = 1;
  std::vector<std::size_t> sizes_;  // of all groups
  rank_group inside_;               // all_reduce
  rank_group between_;
  rank_group up_inside_;  // gather
  rank_group up_between_;
  rank_group down_inside_;  // broadcast
  rank_group down_between_;
  std::uint64_t copies_ = 0;
};

}  // namespace parley::ops
