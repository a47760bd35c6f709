// A rank dies after each message of an exchange, one run for each message. Every rank that needs the dead rank soon gets an error that
// names it, and no rank writes outside its buffers.
#include <parley/tests/support/cases/training_case.hpp>

#include <parley/config.hpp>
#include <parley/halo.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/ring_attention.hpp>
#include <parley/simulation/checkers/checkers.hpp>
#include <parley/simulation/checkers/observer.hpp>
#include <parley/simulation/world/guarded_memory.hpp>
#include <parley/training_pipeline.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::simulation;
using runtime::result;
using runtime::scope;
using runtime::task;

namespace {

constexpr rank_id ranks = 4;
constexpr std::uint64_t chunk_bytes = 4096;  // payloads are one and a half, or two, chunks long
constexpr time_ns detection_ns = 100'000'000;
constexpr time_ns slack_ns = 20'000'000;

/// What all ranks do together. The exchange owns the buffers, so that they outlive a rank that dies.
class exchange {
 public:
  exchange() = default;
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;
  virtual ~exchange() = default;
  virtual task<> program(ops::rank& self) = 0;
  /// The number of elements that were written although no transfer may write them.
  virtual std::size_t spoiled() const = 0;
  /// Whether rank `r`, whose program has returned, has the right data.
  virtual bool right(rank_id r) const = 0;
};
using maker = std::function<std::unique_ptr<exchange>()>;

struct death {
  rank_id who = 0;
  std::uint64_t after = 0;  ///< after this many messages of all ranks
};

struct manner {
  actors::tuning_policy policy = actors::tuning_policy::off;
  std::uint64_t every = 1;  // the number of messages from one death to the next
};

class delivered_messages final : public wire_tap {
 public:
  bool on_deliver(parcel&) override {
    ++count;
    return true;
  }
  std::uint64_t count = 0;
};

struct ended {
  std::vector<std::optional<result<>>> outcomes = std::vector<std::optional<result<>>>(ranks);
  std::uint64_t messages = 0;  // delivered until the last program ended
  time_ns died_ns = 0;
  time_ns last_ns = 0;
  bool all_there = false;  // every program has ended: nobody waits any more
  std::vector<violation> violations;
};

task<> whole(exchange* e, ops::rank* self, const delivered_messages* seen, ended* all, std::vector<rank_id>* failed) {
  std::exception_ptr thrown;
  try {
    co_await e->program(*self);
  } catch (...) {
    thrown = std::current_exception();
  }
  all->outcomes[self->id()] = thrown ? result<>(runtime::describe(thrown)) : result<>();
  all->last_ns = std::max<time_ns>(all->last_ns, self->where().now());
  all->messages = seen->count;
  if (thrown) {
    failed->push_back(self->id());
  } else {
    co_await self->settle(std::chrono::nanoseconds(slack_ns));
  }
}

// A rank whose program has failed crashes, too, so that the other ranks see its death.
ended run(exchange& e, std::optional<death> d, const manner& how) {
  world_options o;
  o.ranks = ranks;
  o.detection_ns = detection_ns;
  o.link.eager_bytes = 64;
  o.settings.flight_records = 256;
  o.settings.policy = how.policy;
  o.settings.plan.budget_fraction = 1e9;
  scenario as_played;
  as_played.ranks = ranks;
  as_played.must_decide = false;
  tape faults;
  run_record record;
  record.play = &as_played;
  record.faults = &faults;
  weather sky(faults, 1, ranks);
  world w(o, &sky);
  observer watching(record, w, o.settings.window);
  watching.listen(sky);
  delivered_messages seen;
  sky.tap(seen);
  sky.begin(w.stage());
  ended all;
  std::vector<rank_id> failed;
  const auto end = [&](rank_id r) {
    faults.mishaps.push_back({.what = mishap::kind::crash, .rank = r, .at_ns = w.stage().now()});
    w.crash(r);
  };
  w.start_all([&](rank_id r) { w.programs_of(r).spawn(whole(&e, &w[r], &seen, &all, &failed)); });
  do {
    if (d && seen.count >= d->after) {
      all.died_ns = w.stage().now();
      end(d->who);
      d.reset();
    }
    for (const rank_id r : std::exchange(failed, {})) end(r);
  } while (!w.all_ended() && w.stage().step());
  all.all_there = w.all_ended();
  watching.end_job();
  all.violations = check(record);
  return all;
}

bool names_one_of(const std::string& text, const std::vector<rank_id>& gone) {
  return std::any_of(gone.begin(), gone.end(),
                     [&](rank_id r) { return text.find("rank " + std::to_string(r)) != std::string::npos; });
}

void check_end(const exchange& e, const ended& all, rank_id dead) {
  CHECK(all.all_there);
  CHECK(e.spoiled() == 0);
  for (const violation& v : all.violations) FAIL_CHECK(v.invariant << ": " << v.text);
  CHECK(all.last_ns <= all.died_ns + ranks * detection_ns + slack_ns);  // the error may pass from one rank to the next
  for (rank_id r = 0; r < ranks; ++r) {
    if (r == dead) continue;
    CAPTURE(r);
    if (!all.outcomes[r]) continue;  // its program has not ended; the check of `all_there` reports that
    const result<>& outcome = *all.outcomes[r];
    if (outcome) {
      CHECK(e.right(r));
      continue;
    }
    std::vector<rank_id> gone{dead};
    for (rank_id other = 0; other < ranks; ++other) {
      if (other != r && all.outcomes[other] && !*all.outcomes[other]) gone.push_back(other);
    }
    INFO(outcome.reason().what());
    CHECK(outcome.code() == errc::peer_failed);
    CHECK(names_one_of(outcome.reason().text(), gone));
  }
}

// The number of runs, and in how many of them some rank got an error.
struct tally {
  std::uint64_t runs = 0;
  std::uint64_t told = 0;
};
tally die_everywhere(const maker& make, const manner& how = {}) {
  const std::unique_ptr<exchange> undisturbed = make();
  const ended without = run(*undisturbed, std::nullopt, how);
  REQUIRE(without.all_there);
  REQUIRE(without.violations.empty());
  for (rank_id r = 0; r < ranks; ++r) {
    REQUIRE(without.outcomes[r]);
    REQUIRE((*without.outcomes[r] ? "" : without.outcomes[r]->reason().what()) == "");
    REQUIRE(undisturbed->right(r));
  }
  tally t;
  for (rank_id who = 0; who < ranks; ++who) {
    CAPTURE(who);
    for (std::uint64_t after = 0; after <= without.messages; after += how.every) {
      CAPTURE(after);
      const std::unique_ptr<exchange> e = make();
      const ended all = run(*e, death{who, after}, how);
      check_end(*e, all, who);
      ++t.runs;
      const auto failed = [](const auto& o) { return o && !*o; };
      t.told += std::any_of(all.outcomes.begin(), all.outcomes.end(), failed) ? 1 : 0;
    }
  }
  return t;
}

// ---- halos ------------------------------------------------------------------------------------------------------------

// Two fields on 2 x 2 ranks, padded and with margins. The value of a cell is unique to its rank, field, place and round.
class halos final : public exchange {
 public:
  explicit halos(std::vector<config_ptr> configs, int rounds = 2) : configs_(std::move(configs)), rounds_(rounds) {
    for (rank_id r = 0; r < ranks; ++r) {
      for (int f = 0; f < fields; ++f) memory_[r][f].assign(2 * margin + (rows + 2) * stride, nothing);
    }
  }
  task<> program(ops::rank& self) override {
    halo_options op;
    op.name = "rims";
    op.ranks = {2, 2};
    op.periodic = {true, true};
    op.reach = halo_reach::corners;
    op.configs = configs_;
    halo h(self, op);
    std::vector<halo_field> all;
    for (auto& m : memory_[self.id()]) {
      auto cells = std::span(m).subspan(margin, (rows + 2) * stride);
      all.push_back(grid_field(cells, {rows, columns}, {stride, 1}));
    }
    return exchange_all(this, h, h.plan(all), self.id());
  }
  std::size_t spoiled() const override {
    std::size_t n = 0;
    for (rank_id r = 0; r < ranks; ++r) {
      for (int f = 0; f < fields; ++f) {
        const auto& m = memory_[r][f];
        for (std::size_t i = 0; i < m.size(); ++i) {
          const bool inside = i >= margin && i < m.size() - margin && (i - margin) % stride < columns + 2;
          if (!inside) n += m[i] == nothing ? 0 : 1;
          // The interior belongs to the rank: it holds the values of some round.
          const std::size_t row = inside ? (i - margin) / stride : 0;
          const std::size_t column = inside ? (i - margin) % stride : 0;
          const bool own = row >= 1 && row <= rows && column >= 1 && column <= columns;
          if (own && m[i] != nothing) n += m[i] / 100 == cell(r, f, row, column, 0) / 100 ? 0 : 1;
        }
      }
    }
    return n;
  }
  bool right(rank_id r) const override {
    for (int f = 0; f < fields; ++f) {
      for (std::size_t row = 0; row < rows + 2; ++row) {
        for (std::size_t column = 0; column < columns + 2; ++column) {
          // Both dimensions wrap and have two blocks, so that the only other block is the neighbour on both sides.
          const bool up_down = row == 0 || row == rows + 1;
          const bool left_right = column == 0 || column == columns + 1;
          const rank_id from = (r ^ (up_down ? 2U : 0U)) ^ (left_right ? 1U : 0U);
          const std::size_t its_row = row == 0 ? rows : row == rows + 1 ? 1 : row;
          const std::size_t its_column = column == 0 ? columns : column == columns + 1 ? 1 : column;
          if (memory_[r][f][margin + row * stride + column] != cell(from, f, its_row, its_column, rounds_ - 1))
            return false;
        }
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t rows = 3;
  static constexpr std::size_t columns = 1'100;
  static constexpr std::size_t stride = columns + 2 + 3;
  static constexpr std::size_t margin = 8;
  static constexpr int fields = 2;
  static constexpr std::uint32_t nothing = 0xffffffff;
  static std::uint32_t cell(rank_id r, int f, std::size_t row, std::size_t column, int round) {
    return static_cast<std::uint32_t>((((r * 2 + static_cast<unsigned>(f)) * 10 + row) * 2000 + column) * 100) +
           static_cast<std::uint32_t>(round);
  }
  void fill(rank_id r, int round) {
    for (int f = 0; f < fields; ++f) {
      for (std::size_t row = 1; row <= rows; ++row) {
        for (std::size_t column = 1; column <= columns; ++column)
          memory_[r][f][margin + row * stride + column] = cell(r, f, row, column, round);
      }
    }
  }
  static task<> in_flow(runtime::dataflow& flow, halos* self, halo_plan* plan, rank_id me) {
    for (int round = 0; round < self->rounds_; ++round) {
      self->fill(me, round);
      auto moving = plan->start(flow);
      co_await moving;
    }
  }
  static task<> exchange_all(halos* self, halo h, halo_plan plan, rank_id me) {
    static_cast<void>(h);
    co_await runtime::with_dataflow(in_flow, self, &plan, me);
  }

  std::vector<config_ptr> configs_;
  int rounds_;
  std::array<std::array<std::vector<std::uint32_t>, fields>, ranks> memory_;
};

// ---- attention --------------------------------------------------------------------------------------------------------

class attentions final : public exchange {
 public:
  attentions(config_ptr config, bool causal) : config_(std::move(config)) {
    shape_ = {.heads = 2, .rows = 16, .dimensions = 32, .causal = causal, .block_ns = 2'000};
    for (rank_id r = 0; r < ranks; ++r) {
      for (int what = 0; what < 3; ++what) given_[r][what] = numbers(r, what);
      out_[r].assign(shape_.elements() + 2 * margin, nothing);
    }
  }
  task<> program(ops::rank& self) override {
    ring_attention_options op;
    op.name = "attention";
    op.configs = {config_};
    return forward(this, ring_attention(self, op), self.id());
  }
  std::size_t spoiled() const override {
    std::size_t n = 0;
    for (rank_id r = 0; r < ranks; ++r) {
      for (int what = 0; what < 3; ++what) n += given_[r][what] == numbers(r, what) ? 0 : 1;
      for (std::size_t i = 0; i < margin; ++i) {
        n += out_[r][i] == nothing ? 0 : 1;
        n += out_[r][out_[r].size() - 1 - i] == nothing ? 0 : 1;
      }
    }
    return n;
  }
  bool right(rank_id r) const override {
    const std::uint64_t d = shape_.dimensions;
    for (std::uint64_t head = 0; head < shape_.heads; ++head) {
      for (std::uint64_t row = 0; row < shape_.rows; ++row) {
        const std::uint64_t seen = shape_.causal ? r * shape_.rows + row + 1 : std::uint64_t{ranks} * shape_.rows;
        std::vector<double> sum(d);
        double total = 0;
        for (std::uint64_t j = 0; j < seen; ++j) {
          const auto from = static_cast<rank_id>(j / shape_.rows);
          const std::uint64_t there = (head * shape_.rows + j % shape_.rows) * d;
          double score = 0;
          for (std::uint64_t i = 0; i < d; ++i)
            score += given_[r][0][(head * shape_.rows + row) * d + i] * given_[from][1][there + i];
          const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
          total += weight;
          for (std::uint64_t i = 0; i < d; ++i) sum[i] += weight * given_[from][2][there + i];
        }
        for (std::uint64_t i = 0; i < d; ++i) {
          const double got = out_[r][margin + (head * shape_.rows + row) * d + i];
          if (!(std::abs(got - sum[i] / total) < 1e-12)) return false;
        }
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t margin = 8;
  static constexpr double nothing = -77;
  std::vector<double> numbers(rank_id r, int what) const {
    std::vector<double> all(shape_.elements());
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = std::sin(static_cast<double>(r * 1'000 + static_cast<unsigned>(what) * 100 + i));
    return all;
  }
  static task<> forward(attentions* self, ops::ring_attention ring, rank_id me) {
    const auto& [q, k, v] = self->given_[me];
    co_await ring.forward<double>(self->shape_, q, k, v,
                                  std::span(self->out_[me]).subspan(margin, self->shape_.elements()));
  }

  config_ptr config_;
  attention_shape shape_;
  std::array<std::array<std::vector<double>, 3>, ranks> given_;
  std::array<std::vector<double>, ranks> out_;
};

// ---- training ---------------------------------------------------------------------------------------------------------

class trainings final : public exchange {
 public:
  trainings(config_ptr config, pipeline_schedule schedule)
      : config_(std::move(config)), schedule_(std::move(schedule)) {
    for (rank_id r = 0; r < ranks; ++r) {
      parts_.push_back(std::make_unique<tests::training_case::part_of_model>(schedule_.stages, 2'000));
      parts_.back()->elements = 1'024;
    }
  }
  task<> program(ops::rank& self) override {
    training_pipeline_options op;
    op.name = "layers";
    op.schedule = schedule_;
    op.configs = {config_};
    op.memory = &memory_;
    return pass(training_pipeline(self, op), parts_[self.id()].get());
  }
  std::size_t spoiled() const override { return memory_.spoiled() + (memory_.made() == 0 ? 1 : 0); }
  bool right(rank_id r) const override {
    const auto alone = tests::training_case::gradients_alone(schedule_.stages, schedule_.microbatches);
    for (std::uint32_t s = 0; s < schedule_.stages; ++s) {
      if (schedule_.rank_of(s) == r && parts_[r]->m.weight_gradient[s] != alone[s]) return false;
    }
    return true;
  }

 private:
  static task<> pass(training_pipeline t, tests::training_case::part_of_model* mine) {
    auto report = co_await t.run(*mine);
    static_cast<void>(report);
  }
  config_ptr config_;
  pipeline_schedule schedule_;
  guarded_memory memory_;
  std::vector<std::unique_ptr<tests::training_case::part_of_model>> parts_;
};

}  // namespace

TEST_CASE(
    "a rank dies after any message of a halo exchange: the others finish or get an error, and only rims are written") {
  for (const auto& config : {direct(), chunked(chunk_bytes, 2)}) {
    CAPTURE(config->id());
    const tally t = die_everywhere([&] { return std::make_unique<halos>(std::vector{config}); });
    CHECK(t.runs > 100);
    CHECK(t.told > t.runs / 2);
  }
}

TEST_CASE("a rank dies while neighbours try puts and gets of rims: the others finish or get an error, and only rims "
          "are written") {
  const std::vector<config_ptr> configs{direct(), put(), get()};
  const tally t = die_everywhere([&] { return std::make_unique<halos>(configs, 40); },
                                 {.policy = actors::tuning_policy::online, .every = 97});
  CHECK(t.runs > 40);
  CHECK(t.told > t.runs / 2);
}

TEST_CASE("a rank dies while neighbours try `by_piece`: the others finish or get an error, and only rims are written") {
  const std::vector<config_ptr> configs{direct(), by_piece(1)};
  const tally t = die_everywhere([&] { return std::make_unique<halos>(configs, 40); },
                                 {.policy = actors::tuning_policy::online, .every = 97});
  CHECK(t.runs > 40);
  CHECK(t.told > t.runs / 2);
}

TEST_CASE(
    "a rank dies after any message of ring attention: the others finish or get an error, and only `out` is written") {
  for (const bool causal : {false, true}) {
    for (const auto& config : {direct(), chunked(chunk_bytes, 2)}) {
      CAPTURE(causal);
      CAPTURE(config->id());
      const tally t = die_everywhere([&] { return std::make_unique<attentions>(config, causal); });
      CHECK(t.runs > 100);
      CHECK(t.told > t.runs / 2);
    }
  }
}

TEST_CASE("a rank dies after any message of a training pipeline: the other stages finish or get an error") {
  struct manner_of_training {
    config_ptr config;
    pipeline_schedule schedule;
  };
  const manner_of_training all[] = {{direct(), one_forward_one_backward(ranks, 3)},
                                    {direct(), interleaved(ranks, 4, 2)},
                                    {chunked(chunk_bytes, 2), one_forward_one_backward(ranks, 2)}};
  for (const auto& m : all) {
    CAPTURE(m.config->id());
    CAPTURE(m.schedule.stages);
    const tally t = die_everywhere([&] { return std::make_unique<trainings>(m.config, m.schedule); });
    CHECK(t.runs > 100);
    CHECK(t.told > t.runs / 2);
  }
}
