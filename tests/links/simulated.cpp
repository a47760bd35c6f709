// The contract on the simulated link, in many orders, with messages that overtake one another: on each variant of the link that scenarios
// use, and below a link of GPUs.
#include <parley/tests/links/device_buffers.hpp>
#include <parley/tests/links/gathering.hpp>

#include <parley/cuda_link.hpp>
#include <parley/simulation/world/dice.hpp>
#include <parley/simulation/world/network.hpp>
#include <parley/simulation/world/stage.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <optional>

using namespace parley;
using namespace parley::tests;

namespace {

using simulation::nobody;

constexpr time_ns detection_ns = 1'000'000;

/// Messages arrive at random times, as they do on real transports within microseconds and on networks within milliseconds.
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

/// The conditions of a simulated job.
struct conditions {
  /// Where a rank's buffers are. With a GPU, programs use a `cuda_link` over the simulated link.
  enum class buffers : std::uint8_t { without_gpu, beside_gpu, on_gpu };
  const char* name;
  simulation::link_model link{};
  needs lacks = needs::nothing;
  buffers where = buffers::without_gpu;
};

class simulated_job {
 public:
  simulated_job(const contract_case& c, std::uint64_t seed, const conditions& on)
      : case_(c), on_(on), line_(c.ranks, {.seed = seed, .order = simulation::ordering::shuffled, .inside = true}),
        weather_(seed), table_(c.ranks), gpu_(static_cast<int>(c.ranks)) {
    for (rank_id r = 0; r < c.ranks; ++r) ends_.push_back(std::make_unique<virtual_end>(*this, r));
    net_.emplace(line_, c.ranks, on.link, &weather_);
    if (on.where == conditions::buffers::without_gpu) return;
    for (rank_id r = 0; r < c.ranks; ++r) {
      wires_.push_back(std::make_unique<gpu_wire>(gpu_, r, (*net_)[r]));
      look_at_gpu(r);
    }
  }
  // The ends outlive their links.
  ~simulated_job() {
    programs_.clear();
    for (auto& one : ends_) one->forget_arrivals();
    for (auto& wire : wires_) wire->link.reset();
    net_.reset();
    wires_.clear();
  }
  simulated_job(const simulated_job&) = delete;
  simulated_job& operator=(const simulated_job&) = delete;

  bool overtaken() const {
    return std::any_of(ends_.begin(), ends_.end(), [](const auto& one) { return one->overtaken; });
  }
  /// Returns the reason why a rank broke the contract; empty if none did.
  std::string run() {
    programs_.resize(case_.ranks);
    for (rank_id r = 0; r < case_.ranks; ++r) {
      line_.as(r, [&] {
        programs_[r] = std::make_unique<runtime::scope>(line_.clock(r));
        programs_[r]->spawn(watched(case_.program, *ends_[r], *this));
      });
    }
    const bool over = line_.run_until([&] { return table_.empty(); }, 600'000'000'000);
    if (!over) complain("a rank hangs");
    if (net_->pending() != 0) complain("an operation was not ended");
    for (const auto& wire : wires_) {
      if (wire->buffers.wrote_late()) complain("a buffer was written after it had been abandoned");
    }
    return complaint_;
  }
  std::uint64_t staged() const {
    std::uint64_t all = 0;
    for (const auto& wire : wires_) all += wire->link ? wire->link->planes().staged : 0;
    return all;
  }

 private:
  class virtual_end final : public end {
   public:
    virtual_end(simulated_job& j, rank_id r) : end(r, j.case_.ranks, limits_of(j.on_)), job_(j) {}
    runtime::link& wire() override { return job_.wire(rank); }
    runtime::executor& loop() override { return job_.line_.clock(rank); }
    std::function<time_ns()> stopwatch() override {
      return [this, began = loop().now()] { return loop().now() - began; };
    }
    void bring(std::span<const std::byte> mine) override {
      job_.table_.bring(rank, mine);
      job_.line_.at(job_.line_.now(), nobody, [&j = job_] { j.match(); });
    }
    bool brought() override { return job_.table_.brought(rank); }
    std::vector<blob> take() override {
      if (!job_.wires_.empty()) job_.wires_[rank]->buffers.refresh();
      return job_.table_.take(rank);
    }
    void end_life() override {
      job_.line_.at(job_.line_.now(), nobody, [&j = job_, r = rank] { j.crash(r); });
    }
    void halt() override {
      job_.line_.freeze(rank, runtime::never);
      halted = true;
    }
    bool halted = false;

   private:
    static contract_limits limits_of(const conditions& on) {
      contract_limits l{.largest_bytes = 2'000'123, .detection_ns = 3 * detection_ns, .late = on.link.late};
      // The link first copies the payload to pinned memory, so the send is pending even to a dead rank.
      if (on.where == conditions::buffers::on_gpu) l.to_the_dead = errc::pending;
      return l;
    }
    simulated_job& job_;
  };
  /// When a rank dies, only its link ends; the GPU finishes the work that it has started.
  struct gpu_wire {
    gpu_wire(fake_cuda& gpu, rank_id r, runtime::link& below)
        : copies(gpu, static_cast<int>(r)), link(std::in_place, below, copies),
          buffers(*link, gpu, static_cast<int>(r)) {}
    ~gpu_wire() { copies.drain(); }
    transports::cuda_copies copies;
    std::optional<transports::cuda_link> link;
    device_buffers buffers;
  };

  runtime::link& wire(rank_id r) {
    switch (on_.where) {
      case conditions::buffers::without_gpu: return (*net_)[r];
      case conditions::buffers::beside_gpu: return *wires_[r]->link;
      case conditions::buffers::on_gpu: return wires_[r]->buffers;
    }
    return (*net_)[r];
  }
  void look_at_gpu(rank_id r) {
    constexpr time_ns every_ns = 5'000;
    if (!table_.here(r)) return;
    wires_[r]->copies.poll();
    line_.at(line_.now() + every_ns, r, [this, r] { look_at_gpu(r); });
  }
  void complain(const std::string& what) {
    if (complaint_.empty()) complaint_ = what;
  }
  static task<> watched(task<> (*program)(end&), end& self, simulated_job& job) {
    try {
      co_await program(self);
      co_await self.meet();
    } catch (const std::exception& e) {
      job.complain("rank " + std::to_string(self.rank) + ": " + e.what());
    }
    job.table_.leave(self.rank);
    job.line_.at(job.line_.now(), nobody, [&job] { job.match(); });
  }
  void match() {
    if (!table_.match()) return;
    for (rank_id r = 0; r < case_.ranks; ++r) {
      if (std::exchange(ends_[r]->halted, false)) line_.thaw(r);
    }
  }
  void crash(rank_id dead) {
    net_->crash(dead, [&] {
      programs_[dead].reset();
      ends_[dead]->forget_arrivals();
      if (!wires_.empty()) wires_[dead]->link.reset();
    });
    table_.leave(dead);
    match();
    for (rank_id who = 0; who < case_.ranks; ++who) {
      if (who != dead)
        line_.at(line_.now() + detection_ns * (who + 1) / case_.ranks, who,
                 [this, who, dead] { net_->give_up(who, dead); });
    }
  }

  const contract_case& case_;
  const conditions& on_;
  simulation::stage line_;
  unordered weather_;
  gathering table_;
  std::vector<std::unique_ptr<virtual_end>> ends_;
  fake_cuda gpu_;
  std::optional<simulation::network> net_;
  std::vector<std::unique_ptr<gpu_wire>> wires_;
  std::vector<std::unique_ptr<runtime::scope>> programs_;
  std::string complaint_;
};

void keep(const conditions& on, std::uint64_t seeds) {
  for (const contract_case& c : contract(on.lacks)) {
    SUBCASE(c.promise) {
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const std::string complaint = simulated_job(c, seed, on).run();
        CHECK_MESSAGE(complaint.empty(), std::string(on.name), ", seed ", seed, ": ", complaint);
      }
    }
  }
}

constexpr conditions usual{"as usual"};

// The variants of the link in scenarios. Fences that fail or do nothing are faults and break the contract, so they are not here.
std::vector<conditions> of_scenarios() {
  using runtime::late_writes;
  return {
      {"lent payloads", {.eager_bytes = 1'000, .takes_back = true, .landing_ns = 20'000}},
      {"late writes that may land", {.late = late_writes::may_land, .landing_ns = 1'500'000}},
      {"no one-sided transfers", {.one_sided = simulation::link_model::memory::none}, needs::one_sided},
      {"a slow wire that payloads share",
       {.ns_per_byte = 20,
        .per_message_ns = 2'000,
        .shared_wire = true,
        .shared_egress = true,
        .shared_ingress = true}},
      {"puts and gets that take long", {.one_sided_ns_per_byte = 100, .landing_ns = 6'000'000}},
  };
}

}  // namespace

TEST_CASE("the simulated link keeps the contract of links") { keep(usual, 5); }

TEST_CASE("the simulated link keeps the contract of links in each variant that scenarios use") {
  for (const conditions& on : of_scenarios()) {
    SUBCASE(on.name) { keep(on, 2); }
  }
}

TEST_CASE("a cuda_link keeps the contract of links with host buffers") {
  keep({.name = "beside a GPU", .where = conditions::buffers::beside_gpu}, 2);
}

// A copy that a GPU has started cannot be stopped, and memory that a peer has mapped stays mapped.
constexpr conditions on_gpu{
    .name = "on a GPU", .lacks = needs::stopping | needs::revoking, .where = conditions::buffers::on_gpu};

TEST_CASE("a cuda_link keeps the contract of links with device buffers") { keep(on_gpu, 2); }

TEST_CASE("the contract's messages between device buffers pass through pinned memory") {
  simulated_job job(messages_contract().front(), 1, on_gpu);
  CHECK(job.run().empty());
  CHECK(job.staged() > 0);
}

TEST_CASE("messages of the simulated link overtake one another, with each of five seeds") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    simulated_job job(ordering_contract().front(), seed, usual);
    CHECK(job.run().empty());
    CHECK(job.overtaken());
  }
}
