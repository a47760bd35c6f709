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

inline ops::transfer_options pair_of(std::vector<ops::config_ptr> configs) {
  ops::transfer_options op;
  op.name = "activations";
  op.role = [](rank_id r) { return r == 0 ? ops::role::sender : r == 1 ? ops::role::receiver : ops::role::idle; };
  op.configs = std::move(configs);
  return op;
}

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

inline runtime::task<> send_each(ops::transfer t, std::vector<std::size_t> sizes, call_outcomes& all) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto data = pattern(sizes[i], i);
    auto outcome = co_await ops::attempt(t.send(data, {.to = 1}));
    all.sent.push_back(std::move(outcome));
  }
}

inline runtime::task<> receive_each(ops::transfer t, std::vector<std::size_t> sizes, std::size_t spare,
                                    call_outcomes& all) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> buffer(sizes[i] + spare);
    auto outcome = co_await ops::attempt(t.receive(buffer, {.from = 0}));
    if (!outcome) {
      all.received.emplace_back(outcome.reason());
      continue;
    }
    buffer.resize(*outcome);
    if (buffer != pattern(sizes[i], i)) ++all.wrong;
    all.received.emplace_back();
  }
}

/// Moves messages of `sizes` over one pair, one after the other. The second form first declares both ends, each with its own configs.
inline call_outcomes move_each(world& w, ops::transfer out, ops::transfer in, std::vector<std::size_t> sizes,
                               std::size_t spare = 0) {
  call_outcomes all;
  const auto both = [](ops::transfer o, ops::transfer i, std::vector<std::size_t> s, std::size_t sp,
                       call_outcomes& c) -> runtime::task<> {
    auto done = co_await runtime::when_all(send_each(o, s, c), receive_each(i, s, sp, c));
    static_cast<void>(done);
  };
  runtime::run(w.clock, both(out, in, std::move(sizes), spare, all));
  return all;
}

inline call_outcomes move_each(world& w, std::vector<ops::config_ptr> at_sender,
                               std::vector<ops::config_ptr> at_receiver, std::vector<std::size_t> sizes,
                               std::size_t spare = 0) {
  transfer out(w[0], pair_of(std::move(at_sender)));
  transfer in(w[1], pair_of(std::move(at_receiver)));
  return move_each(w, out, in, std::move(sizes), spare);
}

/// Lets virtual time pass.
inline void pass(world& w, runtime::time_ns span) {
  const auto sleep = [](runtime::time_ns until) -> runtime::task<> {
    auto woken = co_await runtime::sleep_until(until);
    static_cast<void>(woken);
  };
  runtime::run(w.clock, sleep(w.clock.deadline_in(span)));
}

inline const actors::search* search_of(world& w, std::string_view key, rank_id sender = 0) {
  for (const auto& agreed : w[sender].agreements()) {
    for (const auto& c : agreed.assigned->searches()) {
      if (c->key() == key) return c.get();
    }
  }
  return nullptr;
}

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

inline bool says(const runtime::result<>& outcome, std::string_view text) {
  return !outcome && outcome.reason().what().find(text) != std::string::npos;
}

}  // namespace parley::tests
