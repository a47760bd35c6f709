#include <parley/cli/hosts.hpp>

#include <parley/cli/json_text.hpp>
#include <parley/cli/spec/spec.hpp>
#include <parley/cli/status.hpp>
#include <parley/number_text.hpp>
#include <parley/transports/join/job_key.hpp>
#include <parley/transports/launch/launcher.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace parley::cli {

using runtime::rank_id;

namespace {

/// A random port below the range from which the system picks ports for programs.
std::uint16_t some_port() { return static_cast<std::uint16_t>(20'000 + std::random_device{}() % 12'000); }

/// The variables that are set on this host and passed on to the ranks' hosts. The launchers there replace variables that give a rank its
/// place in a job.
std::string variables_for_ranks() {
  std::string all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const bool of_use = text.starts_with("PARLEY_") || text.starts_with("UCX_") || text.starts_with("NCCL_");
    if (of_use) all += as_one_word(text) + " ";
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
    if (words.size() > 2) throw wrong("unknown word `" + words[2] + "`");
    host_line host{words[0], {}};
    std::string slots;
    if (const auto colon = host.name.find(':'); colon != std::string::npos) {
      slots = host.name.substr(colon + 1);
      host.name.erase(colon);
    }
    if (words.size() == 2) {
      if (!words[1].starts_with("slots=") || !slots.empty()) throw wrong("unknown word `" + words[1] + "`");
      slots = words[1].substr(6);
    }
    if (words.size() == 2 || !slots.empty() || words[0].ends_with(':')) {
      const auto count = runtime::read_number<rank_id>(slots, {1, most_ranks});
      if (!count) throw wrong("`" + slots + "` is not a number of ranks");
      host.slots = count;
    }
    if (host.name.empty() || host.name.starts_with('-')) throw wrong("`" + words[0] + "` is not a host name");
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

  // Each process that this starts is an ssh; the launcher's PARLEY_RANK tells it which host to connect to.
  transports::launch_options o;
  o.ranks = hosts;
  o.noun = "host";
  o.prefix = transports::line_prefix::none;
  o.input = transports::job_key::generate().hexadecimal() + "\n";
  o.grace_ns = 5'000'000'000;  // each host's launcher also gives its ranks grace time
  o.timeout_ns = job.timeout_ns;
  o.command = {"sh", "-c",
               R"(what=$1; shift; shift "$PARLEY_RANK"; exec )" + job.ssh + R"( "$1" "host=$PARLEY_RANK; $what")", "sh",
               there};
  for (const host_line& h : job.hosts) o.command.push_back(h.name);
  return status_of(transports::launch(o));
}

}  // namespace parley::cli
