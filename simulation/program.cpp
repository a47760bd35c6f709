#include <parley/runtime/scope.hpp>
#include <parley/simulation/program.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace parley::simulation {

namespace {

constexpr time_ns settling_ns = 1'000'000'000;
constexpr std::uint64_t most_ranks = 100'000;

struct played {
  std::vector<bool> ended;
  std::vector<rank_id> failed;  // of which the others have to be told
  time_ns last_end_ns = 0;
  int status = 0;
};

void print_failure(rank_id r, const std::string& why) { std::fprintf(stderr, "rank %u: %s\n", r, why.c_str()); }

runtime::task<> whole_program(ops::rank_function rank_main, ops::rank* self, played* all) {
  std::exception_ptr thrown;
  try {
    co_await rank_main(*self);
  } catch (...) {
    thrown = std::current_exception();
  }
  all->last_end_ns = std::max(all->last_end_ns, self->where().now());
  all->ended[self->id()] = true;
  if (thrown) {
    print_failure(self->id(), runtime::describe(thrown).what());
    all->failed.push_back(self->id());
    all->status = 1;
  } else {
    co_await self->settle(settling_ns);
  }
}

std::optional<std::uint64_t> option(int& argc, char** argv, const char* name) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], name) != 0) continue;
    std::uint64_t value = 0;
    const char* const text = i + 1 < argc ? argv[i + 1] : "";
    const auto [end, failed] = std::from_chars(text, text + std::strlen(text), value);
    if (failed != std::errc() || *end != '\0')
      runtime::raise({runtime::errc::bad_argument, std::string(name) + " needs a number behind it"});
    for (int rest = i + 2; rest <= argc; ++rest) argv[rest - 2] = argv[rest];
    argc -= 2;
    return value;
  }
  return std::nullopt;
}

}  // namespace

int run_virtual(const world_options& o, ops::rank_function rank_main) {
  world w(o, nullptr);
  played all;
  all.ended.resize(o.ranks);
  w.start_all([&](rank_id r) { w.programs_of(r).spawn(whole_program(rank_main, &w[r], &all)); });
  const auto over = [&] {
    for (const rank_id r : std::exchange(all.failed, {})) w.crash(r);
    return w.programs() == 0;
  };
  if (!w.stage().run_until(over, runtime::never)) {
    for (rank_id r = 0; r < o.ranks; ++r) {
      if (!all.ended[r]) print_failure(r, "it waits for something that can never come");
    }
    all.status = 1;
  }
  std::fprintf(stderr, "%u virtual ranks, seed %llu: %.6f ms of virtual time, hash %016llx\n", o.ranks,
               static_cast<unsigned long long>(o.seed), static_cast<double>(all.last_end_ns) / 1e6,
               static_cast<unsigned long long>(w.stage().hash()));
  return all.status;
}

int run(int argc, char** argv, ops::rank_function rank_main) {
  try {
    const auto seed = option(argc, argv, "--seed");
    const auto ranks = option(argc, argv, "--sim");
    if (!ranks) return ops::run(argc, argv, rank_main);
    if (*ranks == 0 || *ranks > most_ranks)
      runtime::raise({runtime::errc::bad_argument, "--sim takes 1 to " + std::to_string(most_ranks) + " ranks"});
    world_options o;
    o.ranks = static_cast<rank_id>(*ranks);
    o.seed = seed.value_or(1);
    return run_virtual(o, rank_main);
  } catch (const runtime::failure& f) {
    std::fprintf(stderr, "%s\n", f.what());
    return 2;
  }
}

}  // namespace parley::simulation
