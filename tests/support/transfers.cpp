#include <parley/tests/support/transfers.hpp>

namespace parley::tests {

ops::transfer_options pair_of(std::vector<ops::config_ptr> configs) {
  ops::transfer_options op;
  op.name = "activations";
  op.role = [](rank_id r) { return r == 0 ? ops::role::sender : r == 1 ? ops::role::receiver : ops::role::idle; };
  op.configs = std::move(configs);
  return op;
}

runtime::task<> send_each(ops::transfer t, std::vector<std::size_t> sizes, call_outcomes& all) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto data = pattern(sizes[i], i);
    auto outcome = co_await ops::attempt(t.send(data, {.to = 1}));
    all.sent.push_back(std::move(outcome));
  }
}

runtime::task<> receive_each(ops::transfer t, std::vector<std::size_t> sizes, std::size_t spare, call_outcomes& all) {
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

call_outcomes move_each(world& w, ops::transfer out, ops::transfer in, std::vector<std::size_t> sizes,
                        std::size_t spare) {
  call_outcomes all;
  const auto both = [](ops::transfer o, ops::transfer i, std::vector<std::size_t> s, std::size_t sp,
                       call_outcomes& c) -> runtime::task<> {
    auto done = co_await runtime::when_all(send_each(o, s, c), receive_each(i, s, sp, c));
    static_cast<void>(done);
  };
  runtime::run(w.clock, both(std::move(out), std::move(in), std::move(sizes), spare, all));
  return all;
}

call_outcomes move_each(world& w, std::vector<ops::config_ptr> at_sender, std::vector<ops::config_ptr> at_receiver,
                        std::vector<std::size_t> sizes, std::size_t spare) {
  transfer out(w[0], pair_of(std::move(at_sender)));
  transfer in(w[1], pair_of(std::move(at_receiver)));
  return move_each(w, out, in, std::move(sizes), spare);
}

void pass(world& w, runtime::time_ns span) {
  const auto sleep = [](runtime::time_ns until) -> runtime::task<> {
    auto woken = co_await runtime::sleep_until(until);
    static_cast<void>(woken);
  };
  runtime::run(w.clock, sleep(w.clock.deadline_in(span)));
}

const actors::search* search_of(world& w, std::string_view key, rank_id sender) {
  for (const auto& agreed : w[sender].agreements()) {
    for (const auto& c : agreed.assigned->searches()) {
      if (c->key() == key) return c.get();
    }
  }
  return nullptr;
}

bool says(const runtime::result<>& outcome, std::string_view text) {
  return !outcome && outcome.reason().what().find(text) != std::string::npos;
}

}  // namespace parley::tests
