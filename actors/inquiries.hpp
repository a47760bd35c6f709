#pragma once
/// Sends and answers the questions that ranks ask each other about an op in which one of them waits.
///
///     inquiries asks(services, {.kind = …, .waiting = …});         // each rank, once; it also answers questions
///     ask_whether_declared(services, op, generation, peer);        // now and then, while a peer's part in the agreement is missing
///     ask_what_it_does(services, op, generation, peer, tag);       // shortly before a call runs out of time
///     text += said_by_peers(services, op, {peer});                 // `; rank 1 has declared no act 0->1, but acts 0->1`
///
/// An op's id covers its members and an edge's direction, so two ranks that declare an op differently never receive each other's messages.
/// Questions reveal such conflicts:
///
/// - A rank that has declared the edge only in the other direction replies with a rejection, `role_conflict`. That rank also asks about its
///   own op, so both ranks get the error.
/// - A rank that has declared a group under that name with other members, or is not a member, replies so. It may still declare the op in
///   question, because one name may serve several groups. Therefore no op ends, and the asking rank only warns.
///
/// A rank can also ask a peer for its progress. The peer replies with its progress in that op, and with the reasons for which its calls
/// wait. The loop replies when the question arrives; no user coroutine takes part. These messages are not acknowledged: a rank that waits
/// asks again. If the peer has not replied, the error text of a call that timed out says so, and for how long.
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
  std::uint64_t op = 0;        ///< the asking rank's op
  std::uint64_t reversed = 0;  ///< of an edge: the id of the edge from receiver to sender
  std::string name;
  std::string declaration;   ///< in words; for an edge: the error text if the other rank has only the reversed edge
  std::uint32_t number = 0;  ///< 0 asks whether the op is declared there. Else asks for progress; the answer repeats it
  std::uint32_t tag = 0;
  PARLEY_FIELDS(op, reversed, name, declaration, number, tag)
};

/// A call that waits on the answering rank.
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
  std::string text;                   ///< its declaration under that name, and the difference
  std::string progress;               ///< its progress in the op
  std::vector<wire_declared> others;  ///< other ops that it has declared with the asking rank
  std::vector<wire_waiting> waiting;  ///< its waiting calls, the oldest first
  std::uint32_t more = 0;             ///< waiting calls that are not listed
  PARLEY_FIELDS(op, number, declared, leaving, text, progress, others, waiting, more)
};

/// The actor number for messages to a rank itself. No op has this number: ops have hashes as ids, and this number belongs to the id 0.
inline constexpr std::uint64_t rank_itself = number_of(0, part::participant);

enum class op_kind : std::uint8_t {
  unknown,     ///< this rank has not declared it
  edge,        ///< two ranks may call in different orders: a message waits for its receive
  collective,  ///< its ranks make its calls, and those of other collectives, in one order
};

class inquiries {
 public:
  /// A rank's knowledge about itself.
  struct own_knowledge {
    std::function<op_kind(std::uint64_t op)> kind;
    /// The rank's group declarations under that name; null for a name that the rank has not declared.
    std::function<const std::vector<declared_by_name>*(const std::string& name)> by_name;
    /// The ops, with their titles, that the rank has declared together with rank `with`.
    std::function<std::vector<declared_by_name>(rank_id with)> with;
    std::function<runtime::waiting_list()> waiting;
    /// The rank's progress in an op, in words, for rank `asks`, which waits in a call of that tag; empty if there is nothing to say.
    std::function<std::string(std::uint64_t op, rank_id asks, std::uint32_t tag)> progress;
    std::function<bool()> leaving;
  };
  inquiries(services& s, own_knowledge mine);
  inquiries(const inquiries&) = delete;
  inquiries& operator=(const inquiries&) = delete;
  ~inquiries();

  /// `tell` returns for how long the loop of a rank has not turned; 0: not known. Called for a rank that does not reply.
  void on_silence(std::function<runtime::time_ns(rank_id)> tell) { stands_still_ = std::move(tell); }
  void ask(const op_declaration& op, std::uint64_t generation, rank_id peer);
  void ask_what_it_does(const op_declaration& op, std::uint64_t generation, rank_id peer, std::uint32_t tag);
  /// Texts about these peers, each preceded by a semicolon.
  std::string said_by(const op_declaration& op, const std::vector<rank_id>& peers) const;

 private:
  struct asked {
    std::uint64_t op = 0;
    rank_id peer = 0;
    std::uint32_t number = 0;  // of the latest question about its calls; 0: none was asked
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
  std::vector<asked> all_;  // the newest entry last
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
