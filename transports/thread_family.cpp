#include <parley/transports/thread_family.hpp>

#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace parley::transports {

namespace {
constexpr unsigned numbers = 10'000;  // four digits
std::atomic<unsigned> families{0};
}  // namespace

thread_family::thread_family(std::string_view name)
    : name_(std::string(name) + " " + std::to_string(families.fetch_add(1) % numbers)) {
  ::prctl(PR_SET_NAME, name_.c_str(), 0, 0, 0);
}

bool thread_family::has_others() const {
  const std::string self = std::to_string(::gettid());
  std::error_code none;  // ignored: threads may end during the search
  for (std::filesystem::directory_iterator at("/proc/self/task", none), end; at != end; at.increment(none)) {
    std::ifstream said(at->path() / "comm");
    std::string name;
    if (at->path().filename() != self && std::getline(said, name) && name == name_) return true;
  }
  return false;
}

}  // namespace parley::transports
