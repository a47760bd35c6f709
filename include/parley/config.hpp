#pragma once
/// A paired config: one way to move a payload. One object has the implementations of both roles, so that a config cannot lack one of them.
///
///     auto configs = {configs::direct(), configs::chunked(256_KiB), configs::chunked(1_MiB, 4)};      // the first one is the default, c0
///
///     class halves final : public paired_config {                           // your own
///      public:
///       halves() : paired_config({.name = "halves", .wire_class = "halves"}) {}
///       task<> send(part_sender& out, std::span<const std::byte> data) const override;
///       task<> receive(part_receiver& in, std::span<std::byte> data) const override;
///     };
///
/// Rules for both implementations:
/// - They decide how to send and receive from the config's parameters and the byte count alone, which both ranks know. If the receiver
///   expects other parts than the sender sends, the invocation ends with `config_failed`.
/// - The parts of a payload add up to its size, and a rehearsal compares the payload byte for byte. So a config of an edge can neither
///   compress nor round. Do that in the program, and transfer the result.
/// - If they send from memory of their own, or receive into it, that memory must live until `co_await out.drain()` has returned, or, after
///   a part has failed, `co_await out.settle()`. The library itself waits only for parts of `data`.
/// - They throw `failure` to give up.
/// - One coroutine sends, or receives, all parts of an invocation. To overlap parts, the coroutine calls `keep_in_flight`.
/// - The payload is contiguous, even if it was packed from pieces. Only a config with the need `like_pieces` sees the pieces.
/// - They may call other ops, but not their own op: that throws `bad_argument`, and the op excludes the config by name.
/// - Payloads of 0 bytes never reach them.
/// - One object serves all invocations, several at once, so it must not keep state.
#include <parley/actors/edge/part_receiver.hpp>
#include <parley/actors/edge/part_sender.hpp>
#include <parley/error.hpp>
#include <parley/ops/core/op_config.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/task.hpp>
#include <parley/tuning/config.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::ops {

using actors::part_receiver;
using actors::part_sender;
using runtime::device_copy;

/// A value for `whole_up_to`: payloads of any size are sent whole.
constexpr std::uint64_t every_size = std::numeric_limits<std::uint64_t>::max();

/// The most kernel blocks, and the most streams, that one copy may use.
constexpr std::uint32_t most_of_a_copy = 1024;

/// The condition under which the sender can stamp an invocation with a config. If it is not met, the invocation runs another config.
enum class needs : std::uint8_t {
  nothing,
  credit,         ///< a credit to write into the receiver's buffer, which must be registered memory
  known_payload,  ///< a payload in memory that the sender has registered and the receiver knows
  like_pieces,    ///< a payload that lies in pieces of the same sizes at both ends (`parts_in_flight::in_pieces`)
};

class paired_config : public op_config {
 public:
  virtual runtime::task<> send(part_sender& out, std::span<const std::byte> data) const = 0;
  virtual runtime::task<> receive(part_receiver& in, std::span<std::byte> data) const = 0;
  bool goes_whole(std::size_t bytes) const noexcept { return bytes <= whole_up_to_; }
  /// All configs that send a payload of this size whole have the same shape, so that they count as one candidate.
  std::string shape(std::uint64_t bytes) const override { return goes_whole(bytes) ? "whole" : id(); }
  /// True if a receive ends once its payload has been put. Then a call need not run `receive`.
  virtual bool is_over_once_landed() const noexcept { return false; }
  /// True if `send` only puts the whole payload. Then a call need not run `send`.
  virtual bool puts_whole() const noexcept { return false; }
  needs what_it_needs() const noexcept { return needs_; }
  bool needs_memory() const noexcept { return needs_ == needs::credit || needs_ == needs::known_payload; }
  /// True if it moves each piece directly from its place to its place, so that nothing is packed for it.
  bool goes_by_piece() const noexcept { return needs_ == needs::like_pieces; }
  /// Checks that this config can move payloads in the given memory (null: host memory) over this rank's link; the error says why not.
  /// Called whenever `available` is called.
  virtual runtime::result<> works_over(const runtime::link&, const runtime::memory_space*) const { return {}; }

 protected:
  /// Payloads of up to `whole_up_to` bytes are sent as one part at offset 0, so that calls need not run `send` and `receive`.
  /// Throws `bad_argument` if the identity cannot be canonical, or if `whole_up_to` is not 0 for a config that needs `like_pieces`.
  explicit paired_config(tuning::config_identity identity, std::uint64_t whole_up_to = 0, needs what = needs::nothing);

 private:
  std::uint64_t whole_up_to_;
  needs needs_;
};

using config_ptr = std::shared_ptr<const paired_config>;

/// Checks that `configs` can be an op's catalogue: it is not empty, has no null, and its first config, the default, has no needs. The error
/// names `op` and says what to do.
runtime::result<> check_catalogue(std::string_view op, const std::vector<config_ptr>& configs);

}  // namespace parley::ops

namespace parley::configs {

/// The whole payload in one active message. UCX chooses between eager and rendezvous.
ops::config_ptr direct();

/// The payload in pieces of `chunk_bytes`, `in_flight` (1 to 4,096) of them at a time.
ops::config_ptr chunked(std::uint64_t chunk_bytes, std::uint64_t in_flight = 2);

/// The sender writes the payload into the receiver's buffer, in pieces of `chunk_bytes` (0: whole), `in_flight` of them at a time. A fence
/// and the stamp follow. Only for receives into registered memory (`transfer::registered`). On GPUs `by` sets the blocks of the kernel that
/// copies, or the number of streams (each up to `most_of_a_copy`). A rank whose payload lies in host memory cannot run a config with `by`.
ops::config_ptr put(std::uint64_t chunk_bytes = 0, std::uint64_t in_flight = 4, ops::device_copy by = {});

/// The receiver reads the payload from the sender's memory, with the parameters of `put`. Only for sends from registered memory.
ops::config_ptr get(std::uint64_t chunk_bytes = 0, std::uint64_t in_flight = 4, ops::device_copy by = {});

/// Each piece of the payload is sent from its place and received into its place, `in_flight` of them at a time, and nothing is packed.
/// For payloads in a few long pieces of the same sizes at both ends, such as rows of a halo's faces in host memory. Other payloads run
/// another config.
ops::config_ptr by_piece(std::uint64_t in_flight = 4);

/// NCCL sends the payload from GPU to GPU, in a communicator of parley. The two ranks make the communicator when they first need it. For
/// device buffers between processes; only for sends from registered memory.
ops::config_ptr nccl();

/// Active messages with the payload, or pieces of `chunk_bytes` of it (0: whole), `in_flight` of them at a time. UCX moves the data from
/// the sender's GPU to the receiver's over its own CUDA transports. For device buffers between processes, with PARLEY_UCX_CUDA=1 and a
/// UCX that supports CUDA memory.
ops::config_ptr ucx(std::uint64_t chunk_bytes = 0, std::uint64_t in_flight = 4);

}  // namespace parley::configs

namespace parley::ops {

/// Makes a config from two functions. They find its parameters in `out.config()` and `in.config()`, so that one function can serve several
/// configs. Throws a `bad_argument` that names the role whose function is null.
using send_function = runtime::task<> (*)(part_sender& out, std::span<const std::byte> data);
using receive_function = runtime::task<> (*)(part_receiver& in, std::span<std::byte> data);
config_ptr paired(tuning::config_identity identity, send_function send, receive_function receive);

/// Makes a built-in config from its text, as specs and results files write it: `direct`, `chunked(chunk_bytes=1MiB in_flight=4)`,
/// `put`, `get(chunk_bytes=4MiB)`, `put(kernel_blocks=16)`, `get(chunk_bytes=4MiB streams=4)`, `by_piece(in_flight=4)`, `nccl`, `ucx`.
/// The error lists the names that exist.
runtime::result<config_ptr> named_config(std::string_view text);

}  // namespace parley::ops
