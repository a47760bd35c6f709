#pragma once
/// Checks that ranks which exchange an op's messages agree on more than its declaration: sizes, schedules, shapes, and the lists of
/// neighbours. If two ranks differ, both get an error with the values of both.
///
/// Terms that hold for many exchanges are compared along with the first exchange, once per neighbour and generation:
///
///     term_comparison sizes;                                     // outlives the flow, as it holds the buffers
///     if (sizes.due(messages, 3))
///       all.push_back(sizes.start(flow, messages, {.peer = 3, .tag_out = 40, .tag_in = 41}, {sent, expected},
///                                 [](auto mine, auto theirs) { if (…) raise(…); }));
///
/// A rank that waits for a neighbour does not know whether the neighbour lists it, or is in the same call. So it asks repeatedly:
///
///     neighbours& around = *self.attach(std::make_unique<neighbours>(self.services(), messages.edges(), options));
///     around.expect(3);                                          // starts to ask rank 3
///     around.heard(3);                                           // a message from rank 3 has arrived: stops asking
///     around.throw_refused();                                    // before each exchange: throws if a rank has refused
///
/// A rank refuses a neighbour that has declared the op differently (`options::declared`), or that calls with other terms in the same call
/// (`call`). It also refuses a rank that it does not list. Both ranks then fail with `declaration_mismatch`: messages in flight between
/// them end, and all later exchanges throw. If a rank is asked by a rank that it does not list, it ends its messages with all neighbours.
/// A peer that has not declared the op does not reply: it may still declare the op, until the wait times out.
///
/// A call that fails on one rank may leave messages behind, or may not have sent some. The next call would mistake such messages for its
/// own. So neither this rank nor its neighbours make another call until all ranks rejoin. Each rank that hears of the failure passes the
/// news on to its own neighbours:
///
///     around.throw_refused();
///     call_guard now(&around);                               // if its frame is torn down, that is a failure, too
///     try { … } catch (...) { thrown = std::current_exception(); }
///     now.end(thrown);                                           // throws it, or the failure that another rank has told
///
/// The edges themselves report deaths and restarts, and those errors take precedence.
#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/rounds/neighbour_messages.hpp>
#include <parley/actors/services.hpp>
#include <parley/dataflow.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/core/call_guard.hpp>
#include <parley/ops/edges/declared_edge.hpp>
#include <parley/p2p.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

class term_comparison {
 public:
  using numbers = std::vector<std::uint64_t>;
  /// Throws if the terms do not fit. Both spans have the same length.
  using check_function =
      std::function<void(std::span<const std::uint64_t> mine, std::span<const std::uint64_t> theirs)>;
  struct route {
    rank_id peer;
    std::uint32_t tag_out;
    std::uint32_t tag_in;
    const char* remark = "";  ///< the end of a time-out's text
  };
  bool due(const p2p& messages, rank_id peer) const {
    return all_.empty() || all_.back()->generation != messages.generation_with(peer);
  }
  runtime::flow_work start(runtime::dataflow& flow, p2p& messages, const route& with, numbers mine,
                           check_function check);

 private:
  struct exchange {
    std::uint64_t generation;
    numbers mine;
    numbers theirs;
  };
  std::vector<std::unique_ptr<exchange>> all_;  // oldest first; messages of an earlier exchange may still be in flight
};

class neighbours final : public op_end {
 public:
  struct options {
    std::string op;               ///< its name
    std::vector<rank_id> listed;  ///< the neighbours of this rank
    time_ns timeout_ns;           ///< of the op's messages; also how long this rank asks a neighbour
    /// Terms that all ranks of the op must declare alike. Questions carry them. If two ranks differ, the errors on both name the terms that
    /// differ.
    std::vector<actors::declared_term> declared{};
  };
  /// `edges`: this rank's edges that carry the op's messages.
  neighbours(actors::services& s, std::vector<declared_edge*> edges, options o);
  ~neighbours() override;

  void expect(rank_id peer);
  void heard(rank_id peer) noexcept;
  /// A hash of `options::declared`, to be compared along with other terms: ranks that declare alike have the same hash.
  std::uint64_t declared_hash() const;
  static constexpr unsigned declared_hash_bits = 24;
  /// The neighbour's hash differs: asks it at once, so that both ranks learn which terms differ.
  void differs(rank_id peer);
  /// Begins a call under these terms: `terms` is their hash, `words` their text. A neighbour that makes this call with other terms refuses
  /// it.
  void call(std::uint64_t terms, const std::function<std::string()>& words);
  void throw_refused();
  /// For ops whose runs must not overlap on a rank, because messages of two runs would be mixed up. `begin_run` returns the run's number,
  /// and throws `bad_argument` if a run is in progress. After `begin_anew` a run may begin while a failed run still waits for its messages
  /// to end.
  std::uint64_t begin_run();
  void end_run(std::uint64_t run) noexcept {
    if (run_now_ == run) run_now_ = 0;
  }
  /// Call it when a message or a call was given up, so that no call may follow. The next `throw_refused` tells the neighbours and throws.
  void give_up(const runtime::error& why) {
    if (!refused_ && !given_up_) given_up_ = why;
  }
  /// Like `give_up`, but tells the neighbours at once.
  void close(const runtime::error& why);
  /// Forgets calls, refusals and failures: all ranks start the op's messages over, in a new generation.
  void begin_anew() noexcept;

  const actors::op_declaration& declaration() const noexcept override { return declaration_; }
  bool ends_with(rank_id) const noexcept override { return false; }  // its edges fail when a peer is gone
  void fail(const runtime::error&) noexcept override { question_.stop(); }

  /// The facts of an error of this op that concerns `peer`.
  runtime::error_facts about(rank_id peer) const;

 private:
  friend call_guard;
  struct peer_state {
    rank_id rank;
    std::uint64_t incarnation = 0;
    std::uint64_t first_call = 0;  // number of calls before the peer's present process
    bool awaited = false;
    bool refused = false;
    bool knows = false;                          // whether it knows that a call has failed
    std::optional<std::uint64_t> heard_under{};  // this rank's terms when a message of the peer last arrived
  };
  struct run_of_calls {  // successive calls under the same terms
    std::uint64_t last;
    std::uint64_t terms;
    std::string words;
  };
  peer_state* find(rank_id peer) noexcept;
  void meet(peer_state& p) noexcept;
  std::uint64_t terms_now() const noexcept { return runs_.empty() ? 0 : runs_.back().terms; }
  void ask() noexcept;
  runtime::errc answer(rank_id from, const actors::neighbour_question& q);
  std::string declared_otherwise(rank_id from, const actors::neighbour_question& q) const;
  void refuse(rank_id peer, const runtime::error& why);
  void tell(rank_id peer, const std::string& why);
  void hear_of_failure(const runtime::envelope& from, const actors::neighbour_failure& f);
  void send_failure(rank_id peer, const actors::neighbour_failure& f);
  void spread();
  void tell_failed(rank_id peer);
  declared_edge* edge_with(rank_id peer, bool outwards) const noexcept;
  /// The error of an edge that ended because its peer process is gone or was replaced; null: there is none.
  const runtime::error* end_of_process() const noexcept;
  [[noreturn]] void throw_failed(const std::exception_ptr& thrown);
  [[noreturn]] void throw_closed(const runtime::error& message) const;
  void ask_for_a_while();
  std::uint64_t actor() const noexcept;

  actors::services& services_;
  std::vector<declared_edge*> edges_;
  options options_;
  actors::op_declaration declaration_;
  std::vector<peer_state> peers_;
  std::uint64_t calls_ = 0;
  std::vector<run_of_calls> runs_;  // oldest first
  actors::reminder_timer<&neighbours::ask> question_{*this};
  time_ns ask_until_ns_ = 0;
  std::optional<runtime::error> refused_;
  std::uint64_t runs_begun_ = 0;
  std::uint64_t run_now_ = 0;               // 0: none
  bool closed_ = false;                     // a call has failed, and all neighbours get the news
  std::optional<runtime::error> given_up_;  // why no call may follow; not sent to the neighbours yet
};

/// Rejoins an op that is made of p2p messages: see `p2p::rejoin`. `around` may be null.
bool rejoin(p2p& messages, neighbours* around);

}  // namespace parley::ops
