#pragma once
/// The thin layer over NCCL: everything that the planes need from it, compilable without NCCL and CUDA. The real implementation
/// is in `parley::cuda` (parley/nccl_runtime.hpp); tests have a fake.
///
///     library.prepare(/*device=*/0);                             // before any stream there waits for a message
///     auto id = library.make_id();                               // on one member, which sends it to the others
///     auto made = library.connect(*id, /*members=*/2, /*place=*/0, /*device=*/0);
///     while (library.state(*made) == errc::pending) …            // none: ready; device_failed: `fault` says why
///     library.send(bytes, /*to=*/1, *made, stream);              // enqueued once `state` returns none again
///     library.abort(*made);
///
/// Communicators are non-blocking: no call waits for another rank. A function that returns `pending` continues in the background;
/// the communicator accepts no other call until `state` no longer returns `pending`. Functions return `none`, `pending` or
/// `device_failed`; after `device_failed`, `fault` has NCCL's text of the latest error. One thread.
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

/// A random value by which the members of one communicator find each other.
struct nccl_id {
  std::array<std::byte, 128> bytes{};
};

class nccl_library {
 public:
  virtual ~nccl_library() = default;
  /// For instance 22809 for 2.28.9.
  virtual int version() const noexcept = 0;

  /// Loads NCCL's kernels on the device, once, and waits until they are loaded. CUDA loads kernels only when the device is idle, and holds
  /// locks until then: if a stream waits for a message that this rank's thread must receive, both wait for ever. So call this before any
  /// such wait. It reports no errors; `connect` does.
  virtual void prepare(int device) noexcept = 0;
  virtual runtime::result<nccl_id> make_id() = 0;
  /// Begins to connect. Every member calls it with the same id and its own place.
  virtual runtime::result<nccl_communicator> connect(const nccl_id& id, int members, int place, int device) = 0;
  virtual runtime::errc state(nccl_communicator c) noexcept = 0;
  virtual runtime::errc send(std::span<const std::byte> from, int to, nccl_communicator c,
                             CUstream_st* stream) noexcept = 0;
  virtual runtime::errc receive(std::span<std::byte> into, int from, nccl_communicator c,
                                CUstream_st* stream) noexcept = 0;
  /// The sum of the members' floats, in place.
  virtual runtime::errc sum_floats(std::span<std::byte> data, nccl_communicator c, CUstream_st* stream) noexcept = 0;
  /// Becomes true once an aborted communicator will put nothing more into a stream. Null: it already puts nothing more.
  using nothing_more = std::shared_ptr<const std::atomic<bool>>;
  /// Ends the communicator and its work on the device, in any state. All members must call it; no call waits for another member or for the
  /// end. The communicator's memory is freed in the background, when the process ends at the latest. If NCCL was still connecting for a
  /// call, it may put that call into its stream up to 40 s later.
  virtual nothing_more abort(nccl_communicator c) noexcept = 0;

  virtual std::string fault() const = 0;
};

/// `2.28.9`
inline std::string nccl_version_text(int version) {
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace parley::transports
