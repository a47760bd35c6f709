#pragma once
/// One UCX context with one worker, set up the way parley needs it. Internal to transports/.
///
///     ucx_worker worker(ucx_reach::one_host, ucx_memory_kinds::host, keepalive_interval_ns);
///     worker.address(), worker.handle(), worker.event_fd()
///
/// If the user has set a UCX variable in the environment, that value stays. Otherwise:
///
/// | setting | value | why |
/// |---|---|---|
/// | MM_ERROR_HANDLING | y | otherwise endpoints that report dead peers silently use TCP, or cannot be made |
/// | TLS | one host: posix, sysv, cma, self | no unauthenticated TCP listener, no GPU start-up |
/// |     | several hosts: all but cuda | parley moves GPU memory by other planes |
/// |     | device memory, one host: also cuda_copy, cuda_ipc; several hosts: all | UCX moves device memory itself |
/// | MM_FIFO_ELEM_SIZE | 256 | a message of up to 128 bytes then fits a queue element: a third fewer instructions |
/// | SYSV_BW | 1000MBs | keeps System V memory as a last resort, which avoids a crash (ucx_worker.cpp) |
/// | KEEPALIVE_INTERVAL | the caller's | UCX's 20 s is too long to find a dead peer |
/// | MEMTYPE_CACHE | with device memory: n, for the whole process | UCX's cache has mistaken device memory for host memory |
/// | LOG_LEVEL | error | a library is silent and returns its errors; UCX's errors become parley's lines (ucx_log.hpp) |
/// | WARN_UNUSED_ENV_VARS | n | a library is silent |
///
/// A program that links this also gets a function `ucp_ep_do_uct_ep_am_keepalive`, which replaces UCX's and prevents a crash in UCX (at
/// the end of ucx_worker.cpp).
///
/// UCX_MEM_MMAP_HOOK_MODE=none can be set only by the launcher or by quick_start.hpp: UCX patches mmap while it is loaded, before
/// `main`, which adds 0.4 s to a process's start.
///
/// Throws `failure` (`unavailable`) with UCX's own reason when the machine lacks a requirement.
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

/// The hosts of the job's ranks: this rank's host alone, or several hosts.
enum class ucx_reach : std::uint8_t { one_host, several_hosts };

/// The memory that UCX handles. With `host_and_devices` a CUDA context should be current on the thread that makes the worker and on the
/// thread that polls it.
enum class ucx_memory_kinds : std::uint8_t { host, host_and_devices };

/// The version of the loaded UCX library, such as `1.22.0`.
std::string ucx_version();

class ucx_worker {
 public:
  ucx_worker(ucx_reach reach, ucx_memory_kinds memory, runtime::time_ns keepalive_interval_ns);
  ~ucx_worker();
  ucx_worker(const ucx_worker&) = delete;
  ucx_worker& operator=(const ucx_worker&) = delete;

  ucp_worker* handle() const noexcept { return worker_; }
  ucp_context* context() const noexcept { return context_; }
  /// A duplicate of UCX's descriptor, so that the caller may register it with epoll or Asio. The worker closes it.
  int event_fd() const noexcept { return event_fd_; }
  std::vector<std::byte> address() const;
  std::string description() const;
  /// Success if the worker was made for device memory and UCX supports it; otherwise an error with the reason.
  runtime::result<> takes_devices() const;
  /// True if the kernel may copy payloads from one process to another; false if the user's UCX_TLS excludes `cma`.
  bool copies_by_kernel() const noexcept;

 private:
  void close() noexcept;

  const ucx_log log_;  // first, so that it outlives the members below
  ucp_context* context_ = nullptr;
  ucp_worker* worker_ = nullptr;
  int event_fd_ = -1;
  std::string transports_;
  ucx_memory_kinds memory_;
};

}  // namespace parley::transports
