#pragma once
/// What ranks ask each other about an op that one of them waits in.
///
///     inquiries asks(services, {.has = …, .waiting = …});          // each rank, once; it answers, too
///     ask_whether_declared(services, op, generation, peer);        // who waits for a peer's part in the agreement, now and then
///     ask_what_it_does(services, op, generation, peer, tag);       // shortly before a call runs out of time
///     text += said_by_peers(services, op, {peer});                 // `; rank 1 has declared no act 0->1, but acts 0->1`
///
/// Ops are named by their members and an edge's direction, so that two ranks which declare one otherwise never meet by themselves:
///
/// - A rank that has an edge in the other direction, and not the one asked for, answers with a rejection, `role_conflict`, and asks the
///   same of its own.
/// - A rank that has declared another op of a group by that name, or has no part in it, says so. It may still declare the one that was
///   asked for, as a name may serve several groups; so nothing ends by that. The asking rank warns.
///
/// A rank that is asked what it does says how far it is in that op and what its calls wait for. Answers are made where messages come in,
/// never by a coroutine of the user's. Nothing here is acknowledged: whoever waits asks again, and the text of a call that ran out of time
/// says that its peer has not answered, and for how long.
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/services.hpp>
#include <parley/runtime/record/waiting_call.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace parley::actors {

struct peer_question {
  static constexpr std::uint16_t message_type = 28;
  std::uint64_t op = 0;        ///< that the asking rank has
  std::uint64_t reversed = 0;  ///< of an edge: the same from receiver to sender
  std::string name;
  std::string declaration;   ///< in words; of an edge: what is wrong if the other rank has the reversed one alone
  std::uint32_t number = 0;  ///< 0: whether it is declared; else what the peer does, and the answer has it
  std::uint32_t tag = 0;
  PARLEY_FIELDS(op, reversed, name, declaration, number, tag)
};

/// A call of the answering rank.
struct wire_waiting {
  std::uint64_t op = 0;
  std::string words;
  std::vector<std::uint32_t> peers;
  PARLEY_FIELDS(op, words, peers)
};
struct wire_declared {
  std::uint64_t op = 0;
  std::string title;
  PARLEY_FIELDS(op, title)
};

struct peer_answer {
  static constexpr std::uint16_t message_type = 32;
  std::uint64_t op = 0;
  std::uint32_t number = 0;
  bool declared = false;
  bool leaving = false;               ///< its program has returned
  std::string text;                   ///< what it has declared by that name, and the difference
  std::string progress;               ///< how far it is
  std::vector<wire_declared> others;  ///< what it has with the asking rank
  std::vector<wire_waiting> waiting;  ///< what it waits in, the oldest first
  std::uint32_t more = 0;             ///< further ones
  PARLEY_FIELDS(op, number, declared, leaving, text, progress, others, waiting, more)
};

/// No op has this number: theirs are hashes, of which this would be the one of nothing.
inline constexpr std::uint64_t rank_itself = number_of(0, part::participant);

enum class op_kind : std::uint8_t {
  unknown,     ///< this rank has not declared it
  edge,        ///< two ranks may call in different orders: a message waits for its receive
  collective,  ///< all its ranks make its calls, and those of others of this kind, in one order
};

class inquiries {
 public:
  /// What a rank knows of itself.
  struct own_knowledge {
    std::function<op_kind(std::uint64_t op)> kind;
    /// Ops of groups; null for a name that the rank has not declared.
    std::function<const std::vector<declared_by_name>*(const std::string& name)> by_name;
    /// Those that it has declared with that rank, by their titles.
    std::function<std::vector<declared_by_name>(rank_id with)> with;
    std::function<runtime::waiting_list()> waiting;
    /// How far it is in an op, in words, for a rank of which a call of that tag waits; empty where there is nothing to say.
    std::function<std::string(std::uint64_t op, rank_id asks, std::uint32_t tag)> progress;
    std::function<bool()> leaving;
  };
  inquiries(services& s, own_knowledge mine);
  inquiries(const inquiries&) = delete;
  inquiries& operator=(const inquiries&) = delete;
  ~inquiries();

  /// Says for how long the loop of a rank has not turned that does not answer; 0: nobody knows.
  void on_silence(std::function<runtime::time_ns(rank_id)> tell) { stands_still_ = std::move(tell); }
  void ask(const op_declaration& op, std::uint64_t generation, rank_id peer);
  void ask_what_it_does(const op_declaration& op, std::uint64_t generation, rank_id peer, std::uint32_t tag);
  /// What is known of these, each behind a semicolon.
  std::string said_by(const op_declaration& op, const std::vector<rank_id>& peers) const;

 private:
  struct asked {
    std::uint64_t op = 0;
    rank_id peer = 0;
    std::uint32_t number = 0;  // of the latest question; 0: none but whether it is declared
    runtime::time_ns asked_ns = 0;
    std::uint32_t answered = 0;  // the number of the latest answer
    peer_answer answer{};
  };
  bool has(std::uint64_t op) const { return mine_.kind(op) != op_kind::unknown; }
  asked* find(std::uint64_t op, rank_id peer) noexcept;
  const asked* find(std::uint64_t op, rank_id peer) const noexcept {
    return const_cast<inquiries*>(this)->find(op, peer);
  }
  asked& find_or_add(std::uint64_t op, rank_id peer);
  void send(const op_declaration& op, std::uint64_t generation, rank_id peer, std::uint32_t number, std::uint32_t tag);
  void answer(const envelope& from, peer_question&& q);
  void hear(rank_id from, peer_answer&& a);
  std::string words_of(const asked& a) const;
  std::string words_of_silence(rank_id peer) const;
  std::string order_of_calls(const asked& a) const;

  services& services_;
  own_knowledge mine_;
  std::function<runtime::time_ns(rank_id)> stands_still_;
  std::vector<asked> all_;  // the latest last
  std::uint32_t last_number_ = 0;
};

inline void ask_whether_declared(services& s, const op_declaration& op, std::uint64_t generation, rank_id peer) {
  if (s.asks != nullptr) s.asks->ask(op, generation, peer);
}
inline void ask_what_it_does(services& s, const op_declaration& op, std::uint64_t generation, rank_id peer,
                             std::uint32_t tag) {
  if (s.asks != nullptr) s.asks->ask_what_it_does(op, generation, peer, tag);
}
inline std::string said_by_peers(const services& s, const op_declaration& op, const std::vector<rank_id>& peers) {
  return s.asks == nullptr ? std::string() : s.asks->said_by(op, peers);
}

}  // namespace parley::actors
