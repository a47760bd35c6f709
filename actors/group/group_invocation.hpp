#pragma once
/// One invocation of a group op at one participant: its parts to and from the others, in place in the caller's buffers.
///
///     group_invocation inv(group, bytes, deadline);        // takes the next index of this participant
///     auto digest = co_await inv.begin();                  // what to run; a worker may wait for a stamp here
///     auto here = inv.receive(1, 0, block);                // parts are posted, and waited for in the order of posting
///     inv.send(2, 0, data);
///     co_await inv.until(here);                            // all that was posted up to `here` has ended
///     co_await inv.settle();
///
/// A part is keyed by (source, invocation, lane, offset). Lanes distinguish several messages between two ranks, such as a partial sum and
/// the whole sum. A duplicate part is dropped. A part of another config, type or size fails the invocation on all ranks. The first failure
/// counts. Transfers in progress are cancelled and still awaited. A worker reports the failure to the leader, and the leader to all
/// members, so that no participant waits for data that will not arrive. An invocation that fails before it began has used its index, here
/// and therefore on all ranks.
#include <parley/actors/call_type.hpp>
#include <parley/actors/edge/unclaimed_part.hpp>
#include <parley/actors/group/group_stamp.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/coroutines/mailbox.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <boost/container/small_vector.hpp>
#include <boost/unordered/unordered_flat_set.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace parley::actors {

class group_host;
class rooted_group;
using runtime::time_ns;

/// The keys of parts that have arrived. There are usually few, and then a linear search is fastest.
class seen_parts {
 public:
  bool insert(std::uint64_t key) {
    if (many_.empty()) {
      const auto end = few_.begin() + static_cast<std::ptrdiff_t>(count_);
      if (std::find(few_.begin(), end, key) != end) return false;
      if (count_ != few_.size()) {
        few_[count_++] = key;
        return true;
      }
      many_.insert(few_.begin(), few_.end());
    }
    return many_.insert(key).second;
  }

 private:
  std::size_t count_ = 0;
  std::array<std::uint64_t, 16> few_;  // `count_` of them are used
  boost::unordered_flat_set<std::uint64_t> many_;
};

class group_invocation final : private runtime::list_hook {
 public:
  using ticket = std::uint64_t;

  group_invocation(group_host& group, std::uint64_t bytes, time_ns deadline, call_type type = call_type::any);
  /// A rehearsal: its config is given, and it has its own count of indices.
  group_invocation(group_host& group, std::uint64_t bytes, time_ns deadline, std::uint64_t rehearsed_digest)
      : group_invocation(group, bytes, deadline, call_type::any, rehearsed_digest) {}
  group_invocation(const group_invocation&) = delete;
  group_invocation& operator=(const group_invocation&) = delete;
  ~group_invocation();

  /// Starts sending the part at `offset` to rank `to`.
  ticket send(rank_id to, std::uint64_t offset, std::span<const std::byte> part, std::uint32_t lane = 0);
  /// Receives the part at `offset` from rank `from` into `into`.
  ticket receive(rank_id from, std::uint64_t offset, std::span<std::byte> into, std::uint32_t lane = 0);
  /// An implementation uses half of the lanes. In a call that is compared with the default, the second config uses the other half.
  static constexpr std::uint32_t lanes = group_lanes;
  ticket posted() const noexcept { return posted_; }

  /// Only one coroutine may wait: a second wait throws `config_failed`.
  class [[nodiscard]] waiting : private runtime::waiter {
   public:
    enum class whose : std::uint8_t { all_parts, own_sends };
    waiting(group_invocation& inv, ticket goal, whose w = whose::all_parts) noexcept
        : waiter(&on_cancelled), inv_(inv), goal_(goal), whose_(w) {}
    ~waiting() {
      if (inv_.waiting_ == this) inv_.waiting_ = nullptr;
    }
    bool await_ready() const noexcept { return inv_.reached(*this); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (inv_.waiting_ != nullptr) inv_.refuse_second_wait();
      if (!enter(caller)) inv_.fail(outcome, inv_.self());
      if (inv_.reached(*this)) {
        unlink();
        return false;
      }
      inv_.waiting_ = this;
      inv_.begin_part_wait();
      return true;
    }
    group_fault await_resume() const noexcept {
      inv_.end_part_wait();
      return inv_.fault_;
    }

   protected:
    friend group_invocation;
    static void on_cancelled(waiter& self, runtime::errc why) noexcept {
      self.unlink();
      auto& inv = static_cast<waiting&>(self).inv_;
      inv.fail(why, inv.self());
    }
    group_invocation& inv_;
    ticket goal_;
    whose whose_;
  };
  /// Like `waiting`, but throws if the invocation has failed.
  struct [[nodiscard]] step : waiting {
    using waiting::waiting;
    void await_resume() const {
      inv_.end_part_wait();
      if (inv_.fault().why != runtime::errc::none) runtime::raise(inv_.fault().why);
    }
  };
  /// Waits until the invocation may begin; returns the digest of its config.
  struct [[nodiscard]] beginning : waiting {
    explicit beginning(group_invocation& inv) noexcept : waiting(inv, to_begin) {}
    runtime::result<std::uint64_t> await_resume() const noexcept {
      inv_.end_part_wait();
      if (inv_.fault().why != runtime::errc::none) return inv_.fault().why;
      return inv_.digest();
    }
  };
  beginning begin() noexcept { return beginning(*this); }
  /// Waits until all parts that were posted up to `m` have ended.
  step until(ticket m) noexcept { return {*this, m}; }
  /// Waits only for sends that were posted up to `m`: receives may end much later.
  step until_sent(ticket m) noexcept { return {*this, m, waiting::whose::own_sends}; }
  step drain() noexcept { return {*this, posted_}; }
  /// Like `drain`, but returns the failure as a value.
  waiting settle() noexcept { return {*this, posted_}; }

  /// Gives up the parts that are left, because their buffers are about to be freed with their frames: the rank leaves, or a scope was torn
  /// down. From now on those buffers are neither read nor written.
  void abandon() noexcept;
  /// Fails the invocation, unless it has failed already. `culprit` is the rank that the others will name.
  void fail(runtime::errc why, rank_id culprit) noexcept { fail(group_fault{.why = why, .culprit = culprit}); }
  void fail(const group_fault& what) noexcept;
  /// When the invocation fails, cancels `config`, the scope of the config's coroutines, so that their other waits also end. Null: no scope.
  void ends_with_it(runtime::scope* config) noexcept {
    config_ = config;
    if (config != nullptr && fault_.why != runtime::errc::none) config->cancel(fault_.why);
  }
  /// Makes `other` fail when this invocation fails, with the same culprit. `other` belongs to another group, and this invocation's config
  /// waits for it. Null: no other invocation.
  void takes_along(group_invocation* other) noexcept {
    taken_along_ = other;
    if (other != nullptr) other->fail(seen_from_elsewhere(fault_));
  }
  const group_fault& fault() const noexcept { return fault_; }
  /// After a timeout: the ranks from which something was still missing.
  const std::vector<rank_id>& late() const noexcept { return late_; }
  /// True if a part has arrived that was never requested: the two ends cut the payload differently.
  bool leftover() const noexcept { return !waiting_parts_.empty(); }

  std::uint64_t index() const noexcept { return index_; }
  std::uint64_t total_bytes() const noexcept { return bytes_; }
  /// The digest in the stamp.
  std::uint64_t digest() const noexcept { return digest_; }
  /// The config that runs. If it is compared with the default, `digest` has another value.
  std::uint64_t config() const noexcept { return compared_ ? compared_with_default(digest_) : digest_; }
  /// The stamp asks for a comparison with the default.
  void set_compared() noexcept { compared_ = true; }
  bool compared() const noexcept { return compared_; }
  /// Only the time from `begin_timing` on, until `end_timing` if that is called, counts as the config's time.
  void begin_timing() noexcept;
  void end_timing() noexcept;
  /// These two enclose the leader's wait between collecting and returning, which also does not count as the config's time.
  void begin_waiting() noexcept;
  void end_waiting() noexcept;
  /// The counted time until `ended_ns`, without waits for parts; 0: not known.
  time_ns worked_ns(time_ns ended_ns) const noexcept {
    return counts_waits_ ? std::max<time_ns>(ended_ns - counts_from_ns() - part_waits_ns_, 0) : 0;
  }
  void set_wrong_data() noexcept { wrong_data_ = true; }
  tuning::row_status status() const noexcept;
  bool begun() const noexcept { return digest_ != 0; }
  bool rehearsal() const noexcept { return rehearsal_; }
  /// True if the leader has reported that this invocation failed, so that this rank need not report the failure to the leader.
  bool told_by_leader() const noexcept { return told_by_leader_; }
  /// The flags of the leader's stamp, for example whether this is a trial. The leader knows them from the beginning.
  std::optional<stamp_flags> flags() const noexcept { return flags_; }
  time_ns began_ns() const noexcept { return began_ns_; }
  /// When the config's time begins: the invocation's beginning, moved later by the waits that do not count.
  time_ns counts_from_ns() const noexcept { return began_ns_ + waited_ns_; }

 private:
  friend rooted_group;
  friend runtime::intrusive_list<group_invocation>;
  group_invocation(group_host& group, std::uint64_t bytes, time_ns deadline, call_type type,
                   std::uint64_t rehearsed_digest);
  struct part final : runtime::completion, runtime::list_hook, runtime::frame_pool::pooled {
    explicit part(group_invocation& inv) noexcept : completion(&on_part_end), owner(&inv) {}
    static void on_part_end(completion& self, runtime::errc outcome) noexcept;
    group_invocation* owner;      // null once no invocation waits for it
    std::span<std::byte> into{};  // for a part that is received
    std::uint64_t offset = 0;
    ticket number = 0;
    std::uint32_t lane = 0;
    rank_id peer = 0;
    bool with_transport = false;
  };
  static constexpr ticket to_begin = ~ticket{0};
  [[noreturn, gnu::cold]] void refuse_second_wait();
  void begin_part_wait() noexcept;
  void end_part_wait() noexcept;

  bool reached(const waiting& w) noexcept;
  rank_id self() const noexcept;
  part& begin_part(runtime::intrusive_list<part>& in, rank_id peer, std::uint64_t offset, std::uint32_t lane);
  void started(part& p, runtime::errc outcome) noexcept;
  void ended(part& p, runtime::errc outcome) noexcept;
  /// Called when the sender has taken its payload back. Waits for the sender's poison, which has the reason and may still be in flight.
  void await_reason(part& p) noexcept;
  void bring(part& wanted, const stamp& s, runtime::arrival&& message) noexcept;
  void deliver(const stamp& s, runtime::arrival&& message) noexcept;
  void on_deadline() noexcept;
  void time_out() noexcept;
  time_ns late_soon_at() const noexcept;
  /// The ranks from which parts are missing; if there are none, the ranks that have not received this rank's parts; if there are none, the
  /// leader.
  std::vector<rank_id> waited_for();
  void wake_if_reached() noexcept;
  std::uint64_t key_of(rank_id source, std::uint64_t offset, std::uint64_t lane) const noexcept;
  bool is_new(const stamp& s);
  void other_config(const stamp& s) noexcept;

  group_host& group_;
  std::uint64_t bytes_;
  call_type type_;
  std::uint64_t index_;
  std::uint64_t digest_;
  bool rehearsal_;
  bool counts_waits_;
  bool compared_ = false;
  bool wrong_data_ = false;
  time_ns timed_until_ns_ = 0;
  time_ns began_ns_ = 0;
  time_ns waits_since_ns_ = 0;
  time_ns waited_ns_ = 0;
  time_ns part_wait_since_ns_ = 0;  // 0: it does not wait for parts now
  time_ns part_waits_ns_ = 0;
  std::optional<stamp_flags> flags_;
  group_fault fault_;
  bool told_by_leader_ = false;
  std::optional<rank_id> taken_back_by_;
  std::vector<rank_id> late_;
  boost::container::small_vector<rank_id, 8> addressed_;  // at the leader: ranks that already have its stamp
  waiting* waiting_ = nullptr;
  runtime::scope* config_ = nullptr;
  group_invocation* taken_along_ = nullptr;
  ticket posted_ = 0;
  // Both in the order of posting.
  runtime::intrusive_list<part> sends_;
  runtime::intrusive_list<part> receives_;
  template <class Visit>
  void for_each_part(const Visit& visit) {
    sends_.for_each(visit);
    receives_.for_each(visit);
  }
  std::map<std::uint64_t, unclaimed_part> waiting_parts_;  // parts that were not requested yet, by `key_of`
  seen_parts seen_;                                        // by `key_of`
  time_ns deadline_;
  runtime::timer_of<&group_invocation::on_deadline> deadline_timer_;
};

}  // namespace parley::actors
