#include <parley/cli/doctor.hpp>

#include <parley/cli/payload/cuda.hpp>
#include <parley/cli/payload/device_planes.hpp>
#include <parley/cli/payload/host_plane.hpp>
#include <parley/ops/kernels/blas_libraries.hpp>
#include <parley/run.hpp>
#include <parley/runtime/version.hpp>
#include <parley/scope.hpp>

#include <arpa/inet.h>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/version.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace parley::cli {

namespace json = boost::json;

namespace {

enum class verdict : std::uint8_t { works, missing, information };

struct finding {
  std::string name;
  verdict how = verdict::information;
  std::string text;
};

std::string reason(int number) { return std::strerror(number); }

finding compiler() {
#if defined(__clang__)
  return {"compiler", verdict::information, std::string("clang ") + __clang_version__};
#else
  return {"compiler", verdict::information, std::string("g++ ") + __VERSION__};
#endif
}

finding host_plane() {
  const auto tried = try_host_plane();
  if (!tried) return {"plane host", verdict::missing, tried.reason().text()};
  return {"plane host", verdict::works, *tried + "; a message went from one process to another and back"};
}

finding shared_memory() {
  struct statvfs room{};
  if (::statvfs("/dev/shm", &room) != 0) return {"shared memory", verdict::missing, "/dev/shm: " + reason(errno)};
  const std::uint64_t free_mib = room.f_bavail * room.f_frsize >> 20U;
  const int descriptor = ::shm_open("/parley-doctor", O_CREAT | O_RDWR | O_EXCL, 0600);
  if (descriptor < 0 && errno != EEXIST) return {"shared memory", verdict::missing, "shm_open: " + reason(errno)};
  if (descriptor >= 0) {
    ::close(descriptor);
    ::shm_unlink("/parley-doctor");
  }
  return {"shared memory", verdict::works,
          std::to_string(free_mib) + " MiB free in /dev/shm" +
              (free_mib < 64 ? "; that is little: start the container with a larger --shm-size" : "")};
}

// Tries an access that ranks make to each other: a process reads the memory of a process that is not its child.
int read_from_a_sibling() {
  static volatile char secret = 7;
  const pid_t owner = ::fork();
  if (owner < 0) return errno;
  if (owner == 0) {
    ::pause();
    ::_exit(0);
  }
  const pid_t reader = ::fork();
  if (reader == 0) {
    char seen = 0;
    iovec mine{&seen, 1};
    iovec theirs{const_cast<char*>(&secret), 1};
    ::_exit(::process_vm_readv(owner, &mine, 1, &theirs, 1, 0) == 1 ? 0 : errno & 127);
  }
  const int not_made = errno;
  int status = 0;
  if (reader > 0) ::waitpid(reader, &status, 0);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  if (reader < 0) return not_made;
  return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
}

finding cross_memory() {
  const int error = read_from_a_sibling();
  if (error == 0)
    return {"cross-memory attach (CMA)", verdict::works, "large messages are copied once, by the receiver"};
  std::ifstream scope("/proc/sys/kernel/yama/ptrace_scope");
  std::string value;
  scope >> value;
  return {"cross-memory attach (CMA)", verdict::missing,
          "process_vm_readv: " + reason(error) + (value.empty() ? "" : ", kernel.yama.ptrace_scope is " + value) +
              "; large messages go through shared memory in pieces, and a rank that computes on its actor thread holds "
              "them up. Containers need --cap-add=SYS_PTRACE"};
}

finding one_sided() {
  return {
      "put and get", verdict::works,
      "where a network card reaches the peer's memory (UCX transports rc and dc), the card does them; everywhere else, "
      "also between ranks of one host, they travel as messages, as fast as `direct`, and need the other rank to poll"};
}

finding cores() {
  return {"cores", verdict::information,
          std::to_string(ops::usable_processors()) +
              " for this process; more ranks than that share cores, and yield while they wait"};
}

finding matrix_libraries() {
  std::vector<std::string> found, missing;
  for (const auto& [name, package] : std::initializer_list<std::pair<const char*, const char*>>{
           {"openblas", "libopenblas0"}, {"blis", "libblis4"}, {"onednn", "libdnnl2"}}) {
    const auto is_it = [&](const ops::blas_library* l) { return l->name() == name; };
    if (std::any_of(ops::blas_libraries().begin(), ops::blas_libraries().end(), is_it)) {
      found.emplace_back(name);
    } else {
      missing.push_back(fmt::format("{} (Debian's {})", name, package));
    }
  }
  const std::string absent = missing.empty() ? "" : fmt::format("; not installed: {}", fmt::join(missing, ", "));
  if (found.empty())
    return {"matrix products", verdict::missing, "gemm runs parley's own kernel, which is slow" + absent};
  return {"matrix products", verdict::works, fmt::format("gemm tries {}{}", fmt::join(found, ", "), absent)};
}

finding rendezvous() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr generic{};
  std::memcpy(&generic, &loopback, sizeof generic);
  const bool listens = listener >= 0 && ::bind(listener, &generic, sizeof generic) == 0 && ::listen(listener, 1) == 0;
  const int error = errno;
  if (listener >= 0) ::close(listener);
  if (listens) return {"rendezvous", verdict::works, "127.0.0.1 can be listened on"};
  return {"rendezvous", verdict::missing, "127.0.0.1 cannot be listened on: " + reason(error)};
}

std::size_t nvidia_devices() {
  std::size_t count = 0;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ec)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("nvidia") && name.find_first_not_of("0123456789", 6) == std::string::npos && name.size() > 6)
      ++count;
  }
  return count;
}

finding tried(const char* plane, const runtime::result<>& how, const char* text) {
  return how ? finding{plane, verdict::works, text} : finding{plane, verdict::missing, how.reason().what()};
}

// One line per GPU, then one per plane.
void add_gpus(std::vector<finding>& all) {
  const auto found = find_cuda();
  if (!found) {
    const std::size_t devices = nvidia_devices();
    all.push_back({"GPU planes", verdict::missing,
                   found.reason().text() + "; only buffers in host memory are moved. " +
                       (devices == 0 ? std::string("No NVIDIA device is visible here either")
                                     : std::to_string(devices) + " NVIDIA devices are visible here")});
    return;
  }
  transports::cuda_driver& gpu = **found;
  all.push_back({"CUDA", verdict::information,
                 fmt::format("driver {}, runtime {}", gpu.driver_version(), gpu.runtime_version())});
  for (std::size_t d = 0; d < gpu.devices().size(); ++d) {
    const transports::cuda_device& device = gpu.devices()[d];
    all.push_back(
        {fmt::format("GPU {}", d), verdict::information,
         fmt::format("{}, sm_{}, {} MiB, {} multiprocessors, {}; reaches the memory of {}{}", device.name,
                     device.compute_capability, device.memory_bytes >> 20U, device.multiprocessors, device.uuid,
                     device.peers.empty() ? "no other GPU" : fmt::format("{}", fmt::join(device.peers, ", ")),
                     device.nvlink.empty() ? "" : fmt::format(", of {} over NVLink", fmt::join(device.nvlink, ", ")))});
  }
  all.push_back(tried("plane cuda_copy", try_cuda_copy(gpu),
                      "ranks of one process copy between their streams; a message went from one to another"));
  all.push_back(tried("plane staged", try_staged(gpu),
                      "between processes, through pinned memory, by direct and chunked; a message went that way"));
  all.push_back(tried("plane cuda_ipc", transports::can_export(gpu, 0),
                      "between processes of one host, from GPU to GPU, by put and get; memory could be exported"));
  all.push_back(tried("plane ucx", ask_ucx(gpu),
                      "between processes, by ucx, if PARLEY_UCX_CUDA=1 is set; UCX says that it takes CUDA memory"));
  const auto nccl = find_nccl();
  all.push_back(
      nccl ? finding{"plane nccl", verdict::works,
                     "NCCL " + transports::nccl_version_text((*nccl)->version()) + ", " +
                         what_nccl_takes(gpu.devices().size())}
           : finding{"plane nccl", verdict::missing, nccl.reason().text() + "; planes cuda_ipc and staged are used"});
}

std::vector<finding> look() {
  std::vector<finding> all{
      {"parley", verdict::information, std::string(runtime::version_text)},
      compiler(),
      {"Boost", verdict::information,
       std::to_string(BOOST_VERSION / 100'000) + "." + std::to_string(BOOST_VERSION / 100 % 1'000)},
      host_plane(),
      shared_memory(),
      cross_memory(),
      one_sided(),
      rendezvous(),
      cores(),
      matrix_libraries()};
  add_gpus(all);
  return all;
}

std::string_view word(verdict v) {
  switch (v) {
    case verdict::works: return "works";
    case verdict::missing: return "missing";
    case verdict::information: break;
  }
  return "";
}

}  // namespace

int doctor(output_format format) {
  const std::vector<finding> all = look();
  if (format == output_format::json) {
    json::array findings;
    for (const finding& f : all)
      findings.push_back(json::object{{"name", f.name}, {"works", f.how != verdict::missing}, {"text", f.text}});
    json::array validators;
    for (const tuning::validator& v : ops::machine_validators())
      validators.push_back(json::object{{"name", v.name}, {"value", v.value}});
    const std::string text =
        json::serialize(json::object{{"findings", std::move(findings)}, {"validators", std::move(validators)}});
    std::printf("%s\n", text.c_str());
    return 0;
  }
  for (const finding& f : all)
    std::printf("%-32s %-8s %s\n", f.name.c_str(), std::string(word(f.how)).c_str(), f.text.c_str());
  return 0;
}

}  // namespace parley::cli
