#include <parley/transports/ucx/ucx_log.hpp>

#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string_view>

namespace parley::transports {
namespace {

// Counts the lines of one place in UCX's sources.
struct lines_of {
  const char* file = nullptr;
  unsigned line = 0;
  std::uint64_t times = 0;
  std::uint64_t said_next = 10;
};

std::atomic<int> workers{0};
std::mutex counting;
std::array<lines_of, 64> places;  // lines of places beyond these are always written

bool chosen_by_user() {
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("UCX_LOG_")) return true;
  }
  return false;
}

/// Counts one more line of that place. Returns the count if the line must be written now, else 0.
std::uint64_t to_be_said(const char* file, unsigned line) noexcept {
  const std::scoped_lock lock(counting);
  for (lines_of& p : places) {
    if (p.file == nullptr) p = {.file = file, .line = line};
    if (p.line != line || std::strcmp(p.file, file) != 0) continue;
    if (++p.times == 1) return 1;
    if (p.times != p.said_next) return 0;
    p.said_next *= 10;
    return p.times;
  }
  return 1;
}

ucs_log_func_rc_t write_line(const char* file, unsigned line, const char*, ucs_log_level_t level,
                             const ucs_log_component_config_t*, const char* message, va_list arguments) {
  if (level != UCS_LOG_LEVEL_ERROR || workers == 0) return UCS_LOG_FUNC_RC_CONTINUE;
  const std::uint64_t times = to_be_said(file, line);
  if (times == 0) return UCS_LOG_FUNC_RC_STOP;
  std::array<char, 400> text{};
  std::vsnprintf(text.data(), text.size(), message, arguments);
  const char* const folder = std::strrchr(file, '/');
  const char* const name = folder == nullptr ? file : folder + 1;
  if (times == 1) {
    std::fprintf(stderr, "parley: UCX: %s (%s:%u)\n", text.data(), name, line);
  } else {
    std::fprintf(stderr, "parley: UCX: %s (%s:%u, %llu times so far)\n", text.data(), name, line,
                 static_cast<unsigned long long>(times));
  }
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

// UCX keeps a stack of log handlers, and another handler may have been pushed after this one. So this handler is never popped; while there
// is no worker it passes every message on.
ucx_log::ucx_log() {
  static const bool pushed = [] {
    if (chosen_by_user()) return false;
    ::ucs_log_push_handler(&write_line);
    return true;
  }();
  static_cast<void>(pushed);
  ++workers;
}

ucx_log::~ucx_log() { --workers; }

}  // namespace parley::transports
