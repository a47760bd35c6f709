#include <parley/actors/declaration.hpp>
#include <parley/actors/generations.hpp>

#include <algorithm>
#include <array>
#include <optional>

namespace parley::actors {

namespace {

std::uint64_t hash_text(std::string_view text) noexcept {
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return runtime::mix(h);
}

}  // namespace

std::string op_declaration::text() const {
  std::string t = "op " + name + ", scheme " + scheme + ", leader rank " + std::to_string(leader) + ", dtype " +
                  (dtype.empty() ? "bytes" : dtype) + ", default " + default_config + ", participants";
  for (const op_participant& p : participants) t += " " + std::to_string(p.rank) + ":" + p.role;
  return t;
}

namespace {
struct said_field {
  std::string_view name;
  std::string_view value;
};
// Splits a text that was made by `text` into its fields; returns nothing for any other text.
std::optional<std::array<said_field, 6>> fields_of(std::string_view text) {
  constexpr std::array<std::string_view, 6> names{"op ",      ", scheme ",  ", leader rank ",
                                                  ", dtype ", ", default ", ", participants "};
  std::array<said_field, 6> all;
  std::size_t at = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (text.substr(at, names[i].size()) != names[i]) return std::nullopt;
    at += names[i].size();
    const std::size_t end = i + 1 == names.size() ? text.size() : text.find(names[i + 1], at);
    if (end == std::string_view::npos) return std::nullopt;
    all[i] = {names[i].substr(i == 0 ? 0 : 2), text.substr(at, end - at)};
    at = end;
  }
  return all;
}
}  // namespace

std::string difference(const std::string& who, std::string_view theirs, const std::string& whose,
                       std::string_view ours) {
  const auto one = fields_of(theirs);
  const auto other = fields_of(ours);
  std::string differs_there;
  std::string differs_here;
  for (std::size_t i = 0; one && other && i < one->size(); ++i) {
    const said_field& there = (*one)[i];
    const said_field& here = (*other)[i];
    if (there.value == here.value) continue;
    const std::string_view between = differs_there.empty() ? "" : ", ";
    differs_there.append(between).append(there.name).append(there.value);
    differs_here.append(between).append(here.name).append(here.value);
  }
  if (one && other && differs_there.empty())
    return who + " and " + whose + " use one name for default configs with different wire classes, parameters or ABIs";
  if (differs_there.empty()) {
    differs_there.append("{").append(theirs).append("}");
    differs_here.append("{").append(ours).append("}");
  }
  return who + " declares " + differs_there + ", " + whose + " declares " + differs_here;
}

std::uint64_t op_declaration::hash() const { return hash_text(text()) ^ runtime::mix(default_digest); }

std::uint64_t op_declaration::id() const {
  std::string t = name;
  for (const op_participant& p : participants) t += " " + std::to_string(p.rank);
  return hash_text(t) & ~std::uint64_t{3};
}

std::string op_declaration::title() const {
  std::string t = name;
  for (std::size_t i = 0; i < participants.size(); ++i)
    t += (i == 0 ? " " : "->") + std::to_string(participants[i].rank);
  return t;
}

op_declaration declare_edge(std::string name, rank_id sender, rank_id receiver, std::string dtype) {
  op_declaration op;
  op.name = std::move(name);
  op.scheme = "stamp d=0";
  op.participants = {{sender, "sender"}, {receiver, "receiver"}};
  op.leader = sender;
  op.dtype = std::move(dtype);
  return op;
}

std::uint64_t first_generation(const op_declaration& op, const runtime::incarnations& of_world,
                               const std::vector<rank_id>& coupled) {
  std::uint64_t g = op.id();
  std::uint64_t restarts = 0;
  for (const op_participant& p : op.participants) {
    g = runtime::mix(g ^ of_world.of(p.rank));
    restarts += runtime::restarts_of(of_world.of(p.rank));
  }
  const auto takes_part = [&](rank_id r) {
    return std::any_of(op.participants.begin(), op.participants.end(), [r](const auto& p) { return p.rank == r; });
  };
  for (const rank_id r : coupled) {
    const std::uint32_t n = runtime::restarts_of(of_world.of(r));
    if (n == 0 || takes_part(r)) continue;
    g = runtime::mix(g ^ of_world.of(r));
    restarts += n;
  }
  return generation_of(g, restarts);
}

}  // namespace parley::actors
