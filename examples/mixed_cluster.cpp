// Two kinds of GPU in one job. A rank that lacks a kernel runs its own fastest one instead, ranks of the same kind
// agree on the best kernel for that kind, and parley predicts the time of a kernel on ranks that cannot run it from
// ranks that can.
//
//     parley run -n 4 ./mixed_cluster [--steps 400] [--kinds H100,H100,A100,A100] [--kernels graph,library,h100_optimized]
//     ./mixed_cluster --sim 16 [--check]
//
// The kernels only sleep for their modelled times. Without --kinds, the kind of a rank is its processor. --check
// fails if a rank does not end up with the fastest kernel of its kind, or if a prediction is missing or wrong. Use
// --check in virtual time, where only the modelled times count; on a busy machine, other load can change the result.
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

using namespace parley::literals;

namespace {

int steps = 400;
bool check = false;
std::vector<std::string> kinds{"H100", "H100", "A100", "A100"};
std::vector<std::string> listed{"library", "graph", "h100_optimized"};

/// An all-reduce that first prepares its data with a kernel of the program. All kernels use the same wire format (a
/// star), so ranks with different kernels can work together.
class prepared_star final : public parley::group_config {
 public:
  prepared_star(const char* kernel, std::map<std::string, parley::time_ns> takes_ns, parley::rank& self,
                std::shared_ptr<std::string> last)
      : group_config({.name = kernel, .wire_class = "prepared_star"}), kind_(kind_of(self, self.id())),
        takes_ns_(std::move(takes_ns)), executor_(self.where()), last_(std::move(last)) {}

  static std::string kind_of(const parley::rank& self, parley::rank_id r) {
    return kinds.empty() ? self.kind_of(r) : kinds[r % kinds.size()];
  }
  parley::result<> available() const override {
    if (takes_ns_.contains(kind_)) return {};
    return parley::error{parley::errc::unavailable, "there is no such kernel for " + kind_};
  }
  parley::task<> lead(parley::group_call& g) const override { return run(g, &group_config::lead); }
  parley::task<> work(parley::group_call& g) const override { return run(g, &group_config::work); }

 private:
  using role = parley::task<> (group_config::*)(parley::group_call& g) const;
  parley::task<> run(parley::group_call& g, role as) const {
    auto prepared = co_await parley::runtime::sleep_until(executor_.deadline_in(takes_ns_.at(kind_)));
    static_cast<void>(prepared);
    *last_ = identity().name;
    co_await (star_.get()->*as)(g);
  }

  std::string kind_;
  std::map<std::string, parley::time_ns> takes_ns_;
  parley::runtime::executor& executor_;
  std::shared_ptr<std::string> last_;  // the kernel that this rank ran last, shared by all configs
  parley::group_config_ptr star_ = parley::configs::star();
};

void print(const parley::decision& d) {
  std::printf("%s, %zu ranks: %s\n", d.op.c_str(), d.ranks.size(),
              d.decided ? (d.config + ", " + d.why).c_str() : "not yet agreed");
}

// Time of each kernel by kind of GPU. A kind that is missing does not have the kernel. The library is slow on H100,
// and h100_optimized, which runs only there, makes up for that.
struct kernel {
  const char* name;
  std::map<std::string, parley::time_ns> takes_ns;
};

std::vector<kernel> kernels_for(const parley::rank& self) {
  kernel library{"library", {{"H100", 1'050'000}}};
  kernel graph{"graph", {{"H100", 1'230'000}}};
  for (parley::rank_id r = 0; r < self.world_size(); ++r) {
    library.takes_ns.try_emplace(prepared_star::kind_of(self, r), 750'000);
    graph.takes_ns.try_emplace(prepared_star::kind_of(self, r), 900'000);
  }
  const kernel h100_optimized{"h100_optimized", {{"H100", 800'000}}};
  std::vector<kernel> all;
  for (const std::string& name : listed)
    all.push_back(name == library.name ? library : name == graph.name ? graph : h100_optimized);
  return all;
}

std::string fastest(const std::vector<kernel>& kernels, const std::string& kind) {
  const auto time_of = [&](const kernel& k) {
    const auto at = k.takes_ns.find(kind);
    return at == k.takes_ns.end() ? parley::runtime::never : at->second;
  };
  const auto faster = [&](const kernel& a, const kernel& b) { return time_of(a) < time_of(b); };
  return std::min_element(kernels.begin(), kernels.end(), faster)->name;
}

void expect(bool holds, const std::string& otherwise) {
  if (check && !holds) parley::runtime::raise({parley::errc::config_failed, otherwise});
}

parley::task<> rank_main(parley::rank& self) {
  const auto kind_of = [&self](parley::rank_id r) { return prepared_star::kind_of(self, r); };
  const std::vector<kernel> kernels = kernels_for(self);
  const auto last = std::make_shared<std::string>();
  std::vector<parley::group_config_ptr> configs;
  for (const kernel& k : kernels)
    configs.push_back(std::make_shared<const prepared_star>(k.name, k.takes_ns, self, last));

  parley::collective together(
      self,
      {.name = "together", .groups = parley::groups_of(self.world_size(), self.world_size()), .configs = configs});
  parley::hierarchy by_kind(
      self, {.name = "by kind", .group_by = kind_of, .inside = configs, .between = {parley::configs::star()}});

  std::vector<float> values(1000);
  const parley::rank_id ids = self.world_size() * (self.world_size() + 1) / 2;  // 1 + 2 + … + world size
  const auto sum = static_cast<float>(ids);
  for (int step = 0; step < 2 * steps; ++step) {
    values.assign(values.size(), static_cast<float>(self.id() + 1));
    if (step < steps) {
      co_await together.all_reduce(std::span(values));
    } else {
      co_await by_kind.all_reduce(std::span(values));
    }
    for (const float v : values) {
      if (v != sum) parley::runtime::raise({parley::errc::config_failed, "a sum is wrong"});
    }
    if (step + 1 != steps && step + 1 != 2 * steps) continue;
    // In `together` each rank runs its own part of the mixture; in `by_kind` it runs the config that its group agreed
    // on.
    const std::string right = fastest(kernels, kind_of(self.id()));
    expect(*last == right, (step < steps ? "together" : "by kind") + (", this " + kind_of(self.id())) + " runs " +
                               *last + ", and " + right + " is the fastest for it");
  }

  const std::size_t bytes = values.size() * sizeof(float);
  if (together.leads()) print(together.decision(bytes));
  if (by_kind.leads()) {
    for (const parley::decision& d : by_kind.decision(bytes)) print(d);
  }
  if (self.id() != 0) co_return;
  for (parley::rank_id r = 0; r < std::min<parley::rank_id>(self.world_size(), 4); ++r) {
    const auto p = self.predict("together", "h100_optimized", bytes, r);
    expect(p && p.value().measured == (kind_of(r) == "H100") && p.value().low_ns <= p.value().time_ns &&
               p.value().time_ns <= p.value().high_ns,
           "what rank " + std::to_string(r) + " needs is not known as it should be");
    if (!p) {
      std::printf("h100_optimized on rank %u (%s): %s\n", r, kind_of(r).c_str(), p.reason().what().c_str());
    } else {
      std::printf("h100_optimized on rank %u (%s): %s %.2f ms, %.2f to %.2f, from %s\n", r, kind_of(r).c_str(),
                  p.value().measured ? "measured" : "would take", p.value().time_ns / 1e6, p.value().low_ns / 1e6,
                  p.value().high_ns / 1e6, p.value().from.c_str());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("Two kinds of GPU in one job.");
  line.count("--steps", steps, "of each kind of grouping");
  line.list("--kinds", kinds, "kinds of GPU of ranks 0, 1, ..., repeated");
  line.some_of("--kernels", listed, "in the order of their list; the first is the default");
  line.flag("--check", check, "fail if a rank does not decide on the fastest config for it");
  return line.run(argc, argv, rank_main);
}
