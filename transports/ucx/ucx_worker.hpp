#pragma once
/// One UCX context with one worker, set up the way parley needs it. Internal to transports/.
///
///     ucx_worker worker(ucx_reach::one_host, ucx_memory_kinds::host, keepalive_interval_ns);
///     worker.address(), worker.handle(), worker.event_fd()
///
/// A variable that the user has set in the environment is left as it is. Otherwise:
///
/// | setting | value | why |
/// |---|---|---|
/// | MM_ERROR_HANDLING | y | else endpoints that report dead peers move to TCP in silence, or there are none |
/// | TLS | one host: posix, sysv, cma, self | no unauthenticated TCP listener, no GPU start-up |
/// |     | several hosts: all but cuda | GPUs have planes of their own |
/// |     | with memory of devices: cuda_copy and cuda_ipc besides, or all | UCX is to move it |
/// | MM_FIFO_ELEM_SIZE | 256 | a message with up to 128 bytes then goes through the queue itself, with a third fewer instructions |
/// | KEEPALIVE_INTERVAL | the caller's | UCX's 20 s is too long to find a dead peer |
/// | MEMTYPE_CACHE | with memory of devices: n, for the whole process | its cache has taken device memory for the host's |
/// | LOG_LEVEL | error | a library is silent; faults are reported as values. Errors are lines of parley's (ucx_log.hpp) |
/// | WARN_UNUSED_ENV_VARS | n | the same |
///
/// A program that links this has a `ucp_ep_do_uct_ep_am_keepalive` of its own, which keeps UCX from a crash (at the end of ucx_worker.cpp).
///
/// UCX_MEM_MMAP_HOOK_MODE=none can only come from the launcher, or from quick_start.hpp: UCX patches mmap while it is loaded,
/// before `main`, which costs a process 0.4 s at its start.
///
/// Throws `failure` (`unavailable`) with UCX's own reason when the machine lacks what is needed.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/ucx/ucx_log.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct ucp_context;
struct ucp_worker;

namespace parley::transports {

/// Where the ranks of the job are, seen from one of them.
enum class ucx_reach : std::uint8_t { one_host, several_hosts };

/// Which memory it is given. With `devices` a CUDA context should be current on the thread that makes it and on the one that polls it.
enum class ucx_memory_kinds : std::uint8_t { host, host_and_devices };

/// Of the library that is loaded: `1.22.0`.
std::string ucx_version();

class ucx_worker {
 public:
  ucx_worker(ucx_reach reach, ucx_memory_kinds memory, runtime::time_ns keepalive_interval_ns);
  ~ucx_worker();
  ucx_worker(const ucx_worker&) = delete;
  ucx_worker& operator=(const ucx_worker&) = delete;

  ucp_worker* handle() const noexcept { return worker_; }
  ucp_context* context() const noexcept { return context_; }
  /// A `dup` of UCX's own, so that whoever sleeps on it may register it as he likes.
  int event_fd() const noexcept { return event_fd_; }
  std::vector<std::byte> address() const;
  std::string description() const;
  /// Whether UCX says that it can be given memory of devices, and was made for it; an error says why not.
  runtime::result<> takes_devices() const;
  /// Whether payloads may be copied by the kernel from one process to the other: not if the user has chosen transports
  /// without `cma`.
  bool copies_by_kernel() const noexcept;

 private:
  void close() noexcept;

  const ucx_log log_;  // beyond the end of the others
  ucp_context* context_ = nullptr;
  ucp_worker* worker_ = nullptr;
  int event_fd_ = -1;
  std::string transports_;
  ucx_memory_kinds memory_;
};

}  // namespace parley::transports
