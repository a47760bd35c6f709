// The contract on the simulated link, in many orders and with messages that overtake each other.
#include "contract.hpp"

#include <parley/simulation/dice.hpp>
#include <parley/simulation/network.hpp>
#include <parley/simulation/stage.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <set>

using namespace parley;
using namespace parley::tests;

namespace {

using simulation::nobody;

constexpr time_ns detection_ns = 1'000'000;

/// Messages arrive whenever they like: what real transports do within microseconds, and networks within milliseconds.
struct unordered final : simulation::interference {
  explicit unordered(std::uint64_t seed) : luck(seed, simulation::purpose::fate) {}
  simulation::fate judge(const simulation::parcel&) override {
    simulation::fate f;
    if (luck.chance(300)) f.extra_ns = luck.between(0, 200'000);
    return f;
  }
  time_ns landing(rank_id, rank_id, time_ns usual) override { return luck.between(0, 10 * usual); }
  simulation::dice luck;
};

class simulated_job {
 public:
  simulated_job(const contract_case& c, std::uint64_t seed)
      : case_(c), line_(c.ranks, {.seed = seed, .order = simulation::ordering::shuffled, .inside = true}),
        weather_(seed), tables_(c.ranks) {
    for (rank_id r = 0; r < c.ranks; ++r) ends_.push_back(std::make_unique<virtual_end>(*this, r));
    net_.emplace(line_, c.ranks, simulation::link_model{}, &weather_);
  }
  // The ends outlive their links.
  ~simulated_job() {
    programs_.clear();
    for (auto& one : ends_) one->forget_arrivals();
    net_.reset();
  }
  simulated_job(const simulated_job&) = delete;
  simulated_job& operator=(const simulated_job&) = delete;

  bool overtaken() const {
    return std::any_of(ends_.begin(), ends_.end(), [](const auto& one) { return one->overtaken; });
  }
  /// Why a rank did not keep the contract; empty when all did.
  std::string run() {
    programs_.resize(case_.ranks);
    for (rank_id r = 0; r < case_.ranks; ++r) {
      line_.as(r, [&] {
        programs_[r] = std::make_unique<runtime::scope>(line_.clock(r));
        programs_[r]->spawn(watched(case_.program, *ends_[r], *this));
      });
    }
    const bool over = line_.run_until([&] { return ended_.size() == case_.ranks; }, 600'000'000'000);
    if (!over && complaint_.empty()) complaint_ = "a rank hangs";
    if (complaint_.empty() && net_->pending() != 0) complaint_ = "an operation was not ended";
    return complaint_;
  }

 private:
  class virtual_end final : public end {
   public:
    virtual_end(simulated_job& j, rank_id r)
        : end(r, j.case_.ranks, {.largest_bytes = 2'000'123, .detection_ns = 3 * detection_ns}), job_(j) {}
    runtime::link& wire() override { return (*job_.net_)[rank]; }
    runtime::executor& loop() override { return job_.line_.clock(rank); }
    std::function<time_ns()> stopwatch() override {
      return [this, began = loop().now()] { return loop().now() - began; };
    }
    void bring(std::span<const std::byte> mine) override {
      job_.tables_[rank].mine.emplace(mine.begin(), mine.end());
      job_.line_.at(job_.line_.now(), nobody, [&j = job_] { j.match(); });
    }
    bool brought() override { return job_.tables_[rank].all.has_value(); }
    std::vector<blob> take() override { return *std::exchange(job_.tables_[rank].all, std::nullopt); }
    void end_life() override {
      job_.line_.at(job_.line_.now(), nobody, [&j = job_, r = rank] { j.crash(r); });
    }
    void halt() override {
      job_.line_.freeze(rank, runtime::never);
      halted = true;
    }
    bool halted = false;

   private:
    simulated_job& job_;
  };
  struct table {
    std::optional<blob> mine;
    std::optional<std::vector<blob>> all;
  };

  static task<> watched(task<> (*program)(end&), end& self, simulated_job& job) {
    try {
      co_await program(self);
      co_await self.meet();
    } catch (const std::exception& e) {
      if (job.complaint_.empty()) job.complaint_ = "rank " + std::to_string(self.rank) + ": " + e.what();
    }
    job.ended_.insert(self.rank);
    job.line_.at(job.line_.now(), nobody, [&job] { job.match(); });
  }
  // All that live have brought something, or will not.
  void match() {
    for (rank_id r = 0; r < case_.ranks; ++r) {
      if (!ended_.contains(r) && !tables_[r].mine) return;
    }
    std::vector<blob> all;
    for (table& t : tables_) all.push_back(std::exchange(t.mine, std::nullopt).value_or(blob{}));
    for (rank_id r = 0; r < case_.ranks; ++r) {
      tables_[r].all = all;
      if (std::exchange(ends_[r]->halted, false)) line_.thaw(r);
    }
  }
  void crash(rank_id dead) {
    net_->crash(dead, [&] {
      programs_[dead].reset();
      ends_[dead]->forget_arrivals();
    });
    ended_.insert(dead);
    match();
    for (rank_id who = 0; who < case_.ranks; ++who) {
      if (who != dead)
        line_.at(line_.now() + detection_ns * (who + 1) / case_.ranks, who,
                 [this, who, dead] { net_->give_up(who, dead); });
    }
  }

  const contract_case& case_;
  simulation::stage line_;
  unordered weather_;
  std::vector<table> tables_;
  std::vector<std::unique_ptr<virtual_end>> ends_;
  std::optional<simulation::network> net_;
  std::vector<std::unique_ptr<runtime::scope>> programs_;
  std::set<rank_id> ended_;
  std::string complaint_;
};

}  // namespace

TEST_CASE("the simulated link keeps the contract of links") {
  for (const contract_case& c : contract()) {
    SUBCASE(c.promise) {
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        const std::string complaint = simulated_job(c, seed).run();
        CHECK_MESSAGE(complaint.empty(), "seed ", seed, ": ", complaint);
      }
    }
  }
}

TEST_CASE("messages of the simulated link do overtake one another, on each seed") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    simulated_job job(ordering_contract().front(), seed);
    CHECK(job.run().empty());
    CHECK(job.overtaken());
  }
}
