#pragma once
/// Lets the members of a group, which make the same calls, agree on something after a call: each member sends its part, the first member
/// merges all parts, and all members get the same result.
///
///     rounds talk(services, declaration, {.merge = put_together, .on_failed = end_what_runs});
///     auto outcome = co_await talk.exchange(call, round, body, timeout_ns);    // result<rounds::outcome>
///     talk.passed(call);                    // this call is over here, and this rank has nothing more to say about it
///     talk.failed(call, why, …);            // it ends with `why` on every member
///
/// A call about which no member has anything to say costs no message. If only some members have something to say, the leader tells them
/// that (`apart`), because the other members may be in later calls. The leader adds its own knowledge from earlier calls. A member that does
/// not speak in time ends the call without an agreement (`late`); in the third such call in a row the leader adds what it knows. A round fails
/// with `timeout` if the leader is silent, with `peer_failed` when a member dies, or with the error of another member. All members in that
/// call get the same result, even if they ask late. Lost, late and repeated messages cost only time.
#include <parley/actors/declaration.hpp>
#include <parley/actors/rounds/round_messages.hpp>
#include <parley/actors/services.hpp>
#include <parley/error.hpp>
#include <parley/news.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace parley::actors {

using round_body = std::vector<std::uint8_t>;

class rounds {
 public:
  struct options {
    /// On the leader: merges the bodies of all members, in the order of the members. If it throws, the call fails on all members.
    std::function<round_body(std::span<const round_body> said)> merge;
    /// On the leader: makes the body of `apart` from the bodies of some members, when other members had nothing to say. If it throws, the
    /// call of these members fails.
    std::function<round_body(std::span<const round_body> said)> known;
    /// Called when a call that this member is in, or will make, has failed on another member.
    std::function<void(std::uint64_t call)> on_failed;
    /// Called shortly before a round runs out of time, with the ranks that have not spoken.
    std::function<void(const std::vector<rank_id>& silent)> on_late_soon;
    /// Returns the replies of those ranks to questions about their progress, each preceded by a semicolon.
    std::function<std::string(const std::vector<rank_id>& silent)> said_by;
  };
  struct outcome {
    enum class kind : std::uint8_t { agreed, apart, late } what = kind::agreed;
    round_body body;   ///< of `late`: empty, or what the leader knows, because members were late in too many calls
    std::string text;  ///< of `apart`: the ranks that had nothing to say; of `late`: who is late, and what they do
  };
  enum class told : std::uint8_t { everybody, who_asks };

  rounds(services& s, const op_declaration& op, options o);
  rounds(const rounds&) = delete;
  rounds& operator=(const rounds&) = delete;
  ~rounds();

  /// `timeout_ns` is the leader's timeout. Other members wait an eighth longer, because the leader knows which ranks are missing.
  runtime::task<runtime::result<outcome>> exchange(std::uint64_t call, std::uint32_t round, round_body body,
                                                   runtime::time_ns timeout_ns);
  void passed(std::uint64_t call);
  /// `everybody`: the call fails on all members. `who_asks`: as far as this rank knows, the call needed no agreement, so only members that
  /// ask get the error.
  void failed(std::uint64_t call, const runtime::error& why, told whom);
  /// Why this call fails, if a member has reported a failure.
  std::optional<runtime::error> failure_of(std::uint64_t call) const;
  /// True if the leader has ended this call without an agreement, because a member was late.
  bool was_late(std::uint64_t call) const;
  /// Ends all current and later rounds. `peer_restarted` and `fenced` replace an earlier reason, because they are more precise.
  void fail(const runtime::error& why) noexcept;
  const std::optional<runtime::error>& broken() const noexcept { return broken_; }
  /// Stops receiving for good, after `fail`: an object of the next generation replaces this one.
  void retire() noexcept;
  std::uint64_t generation() const noexcept { return generation_; }

  bool leads() const noexcept { return leader_ == services_.net.rank(); }
  bool owes_messages() const noexcept;
  const std::vector<rank_id>& members() const noexcept { return members_; }

 private:
  static constexpr std::size_t most_failures = 16;
  static constexpr std::size_t most_late_calls = 2;  ///< in a row, after which nothing is decided
  struct failed_call {
    runtime::error why;
    told whom = told::everybody;
    bool answered = true;              ///< false: the call failed here, and the leader may not know
    std::optional<round_body> late{};  ///< no failure: a member was late, and this is the outcome's body
    bool untold() const noexcept { return whom == told::everybody && !answered; }
  };
  struct kept_outcome {
    round_outcome what;
    std::set<rank_id> unknown_to;  ///< members that have not acknowledged it
    bool failed() const noexcept {
      return what.what == round_outcome::kind::failed || what.what == round_outcome::kind::late;
    }
  };

  void on_said(rank_id from, round_said&& m);
  void on_outcome(round_outcome&& m);
  void on_question(const round_question& m);
  struct time_limit {
    runtime::time_ns deadline = 0;
    runtime::time_ns late_soon = 0;  ///< when silent members are asked for their progress; `never`: they were asked
  };
  runtime::task<runtime::result<outcome>> lead(std::uint64_t call, std::uint32_t round, round_body body, time_limit t);
  runtime::task<runtime::result<outcome>> follow(std::uint64_t call, std::uint32_t round, round_body body,
                                                 time_limit t);
  void ask_if_late(time_limit& t, const std::vector<rank_id>& silent) const;
  std::string said_by(const std::vector<rank_id>& silent) const;
  bool has_said(std::size_t member, std::uint64_t call, std::uint32_t round) const;
  bool has_spoken(std::size_t member, std::uint64_t call, std::uint32_t round) const;
  /// The bodies of those who have spoken, in the order of the members; `others` gets the other members.
  std::vector<round_body> bodies_of(std::uint64_t call, std::uint32_t round, const round_body& mine,
                                    std::vector<rank_id>& others) const;
  runtime::result<outcome> conclude_spoken(std::uint64_t call, std::uint32_t round, const round_body& mine);
  runtime::result<outcome> ended(std::uint64_t call) const;
  void conclude(round_outcome o);
  void conclude_failed(std::uint64_t call, std::uint32_t round, const runtime::error& why);
  outcome conclude_late(std::uint64_t call, std::uint32_t round, const round_body& mine, std::string text);
  const round_outcome* last_agreed() const noexcept;
  round_outcome apart_alone(const round_said& m) const;
  void note(std::uint64_t call, failed_call f);
  void say_failure(std::uint64_t call, const runtime::error& why);
  runtime::task<> repeat();
  template <class M>
  void send(rank_id to, part actor, const M& message) {
    static_cast<void>(services_.mail.send(to, number_of(op_, actor), generation_, message));
  }

  services& services_;
  options options_;
  std::uint64_t op_;
  std::uint64_t generation_;
  rank_id leader_;
  std::vector<rank_id> members_;
  runtime::news changed_;  ///< wakes the exchange that waits
  runtime::news work_;     ///< wakes `repeat`
  std::optional<runtime::error> broken_;
  std::uint64_t passed_ = 0;  ///< calls below this one have ended here
  std::optional<std::uint64_t> asked_;
  std::map<std::uint64_t, failed_call> failed_;  ///< by call, here or elsewhere; at most `most_failures`
  std::uint64_t forgotten_ = 0;                  ///< for calls below this one, failures are no longer remembered
  std::optional<round_outcome> latest_;          ///< on the other members: kept until the waiting exchange takes it
  std::vector<round_said> said_;                 ///< on the leader: by member
  /// On the leader. The last outcome without failure stays, for members that ask late. One such outcome is enough: when a call ends without
  /// failure, no member is in an earlier call. Failures stay until all members know them; there are at most `most_failures`.
  std::vector<kept_outcome> kept_;
  std::size_t late_calls_ = 0;  ///< on the leader: in a row
  bool retired_ = false;
};

}  // namespace parley::actors
