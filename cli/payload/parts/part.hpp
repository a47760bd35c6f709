#pragma once
/// The work of one rank of `parley tune` in one op: a step for each of the op's messages, calls or exchanges.
///
///     for (auto& p : parts_of(op, self, engine, [&] { … }))   // none where this rank is idle in the op
///       scope.spawn(p->run());                                // throws what a call fails with
#include <parley/cli/payload/outputs.hpp>
#include <parley/cli/payload/payload_engine.hpp>
#include <parley/rank.hpp>
#include <parley/task.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace parley::cli {

class part {
 public:
  /// `on_step` is called after each message, call or exchange.
  part(const op_spec& op, payload_engine& engine, std::function<void()> on_step)
      : op_(op), engine_(engine), step_(std::move(on_step)) {}
  virtual ~part() = default;
  part(const part&) = delete;
  part& operator=(const part&) = delete;
  virtual runtime::task<> run() = 0;
  std::uint64_t steps() const noexcept { return op_.sizes.size(); }
  const std::vector<outputs>& came_out() const noexcept { return came_out_; }

 protected:
  std::uint64_t largest_bytes() const;
  /// A buffer of the largest size, in the memory in which the engine computes.
  std::unique_ptr<runtime::memory_space::block> buffer() const;
  runtime::task<std::uint64_t> digest(std::uint64_t number, std::span<std::byte> payload) const {
    return engine_.run({.number = number, .hashes = true}, payload);
  }
  runtime::task<std::uint64_t> make(std::uint64_t number, std::span<std::byte> payload) const {
    return engine_.run({.number = number, .makes = true}, payload);
  }
  /// Adds and returns the list for the digests of `from`'s payloads.
  std::vector<std::uint64_t>& output_from(rank_id from) {
    return came_out_.emplace_back(outputs{.op = op_.name, .from = from, .digests = {}}).digests;
  }

  const op_spec& op_;
  payload_engine& engine_;
  std::function<void()> step_;
  std::vector<outputs> came_out_;
};

using part_list = std::vector<std::unique_ptr<part>>;

/// The arguments of all parts.
struct part_terms {
  const op_spec& op;
  ops::rank& self;
  payload_engine& engine;
  std::function<void()> on_step;
};

/// The parts of this rank. Throws `bad_argument` or `role_conflict` if the op cannot be made.
part_list parts_of(const part_terms& t);

part_list pipeline_parts(const part_terms& t);
part_list transfer_parts(const part_terms& t);
part_list batch_parts(const part_terms& t);
part_list halo_parts(const part_terms& t);
part_list collective_parts(const part_terms& t);
part_list training_parts(const part_terms& t);

}  // namespace parley::cli
