#pragma once
/// Members of a group that make the same calls, and sometimes have to agree on something after one: each says what it has, the
/// first member merges, all are told the same.
///
///     rounds talk(services, declaration, {.merge = put_together, .on_failed = end_what_runs});
///     auto outcome = co_await talk.exchange(call, round, body, deadline);      // result<rounds::outcome>
///     talk.passed(call);                    // this call is over here; nothing was to be said, or no more is
///     talk.failed(call, why, …);            // it ends with `why` on every member
///
/// A call that nobody has anything to say of costs no message. Where only some have, they are told so (`apart`), because the
/// others may be further on, and with it what the leader knows of that from former calls. A round ends with `timeout` naming who
/// was silent, with `peer_failed` when a member dies, or with what another member failed with; all members that are in that call
/// learn the same, however late they ask. Lost, late and repeated messages cost time only.
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
    /// On the leader, of all members' bodies in their order. What it throws fails the call everywhere.
    std::function<round_body(std::span<const round_body> said)> merge;
    /// On the leader, of what some had to say where others had not: the body that `apart` has. What it throws fails their call.
    std::function<round_body(std::span<const round_body> said)> known;
    /// A call that this member is in, or is yet to make, has failed elsewhere.
    std::function<void(std::uint64_t call)> on_failed;
    /// Shortly before a round runs out of time: these ranks have not spoken.
    std::function<void(const std::vector<rank_id>& silent)> on_late_soon;
    /// What they said when they were asked, each behind a semicolon.
    std::function<std::string(const std::vector<rank_id>& silent)> said_by;
  };
  struct outcome {
    enum class kind : std::uint8_t { agreed, apart } what = kind::agreed;
    round_body body;
    std::string text;  ///< of `apart`: who had nothing to say
  };
  enum class told : std::uint8_t { everybody, who_asks };

  rounds(services& s, const op_declaration& op, options o);
  rounds(const rounds&) = delete;
  rounds& operator=(const rounds&) = delete;
  ~rounds();

  /// `deadline` is the leader's; members give it an eighth of its time more, because it knows who is missing.
  runtime::task<runtime::result<outcome>> exchange(std::uint64_t call, std::uint32_t round, round_body body,
                                                   runtime::time_ns timeout_ns);
  void passed(std::uint64_t call);
  /// `who_asks`: it was no matter of agreement as far as is known here.
  void failed(std::uint64_t call, const runtime::error& why, told whom);
  /// Why this call fails, if a member has said so.
  std::optional<runtime::error> failure_of(std::uint64_t call) const;
  /// Ends all rounds, and those to come. What says more takes the place of what was said first.
  void fail(const runtime::error& why) noexcept;
  const std::optional<runtime::error>& broken() const noexcept { return broken_; }
  /// After it has failed, for good: another one, of the next generation, takes its place.
  void retire() noexcept;
  std::uint64_t generation() const noexcept { return generation_; }

  bool leads() const noexcept { return leader_ == services_.net.rank(); }
  bool owes_messages() const noexcept;
  const std::vector<rank_id>& members() const noexcept { return members_; }

 private:
  static constexpr std::size_t most_failures = 16;
  struct failed_call {
    runtime::error why;
    told whom = told::everybody;
    bool answered = true;  ///< false: it failed here, and the leader may not know
    bool untold() const noexcept { return whom == told::everybody && !answered; }
  };
  struct kept_outcome {
    round_outcome what;
    std::set<rank_id> unknown_to;  ///< who has not acknowledged it
    bool failed() const noexcept { return what.what == round_outcome::kind::failed; }
  };

  void on_said(rank_id from, round_said&& m);
  void on_outcome(round_outcome&& m);
  void on_question(const round_question& m);
  struct time_limit {
    runtime::time_ns deadline = 0;
    runtime::time_ns late_soon = 0;  ///< when silent ones are asked what they do; `never`: no more
  };
  runtime::task<runtime::result<outcome>> lead(std::uint64_t call, std::uint32_t round, round_body body, time_limit t);
  runtime::task<runtime::result<outcome>> follow(std::uint64_t call, std::uint32_t round, round_body body,
                                                 time_limit t);
  void ask_if_late(time_limit& t, const std::vector<rank_id>& silent) const;
  std::string said_by(const std::vector<rank_id>& silent) const;
  std::optional<runtime::result<outcome>> conclude_if_all(std::uint64_t call, std::uint32_t round,
                                                          const round_body& mine);
  void conclude(round_outcome o);
  void conclude_failed(std::uint64_t call, std::uint32_t round, const runtime::error& why);
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
  runtime::news changed_;  ///< for the exchange that waits
  runtime::news work_;     ///< for `repeat`
  std::optional<runtime::error> broken_;
  std::uint64_t passed_ = 0;  ///< calls below are over here
  std::optional<std::uint64_t> asked_;
  std::map<std::uint64_t, failed_call> failed_;  ///< by call, here or elsewhere; at most `most_failures`
  std::uint64_t forgotten_ = 0;          ///< of calls below it is not known any more why they failed, if they did
  std::optional<round_outcome> latest_;  ///< at the others, until the exchange that waits takes it
  std::vector<round_said> said_;         ///< at the leader, by member
  /// At the leader. The last that is no failure stays, for those that ask late. One is enough: nobody is in an earlier call when a
  /// call ends otherwise than in failure. Failures stay until all know of them, and at most `most_failures`.
  std::vector<kept_outcome> kept_;
  bool retired_ = false;
};

}  // namespace parley::actors
