#pragma once
/// The control messages of a search (docs/protocol.md, Messages), each a plain struct that lists its fields once. Every message with a
/// `number` is sent again until its `ack` arrives; a message that arrives twice changes nothing.
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

/// A config in a message: `tuning::config_identity` in plain fields.
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
  bool thin = false;           ///< it is based on little evidence: a search may refine it
  PARLEY_FIELDS(parameters, solution, time_ms, machines, thin)
};

/// A user's constraint on one participant: the config may not run with payloads above `largest_bytes`.
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
  bool send_list = false;  ///< in reply to an offer: your catalogue differs from mine, send the whole list
  clock_stamp clock{};
  PARLEY_FIELDS(number, send_list, clock)
};

/// Limits on the number of failures of configs that one rank reports to another, and on the number that is kept.
inline constexpr std::size_t most_faults = 64;
inline constexpr std::size_t most_lacks = 8;        // named in a sentence
inline constexpr std::size_t most_told_lacks = 64;  // sent in an offer
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
  std::vector<wire_result> cached;      ///< entries of this rank's results file for this op
  bool trials = true;                   ///< false: tuning is switched off on this rank
  std::vector<wire_limit> limits;       ///< limits that constraints set on this rank
  std::vector<std::string> lacking;     ///< some of the configs that are not available: which, and why
  PARLEY_FIELDS(number, decl_hash, declaration, role, validators_hash, catalogue_hash, available, catalogue, cached,
                trials, limits, lacking)
};

struct merged {
  static constexpr std::uint16_t message_type = 3;
  std::uint32_t number = 0;
  std::vector<std::uint64_t> candidates;  ///< assignable configs, c0 first; later messages list more of them
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
  std::vector<std::uint64_t> variants;  ///< per candidate: the config that this rank runs: its part of a mixture
  std::uint32_t round = 1;              ///< later rounds have new candidates, and candidates with a variant that failed
  PARLEY_FIELDS(number, candidates, variants, round)
};

struct warmed {
  static constexpr std::uint16_t message_type = 6;
  std::uint32_t number = 0;
  std::vector<std::uint64_t> ready;
  std::vector<std::string> errors;  ///< of this round
  std::uint32_t round = 1;
  std::vector<std::uint64_t> failed;  ///< not ready because of this rank itself: another variant may work
  std::int64_t control_ns = 0;        ///< time of this rank's thread that the agreement has used so far
  PARLEY_FIELDS(number, ready, errors, round, failed, control_ns)
};

struct wire_row {
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::uint64_t digest = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t previous_end_ns = 0;  ///< latest end here of the invocations that began before this one
  std::uint8_t status = 0;           ///< a `tuning::row_status`, or `cancelled_row`
  std::int64_t worked_ns = 0;        ///< time that was not spent waiting for parts; 0: not known
  PARLEY_FIELDS(tag, invocation, digest, start_ns, end_ns, previous_end_ns, status, worked_ns)
};
/// A caller on this rank gave the invocation up, so the row says nothing about its config.
inline constexpr std::uint8_t cancelled_row = 3;
struct report {
  static constexpr std::uint16_t message_type = 7;
  std::uint32_t number = 0;
  std::vector<wire_row> rows;   ///< by the participant's clock
  std::int64_t control_ns = 0;  ///< as in `warmed`
  clock_stamp clock{};
  PARLEY_FIELDS(number, rows, control_ns, clock)
};

/// One participant's measurement of a candidate by its own clock, including its waits.
struct wire_own_time {
  std::uint32_t rank = 0;
  double time_ns = 0;  ///< the median; infinite without a good repetition
  std::uint32_t repetitions = 0;
  std::string status;     ///< a `tuning::aggregate_status`
  std::uint64_t ran = 0;  ///< the config that it ran: for a mixture, its part
  double fastest_ns = 0;
  double spread_ns = 0;  ///< median deviation of the repetitions
  PARLEY_FIELDS(rank, time_ns, repetitions, status, ran, fastest_ns, spread_ns)
};
/// A config that some ranks run in place of the decided one, and those ranks.
struct wire_part {
  std::uint64_t digest = 0;
  std::string config;
  std::vector<std::uint32_t> ranks;
  PARLEY_FIELDS(digest, config, ranks)
};
struct wire_evidence {
  std::uint64_t digest = 0;
  double time_ns = 0;  ///< the longest time of all participants per repetition, then the median
  std::uint32_t repetitions = 0;
  std::string
      status;  ///< a `tuning::aggregate_status`, `quarantined`, `excluded`, `hopeless`, `same`, `lacking` or `remembered`
  double spread_ns = 0;       ///< median deviation of the repetitions
  double clock_error_ns = 0;  ///< possible error from comparing the clocks of several hosts
  /// The reason why it was not measured or may not run. If it is `lacking`: which rank lacks it, and why.
  std::string detail;
  std::uint32_t proposer = 0;  ///< the first rank that has it in its catalogue
  std::vector<wire_own_time> ranks;
  std::string config;  ///< name of a `lacking` config, which the reader may not know
  double expected_ns = 0, expected_low_ns = 0, expected_high_ns = 0;  ///< expected before the trials; 0: nothing
  PARLEY_FIELDS(digest, time_ns, repetitions, status, spread_ns, clock_error_ns, detail, proposer, ranks, config,
                expected_ns, expected_low_ns, expected_high_ns)
};
struct decide {
  static constexpr std::uint16_t message_type = 8;
  std::uint32_t number = 0;
  std::string key;  ///< as in a results file: `16MiB_bf16`
  std::uint64_t digest = 0;
  std::string why;
  std::vector<wire_evidence> evidence;
  decision_source source = decision_source::trials;
  std::uint32_t proposer = 0;  ///< the rank whose results file decided, else the first rank whose catalogue has it
  std::uint64_t machines = 0;  ///< the combination of machines that it holds for: `tuning::machines_together`
  std::uint64_t mixture = 0;   ///< which mixture the candidate is: `tuning::merged::mixture_of`
  std::uint32_t version = 0;   ///< grows with every change of this key's decision, so a late message changes nothing
  std::uint32_t search = 0;
  std::vector<std::uint32_t> participants;
  std::uint32_t left_out = 0;       ///< candidates for which the message had no room
  std::uint64_t largest_bytes = 0;  ///< largest size of the key
  std::uint32_t searches_on = 0;    ///< searches for other keys of this op that still run
  std::vector<wire_part> parts;     ///< of a mixture: configs that participants run in place of the winner
  tuning::confidence confidence = tuning::confidence::none;
  std::uint64_t trials = 0;  ///< made by all searches for this key
  double cost_ns = 0;        ///< how much longer these took than the default
  PARLEY_FIELDS(number, key, digest, why, evidence, source, proposer, machines, mixture, version, search, participants,
                left_out, largest_bytes, searches_on, parts, confidence, trials, cost_ns)
};

/// A participant's request to the leader; it may be sent at any time.
struct tuning_request {
  static constexpr std::uint16_t message_type = 30;
  /// `end`: ends all searches of the op for good.
  enum class kind : std::uint8_t { retune, abort, end, last = end };
  std::uint32_t number = 0;
  kind what = kind::retune;
  bool every_size = false;
  std::uint64_t bytes = 0;  ///< the size in question, unless `every_size`
  std::string why;
  PARLEY_FIELDS(number, what, every_size, bytes, why)
};

/// An invocation has failed at a participant; the leader may not know.
struct nack {
  static constexpr std::uint16_t message_type = 26;
  std::uint32_t number = 0;
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::uint64_t digest = 0;
  std::uint64_t bytes = 0;
  std::uint8_t code = 0;  ///< an `errc`
  bool refused = false;   ///< its receive refused the message, so the failure does not blame the config
  std::string text;
  PARLEY_FIELDS(number, tag, invocation, digest, bytes, code, refused, text)
};

/// Flow control of one stream. The receiver reports now and then how many invocations it has matched. A sender that waits for room asks,
/// and repeats the question until it may send, which makes up for lost reports.
struct matched {
  static constexpr std::uint16_t message_type = 9;
  enum class kind : std::uint8_t { report, question, last = question };
  kind what = kind::report;
  std::uint64_t stream = 0;
  std::uint64_t count = 0;  ///< invocations matched so far: cumulative
  /// In some reports: the config that an invocation ran at the receiver, so that the leader can check S2; 0: not in this report.
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
