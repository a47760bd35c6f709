#pragma once
/// Short programs of two ranks, for tests of the ops in virtual time.
#include <parley/tests/support/cases/pattern.hpp>
#include <parley/tests/support/flights.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/group/group_leader.hpp>
#include <parley/actors/group/rooted_group.hpp>
#include <parley/actors/inquiries.hpp>
#include <parley/config.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/ops/core/op_host.hpp>
#include <parley/ops/edges/p2p_end.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/kernels/role_end.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/parley.hpp>
#include <parley/rank.hpp>
#include <parley/transfer.hpp>
#include <parley/when.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace parley::tests {

ops::transfer_options pair_of(std::vector<ops::config_ptr> configs);

struct call_outcomes {
  std::vector<runtime::result<>> sent;
  std::vector<runtime::result<>> received;
  int wrong = 0;  ///< messages received with wrong bytes
  std::size_t failed() const {
    const auto bad = [](const auto& r) { return !r; };
    return static_cast<std::size_t>(std::count_if(sent.begin(), sent.end(), bad) +
                                    std::count_if(received.begin(), received.end(), bad));
  }
};

runtime::task<> send_each(ops::transfer t, std::vector<std::size_t> sizes, call_outcomes& all);

runtime::task<> receive_each(ops::transfer t, std::vector<std::size_t> sizes, std::size_t spare, call_outcomes& all);

/// Moves messages of `sizes` over one pair, one after the other. The second form first declares both ends, each with its own configs.
call_outcomes move_each(world& w, ops::transfer out, ops::transfer in, std::vector<std::size_t> sizes,
                        std::size_t spare = 0);

call_outcomes move_each(world& w, std::vector<ops::config_ptr> at_sender, std::vector<ops::config_ptr> at_receiver,
                        std::vector<std::size_t> sizes, std::size_t spare = 0);

/// Lets virtual time pass.
void pass(world& w, runtime::time_ns span);

const actors::search* search_of(world& w, std::string_view key, rank_id sender = 0);

/// The error that `body` throws, or success.
template <class Body>
runtime::result<> thrown_by(Body body) {
  try {
    body();
  } catch (...) {
    return runtime::describe(std::current_exception());
  }
  return {};
}

bool says(const runtime::result<>& outcome, std::string_view text);

}  // namespace parley::tests
