#include <parley/transports/ucx/ucx_worker.hpp>

#include <parley/error.hpp>

#include <ucp/api/ucp.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace parley::transports {
namespace {

[[noreturn]] void refuse(const char* what, ucs_status_t status, const std::string& transports) {
  runtime::raise({runtime::errc::unavailable, std::string("UCX ") + ucp_get_version_string() + " could not " + what +
                                                  " with the transports " + transports + ": " +
                                                  ucs_status_string(status) +
                                                  "; check UCX_TLS and the output of `parley doctor` on this machine"});
}

bool set_by_user(const char* name) { return std::getenv((std::string("UCX_") + name).c_str()) != nullptr; }

/// Sets an option that the user has not set. Ignores errors: this UCX may not know the option, or no longer accept it.
void prefer(ucp_config_t* config, const char* name, const std::string& value) {
  if (set_by_user(name)) return;
  static_cast<void>(ucp_config_modify(config, name, value.c_str()));
}

}  // namespace

std::string ucx_version() { return ucp_get_version_string(); }

ucx_worker::ucx_worker(ucx_reach reach, ucx_memory_kinds memory, runtime::time_ns keepalive_interval_ns)
    : memory_(memory) {
  const char* chosen = std::getenv("UCX_TLS");
  const bool devices = memory == ucx_memory_kinds::host_and_devices;
  transports_ = chosen != nullptr ? chosen
                : reach == ucx_reach::one_host
                    ? devices ? "posix,sysv,cma,self,cuda_copy,cuda_ipc" : "posix,sysv,cma,self"
                : devices ? "all"
                          : "^cuda";

  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) refuse("read its configuration", status, transports_);
  prefer(config, "LOG_LEVEL", "error");
  prefer(config, "WARN_UNUSED_ENV_VARS", "n");
  prefer(config, "TLS", transports_);
  // Applies to both kinds of shared memory, POSIX and System V: UCX 1.13 accepts the option under no other name here.
  if (!set_by_user("POSIX_ERROR_HANDLING") && !set_by_user("SYSV_ERROR_HANDLING"))
    prefer(config, "MM_ERROR_HANDLING", "y");
  // So that a message whose payload fits an `arrival` also fits one queue element. UCX copies larger ones to a separate buffer.
  if (!set_by_user("POSIX_FIFO_ELEM_SIZE") && !set_by_user("SYSV_FIFO_ELEM_SIZE"))
    prefer(config, "MM_FIFO_ELEM_SIZE", "256");
  // At the first connection to a process, UCX checks whether the process's POSIX memory can still be reached. If the process is dead
  // and no other transport reports it reachable, UCX 1.22 crashes: it looks for endpoint lanes that were never chosen. System V
  // memory always reports it reachable and fails later, as it should. Its low bandwidth keeps UCX from choosing it otherwise.
  prefer(config, "SYSV_BW", "1000MBs");
  prefer(config, "KEEPALIVE_INTERVAL", std::to_string(keepalive_interval_ns / 1'000) + "us");

  // UCX 1.22 trusts its cache of memory types more than the memory type given in the call. We have seen the cache report device memory
  // as host memory, which UCX then copies with memcpy. Without the cache UCX asks the driver. The setting affects the whole process.
  if (devices) prefer(config, "MEMTYPE_CACHE", "n");

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status != UCS_OK) refuse("start", status, transports_);

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) {
    close();
    refuse("create a worker", status, transports_);
  }

  int theirs = -1;
  status = ucp_worker_get_efd(worker_, &theirs);
  if (status != UCS_OK) {
    close();
    refuse("give an event descriptor", status, transports_);
  }
  event_fd_ = ::fcntl(theirs, F_DUPFD_CLOEXEC, 0);
  if (event_fd_ < 0) {
    const int reason = errno;
    close();
    runtime::raise({runtime::errc::io, std::string("UCX's event descriptor could not be duplicated: ") +
                                           std::strerror(reason) + "; raise the limit on open files (ulimit -n)"});
  }
}

ucx_worker::~ucx_worker() { close(); }

void ucx_worker::close() noexcept {
  if (event_fd_ >= 0) ::close(event_fd_);
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  event_fd_ = -1;
  worker_ = nullptr;
  context_ = nullptr;
}

std::vector<std::byte> ucx_worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &length);
  if (status != UCS_OK) refuse("tell its address", status, transports_);
  std::vector<std::byte> bytes(length);
  std::memcpy(bytes.data(), address, length);
  ucp_worker_release_address(worker_, address);
  return bytes;
}

bool ucx_worker::copies_by_kernel() const noexcept {
  const char* const chosen = std::getenv("UCX_TLS");
  if (chosen == nullptr) return true;
  std::string_view list = chosen;
  const bool all_but = list.starts_with('^');
  if (all_but) list.remove_prefix(1);
  bool named = false;
  for (std::size_t end = 0; !list.empty(); list.remove_prefix(std::min(end + 1, list.size()))) {
    end = std::min(list.find(','), list.size());
    const std::string_view item = list.substr(0, end);
    named = named || item == "cma" || item == "sm" || item == "shm" || item == "all";
  }
  return named != all_but;
}

runtime::result<> ucx_worker::takes_devices() const {
  using runtime::errc;
  if (memory_ == ucx_memory_kinds::host)
    return runtime::error{errc::unavailable,
                          "parley gives UCX only host memory, unless PARLEY_UCX_CUDA=1 is set (docs/gpu.md)"};
  ucp_context_attr_t has{};
  has.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucp_context_query(context_, &has) == UCS_OK && (has.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0) return {};
  return runtime::error{errc::unavailable, description() +
                                               ", says that it takes no CUDA memory: it was built without, or its "
                                               "libuct_cuda.so or the driver could not be loaded"};
}

std::string ucx_worker::description() const {
  return std::string("UCX ") + ucp_get_version_string() + ", transports " + transports_;
}

}  // namespace parley::transports

// Replaces UCX's function of this name: UCX resolves the symbol dynamically and finds this one. It is weak, so that a statically linked
// UCX keeps its own. If a process requests a connection and then dies, the connection has no lane until the end of the progress call in
// which UCX notices the death. If UCX 1.22 sends its keepalives in that same call, it uses the missing lane and crashes
// (openucx/ucx#10926 is a similar fault). This function skips a missing lane.
extern "C" __attribute__((weak)) ucs_status_t ucp_ep_do_uct_ep_am_keepalive(ucp_ep_h ep, void* lane,
                                                                            std::uint8_t resource) {
  static const auto really =
      reinterpret_cast<decltype(&ucp_ep_do_uct_ep_am_keepalive)>(::dlsym(RTLD_NEXT, "ucp_ep_do_uct_ep_am_keepalive"));
  return lane == nullptr || really == nullptr ? UCS_OK : really(ep, lane, resource);
}
