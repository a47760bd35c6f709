#pragma once
/// A linear pipeline: stage k sends its result to stage k + 1. Every edge between two stages tunes itself, separately for each of its
/// message sizes. Together the edges spend the trial budget of one op (N4).
///
///     pipeline pipe(self, {.name = "activations", .stages = {0, 1, 2, 3}, .configs = configs});
///     co_await pipe.run(microbatches, stage);       // sizes of the microbatches, and what this stage does
///
/// `stage` is an object with the function
///     void forward(std::uint64_t microbatch, std::span<std::byte> activation);
/// which changes an activation in place, on another thread than the actor thread. The first stage fills the activation, and the last stage
/// has the result. While a stage computes, it receives the next activation into a second buffer, once the previous activation has been sent
/// from that buffer. If a stage can be computed in several ways, these are tuned at the same time as the edges (tuned_stage.hpp). A rank
/// makes one run at a time: a second run that begins before the first has ended throws `bad_argument`.
///
/// Failure: a failure of an edge, or an exception of `forward`, ends the run, and the run throws it. A stage refuses an activation of an
/// unexpected size, and an activation of a run with another number of microbatches; both stages get the error. After a failed run,
/// activations of it may still arrive, so no other run can follow. The runs of all other stages, and the next run of this stage, end with
/// `closed`, or with the run's own error if the run itself was wrong. The error says where and why.
///
/// When a stage comes back as a new process, runs fail with `peer_restarted` until each of the other stages has called `rejoin`. Then a
/// new generation begins.
#include <parley/agreement.hpp>
#include <parley/config.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

class declared_edge;
class neighbours;
class rank;

struct pipeline_options {
  std::string name;
  std::vector<rank_id> stages{};  ///< rank of each stage, in order; empty: all ranks
  std::vector<config_ptr> configs{configs::direct()};
  tuning::constraints constraints{};        ///< limits of this rank's user for every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory = nullptr;  ///< where activations lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
};

/// The work of one stage on the activation of one microbatch, as a coroutine on the actor thread. For a stage that computes elsewhere,
/// such as in a stream of a GPU. The coroutine ends when the activation may be sent on.
class pipeline_work {
 public:
  virtual runtime::task<> work(std::uint64_t microbatch, std::span<std::byte> activation) = 0;
  /// Called on the actor thread when this stage has begun to send the activation. The send may still be in progress.
  virtual void on_done(std::uint64_t microbatch);

 protected:
  ~pipeline_work() = default;
};

/// Like `pipeline_work`, as a function that runs on another thread than the actor thread.
class pipeline_stage : public pipeline_work {
 public:
  virtual void forward(std::uint64_t microbatch, std::span<std::byte> activation) = 0;
  /// How long `forward` takes in virtual time.
  virtual time_ns modelled_ns(std::uint64_t microbatch, std::size_t bytes) const;
  runtime::task<> work(std::uint64_t microbatch, std::span<std::byte> activation) final;

 protected:
  ~pipeline_stage() = default;
};

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op.
class pipeline {
 public:
  /// A handle of no op: this rank counts as idle.
  pipeline() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  pipeline(rank& self, pipeline_options op);
  std::size_t stage() const noexcept { return stage_; }
  std::size_t stages() const noexcept { return stages_; }
  /// True if this rank is no stage. Then `run` throws `bad_argument`.
  bool idle() const noexcept { return stages_ == 0; }
  bool first() const noexcept { return !idle() && in_ == nullptr; }
  bool last() const noexcept { return !idle() && out_ == nullptr; }

  /// The agreement with the stage before this one, and with the stage after it. Both throw `bad_argument` if there is no such stage.
  agreement incoming() const;
  agreement outgoing() const;
  /// The decision of the edge to the next stage; on the last stage, the decision of the edge from the previous stage.
  ops::decision decision(std::uint64_t bytes) const { return (last() ? incoming() : outgoing()).decision(bytes); }
  ops::decision decision(std::uint64_t bytes, rank_id peer) const;

  /// Call it after `peer_restarted`: all edges of this stage begin a new generation. Returns false if no stage has restarted.
  bool rejoin();

  /// Runs the microbatches one after the other; `bytes[i]` is the size of the i-th. All stages must run the same number of microbatches, in
  /// the same order.
  runtime::task<> run(std::span<const std::uint64_t> bytes, pipeline_work& stage);

 private:
  std::string name_;
  std::size_t stage_ = 0;
  std::size_t stages_ = 0;
  std::shared_ptr<std::uint64_t> runs_;  // so far, through all handles
  neighbours* around_ = nullptr;         // owned by the rank; null: there is a single stage
  declared_edge* in_ = nullptr;
  declared_edge* out_ = nullptr;
  runtime::memory_space* memory_ = nullptr;
};

}  // namespace parley::ops
