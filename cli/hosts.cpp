#include <parley/cli/hosts.hpp>

#include <parley/cli/json_text.hpp>
#include <parley/cli/spec.hpp>
#include <parley/cli/status.hpp>
#include <parley/number_text.hpp>
#include <parley/transports/launch/launcher.hpp>

#include <openssl/rand.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace parley::cli {

using runtime::rank_id;

namespace {

/// 64 hexadecimal digits in a line.
std::string fresh_key() {
  std::array<unsigned char, 32> secret{};
  if (RAND_bytes(secret.data(), static_cast<int>(secret.size())) != 1)
    throw text_error("parley: the system has no random numbers for a job's key");
  std::string digits;
  for (const unsigned char byte : secret) {
    constexpr std::string_view of = "0123456789abcdef";
    digits += of[byte >> 4U];
    digits += of[byte & 15U];
  }
  return digits + "\n";
}

/// Ports that programs are given by a system lie above; what listens for good lies below as a rule.
std::uint16_t some_port() {
  std::array<unsigned char, 2> chance{};
  static_cast<void>(RAND_bytes(chance.data(), static_cast<int>(chance.size())));
  return static_cast<std::uint16_t>(20'000 + (chance[0] << 8U | chance[1]) % 12'000);
}

/// Set here, and of use there: neither a place in a job, nor a secret.
std::string variables_for_ranks() {
  static const std::set<std::string_view> own{"PARLEY_RANK",       "PARLEY_WORLD",        "PARLEY_LOCAL_RANK",
                                              "PARLEY_LOCAL_SIZE", "PARLEY_RENDEZVOUS",   "PARLEY_RENDEZVOUS_FD",
                                              "PARLEY_JOB",        "PARLEY_KEY_FD",       "PARLEY_KEY_FILE",
                                              "PARLEY_REPORT_FD",  "PARLEY_MAX_RESTARTS", "PARLEY_RESTART_COUNT"};
  std::string all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool of_use = name.starts_with("PARLEY_") || name.starts_with("UCX_") || name.starts_with("NCCL_");
    if (of_use && !own.contains(name)) all += as_one_word(text) + " ";
  }
  return all;
}

}  // namespace

std::string as_one_word(std::string_view word) {
  std::string all = "'";
  for (const char c : word) all += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return all + "'";
}

std::vector<host_line> read_hosts(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw text_error(path + ": it cannot be read; give a file with a host on each line");
  std::vector<host_line> all;
  std::set<std::string> seen;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    const auto wrong = [&](const std::string& what) {
      return text_error(path + ":" + std::to_string(number) + ":1: " + what + "; a line is `HOST`, or `HOST slots=4`");
    };
    line.erase(std::min(line.find('#'), line.size()));
    std::vector<std::string> words;
    for (std::size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != std::string::npos;) {
      const std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
      words.push_back(line.substr(at, end - at));
      at = end;
    }
    if (words.empty()) continue;
    if (words.size() > 2) throw wrong("what `" + words[2] + "` means is not known");
    host_line host{words[0], {}};
    std::string slots;
    if (const auto colon = host.name.find(':'); colon != std::string::npos) {
      slots = host.name.substr(colon + 1);
      host.name.erase(colon);
    }
    if (words.size() == 2) {
      if (!words[1].starts_with("slots=") || !slots.empty()) throw wrong("what `" + words[1] + "` means is not known");
      slots = words[1].substr(6);
    }
    if (words.size() == 2 || !slots.empty() || words[0].ends_with(':')) {
      const auto count = runtime::read_number<rank_id>(slots, {1, most_ranks});
      if (!count) throw wrong("`" + slots + "` is no number of ranks");
      host.slots = *count;
    }
    if (host.name.empty() || host.name.starts_with('-')) throw wrong("`" + words[0] + "` is no host");
    if (!seen.insert(host.name).second) throw wrong("host " + host.name + " is listed twice");
    all.push_back(std::move(host));
  }
  if (all.empty()) throw text_error(path + ":1:1: no host is listed; a line is `HOST`, or `HOST slots=4`");
  return all;
}

int run_on_hosts(const remote_job& job) {
  const auto hosts = static_cast<rank_id>(job.hosts.size());
  if (job.ranks % hosts != 0)
    throw text_error("parley: " + std::to_string(job.ranks) + " ranks do not divide among " + std::to_string(hosts) +
                     " hosts, each of which gets as many; give -n a multiple of " + std::to_string(hosts));
  const rank_id each = job.ranks / hosts;
  for (const host_line& h : job.hosts) {
    if (h.slots && *h.slots < each)
      throw text_error("parley: host " + h.name + " takes " + std::to_string(*h.slots) + " ranks, and " +
                       std::to_string(each) + " would go there; start fewer, or list more hosts");
  }
  const std::string where =
      job.rendezvous.empty() ? job.hosts.front().name + ":" + std::to_string(some_port()) : job.rendezvous;
  std::string there = "cd " + as_one_word(std::filesystem::current_path().string()) + " && exec env " +
                      variables_for_ranks() + as_one_word(std::filesystem::read_symlink("/proc/self/exe").string()) +
                      " run --told-by-input -n " + std::to_string(each) + " --hosts " + std::to_string(hosts) +
                      " --rendezvous " + as_one_word(where);
  for (const std::string& option : job.options) there += " " + as_one_word(option);
  there += " --host \"$host\" --";
  for (const std::string& word : job.command) there += " " + as_one_word(word);

  // Each process is one of ssh; the launcher tells it by PARLEY_RANK which host is its own.
  transports::launch_options o;
  o.ranks = hosts;
  o.noun = "host";
  o.prefix = transports::line_prefix::none;
  o.input = fresh_key();
  o.grace_ns = 5'000'000'000;  // its own launcher gives its ranks theirs
  if (job.time_limit_s) o.timeout_ns = static_cast<runtime::time_ns>(*job.time_limit_s * 1e9);
  o.command = {"sh", "-c",
               "what=$1; shift; shift \"$PARLEY_RANK\"; exec " + job.ssh + " \"$1\" \"host=$PARLEY_RANK; $what\"", "sh",
               there};
  for (const host_line& h : job.hosts) o.command.push_back(h.name);
  const transports::launch_end end = transports::launch(o);
  return status_of(end);
}

}  // namespace parley::cli
