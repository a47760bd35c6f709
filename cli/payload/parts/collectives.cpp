// Collectives of a leader and its workers. Sums are of 16-bit numbers, modulo 2^16, so that they are exact in any order.
#include <parley/cli/payload/parts/part.hpp>
#include <parley/collective.hpp>

#include <algorithm>
#include <span>

namespace parley::cli {

using runtime::task;

namespace {

class collective_part final : public part {
 public:
  collective_part(const part_terms& t, ops::collective group, std::vector<rank_id> members)
      : part(t.op, t.engine, t.on_step), group_(std::move(group)), leader_(members.front()), me_(t.self.id()),
        members_(std::move(members)) {
    std::sort(members_.begin(), members_.end());
    if (op_.collects != ops::collective_kind::gather) {
      output_from(leader_);
    } else if (me_ == leader_) {
      for (const rank_id r : members_) output_from(r);
    }
  }
  task<> run() override {
    const auto block = buffer();
    std::vector<std::byte> gathered(
        op_.collects == ops::collective_kind::gather && me_ == leader_ ? largest_bytes() * members_.size() : 0);
    for (std::size_t i = 0; i < op_.sizes.size(); ++i) {
      const std::span<std::byte> data = block->bytes().first(op_.sizes[i]);
      if (op_.collects != ops::collective_kind::broadcast || me_ == leader_)
        co_await make(payload_number(op_, me_, i), data);
      switch (op_.collects) {
        case ops::collective_kind::all_reduce: co_await group_.all_reduce(numbers_in(data)); break;
        case ops::collective_kind::broadcast: co_await group_.broadcast(data); break;
        case ops::collective_kind::gather:
          co_await gather(data, std::span(gathered).first(std::min(gathered.size(), data.size() * members_.size())), i);
          break;
      }
      if (op_.collects != ops::collective_kind::gather) {
        const std::uint64_t seen = co_await digest(i, data);
        came_out_.front().digests.push_back(seen);
      }
      step_();
    }
  }

 private:
  static std::span<std::uint16_t> numbers_in(std::span<std::byte> data) {
    return {reinterpret_cast<std::uint16_t*>(data.data()), data.size() / sizeof(std::uint16_t)};
  }
  task<> gather(std::span<std::byte> mine, std::span<std::byte> all, std::size_t i) {
    co_await group_.gather(mine, all);
    for (std::size_t k = 0; k < came_out_.size(); ++k) {
      const std::uint64_t seen = co_await digest(i, all.subspan(k * mine.size(), mine.size()));
      came_out_[k].digests.push_back(seen);
    }
  }

  ops::collective group_;
  rank_id leader_;
  rank_id me_;
  std::vector<rank_id> members_;  // in the order of their blocks in the gathered data
};

}  // namespace

part_list collective_parts(const part_terms& t) {
  ops::collective_options declared;
  declared.name = t.op.name;
  declared.groups = t.op.groups;
  declared.kind = t.op.collects;
  declared.configs = t.op.group_configs;
  declared.depth = t.op.depth;
  declared.dtype = t.op.dtype;
  const ops::collective all(t.self, declared);
  part_list parts;
  for (const std::vector<rank_id>& group : t.op.groups) {
    if (std::find(group.begin(), group.end(), t.self.id()) != group.end())
      parts.push_back(std::make_unique<collective_part>(t, all, group));
  }
  return parts;
}

}  // namespace parley::cli
