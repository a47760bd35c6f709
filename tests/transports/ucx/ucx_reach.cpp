#include <parley/transports/ucx/ucx_worker.hpp>

#include <doctest/doctest.h>

#include <sys/stat.h>
#include <ucs/config/global_opts.h>

#include <array>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <parley/tests/transports/launch/processes.hpp>

using namespace parley::transports;
using namespace parley::tests;

namespace {

/// The number of TCP sockets on which this process listens.
std::size_t listening_sockets() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  std::size_t count = 0;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // the header line
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      if (state == "0A" && own.contains(inode)) ++count;
    }
  }
  return count;
}

/// Returns UCX's default `try`, or `n`.
std::string memory_type_cache() {
  std::array<char, 64> value{};
  static_cast<void>(ucs_global_opts_get_value("MEMTYPE_CACHE", value.data(), value.size()));
  return value.data();
}

}  // namespace

TEST_CASE("ranks that share a host do not open UCX's unauthenticated TCP listener") {
  const auto outcome = run_processes(1, [](rank_id, meeting&) {
    ::unsetenv("UCX_TLS");
    PARLEY_EXPECT(listening_sockets() == 0);
    const ucx_worker here(ucx_reach::one_host, ucx_memory_kinds::host, 500'000'000);
    PARLEY_EXPECT(!here.address().empty());
    PARLEY_EXPECT(listening_sockets() == 0);
    // Control: with ranks on several hosts, there is such a socket.
    const ucx_worker wide(ucx_reach::several_hosts, ucx_memory_kinds::host, 500'000'000);
    PARLEY_EXPECT(listening_sockets() > 0);
  });
  CHECK_MESSAGE(outcome.fine(), outcome.text());
}

TEST_CASE("a UCX worker without device memory gives the reason: not requested, or not supported by UCX") {
  const auto outcome = run_processes(1, [](rank_id, meeting&) {
    ::unsetenv("UCX_TLS");
    const ucx_worker host(ucx_reach::one_host, ucx_memory_kinds::host, 500'000'000);
    PARLEY_EXPECT(host.takes_devices().reason().text().find("PARLEY_UCX_CUDA=1") != std::string::npos);
    // Without a driver, UCX starts although CUDA transports were requested: without them, and without a listener.
    const ucx_worker both(ucx_reach::one_host, ucx_memory_kinds::host_and_devices, 500'000'000);
    PARLEY_EXPECT(listening_sockets() == 0);
    PARLEY_EXPECT(both.description().find("cuda_copy,cuda_ipc") != std::string::npos);
    if (!std::filesystem::exists("/dev/nvidia0"))
      PARLEY_EXPECT(both.takes_devices().reason().text().find("says that it takes no CUDA memory") !=
                    std::string::npos);
  });
  CHECK_MESSAGE(outcome.fine(), outcome.text());
}

TEST_CASE("a UCX worker for device memory turns the memory-type cache off, unless the user has set it") {
  const auto outcome = run_processes(1, [](rank_id, meeting&) {
    ::unsetenv("UCX_MEMTYPE_CACHE");
    const std::string before = memory_type_cache();
    const ucx_worker host(ucx_reach::one_host, ucx_memory_kinds::host, 500'000'000);
    PARLEY_EXPECT(memory_type_cache() == before);
    ::setenv("UCX_MEMTYPE_CACHE", before.c_str(), 1);
    const ucx_worker as_told(ucx_reach::one_host, ucx_memory_kinds::host_and_devices, 500'000'000);
    PARLEY_EXPECT(memory_type_cache() == before);
    ::unsetenv("UCX_MEMTYPE_CACHE");
    const ucx_worker both(ucx_reach::one_host, ucx_memory_kinds::host_and_devices, 500'000'000);
    PARLEY_EXPECT(before != "n");
    PARLEY_EXPECT(memory_type_cache() == "n");
  });
  CHECK_MESSAGE(outcome.fine(), outcome.text());
}
