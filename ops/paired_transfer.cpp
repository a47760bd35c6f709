#include <parley/ops/paired_transfer.hpp>

#include <algorithm>

namespace parley::ops {

using runtime::errc;
using runtime::error;

namespace {

std::string listed(const std::vector<rank_id>& ranks) {
  std::string text;
  for (const rank_id r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text.empty() ? "none" : text;
}

}  // namespace

runtime::result<std::vector<std::pair<rank_id, rank_id>>> pair_up(const paired_transfer& op, rank_id world_size) {
  const std::string title = "op " + op.name;
  if (op.configs.empty()) return error{errc::bad_argument, title + " has an empty catalogue; list at least its default config"};
  auto edges = op.edges;
  if (edges.empty()) {
    if (!op.role) return error{errc::bad_argument, title + " has neither a role function nor edges"};
    std::vector<rank_id> senders;
    std::vector<rank_id> receivers;
    for (rank_id r = 0; r < world_size; ++r) {
      const std::string role = op.role(r);
      if (role == "sender") senders.push_back(r);
      if (role == "receiver") receivers.push_back(r);
    }
    if (senders.size() != receivers.size() || senders.empty())
      return error{errc::role_conflict,
                   title + ": in a world of " + std::to_string(world_size) + " the senders are " + listed(senders) +
                       " and the receivers " + listed(receivers) +
                       "; each sender needs one receiver of its own, so change the role function or list the edges"};
    for (std::size_t i = 0; i < senders.size(); ++i) edges.emplace_back(senders[i], receivers[i]);
  }
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const auto [from, to] = edges[i];
    const std::string edge = title + ": edge " + std::to_string(from) + "->" + std::to_string(to);
    if (from >= world_size || to >= world_size)
      return error{errc::bad_argument, edge + " names a rank outside the world of " + std::to_string(world_size) +
                                           "; ranks count from 0"};
    if (from == to) return error{errc::bad_argument, edge + " is a self-send; a transfer needs two ranks"};
    if (std::count(edges.begin(), edges.end(), edges[i]) > 1)
      return error{errc::role_conflict, edge + " is listed twice"};
  }
  return edges;
}

edge_out& transfer::edge_to(rank_id peer) const {
  for (edge_out* e : outs_) {
    if (e->peer() == peer) return *e;
  }
  runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) + " does not send to rank " +
                                          std::to_string(peer) + "; check the role function and `to`"});
}

edge_in& transfer::edge_from(rank_id peer) const {
  for (edge_in* e : ins_) {
    if (e->peer() == peer) return *e;
  }
  runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) + " does not receive from rank " +
                                          std::to_string(peer) + "; check the role function and `from`"});
}

}  // namespace parley::ops
