#pragma once
/// Each op of more than two ranks, called again and again by four ranks in virtual time or in processes of their own. Their memory shows
/// stray writes (guarded.hpp).
///
///     world w(op_cases::ranks);
///     op_cases::rims op(w);
///     for (rank_id r = 0; r < op_cases::ranks; ++r) op.declare(r);
///     co_await op.call(r);                                   // on each rank
///     CHECK(op.right(r));
#include <parley/tests/support/cases/training_case.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/guarded.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/halo.hpp>
#include <parley/hierarchy.hpp>
#include <parley/p2p.hpp>
#include <parley/pipeline.hpp>
#include <parley/ring_attention.hpp>
#include <parley/training_pipeline.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace parley::tests::op_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

inline constexpr rank_id ranks = 4;

// One op on all ranks.
struct op_case {
  explicit op_case(world& job) : w(&job) {}
  explicit op_case(rank& self) : own(&self) {}
  op_case(const op_case&) = delete;
  op_case& operator=(const op_case&) = delete;
  virtual ~op_case() = default;
  /// The op's name in errors.
  virtual const char* name() const = 0;
  virtual void declare(rank_id r) = 0;
  virtual task<> call(rank_id r) = 0;
  virtual bool rejoin(rank_id r) = 0;
  /// True if the result of the call on this rank is right.
  virtual bool right(rank_id r) const = 0;
  /// True if the memory of a call in flight shows that a part of its result has arrived, and a part has not.
  virtual bool shows_part(rank_id) const { return false; }
  /// True if the ranks exchange something in each call.
  virtual bool meets() const { return true; }
  rank& self(rank_id r) const { return w != nullptr ? (*w)[r] : *own; }
  world* w = nullptr;                      // of all ranks, or
  rank* own = nullptr;                     // the one of this process
  std::array<guarded_place, ranks> at;     // memory of the caller
  std::array<guarded_place, ranks> of_op;  // memory that the op makes for its caller
};

struct sums : op_case {
  using op_case::op_case;
  const char* name() const override { return "gradients"; }
  bool right(rank_id r) const override {
    return wrong_sums(std::vector<float>(x.at(r).begin(), x.at(r).end()), ranks) == 0;
  }
  // True if it shows the sum of only some of the ranks.
  bool shows_part(rank_id r) const override {
    const auto whole = x.find(r);
    if (whole == x.end()) return false;
    const float first = whole->second[0];
    return first != contribution(r, 1)[0] && wrong_sums({first}, ranks) != 0;
  }
  std::span<float> fresh(rank_id r) {
    const std::vector<float> mine = contribution(r, 30'000);  // too large for an eager message
    auto& all = x.try_emplace(r, at[r], mine.size()).first->second;
    std::copy(mine.begin(), mine.end(), all.begin());
    return {all.data(), all.size()};
  }
  std::map<rank_id, array<float>> x;
};

struct one_group final : sums {
  using sums::sums;
  void declare(rank_id r) override { of[r] = collective(self(r), led_by(0, {star(), chain(4096)})); }
  task<> call(rank_id r) override { return of[r].all_reduce(fresh(r)); }
  bool rejoin(rank_id r) override { return of[r].rejoin(); }
  std::map<rank_id, collective> of;
};

struct two_levels final : sums {
  using sums::sums;
  void declare(rank_id r) override {
    of[r] = hierarchy(self(r), {.name = "gradients", .leads = [](rank_id who) { return who % 2 == 0; }});
  }
  task<> call(rank_id r) override { return of[r].all_reduce(fresh(r)); }
  bool rejoin(rank_id r) override { return of[r].rejoin(); }
  std::map<rank_id, hierarchy> of;
};

/// Several messages to and from both neighbours, of all lengths, tagged.
struct batches final : op_case {
  using op_case::op_case;
  static constexpr std::array<std::size_t, 3> sizes{40'000, 10, 700};
  const char* name() const override { return "pairs"; }
  void declare(rank_id r) override {
    of[r] = p2p(self(r), {.name = "pairs", .configs = {direct(), chunked(4_KiB, 2), put(), get()}});
    out.erase(r);
    in.erase(r);
    for (std::uint32_t tag = 0; tag < 2 * sizes.size(); ++tag) {
      out[r].emplace_back(at[r], sizes[tag / 2]);
      in[r].emplace_back(at[r], sizes[tag / 2]);
      std::fill(out[r].back().begin(), out[r].back().end(), sent(r, tag));
    }
  }
  task<> call(rank_id r) override {
    for (const auto& a : in[r]) std::fill(a.begin(), a.end(), std::byte{});
    return with_dataflow(exchange, this, r);
  }
  static task<> exchange(dataflow& flow, batches* all, rank_id r) {
    std::vector<p2p_operation> batch;
    std::vector<actors::registered_memory> handles;
    for (std::uint32_t tag = 0; tag < 2 * sizes.size(); ++tag) {
      handles.push_back(all->of[r].registered(all->out[r][tag].bytes()));
      handles.push_back(all->of[r].registered(all->in[r][tag].bytes()));
      batch.push_back(p2p::isend(all->out[r][tag].bytes(), {.to = (r + step(tag)) % ranks, .tag = tag}));
      batch.push_back(p2p::irecv(all->in[r][tag].bytes(), {.from = (r + ranks - step(tag)) % ranks, .tag = tag}));
    }
    auto moving = all->of[r].start(flow, batch);
    co_await moving;
  }
  bool rejoin(rank_id) override { return false; }
  bool right(rank_id r) const override {
    for (std::uint32_t tag = 0; tag < 2 * sizes.size(); ++tag) {
      const auto& a = in.at(r)[tag];
      const std::byte due = sent((r + ranks - step(tag)) % ranks, tag);
      if (!std::all_of(a.begin(), a.end(), [due](std::byte b) { return b == due; })) return false;
    }
    return true;
  }
  static rank_id step(std::uint32_t tag) { return tag % 2 == 0 ? 1 : ranks - 1; }
  static std::byte sent(rank_id from, std::uint32_t tag) { return static_cast<std::byte>(1 + from * 10 + tag); }
  std::map<rank_id, p2p> of;
  std::map<rank_id, std::vector<array<std::byte>>> out, in;
};

struct stages final : op_case {
  using op_case::op_case;
  struct stage final : pipeline_stage {
    void forward(std::uint64_t microbatch, std::span<std::byte> activation) override {
      if (place == 0) std::fill(activation.begin(), activation.end(), static_cast<std::byte>(microbatch));
      for (std::byte& b : activation) b = static_cast<std::byte>(static_cast<unsigned>(b) * 3U + place);
      last.assign(activation.begin(), activation.end());
    }
    std::size_t place = 0;
    std::vector<std::byte> last;
  };
  const char* name() const override { return "layers"; }
  void declare(rank_id r) override {
    of[r] =
        pipeline(self(r), {.name = "layers", .configs = {direct(), chunked(4_KiB, 2)}, .memory = of_op[r].memory()});
    work[r].place = r;
  }
  task<> call(rank_id r) override { return of[r].run(std::span(sizes), work[r]); }
  bool rejoin(rank_id r) override { return of[r].rejoin(); }
  bool right(rank_id r) const override {
    std::uint64_t b = sizes.size() - 1;
    for (rank_id place = 0; place <= r; ++place) b = b * 3 + place;
    return work.at(r).last == std::vector<std::byte>(sizes.back(), static_cast<std::byte>(b));
  }
  std::vector<std::uint64_t> sizes{30'000, 100, 30'000};
  std::map<rank_id, pipeline> of;
  std::map<rank_id, stage> work;
};

struct rims final : op_case {
  using op_case::op_case;
  static constexpr std::size_t cells = 20'000;
  const char* name() const override { return "rims"; }
  void declare(rank_id r) override {
    halo_options op;
    op.name = "rims";
    op.ranks = {ranks};
    op.periodic = {true};
    op.width = {5'000};
    plans.erase(r);
    of[r] = halo(self(r), op);
    halo_field f;
    f.memory = field.try_emplace(r, at[r], cells + 10'000).first->second.bytes();
    f.element_bytes = sizeof(float);
    f.cells = {cells};
    plans.emplace(r, of[r].plan(std::vector<halo_field>(1, f)));
  }
  task<> call(rank_id r) override {
    const auto& x = field.at(r);
    std::fill(x.begin(), x.end(), -1.0F);
    std::fill(x.begin() + 5'000, x.end() - 5'000, static_cast<float>(r));
    return with_dataflow(exchange, &plans.at(r));
  }
  static task<> exchange(dataflow& flow, halo_plan* plan) {
    auto moving = plan->start(flow);
    co_await moving;
  }
  bool rejoin(rank_id r) override { return of[r].rejoin(); }
  bool right(rank_id r) const override {
    const auto& x = field.at(r);
    return x[0] == static_cast<float>((r + ranks - 1) % ranks) &&
           x[x.size() - 1] == static_cast<float>((r + 1) % ranks);
  }
  std::map<rank_id, halo> of;
  std::map<rank_id, array<float>> field;
  std::map<rank_id, halo_plan> plans;  // each survives restarts of other ranks
};

struct turning final : op_case {
  using op_case::op_case;
  const char* name() const override { return "attention"; }
  void declare(rank_id r) override {
    of[r] = ring_attention(self(r), {.name = "attention"});
    tensors.erase(r);
    for (int i = 0; i < 4; ++i) tensors[r].emplace_back(at[r], shape.elements());
  }
  task<> call(rank_id r) override {
    const auto& [q, k, v, out] = spans_of(tensors[r]);
    for (const auto& in : {q, k, v}) std::fill(in.begin(), in.end(), static_cast<float>(r));
    std::fill(out.begin(), out.end(), -1.0F);
    return of[r].forward<float>(shape, q, k, v, out);
  }
  static std::array<std::span<float>, 4> spans_of(const std::vector<array<float>>& all) {
    const auto span = [&](std::size_t i) { return std::span(all[i].data(), all[i].size()); };
    return {span(0), span(1), span(2), span(3)};
  }
  bool rejoin(rank_id r) override { return of[r].rejoin(); }
  // Each element is a mean of all ranks' values, whose weights depend on the rank.
  bool right(rank_id r) const override { return tensors.at(r)[3][0] > 0 && tensors.at(r)[3][0] < ranks; }
  attention_shape shape{.heads = 1, .rows = 40, .dimensions = 64};
  std::map<rank_id, ring_attention> of;
  std::map<rank_id, std::vector<array<float>>> tensors;  // queries, keys, values, output
};

struct passes final : op_case {
  using op_case::op_case;
  const char* name() const override { return "training"; }
  void declare(rank_id r) override {
    training_pipeline_options op;
    op.name = "training";
    op.memory = of_op[r].memory();
    op.schedule = one_forward_one_backward(ranks, 8);
    of[r] = training_pipeline(self(r), op);
    models[r] = std::make_unique<training_case::part_of_model>(ranks, 1'000);
  }
  static task<> run(training_pipeline t, training_case::part_of_model* m) {
    auto report = co_await t.run(*m);
    static_cast<void>(report);
  }
  task<> call(rank_id r) override {
    models[r]->order.clear();
    return run(of[r], models[r].get());
  }
  bool rejoin(rank_id r) override { return of[r].rejoin(); }
  bool right(rank_id r) const override { return models.at(r)->order.size() == 16; }
  std::map<rank_id, training_pipeline> of;
  std::map<rank_id, std::unique_ptr<training_case::part_of_model>> models;
};

}  // namespace parley::tests::op_cases
