#pragma once
/// The work of each rank of a pipeline, in order: a list of actions per rank, as data.
///
///     pipeline_schedule s = one_forward_one_backward(/*ranks=*/4, /*microbatches=*/8);
///     pipeline_schedule t = interleaved(4, 8, /*chunks=*/2);          // stage s is on rank s % 4
///     auto own = parse_schedule("0F0, 0SEND_F0, 0F1, 0SEND_F1, 0RECV_B0, 0B0, 0RECV_B1, 0B1\n"
///                               "1RECV_F0, 1F0, 1B0, 1SEND_B0, 1RECV_F1, 1F1, 1B1, 1SEND_B1\n");
///     auto folded = parse_schedule("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n");       // stages 0 and 3 on rank 0
///
/// An action has a stage, a verb, and a microbatch: `1F0` computes microbatch 0 forward on stage 1, `1RECV_F0` receives its input from
/// stage 0, `1SEND_B0` sends the gradient back. A text has a line for each rank, which also says which stages the rank has. A line without
/// an action is an error, but blank lines may follow the last line. If a text has no SEND and no RECV, they are added: a send right after
/// the computation of its data, a receive one computation ahead of the computation that needs it.
///
/// Before anything runs, `check` says what is wrong with a schedule: an action is missing, is done twice, or is on another rank than its
/// stage; messages of one boundary are sent in another order than they are received; or a list can never be completed.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

using runtime::rank_id;

struct pipeline_action {
  enum class kind : std::uint8_t { forward, backward, send_forward, receive_forward, send_backward, receive_backward };
  std::uint32_t stage = 0;
  kind what = kind::forward;
  std::uint32_t microbatch = 0;

  bool computes() const noexcept { return what == kind::forward || what == kind::backward; }
  bool sends() const noexcept { return what == kind::send_forward || what == kind::send_backward; }
  friend bool operator==(const pipeline_action&, const pipeline_action&) = default;
};

struct pipeline_schedule {
  std::uint32_t stages = 0;  ///< of all ranks together
  std::uint32_t microbatches = 0;
  std::vector<std::vector<pipeline_action>> ranks;
  std::vector<rank_id> places{};  ///< the rank of each stage; empty: stage s is on rank s % ranks

  rank_id rank_of(std::uint32_t stage) const noexcept {
    return places.empty() ? static_cast<rank_id>(stage % ranks.size()) : places[stage];
  }
  /// The number of messages between stages in one pass.
  std::uint64_t messages() const noexcept;
};

/// All microbatches forward, then all backward.
pipeline_schedule gpipe(std::uint32_t ranks, std::uint32_t microbatches);
/// Takes as long as `gpipe`, with as few microbatches alive as possible: at most ranks - r of them on rank r.
pipeline_schedule one_forward_one_backward(std::uint32_t ranks, std::uint32_t microbatches);
/// Like `one_forward_one_backward`, with `chunks` stages on each rank: ranks are idle for less time, and send more messages. With more
/// than one chunk it throws `bad_argument` unless `microbatches` is a multiple of `ranks`.
pipeline_schedule interleaved(std::uint32_t ranks, std::uint32_t microbatches, std::uint32_t chunks);

/// The error names line and column.
runtime::result<pipeline_schedule> parse_schedule(std::string_view text);
/// Returns `0F0, 0SEND_F0, …`, a line for each rank.
std::string text_of(const pipeline_schedule& s);
std::string text_of(const pipeline_action& a);

runtime::result<> check(const pipeline_schedule& s);

/// The time that each stage needs for one microbatch, in any unit.
struct pipeline_times {
  double forward = 1;
  double backward = 2;
};
/// The duration of a pass if communication is free, in the unit of `pipeline_times`, and the share of that time in which ranks are idle.
struct pipeline_estimate {
  double makespan = 0;
  double idle_share = 0;  ///< of all ranks, until the last one ends
  struct rank {
    double ended = 0;
    double idle_share = 0;  ///< until this rank ends
  };
  std::vector<rank> ranks;
  std::vector<std::uint32_t> alive;  ///< per rank: most microbatches of one stage between forward and backward
};
pipeline_estimate estimate(const pipeline_schedule& s, const pipeline_times& t = {});

}  // namespace parley::ops
