// The C++ side of latency.py: messages of 8 B there and back between two processes, in calls that wait (`start_send`) and in a coroutine.
//
//     parley run -n 2 --bind bench/python_latency
#include <parley/parley.hpp>
#include <parley/run.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <span>
#include <vector>

using namespace parley;
using clock_type = std::chrono::steady_clock;

namespace {

constexpr int rounds = 21, calls = 1000, warm_up = 2000;

struct pair {
  ops::transfer mine, theirs;  // from this rank, and to it
  runtime::executor* loop = nullptr;
  runtime::rank_id peer = 0;
  std::array<std::byte, 8> data{};
};

void wait_once(pair& p) {
  const auto send = [&] { p.mine.start_send(std::span(p.data), {.to = p.peer}).wait(); };
  const auto receive = [&] { static_cast<void>(p.theirs.start_receive(std::span(p.data), {.from = p.peer}).wait()); };
  if (p.peer == 1) {
    send();
    receive();
  } else {
    receive();
    send();
  }
}

double per_message_us(clock_type::time_point began) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - began).count() / (2 * calls);
}

void report(const char* name, std::vector<double> of) {
  std::sort(of.begin(), of.end());
  std::printf("%-32s %9.3f us, fastest round %.3f\n", name, of[of.size() / 2], of.front());
}

runtime::task<> in_coroutine(pair& p, std::vector<double>& all) {
  clock_type::time_point began;
  for (int i = -warm_up; i < rounds * calls; ++i) {
    if (i >= 0 && i % calls == 0) began = clock_type::now();
    if (p.peer == 1) co_await p.mine.send(std::span(p.data), {.to = 1});
    static_cast<void>(co_await p.theirs.receive(std::span(p.data), {.from = p.peer}));
    if (p.peer == 0) co_await p.mine.send(std::span(p.data), {.to = 0});
    if (i >= 0 && (i + 1) % calls == 0) all.push_back(per_message_us(began));
  }
}

void measure(ops::job& here) {
  pair p;
  p.loop = &here.loop();
  p.peer = 1 - here.self().id();
  std::array<ops::transfer, 2> to;
  for (runtime::rank_id r = 0; r < 2; ++r)
    to.at(r) = ops::transfer(here.self(), {.name = "to" + std::to_string(r), .edges = {{1 - r, r}}});
  p.mine = to.at(p.peer);
  p.theirs = to.at(here.self().id());
  std::vector<double> waited, awaited;
  for (int i = 0; i < warm_up; ++i) wait_once(p);
  for (int r = 0; r < rounds; ++r) {
    const auto began = clock_type::now();
    for (int i = 0; i < calls; ++i) wait_once(p);
    waited.push_back(per_message_us(began));
  }
  runtime::run(here.loop(), in_coroutine(p, awaited));
  if (p.peer != 1) return;
  report("cpp_blocking_8B", waited);
  report("cpp_coroutine_8B", awaited);
}

}  // namespace

int main() { return ops::run(measure); }
