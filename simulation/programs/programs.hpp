#pragma once
/// The programs of a simulated job: each makes the calls of one op on one rank, and checks its buffers byte by byte.
///
///     programs all(scenario, tape, seed, world, record);
///     all.launch(rank, calm_from_ns);             // declares its ops and spawns a program for each
///
/// Every message contains its number, so that a receiver can check that it got one whole message, and a later one than before. Nothing
/// may be written beyond the capacity of a receive, nor into the buffer of a receive that ended without a message.
#include <parley/collective.hpp>
#include <parley/pipeline.hpp>
#include <parley/simulation/programs/collectives.hpp>
#include <parley/simulation/world/run_record.hpp>
#include <parley/simulation/world/world.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace parley::simulation {

class op_program;

class programs {
 public:
  /// The most calls of an op in addition to those of the scenario. They are made if a search needs them to end.
  static constexpr std::uint64_t most_more = 4'000;
  programs(const scenario& s, const tape& t, std::uint64_t seed, world& w, run_record& r, std::string_view mutant = {});
  ~programs();

  /// `calm_from_ns`: when the calm calls begin, after all faults.
  void launch(rank_id rank, time_ns calm_from_ns);
  /// Call it when `who` has learned that `peer` has restarted: the ops with both as members begin again, with new calls.
  void go_on(rank_id who, rank_id peer);
  /// The gates and searches of the rank's ops without headers, for N2.
  std::vector<lease_view> leases(rank_id rank) const;
  /// Called before a rank ends: releases the handles of its ops, which must end before the rank.
  void let_go(rank_id rank);
  /// Checks at the end of a job that no buffer was written after it was released.
  void look_at_memory();
  /// Writes `data` into the buffer of a call at that address, if there is one.
  void write(std::uint64_t address, std::span<const std::byte> data);
  const collectives& library() const noexcept { return library_; }
  /// Called before an op of a rank enters its next generation.
  std::function<void(rank_id who, const std::string& op)> before_rejoining{};
  /// Makes all kernels of a rank slower by so many thousandths.
  void slow_kernels(rank_id rank, std::uint64_t thousandths) { kernels_[rank].slowness = thousandths; }

 private:
  struct lane;
  struct turnout;
  struct stage_of_pipeline;
  struct caller;
  runtime::task<> send_all(caller& c, ops::transfer t, rank_id to);
  runtime::task<> receive_all(caller& c, ops::transfer t, rank_id from);
  runtime::task<> call_group(caller& c, ops::collective g);
  runtime::task<> call_symmetric(caller& c, ops::symmetric op);
  runtime::task<> run_pipeline(caller& c, ops::pipeline p);
  runtime::task<> call_program(caller& c, std::shared_ptr<op_program> p);
  static bool is_sum(const caller& c, std::span<const std::byte> brought, std::uint64_t number);
  runtime::task<> await_agreement(caller& c);
  static runtime::task<> send_one(caller& c, ops::transfer& t, rank_id to, lane& l, std::uint64_t number);
  static runtime::task<> receive_one(caller& c, ops::transfer& t, rank_id from, lane& l, std::uint64_t number);
  static runtime::task<> group_one(caller& c, ops::collective g, std::uint64_t number);
  runtime::task<> rest(caller& c, std::uint64_t number);
  runtime::task<bool> goes_on(caller& c, std::uint64_t made);
  enum class searching : std::uint8_t { nothing, for_messages, for_calls };
  searching searches(const caller& c, std::uint64_t made) const;
  bool everybody_calls(const caller& c) const;
  turnout& turnout_of(std::size_t op, std::uint64_t returns);
  caller& add(std::size_t op, rank_id rank, time_ns calm_from_ns);
  void begin(std::size_t op, rank_id rank, time_ns calm_from_ns, std::function<void(caller&)> start,
             std::function<void()> rejoin);
  runtime::task<> rejoin_later(caller& before);
  std::shared_ptr<ops::communicator> communicator_of(std::size_t op, rank_id rank);
  void violated(const caller& c, std::string text);

  const scenario& play_;
  const tape& tape_;
  std::uint64_t seed_;
  world& world_;
  run_record& record_;
  bool mutant_claims_room_;
  bool mutant_awaits_agreement_;
  bool mutant_uses_lost_memory_;
  std::vector<kernel_times> kernels_;
  collectives library_;
  using op_at = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;  // op, job, returns, as in run_record::received
  std::map<op_at, std::uint64_t> communicators_;                        // of the ops without headers
  std::map<op_at, std::unique_ptr<turnout>> turnouts_;
  std::vector<std::vector<std::unique_ptr<caller>>> callers_;  // by rank
};

}  // namespace parley::simulation
