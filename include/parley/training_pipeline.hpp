#pragma once
/// A pipeline of stages, forward and backward, after a schedule that is data (schedule.hpp). Every pair of neighbours tunes its
/// transfers while it runs; what a stage computes may be tuned beside it (tuned_stage.hpp), and its waits are not charged to it.
///
///     training_pipeline pipe(self, {.name = "layers", .schedule = one_forward_one_backward(4, 8)});
///     pipeline_report report = co_await pipe.run(my_stages);         // one pass: forward and backward of all microbatches
///
///     class my_stages final : public pipeline_stages {
///       std::uint64_t activation_bytes(std::uint32_t stage) const override;             // of what it gives to the next one
///       void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in, std::span<std::byte> out) override;
///       void backward(std::uint32_t stage, std::uint32_t microbatch, const pipeline_memory& m) override;
///     };
///
/// Computations run one after the other on a worker thread, in the order of the schedule. A send begins when what it sends is
/// there, a receive when its place in the schedule is reached; both go on beside the computations, which wait for nothing else
/// than their inputs. So a late stage delays others only by what they need of it. With `memory` activations and gradients lie
/// on a GPU, and a `training_work` enqueues its kernels there (examples/gpu/pipeline.cpp).
///
/// Failure: `declaration_mismatch` where a neighbour runs another schedule or has other sizes, on both, as host memory's first run
/// compares. What a stage throws, or a message fails with, ends the run on this rank, and on all others with `closed`, or what was wrong
/// with the pass itself, which says where and why, or, when the rank has left, `peer_failed`. Messages of such a pass may still come, so that no other follows it: `closed`,
/// until all rejoin after a restart. All buffers are the op's own, kept from one run for the next.
#include <parley/dataflow.hpp>
#include <parley/p2p.hpp>
#include <parley/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

struct training_pipeline_options {
  std::string name;
  std::vector<rank_id> ranks{};  ///< who plays which part of the schedule; empty: rank i part i
  pipeline_schedule schedule;
  std::vector<config_ptr> configs{configs::direct(), configs::chunked(256 * 1024, 2), configs::chunked(1024 * 1024, 4)};
  tuning::constraints constraints{};  ///< what this rank's user demands of all configs but the default
  capability_function can_run{};      ///< which configs a rank can run; empty: they are asked themselves
  runtime::memory_space* memory =
      nullptr;  ///< where activations and gradients lie, such as a GPU's; null: in host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
};

/// What a stage has of one microbatch. The first stage has no input, the last no gradient from behind.
struct pipeline_memory {
  std::span<const std::byte> in;            ///< the same bytes forward and backward
  std::span<std::byte> out;                 ///< to be written forward
  std::span<const std::byte> gradient_out;  ///< with respect to `out`; none forward
  std::span<std::byte> gradient_in;         ///< with respect to `in`, to be written backward; none forward
};

/// What this rank's stages do, as a coroutine on the actor thread: for stages that compute elsewhere, on a stream of a GPU say.
class training_work {
 public:
  virtual ~training_work() = default;
  /// Of what a stage gives to the next one, and of the gradient that it gets back. The last one's is never sent.
  virtual std::uint64_t activation_bytes(std::uint32_t stage) const = 0;
  /// A stage forward or backward. Ends when it is done with all of `m`, or has told the memory until when it is not, as
  /// `cuda_copies::after` does for each part.
  virtual runtime::task<> work(pipeline_action a, pipeline_memory m) = 0;
  /// Whether `work` enqueues what it does behind the messages that bring its input, as `cuda_copies::wait_on` lets it. Then it is
  /// called before they are here, two computations ahead, so that none of them waits for a processor.
  virtual bool waits_on_device() const { return false; }
};

/// The same as functions that run away from the actor thread.
class pipeline_stages : public training_work {
 public:
  virtual void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in,
                       std::span<std::byte> out) = 0;
  virtual void backward(std::uint32_t stage, std::uint32_t microbatch, const pipeline_memory& memory) = 0;
  /// How long these take in virtual time.
  virtual time_ns modelled_ns(const pipeline_action&) const { return 0; }
  runtime::task<> work(pipeline_action a, pipeline_memory m) final;
};

/// One pass, as this rank saw it.
struct pipeline_report {
  time_ns elapsed_ns = 0;
  time_ns busy_ns =
      0;  ///< of that it computed: what `work` took, its waits for other ranks not counted; on a device, to enqueue it
  double idle_share = 0;         ///< of this rank, until its own end
  double ideal_idle_share = 0;   ///< of this rank with free communication, and stages that all take as long as its own
  std::uint64_t sent = 0;        ///< messages
  std::uint32_t most_alive = 0;  ///< microbatches of one stage between forward and backward
};

/// A light handle of the op, which ends with its rank; copies of it are handles of the same op.
class training_pipeline {
 public:
  /// Of no op: this rank is idle in it.
  training_pipeline() = default;
  /// On all ranks. Throws `bad_argument` or `role_conflict`, on every rank alike, when the options cannot work.
  training_pipeline(rank& self, const training_pipeline_options& op);
  /// All ranks of the pipeline call it.
  runtime::task<pipeline_report> run(training_work& stages);
  bool idle() const noexcept { return op_ == nullptr; }
  agreement to(rank_id peer) const { return messages_.to(peer); }
  agreement from(rank_id peer) const { return messages_.from(peer); }
  ops::decision decision(std::uint64_t bytes, rank_id peer) const { return messages_.decision(bytes, peer); }
  /// After `peer_restarted`, on each of the op's other ranks: all begin anew. False when no rank has restarted.
  bool rejoin();

 private:
  class pass;
  class buffers;
  std::shared_ptr<const training_pipeline_options> op_;  // with all of `ranks`
  std::shared_ptr<buffers> free_;
  rank_id place_ = 0;  // in the schedule
  std::string title_;
  p2p messages_;
};

}  // namespace parley::ops
