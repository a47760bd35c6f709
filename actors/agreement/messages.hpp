#pragma once
/// The control messages of a search (docs/protocol.md, Messages), each a plain struct that lists its fields once. Every message
/// with a `number` is sent again until its `ack` has come; handling one twice changes nothing.
///
///     participant            coordinator
///       offer      ------->                 who I am and what I can run
///                  <-------    merged       what all of us can run
///                  <-------    warm         get these ready and rehearse them
///       warmed     ------->
///         … trials, stamped on real invocations …
///       report     ------->                 when they began and ended here
///                  <-------    decide       the winner, with the evidence
#include <parley/actors/clock_book.hpp>
#include <parley/actors/policy.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/runtime/wire/wire.hpp>
#include <parley/tuning/constraint.hpp>
#include <parley/tuning/planners/decide.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace parley::actors {

using runtime::envelope;

/// A config as it travels; `tuning::config_identity` in plain fields.
struct wire_parameter {
  std::string name;
  std::string value;
  PARLEY_FIELDS(name, value)
};
struct wire_config {
  std::string name;
  std::vector<wire_parameter> parameters;
  std::string wire_class;
  std::uint32_t abi = 1;
  PARLEY_FIELDS(name, parameters, wire_class, abi)
};

/// A line of a results file that concerns this op.
struct wire_result {
  std::string parameters;
  std::string solution;  ///< `tuning::name_in_file` of a config
  double time_ms = 0;
  std::uint64_t machines = 0;  ///< `tuning::machines_together` of the participants when it was measured
  bool thin = false;           ///< it rests on little: a search may refine it
  PARLEY_FIELDS(parameters, solution, time_ms, machines, thin)
};

/// A constraint of a participant's user that keeps its config from payloads of more than `largest_bytes`.
struct wire_limit {
  std::uint32_t config = 0;  ///< its place in the offered catalogue
  tuning::constraint_kind kind = tuning::constraint_kind::accuracy;
  std::uint64_t largest_bytes = 0;
  double needs = 0;
  double allowed = 0;
  PARLEY_FIELDS(config, kind, largest_bytes, needs, allowed)
};

struct ack {
  static constexpr std::uint16_t message_type = 1;
  std::uint32_t number = 0;
  bool send_list = false;  ///< to an offer: your catalogue is not mine, send it whole
  clock_stamp clock{};
  PARLEY_FIELDS(number, send_list, clock)
};

/// How much of what went wrong with configs one rank tells another, and how much of that is kept.
inline constexpr std::size_t most_faults = 64;
inline constexpr std::size_t most_lacks = 8;        // in a sentence
inline constexpr std::size_t most_told_lacks = 64;  // of an offer
inline constexpr std::size_t most_error_bytes = 500;
inline constexpr std::size_t most_warm_errors = 1024;

struct offer {
  static constexpr std::uint16_t message_type = 2;
  std::uint32_t number = 0;
  std::uint64_t decl_hash = 0;
  std::string declaration;  ///< in words, for the error text when the hashes differ
  std::string role;
  std::uint64_t validators_hash = 0;
  std::uint64_t catalogue_hash = 0;
  std::vector<std::uint8_t> available;  ///< per config, 0 or 1
  std::vector<wire_config> catalogue;   ///< empty unless asked for
  std::vector<wire_result> cached;      ///< what this rank's results file says of this op
  bool trials = true;                   ///< false: tuning is switched off on this rank
  std::vector<wire_limit> limits;       ///< what constraints forbid here
  std::vector<std::string> lacking;     ///< of some that are not available: which, and why
  PARLEY_FIELDS(number, decl_hash, declaration, role, validators_hash, catalogue_hash, available, catalogue, cached,
                trials, limits, lacking)
};

struct merged {
  static constexpr std::uint16_t message_type = 3;
  std::uint32_t number = 0;
  std::vector<std::uint64_t> candidates;  ///< assignable, c0 first; a later one has more of them
  std::vector<std::string> ids;           ///< their names
  std::string no_common_config;
  PARLEY_FIELDS(number, candidates, ids, no_common_config)
};

struct op_reject {
  static constexpr std::uint16_t message_type = 4;
  std::uint32_t number = 0;
  std::uint8_t code = 0;  ///< an `errc`
  std::string text;
  PARLEY_FIELDS(number, code, text)
};

struct warm {
  static constexpr std::uint16_t message_type = 5;
  std::uint32_t number = 0;
  std::vector<std::uint64_t> candidates;
  std::vector<std::uint64_t> variants;  ///< what the participant itself runs for each: its part of the mixture
  std::uint32_t round = 1;              ///< later ones are about candidates of which a variant has failed, and new ones
  PARLEY_FIELDS(number, candidates, variants, round)
};

struct warmed {
  static constexpr std::uint16_t message_type = 6;
  std::uint32_t number = 0;
  std::vector<std::uint64_t> ready;
  std::vector<std::string> errors;  ///< of this round
  std::uint32_t round = 1;
  std::vector<std::uint64_t> failed;  ///< not ready by this rank's own doing: another variant may do
  std::int64_t control_ns = 0;        ///< what the agreement has taken of this rank's time so far
  PARLEY_FIELDS(number, ready, errors, round, failed, control_ns)
};

struct wire_row {
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::uint64_t digest = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t previous_end_ns = 0;  ///< when the invocation before ended here
  std::uint8_t status = 0;           ///< a `tuning::row_status`, or `cancelled_row`
  std::int64_t worked_ns = 0;        ///< of its time, what was no waiting for parts; 0: not known
  PARLEY_FIELDS(tag, invocation, digest, start_ns, end_ns, previous_end_ns, status, worked_ns)
};
/// A caller gave this invocation up here, so that it says nothing about its config.
inline constexpr std::uint8_t cancelled_row = 3;
struct report {
  static constexpr std::uint16_t message_type = 7;
  std::uint32_t number = 0;
  std::vector<wire_row> rows;   ///< by the participant's clock
  std::int64_t control_ns = 0;  ///< as of `warmed`
  clock_stamp clock{};
  PARLEY_FIELDS(number, rows, control_ns, clock)
};

/// What one participant saw of a candidate by its own clock, its waits included.
struct wire_own_time {
  std::uint32_t rank = 0;
  double time_ns = 0;  ///< the median; infinite without a good repetition
  std::uint32_t repetitions = 0;
  std::string status;     ///< a `tuning::aggregate_status`
  std::uint64_t ran = 0;  ///< the config that it ran: of a mixture, its part
  PARLEY_FIELDS(rank, time_ns, repetitions, status, ran)
};
/// Who runs another config than the decision names, and which.
struct wire_part {
  std::uint64_t digest = 0;
  std::string config;
  std::vector<std::uint32_t> ranks;
  PARLEY_FIELDS(digest, config, ranks)
};
struct wire_evidence {
  std::uint64_t digest = 0;
  double time_ns = 0;  ///< the longest of all participants per repetition, and then the median
  std::uint32_t repetitions = 0;
  std::string status;    ///< a `tuning::aggregate_status`, `quarantined`, `excluded`, `same`, `lacking` or `remembered`
  double spread_ns = 0;  ///< median deviation of the repetitions
  double clock_error_ns = 0;  ///< what comparing clocks of several hosts may add
  std::string
      detail;  ///< why it was not measured, or may not run; of one that is `lacking`, which rank lacks it, and why
  std::uint32_t proposer = 0;  ///< the first rank whose catalogue has it
  std::vector<wire_own_time> ranks;
  std::string config;  ///< of one that is `lacking`, which the reader may not know
  PARLEY_FIELDS(digest, time_ns, repetitions, status, spread_ns, clock_error_ns, detail, proposer, ranks, config)
};
struct decide {
  static constexpr std::uint16_t message_type = 8;
  std::uint32_t number = 0;
  std::string key;  ///< as in a results file: `16MiB_bf16`
  std::uint64_t digest = 0;
  std::string why;
  std::vector<wire_evidence> evidence;
  decision_source source = decision_source::trials;
  std::uint32_t proposer = 0;  ///< the rank whose results file it is from, else the first whose catalogue has it
  std::uint64_t machines = 0;  ///< which combination of machines it holds for: `tuning::machines_together`
  std::uint64_t mixture = 0;   ///< which mixture the candidate is: `tuning::merged::mixture_of`
  std::uint32_t version = 0;   ///< grows with every change of this key's decision, so that a late one changes nothing
  std::uint32_t search = 0;
  std::vector<std::uint32_t> participants;
  std::uint32_t left_out = 0;       ///< candidates of whom there was too much to say
  std::uint64_t largest_bytes = 0;  ///< that the key stands for
  std::uint32_t searches_on = 0;    ///< of other keys of this op, which go on
  std::vector<wire_part> parts;  ///< of a mixture: the participants that run another config in the place of the winner
  tuning::confidence confidence = tuning::confidence::none;
  PARLEY_FIELDS(number, key, digest, why, evidence, source, proposer, machines, mixture, version, search, participants,
                left_out, largest_bytes, searches_on, parts, confidence)
};

/// What a participant asks of the leader, at any time.
struct tuning_request {
  static constexpr std::uint16_t message_type = 30;
  /// `end`: nothing of the op is searched for any more.
  enum class kind : std::uint8_t { retune, abort, end, last = end };
  std::uint32_t number = 0;
  kind what = kind::retune;
  bool every_size = false;
  std::uint64_t bytes = 0;  ///< else: the size that it is about
  std::string why;
  PARLEY_FIELDS(number, what, every_size, bytes, why)
};

/// An invocation that the leader may think well of has failed at a participant.
struct nack {
  static constexpr std::uint16_t message_type = 26;
  std::uint32_t number = 0;
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::uint64_t digest = 0;
  std::uint64_t bytes = 0;
  std::uint8_t code = 0;  ///< an `errc`
  bool refused = false;   ///< its receive was not for this message, which says nothing of the config
  std::string text;
  PARLEY_FIELDS(number, tag, invocation, digest, bytes, code, refused, text)
};

/// Flow control of one stream, outside the window and outside the search. The receiver reports now and then; a sender
/// that waits for room asks, and asks again until it has been let through, which makes up for reports that were lost.
struct matched {
  static constexpr std::uint16_t message_type = 9;
  enum class kind : std::uint8_t { report, question, last = question };
  kind what = kind::report;
  std::uint64_t stream = 0;
  std::uint64_t count = 0;  ///< invocations matched so far: cumulative
  /// Now and then in a report: which config an invocation ran there, so that the one who leads can assert S2; 0: not this time.
  std::uint64_t ran = 0;
  std::uint64_t ran_invocation = 0;
  PARLEY_FIELDS(what, stream, count, ran, ran_invocation)
};

/// A message with its sender, as an actor's mailbox holds it.
template <class M>
struct received {
  envelope from;
  M body;
};

}  // namespace parley::actors
