#pragma once
/// A pipeline of stages, forward and backward. Its schedule is data (schedule.hpp). Every pair of neighbours tunes its transfers while
/// the pipeline runs. A stage's computation may be tuned at the same time (tuned_stage.hpp); its waits are not charged to it.
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
/// Computations run one after the other on a worker thread, in the order of the schedule. A send begins when its data is ready, and a
/// receive when the schedule reaches it. Both continue during the computations, which wait only for their inputs. So a late stage delays
/// another stage only if that stage needs its output. With `memory`, activations and gradients lie on a GPU, and a `training_work` enqueues
/// its kernels there (examples/gpu/pipeline.cpp).
///
/// A rank makes one run at a time: a second run that begins before the first has ended throws `bad_argument`.
///
/// Failure: `declaration_mismatch` on both ranks if two neighbours have different schedules or sizes; in host memory the first run
/// compares both. An exception of a stage, or the failure of a message, ends the run on this rank. On each other rank the run ends with
///
/// - its own error, if the run there was wrong itself;
/// - `peer_failed`, if the rank that failed has left;
/// - else `closed`.
///
/// The error says where and why. Messages of such a run may still arrive, so each later run throws `closed`: declare the op under another
/// name, or, after a restart, call `rejoin` on all ranks. The op owns all buffers, and keeps them between runs.
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
  std::vector<rank_id> ranks{};  ///< the rank of each part of the schedule; empty: rank i has part i
  pipeline_schedule schedule;
  std::vector<config_ptr> configs{configs::direct(), configs::chunked(256 * 1024, 2), configs::chunked(1024 * 1024, 4)};
  tuning::constraints constraints{};  ///< limits of this rank's user for every config except the default
  capability_function can_run{};      ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory =
      nullptr;  ///< where activations and gradients lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one message, from when the schedule reaches it
  std::string dtype{};
};

/// The memory of a stage for one microbatch. The first stage has no input, and the last stage receives no gradient.
struct pipeline_memory {
  std::span<const std::byte> in;            ///< has the same bytes forward and backward
  std::span<std::byte> out;                 ///< to be written forward
  std::span<const std::byte> gradient_out;  ///< gradient with respect to `out`; empty forward
  std::span<std::byte> gradient_in;         ///< gradient with respect to `in`, to be written backward; empty forward
};

/// The work of this rank's stages, as a coroutine on the actor thread. For stages that do not compute on a CPU thread, for example in a
/// stream of a GPU.
class training_work {
 public:
  virtual ~training_work() = default;
  /// The size of the activation that a stage sends to the next stage, and of the gradient that it receives from that stage. The last
  /// stage's activation is never sent.
  virtual std::uint64_t activation_bytes(std::uint32_t stage) const = 0;
  /// Runs a stage forward or backward. Ends when it no longer uses any part of `m`. It may also end earlier if it has noted for each part
  /// until when the device uses it (`cuda_copies::after`).
  virtual runtime::task<> work(pipeline_action a, pipeline_memory m) = 0;
  /// True if `work` enqueues its computation behind the messages with its input (`cuda_copies::wait_on`). Then `work` is called before
  /// these messages have arrived, while at most one earlier computation is still enqueued, so that the device does not wait for the host
  /// between computations.
  virtual bool waits_on_device() const { return false; }
};

/// Like `training_work`, as functions that run on another thread than the actor thread.
class pipeline_stages : public training_work {
 public:
  virtual void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in,
                       std::span<std::byte> out) = 0;
  virtual void backward(std::uint32_t stage, std::uint32_t microbatch, const pipeline_memory& memory) = 0;
  /// The duration of `forward` or `backward` in virtual time.
  virtual time_ns modelled_ns(const pipeline_action&) const { return 0; }
  runtime::task<> work(pipeline_action a, pipeline_memory m) final;
};

/// One pass, as this rank saw it.
struct pipeline_report {
  time_ns elapsed_ns = 0;
  /// The time that `work` took, without its waits for other ranks; on a device, the time to enqueue.
  time_ns busy_ns = 0;
  double idle_share = 0;         ///< of this rank, until its own end
  double ideal_idle_share = 0;   ///< `idle_share` if communication were free and all stages took as long as this rank's
  std::uint64_t sent = 0;        ///< messages
  std::uint32_t most_alive = 0;  ///< most microbatches of one stage between forward and backward
};

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op.
class training_pipeline {
 public:
  /// A handle of no op: this rank counts as idle.
  training_pipeline() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  training_pipeline(rank& self, const training_pipeline_options& op);
  /// Runs one pass. All ranks of the pipeline call it.
  runtime::task<pipeline_report> run(training_work& stages);
  /// True if this rank has no stage; do not call `run` then.
  bool idle() const noexcept { return op_ == nullptr; }
  /// The agreements with a neighbour, for the messages to it and for the messages from it. `bytes` is the size of one activation or
  /// gradient. `decision` returns the decision for the messages to the neighbour.
  agreement to(rank_id peer) const { return messages_.to(peer); }
  agreement from(rank_id peer) const { return messages_.from(peer); }
  ops::decision decision(std::uint64_t bytes, rank_id peer) const { return messages_.decision(bytes, peer); }
  /// Call it after `peer_restarted`, on each of the op's other ranks: all pairs begin a new generation. Returns false if no rank has
  /// restarted.
  bool rejoin();

 private:
  class pass;
  class buffers;
  std::shared_ptr<const training_pipeline_options> op_;  // `ranks` names all of them
  std::shared_ptr<buffers> free_;
  rank_id place_ = 0;  // in the schedule
  std::string title_;
  p2p messages_;
};

}  // namespace parley::ops
