#pragma once
/// A paired config: one way to move a payload, with an implementation per role in one object, so that half a pair cannot be
/// written.
///
///     auto configs = {configs::direct(), configs::chunked(256_KiB), configs::chunked(1_MiB, 4)};      // the first one is the default, c0
///
///     class halves final : public paired_config {                           // one's own
///      public:
///       halves() : paired_config({.name = "halves", .wire_class = "halves"}) {}
///       task<> send(part_sender& out, std::span<const std::byte> data) const override;
///       task<> receive(part_receiver& in, std::span<std::byte> data) const override;
///     };
///
/// Both implementations derive what they do from the config's parameters and the byte count alone, which both sides know;
/// a receiver that expects other parts than its sender cuts ends with `config_failed`. They throw `failure` to give up. One coroutine
/// sends the parts of an invocation, or receives them: to have more of them under way it keeps more in flight.
/// Payloads are contiguous for them, whatever they are packed from; but for those of configs that need `like_pieces`.
/// They may call other ops, but not their own: that is `bad_argument`, and leaves the config out by name.
/// Payloads of 0 bytes never reach them. One object serves all invocations, several at once: it must not keep state.
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

/// Payloads of any size go whole.
constexpr std::uint64_t every_size = std::numeric_limits<std::uint64_t>::max();

/// Of blocks of a copy's kernel, and of its streams.
constexpr std::uint32_t most_of_a_copy = 1024;

/// What an invocation must have before it can be stamped with a config. Where that is missing, another config runs.
enum class needs : std::uint8_t {
  nothing,
  credit,         ///< to write into the receiver's buffer: registered memory there
  known_payload,  ///< the payload lies in registered memory of the sender, of which the receiver has been told
  like_pieces,    ///< the payload lies in pieces at both ends, and in the same ones (`parts_in_flight::in_pieces`)
};

class paired_config : public op_config {
 public:
  virtual runtime::task<> send(part_sender& out, std::span<const std::byte> data) const = 0;
  virtual runtime::task<> receive(part_receiver& in, std::span<std::byte> data) const = 0;
  bool goes_whole(std::size_t bytes) const noexcept { return bytes <= whole_up_to_; }
  /// All that go whole are alike.
  std::string shape(std::uint64_t bytes) const override { return goes_whole(bytes) ? "whole" : id(); }
  /// Whether a receive is over once its payload was put: a call need not go through `receive` then.
  virtual bool is_over_once_landed() const noexcept { return false; }
  /// Whether all that a sender does is to put its payload whole: a call need not go through `send` then.
  virtual bool puts_whole() const noexcept { return false; }
  needs what_it_needs() const noexcept { return needs_; }
  bool needs_memory() const noexcept { return needs_ == needs::credit || needs_ == needs::known_payload; }
  /// Whether it moves pieces from where they lie to where they belong, so that nothing is packed for it.
  bool goes_by_piece() const noexcept { return needs_ == needs::like_pieces; }
  /// Whether this rank's link has what it moves through, for payloads in that memory (null: the host's); an error says why not. Asked
  /// where `available` is.
  virtual runtime::result<> works_over(const runtime::link&, const runtime::memory_space*) const { return {}; }

 protected:
  /// Payloads of up to `whole_up_to` bytes go as one part at offset 0, so that calls need not go through its functions: none of what
  /// goes by the piece does. Throws `bad_argument` when the identity cannot be canonical.
  explicit paired_config(tuning::config_identity identity, std::uint64_t whole_up_to = 0, needs what = needs::nothing);

 private:
  std::uint64_t whole_up_to_;
  needs needs_;
};

using config_ptr = std::shared_ptr<const paired_config>;

/// Whether a list can be an op's catalogue: it has a default and no null in it. The error names `op` and what to do.
runtime::result<> check_catalogue(std::string_view op, const std::vector<config_ptr>& configs);

}  // namespace parley::ops

namespace parley::configs {

/// The whole payload in one active message, eager or rendezvous as UCX decides.
ops::config_ptr direct();

/// In pieces of `chunk_bytes`, `in_flight` (1 to 4,096) of them at a time.
ops::config_ptr chunked(std::uint64_t chunk_bytes, std::uint64_t in_flight = 2);

/// The sender writes the payload into the receiver's buffer, in pieces of `chunk_bytes` (0: whole), `in_flight` of them at a
/// time; a fence and then the stamp follow. Only for receives into registered memory (`transfer::registered`). On GPUs `by` says by a
/// kernel of how many blocks, or over how many streams (up to `most_of_a_copy`); a rank whose payload lies in host memory lacks such a config.
ops::config_ptr put(std::uint64_t chunk_bytes = 0, std::uint64_t in_flight = 4, ops::device_copy by = {});

/// The receiver reads the payload from the sender's memory, cut like that of `put`. Only for sends from registered memory.
ops::config_ptr get(std::uint64_t chunk_bytes = 0, std::uint64_t in_flight = 4, ops::device_copy by = {});

/// Each piece of the payload goes from where it lies to where it belongs, `in_flight` of them at a time, and nothing is packed: for
/// payloads in a few long pieces that are alike at both ends, such as rows of a halo's faces in host memory. Others go by another config.
ops::config_ptr by_piece(std::uint64_t in_flight = 4);

/// The payload goes from GPU to GPU by a send and a receive of NCCL, in a communicator of parley's own that the two ranks make
/// when they first need it. For device buffers between processes; only for sends from registered memory.
ops::config_ptr nccl();

/// The payload, or pieces of it, in active messages whose payload UCX takes from the sender's GPU and brings to the receiver's, over its own CUDA
/// transports. For device buffers between processes, where PARLEY_UCX_CUDA=1 has UCX do that and it can.
ops::config_ptr ucx(std::uint64_t chunk_bytes = 0, std::uint64_t in_flight = 4);

}  // namespace parley::configs

namespace parley::ops {

/// A pair made of two functions. Throws `bad_argument` naming the role whose function is null.
using send_function = runtime::task<> (*)(part_sender& out, std::span<const std::byte> data);
using receive_function = runtime::task<> (*)(part_receiver& in, std::span<std::byte> data);
config_ptr paired(tuning::config_identity identity, send_function send, receive_function receive);

/// A built-in config by its text, as specs and results files write it: `direct`, `chunked(chunk_bytes=1MiB in_flight=4)`,
/// `put`, `get(chunk_bytes=4MiB)`, `put(kernel_blocks=16)`, `get(chunk_bytes=4MiB streams=4)`, `by_piece(in_flight=4)`, `nccl`, `ucx`.
/// The error lists the names that exist.
runtime::result<config_ptr> named_config(std::string_view text);

}  // namespace parley::ops
