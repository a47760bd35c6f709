#pragma once
/// A linear pipeline: stage k hands what it has computed to stage k + 1, and every edge between two stages tunes itself, for
/// each size of its own. Together the edges spend the trial budget of one op (N4).
///
///     pipeline pipe(self, {.name = "activations", .stages = {0, 1, 2, 3}, .configs = configs});
///     co_await pipe.run(microbatches, stage);       // sizes of the microbatches, and what this stage does
///
/// `stage` is an object with
///     void forward(std::uint64_t microbatch, std::span<std::byte> activation);
/// which changes an activation in place, away from the actor thread: the first stage makes it, the last one has it in the
/// end. While a stage computes, the next activation comes in and the one before leaves. Where it can be computed in several ways,
/// these are tuned beside the edges (tuned_stage.hpp).
///
/// Failure: what an edge fails with, or `forward` throws, ends the run and comes out of it; an activation of another size than the
/// stage behind expects, and a run of another number of microbatches, are refused, and both stages are told. Activations of such a run may
/// still come, so that no other follows: all other stages' runs, and this one's next, end with `closed`, or with what was wrong with
/// the run itself, which says where and why.
/// When a stage comes back as a new process, runs fail with `peer_restarted` until each of the other ones has called `rejoin`, and
/// then begin anew.
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
  tuning::constraints constraints{};        ///< what this rank's user demands of all configs but the default
  capability_function can_run{};            ///< which configs a rank can run; empty: they are asked themselves
  runtime::memory_space* memory = nullptr;  ///< where activations lie, such as a GPU's; null: in host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
};

/// What one stage does to the activation of one microbatch, as a coroutine on the actor thread: for a stage that computes
/// elsewhere, on a stream of a GPU say. It ends when the activation may be sent on.
class pipeline_work {
 public:
  virtual runtime::task<> work(std::uint64_t microbatch, std::span<std::byte> activation) = 0;
  /// On the actor thread, once the activation is on its way from this stage; it may not have left yet.
  virtual void on_done(std::uint64_t microbatch);

 protected:
  ~pipeline_work() = default;
};

/// The same as a function that runs away from the actor thread.
class pipeline_stage : public pipeline_work {
 public:
  virtual void forward(std::uint64_t microbatch, std::span<std::byte> activation) = 0;
  /// How long that takes in virtual time.
  virtual time_ns modelled_ns(std::uint64_t microbatch, std::size_t bytes) const;
  runtime::task<> work(std::uint64_t microbatch, std::span<std::byte> activation) final;

 protected:
  ~pipeline_stage() = default;
};

/// A light handle of the op, which ends with its rank; copies of it are handles of the same op.
class pipeline {
 public:
  /// Of no op: this rank is idle in it.
  pipeline() = default;
  /// On all ranks. Throws `bad_argument` or `role_conflict`, on every rank alike, when the options cannot work.
  pipeline(rank& self, pipeline_options op);
  std::size_t stage() const noexcept { return stage_; }
  std::size_t stages() const noexcept { return stages_; }
  /// Of a rank that is no stage; its `run` throws `bad_argument`.
  bool idle() const noexcept { return stages_ == 0; }
  bool first() const noexcept { return !idle() && in_ == nullptr; }
  bool last() const noexcept { return !idle() && out_ == nullptr; }

  /// What has been agreed with the stage before and the one after. Throw `bad_argument` where there is none.
  agreement incoming() const;
  agreement outgoing() const;
  /// Of the edge to the next stage; of the last stage, of the edge from the one before.
  ops::decision decision(std::uint64_t bytes) const { return (last() ? incoming() : outgoing()).decision(bytes); }
  ops::decision decision(std::uint64_t bytes, rank_id peer) const;

  /// After `peer_restarted`: all edges begin anew. False when no stage has restarted.
  bool rejoin();

  /// One microbatch after the other, `bytes[i]` of them, in the same order and as many on all stages.
  runtime::task<> run(std::span<const std::uint64_t> bytes, pipeline_work& stage);

 private:
  std::string name_;
  std::size_t stage_ = 0;
  std::size_t stages_ = 0;
  std::shared_ptr<std::uint64_t> runs_;  // so far, of all handles
  neighbours* around_ = nullptr;         // the rank's; null of a single stage
  declared_edge* in_ = nullptr;
  declared_edge* out_ = nullptr;
  runtime::memory_space* memory_ = nullptr;
};

}  // namespace parley::ops
