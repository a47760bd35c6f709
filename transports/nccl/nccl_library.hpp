#pragma once
/// The thin layer over NCCL: all that planes ask of it, and nothing that a CPU cannot compile. The real one is in `parley::cuda`
/// (parley/nccl_runtime.hpp); tests have a fake.
///
///     library.prepare(/*device=*/0);                             // before any stream there waits for a message
///     auto id = library.make_id();                               // on one member, which tells the others
///     auto made = library.connect(*id, /*members=*/2, /*place=*/0, /*device=*/0);
///     while (library.state(*made) == errc::pending) …            // none: ready; device_failed: `fault` says why
///     library.send(bytes, /*to=*/1, *made, stream);              // enqueued once `state` answers none again
///     library.abort(*made);
///
/// Communicators are non-blocking: no call waits for another rank. A function that answers `pending` goes on behind the scenes;
/// the communicator takes nothing else until `state` says that it is over. All answers are none, pending or `device_failed`,
/// and `fault` then has NCCL's words for the latest of them. One thread.
#include <parley/error.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

// NCCL's and CUDA's own types.
struct ncclComm;
struct CUstream_st;

namespace parley::transports {

using nccl_communicator = ncclComm*;

/// What makes members of one communicator find each other; random.
struct nccl_id {
  std::array<std::byte, 128> bytes{};
};

class nccl_library {
 public:
  virtual ~nccl_library() = default;
  /// Such as 22809 for 2.28.9.
  virtual int version() const noexcept = 0;

  /// Loads what it runs on the device, once; waits until that is done. CUDA loads kernels only when the device is idle, and holds locks
  /// meanwhile: where a stream waits by then for what this rank's thread is to bring, both wait for ever. What is amiss `connect` says.
  virtual void prepare(int device) noexcept = 0;
  virtual runtime::result<nccl_id> make_id() = 0;
  /// Begins to connect; every member calls it with the same id and a place of its own.
  virtual runtime::result<nccl_communicator> connect(const nccl_id& id, int members, int place, int device) = 0;
  virtual runtime::errc state(nccl_communicator c) noexcept = 0;
  virtual runtime::errc send(std::span<const std::byte> from, int to, nccl_communicator c,
                             CUstream_st* stream) noexcept = 0;
  virtual runtime::errc receive(std::span<std::byte> into, int from, nccl_communicator c,
                                CUstream_st* stream) noexcept = 0;
  /// The sum of the members' floats, in place.
  virtual runtime::errc sum_floats(std::span<std::byte> data, nccl_communicator c, CUstream_st* stream) noexcept = 0;
  /// Becomes true once nothing of a communicator that was aborted comes into a stream any more; null: it is so already.
  using nothing_more = std::shared_ptr<const std::atomic<bool>>;
  /// Ends it, and what it has under way on the device, whatever state it is in. All members do so; none waits for another,
  /// nor for its end: what it has freed behind the scenes is free when the process ends at the latest. A call that it was still connecting
  /// for may yet come into its stream, in 40 s at most.
  virtual nothing_more abort(nccl_communicator c) noexcept = 0;

  virtual std::string fault() const = 0;
};

/// `2.28.9`
inline std::string nccl_version_text(int version) {
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace parley::transports
