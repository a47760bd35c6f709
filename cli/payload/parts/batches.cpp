// Batches of messages: each rank starts all its sends and receives of a step together.
#include <parley/cli/payload/parts/part.hpp>
#include <parley/p2p.hpp>

#include <algorithm>
#include <span>

namespace parley::cli {

using runtime::task;

namespace {

class batch_part final : public part {
 public:
  batch_part(const part_terms& t, ops::p2p batch) : part(t.op, t.engine, t.on_step), batch_(std::move(batch)) {
    me_ = t.self.id();
    for (const auto& [from, to] : op_.edges) {
      if (from == me_) to_.push_back(to);
      if (to != me_) continue;
      from_.push_back(from);
      output_from(from);
    }
  }
  task<> run() override {
    const auto mine = buffer();
    const auto own_memory = batch_.registered(mine->bytes());
    std::vector<std::unique_ptr<runtime::memory_space::block>> theirs;
    std::vector<actors::registered_memory> memory;
    for (std::size_t k = 0; k < from_.size(); ++k) {
      theirs.push_back(buffer());
      memory.push_back(batch_.registered(theirs.back()->bytes()));
    }
    for (std::size_t i = 0; i < op_.sizes.size(); ++i) {
      const std::span<std::byte> message = mine->bytes().first(op_.sizes[i]);
      co_await make(payload_number(op_, me_, i), message);
      std::vector<ops::p2p_operation> all;
      for (std::size_t k = 0; k < from_.size(); ++k)
        all.push_back(ops::p2p::irecv(theirs[k]->bytes().first(op_.sizes[i]), {.from = from_[k]}));
      for (const rank_id to : to_) all.push_back(ops::p2p::isend(message, {.to = to}));
      co_await batch_.exchange_all(std::move(all));
      for (std::size_t k = 0; k < from_.size(); ++k) {
        const std::uint64_t seen = co_await digest(i, theirs[k]->bytes().first(op_.sizes[i]));
        came_out_[k].digests.push_back(seen);
      }
      step_();
    }
  }

 private:
  ops::p2p batch_;
  rank_id me_ = 0;
  std::vector<rank_id> to_;
  std::vector<rank_id> from_;
};

}  // namespace

part_list batch_parts(const part_terms& t) {
  ops::p2p_options declared;
  declared.name = t.op.name;
  declared.edges = t.op.edges;
  declared.configs = t.op.configs;
  declared.dtype = t.op.dtype;
  part_list parts;
  const ops::p2p batch(t.self, declared);
  const auto has_us = [&](const std::pair<rank_id, rank_id>& e) {
    return e.first == t.self.id() || e.second == t.self.id();
  };
  if (std::any_of(t.op.edges.begin(), t.op.edges.end(), has_us))
    parts.push_back(std::make_unique<batch_part>(t, batch));
  return parts;
}

}  // namespace parley::cli
