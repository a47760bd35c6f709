#pragma once
/// What ranks that exchange an op's messages have to have in common, beyond its declaration: sizes, schedules, shapes, and who
/// is whose neighbour. Where they differ, both are told, with what each of them has.
///
/// What holds for many exchanges is compared beside the first one, with each neighbour once, and once more in another generation:
///
///     term_comparison sizes;                                     // outlives the flow, as it holds the buffers
///     if (sizes.due(messages, 3))
///       all.push_back(sizes.start(flow, messages, {.peer = 3, .tag_out = 40, .tag_in = 41}, {sent, expected},
///                                 [](auto mine, auto theirs) { if (…) raise(…); }));
///
/// Who waits for a neighbour does not know whether that one knows of it, or is in the same call, so it asks, now and then:
///
///     neighbours& around = *self.attach(std::make_unique<neighbours>(self.services(), messages.edges(), options));
///     around.expect(3);                                          // from here on it is asked
///     around.heard(3);                                           // until a message of it is here
///     around.throw_refused();                                    // what came of it, before each exchange
///
/// A rank that is asked by one that has declared the op otherwise (`options::declared`), or that it does not list, refuses, with `declaration_mismatch` on both: on the one that asks for its
/// messages with that neighbour, on the other one for all of the op's. The same where both are in the same call, with other terms
/// (`call`). A peer that has not declared the op says nothing: it may do so later, until the wait's own timeout.
///
/// A call that fails on one rank may leave messages behind, or not have sent some: another call would take them for its own. So there
/// is none, neither there nor on a neighbour, which is told and tells its own ones, until all begin anew:
///
///     around.throw_refused();
///     call_under_way now(&around);                   // where its frame is torn down, that is a failure, too
///     try { … } catch (...) { thrown = std::current_exception(); }
///     now.end(thrown);                                           // throws it, or what another rank's failure has been told with
///
/// Deaths and restarts are told by the edges themselves, and come first.
#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/rounds/neighbour_messages.hpp>
#include <parley/actors/services.hpp>
#include <parley/dataflow.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/core/call_under_way.hpp>
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
  /// Throws what is wrong. Both have as many numbers.
  using check_function =
      std::function<void(std::span<const std::uint64_t> mine, std::span<const std::uint64_t> theirs)>;
  struct route {
    rank_id peer;
    std::uint32_t tag_out;
    std::uint32_t tag_in;
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
  std::vector<std::unique_ptr<exchange>> all_;  // the latest last; a message of an earlier one may still be leaving
};

class neighbours final : public op_end {
 public:
  struct options {
    std::string op;               ///< its name
    std::vector<rank_id> listed;  ///< the neighbours of this rank
    time_ns timeout_ns;           ///< of the op's messages: for so long it is asked
    /// What its ranks have to declare alike: a rank that waits for a neighbour says so, and where they differ both are told in what.
    std::vector<actors::declared_term> declared{};
  };
  /// `edges`: those of this rank that the op's messages go over.
  neighbours(actors::services& s, std::vector<declared_edge*> edges, options o);
  ~neighbours() override;

  void expect(rank_id peer);
  void heard(rank_id peer) noexcept;
  /// What is declared alike as a number, for who compares it beside other terms; equal where nothing differs.
  std::uint64_t declared_hash() const;
  static constexpr unsigned declared_hash_bits = 24;
  /// A neighbour's is another one: it is asked at once, and both are told in what they differ.
  void differs(rank_id peer);
  /// A call begins whose messages are told apart by their terms, of which `terms` is a hash.
  void call(std::uint64_t terms, const std::function<std::string()>& words);
  void throw_refused();
  /// A message was given up, or a call: the next one is not to be. `throw_refused` sees to that and tells the neighbours.
  void give_up(const runtime::error& why) {
    if (!refused_ && !given_up_) given_up_ = why;
  }
  /// The same, and the neighbours are told at once.
  void close(const runtime::error& why);
  /// The op's messages begin anew on all ranks.
  void begin_anew() noexcept;

  const actors::op_declaration& declaration() const noexcept override { return declaration_; }
  bool ends_with(rank_id) const noexcept override { return false; }  // its messages end when a peer is gone
  void fail(const runtime::error&) noexcept override { question_.stop(); }

  /// The facts of an error of this op that concerns `peer`.
  runtime::error_facts about(rank_id peer) const;

 private:
  friend call_under_way;
  struct peer_state {
    rank_id rank;
    std::uint64_t incarnation = 0;
    std::uint64_t first_call = 0;  // of those with this process
    bool awaited = false;
    bool refused = false;
    bool knows = false;                          // that a call has failed
    std::optional<std::uint64_t> heard_under{};  // terms
  };
  struct run_of_calls {  // under the same terms
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
  /// Of an edge that has ended for a process that is gone, or has been replaced.
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
  std::vector<run_of_calls> runs_;  // the latest last
  actors::reminder_timer<&neighbours::ask> question_{*this};
  time_ns ask_until_ns_ = 0;
  std::optional<runtime::error> refused_;
  bool closed_ = false;                     // as a call has failed, which all are told
  std::optional<runtime::error> given_up_;  // why there is to be no other call, which nobody was told yet
};

/// Of an op that is made of such messages: see `p2p::rejoin`.
bool rejoin(p2p& messages, neighbours* around);

}  // namespace parley::ops
