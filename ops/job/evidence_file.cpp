#include <parley/ops/job/evidence_file.hpp>

#include <parley/ops/core/decision_record.hpp>
#include <parley/runtime/record/json_words.hpp>
#include <parley/tuning/text.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::result;

namespace {

std::string merged(std::string_view there, const std::map<std::string, std::string>& more) {
  std::vector<std::string_view> lines;
  while (!there.empty()) {
    const std::string_view line = tuning::take_until('\n', there);
    const auto after = more.upper_bound(std::string(line));
    const bool replaced = after != more.begin() && line.starts_with(std::prev(after)->first);
    if (!line.empty() && !replaced) lines.push_back(line);
  }
  for (const auto& [begins, line] : more) lines.push_back(line);
  std::size_t bytes = 0;
  auto first = lines.end();
  while (first != lines.begin() && (bytes += std::prev(first)->size() + 1) <= evidence_file::most_bytes) --first;
  std::string text;
  for (auto line = first; line != lines.end(); ++line) {
    text += *line;
    text += '\n';
  }
  return text;
}

}  // namespace

void evidence_file::note(const std::string& op, const std::string& parameters, decision d) {
  d.op = op;
  d.key = parameters;
  note(op, parameters, json_of(d));
}

void evidence_file::note(const std::string& op, const std::string& parameters, std::string line) {
  std::string begins = "{\"op\":" + runtime::in_quotes(op) + ",\"key\":" + runtime::in_quotes(parameters) + ",";
  const std::lock_guard hold(guard_);
  unwritten_.insert_or_assign(std::move(begins), std::move(line));
}

result<> evidence_file::write() {
  records more;
  {
    const std::lock_guard hold(guard_);
    more.swap(unwritten_);
  }
  if (more.empty()) return {};
  std::optional<error> unreadable;
  auto done = disk_.update(path_, [&](const result<std::string>& there) -> std::optional<std::string> {
    unreadable.reset();
    if (there || there.code() == errc::unavailable) return merged(there ? *there : std::string(), more);
    unreadable = there.reason();
    return std::nullopt;
  });
  if (unreadable) done = *unreadable;
  if (!done) {
    const std::lock_guard hold(guard_);
    unwritten_.merge(more);  // what was noted meanwhile is newer, and stays
  }
  return done;
}

}  // namespace parley::ops
