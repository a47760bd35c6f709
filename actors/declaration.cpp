#include <parley/actors/declaration.hpp>
#include <parley/actors/generations.hpp>

#include <algorithm>

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
