// Input from launchers and users: the environment, meeting files, PMI, results, specs, and the reports of ranks.
#include "fuzz.hpp"

#include <parley/cli/json_text.hpp>
#include <parley/cli/payload/expression.hpp>
#include <parley/cli/rank_report.hpp>
#include <parley/cli/spec/spec.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/simulation/scenarios/many_seeds.hpp>
#include <parley/transports/join/meeting.hpp>
#include <parley/transports/launch/environment.hpp>
#include <parley/transports/launch/pmi.hpp>
#include <parley/tuning/results/results.hpp>
#include <parley/tuning/results/rules.hpp>
#include <parley/tuning/text.hpp>

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace parley::fuzz {

using runtime::errc;

namespace {

/// Reads `NAME=VALUE` lines.
std::map<std::string, std::string, std::less<>> variables_in(input bytes) {
  std::map<std::string, std::string, std::less<>> all;
  std::string_view text = text_of(bytes);
  while (!text.empty()) {
    const std::string_view line = tuning::take_until('\n', text);
    const auto equals = line.find('=');
    if (equals != std::string_view::npos) all.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return all;
}

template <class Name, class Variables>
std::optional<std::string> find(const Variables& all, const Name& name) {
  const auto found = all.find(name);
  return found == all.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

void environment(input bytes) {
  const auto all = variables_in(bytes);
  const auto place = transports::from_environment([&](const char* name) { return find(all, std::string_view(name)); });
  if (place) {
    require(place->rank < place->world_size && place->world_size <= transports::max_world_size,
            "a rank is in its world");
  } else {
    require(!place.reason().text().empty(), "a fault of the environment is explained");
  }
  const ops::rank_settings plain;
  try {
    // The rules are a file, which `results_file` reads from its input.
    std::vector<std::string> names;
    for (const auto& [name, value] : all) names.push_back(name);
    const auto lookup = [&](const std::string& name) {
      return name == "PARLEY_RULES" ? std::nullopt : find(all, name);
    };
    const auto heeded = ops::heed_environment(plain, lookup, names);
    require(heeded.warnings.size() <= all.size() + 1, "warnings are bounded");
  } catch (const runtime::failure& f) {
    require(f.code() == errc::malformed, "a variable that cannot be read is malformed");
  }
}

void meeting_file(input bytes) {
  // One folder for this process, as a job has one.
  struct own_folder {
    own_folder() {
      std::filesystem::create_directory(path);
      ::chmod(path.c_str(), 0700);
    }
    ~own_folder() { std::filesystem::remove_all(path); }
    std::string path = std::filesystem::temp_directory_path() / ("parley_fuzz_" + std::to_string(::getpid()));
  };
  static const own_folder mine;
  const std::string& folder = mine.path;
  transports::placement place;
  place.rank = 1;
  place.world_size = 2;
  place.meeting = transports::meeting_kind::file;
  place.private_folders = {folder};
  const auto file = transports::meeting_file::publish(folder + "/parley-0000000000000000", std::string(text_of(bytes)));
  require(bool(file), "rank 0 can write its file");
  const auto found = transports::find_meeting(place, 0);
  if (!found) {
    require(found.code() == errc::malformed, "a file that rank 0 has not written is malformed");
    return;
  }
  require(found->place.rendezvous_port != 0 && !found->place.rendezvous_host.empty(), "a meeting has a place");
}

void pmi(input bytes) {
  int pair[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  const auto sent =
      ::send(pair[1], bytes.data(), std::min<std::size_t>(bytes.size(), 65'536), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(pair[1], SHUT_WR);
  const auto got = transports::pmi_broadcast(pair[0], 1, "-", 50'000'000);
  if (got) require(sent > 0 && got->size() <= transports::max_pmi_value_bytes + 1, "a value is as long as PMI allows");
  ::close(pair[0]);
  ::close(pair[1]);
}

namespace {
void rules_file(input bytes) {
  const auto rules = tuning::rule_file::parse(text_of(bytes), "rules.csv");
  if (!rules) return require(rules.reason().text.starts_with("rules.csv:"), "a fault of a rule has a place");
  for (const tuning::rule& r : rules->of("acts/0>1")) {
    static_cast<void>(r.fits("16MiB_bf16", 16U << 20U));
    require(!r.excludes_config("direct") || r.excludes, "only a rule with ^ excludes");
  }
}
}  // namespace

void results_file(input bytes) {
  rules_file(bytes);
  const auto parsed = tuning::parse_results(text_of(bytes));
  if (!parsed) return;
  const auto& file = parsed.value().file;
  require(parsed.value().warnings.size() <= tuning::limits::warnings + 1, "warnings are bounded");
  const std::string written = tuning::write_results(file);
  const auto again = tuning::parse_results(written);
  require(bool(again) && again.value().file == file && again.value().skipped_lines == 0, "parse(write(x)) == x");
  const auto merged = tuning::merge_results(file, file);
  require(bool(merged) && merged.value().file == file && merged.value().conflicts.empty(), "a file agrees with itself");
}

void spec(input bytes) {
  try {
    const auto s = cli::parse_spec(text_of(bytes), "spec.json", {.ranks = {}, .microbatches = 3});
    require(s.ranks >= 1 && s.ranks <= cli::most_ranks, "a spec has a possible world");
    for (const auto& op : s.ops) {
      require(op.sizes.size() <= cli::most_invocations, "a spec has a bounded number of invocations");
      for (const auto& [from, to] : op.edges) require(from < s.ranks && to < s.ranks, "edges are in the world");
    }
  } catch (const cli::text_error& e) {
    require(*e.what() != '\0', "a fault of a spec is explained");
  }
}

void expression(input bytes) {
  try {
    const cli::expression e(text_of(bytes));
    for (const runtime::rank_id rank : {0U, 1U, 255U}) static_cast<void>(e.evaluate({rank, 256}));
  } catch (const cli::expression_error& e) {
    require(e.at() <= bytes.size(), "a fault is somewhere in the text");
  }
}

void rank_report(input bytes) {
  std::size_t reports = 0;
  cli::report_reader reader([&](boost::json::value&&) { ++reports; });
  // The bytes arrive in pieces, as from a pipe.
  choices from(bytes);
  const std::size_t piece = 1 + from.below(64);
  input rest = from.rest();
  while (!rest.empty()) {
    const input part = rest.first(std::min(piece, rest.size()));
    rest = rest.subspan(part.size());
    if (!reader.take(part)) break;
  }
  require(reports <= bytes.size(), "a report has at least a byte");
}

// A scenario that was read stays the same when it is written and read again, and a tape can be drawn for a seed.
void scenario(input bytes) {
  try {
    const simulation::scenario s = simulation::read_scenario(text_of(bytes));
    const std::string text = simulation::write_scenario(s);
    require(simulation::write_scenario(simulation::read_scenario(text)) == text, "reading and writing are inverse");
    if (s.ranks > 1) static_cast<void>(simulation::draw(s, 7));
  } catch (const runtime::failure& f) {
    require(f.code() == errc::malformed && !f.reason().text().empty(), "what is wrong with a scenario is said");
  }
  try {
    const simulation::coverage seen = simulation::read_coverage(text_of(bytes));
    const std::string text = simulation::write_coverage(seen);
    require(simulation::write_coverage(simulation::read_coverage(text)) == text, "reading and writing are inverse");
  } catch (const runtime::failure& f) {
    require(f.code() == errc::malformed, "a line that is none is named");
  }
}

}  // namespace parley::fuzz
