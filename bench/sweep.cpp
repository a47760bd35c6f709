// The regret of agreeing, for sizes from 8 B to 64 MiB: how much slower the agreed config is than the best one, which
// is chosen in hindsight among runs of each config on its own. The figure is the median over sizes.
//
// Two pinned ranks use registered buffers. A transfer is timed from its send, with the receive already posted, to the
// end of the receive. All configs take turns in an order that is drawn for each turn, so that other load on the
// machine affects all of them alike. Times count from the 64th turn on (from the 4th for large sizes): for a short
// time after a decision the receiver still gives credits, and the first calls are timed for the drift watch.
//
//     sweep --only regret [--repetitions R]      transfer_sweep_regret, and default_sweep_regret of always running the default;
//                                                with --busy yes beside a process on each core that never rests
//     sweep --only put [--repetitions R]         put_16MiB, put_16MiB_direct and get_16MiB
//     sweep --only gpu [--repetitions R]         the same as regret between two GPUs, to 256 MiB, with every config's own
//                                                medians, and peer_in_turns: the receiver's bare copy from the sender's memory,
//                                                in turns with the configs. Needs a build with the CUDA toolkit. The config
//                                                `ucx` takes part if PARLEY_UCX_CUDA=1
//
// A config runs on its own in an op whose only other config is the default; a results file names it as the winner.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/bench/measure.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/parley.hpp>
#include <parley/runtime/version.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#ifdef PARLEY_WITH_CUDA
#include <parley/cuda_runtime.hpp>
#include <parley/cuda_space.hpp>
#include <parley/nccl_runtime.hpp>
#endif

namespace {

using namespace parley::bench;

constexpr std::int64_t agree_within_ns = 20'000'000'000;
constexpr int first_calls = 8;  // per config
constexpr std::uint64_t largest_bytes = 64 << 20;

bool with_ucx() {
  const char* const told = std::getenv("PARLEY_UCX_CUDA");
  return told != nullptr && std::string_view(told) == "1";
}

std::vector<parley::config_ptr> candidates(const std::string& only) {
  if (only == "gpu") {
    std::vector<parley::config_ptr> all{parley::configs::direct(),
                                        parley::configs::chunked(256 << 10, 4),
                                        parley::configs::chunked(4 << 20, 4),
                                        parley::configs::put(),
                                        parley::configs::put(4 << 20, 4),
                                        parley::configs::get(),
                                        parley::configs::nccl(),
                                        parley::configs::put(0, 4, {.kernel_blocks = 16}),
                                        parley::configs::get(0, 4, {.kernel_blocks = 16}),
                                        parley::configs::put(4 << 20, 4, {.streams = 4})};
    if (with_ucx()) {
      all.push_back(parley::configs::ucx());
      all.push_back(parley::configs::ucx(4 << 20, 4));
    }
    return all;
  }
  return {parley::configs::direct(), parley::configs::chunked(256 << 10, 4), parley::configs::chunked(1 << 20, 4),
          parley::configs::put(),    parley::configs::put(1 << 20, 4),       parley::configs::get()};
}

constexpr std::size_t the_default = 0;
constexpr std::size_t the_put = 3;
constexpr std::size_t the_get = 5;

/// Replaces blanks, because the name of a figure is one word.
std::string word_of(std::string config) {
  std::replace(config.begin(), config.end(), ' ', ',');
  return config;
}

std::string name_of(std::size_t config) { return "only" + std::to_string(config); }

std::vector<std::uint64_t> sizes_of(const arguments& given) {
  const std::string only = given.text("only", "regret");
  if (only == "put") return {16 << 20};
  const std::uint64_t largest = only == "gpu" ? 4 * largest_bytes : largest_bytes;
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = 8; bytes <= largest; bytes *= 8) sizes.push_back(bytes);
  sizes.push_back(16 << 20);
  if (only == "gpu") sizes.insert(sizes.end(), {64 << 10, 1 << 20});
  sizes.push_back(largest_bytes);
  sizes.push_back(largest);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

/// Writes a results file in which the only candidate of each op has won for every size.
void write_decisions(const parley::ops::job_options& o, const std::string& only,
                     const std::vector<std::uint64_t>& sizes) {
  parley::tuning::results_file file;
  const auto add = [&](auto what) { static_cast<void>(file.add(std::move(what))); };
  add(parley::tuning::validator{"PARLEY_VERSION", std::string(parley::runtime::version_text)});
  add(parley::tuning::validator{"PARLEY_WORLD", "2"});
  for (const parley::tuning::validator& v : o.settings.validators) add(v);
  for (const parley::tuning::validator& v : parley::ops::machine_validators(o)) add(v);
  const auto configs = candidates(only);
  for (std::size_t i = 1; i < configs.size(); ++i) {
    for (const std::uint64_t bytes : sizes) {
      const auto key =
          parley::tuning::parameters_text({.op = {}, .size = parley::tuning::size_bucket::of(bytes), .dtype = {}});
      add(parley::tuning::result_entry{name_of(i) + "/0>1", key, configs[i]->id(), 1.0});
    }
  }
  std::ofstream(o.settings.results_path) << parley::tuning::write_results(file);
}

struct both {
  parley::rank& self;
  std::vector<parley::transfer> ops;  // one per candidate, then the one that tunes
  parley::transfer beat;
  std::span<std::byte> buffer;
  std::vector<parley::actors::registered_memory> registered;
  std::function<std::int64_t(std::span<std::byte>)> bare_copy{};  // set on a receiver with a GPU
  bool sends() const { return self.id() == 0; }
};

#ifdef PARLEY_WITH_CUDA

void use_gpu(const std::string& only, parley::ops::job_options& o) {
  if (only != "gpu") return;
  o.gpu = parley::transports::cuda_runtime().value();
  const auto nccl = parley::transports::nccl_runtime();
  if (!nccl) give_up(nccl.reason().what());
  o.planes.nccl = *nccl;
}

/// The memory of the payloads: on the rank's GPU, if it has one.
class payload_memory {
 public:
  payload_memory(parley::job& here, std::uint64_t bytes) {
    if (here.gpu() == nullptr) {
      on_host_.assign(bytes, std::byte(here.self().id() + 1));
      return;
    }
    space_.emplace(*here.gpu());
    on_device_ = space_->make(bytes);
  }
  parley::runtime::memory_space* space() { return space_ ? &*space_ : nullptr; }
  std::span<std::byte> bytes() { return on_device_ ? on_device_->bytes() : std::span(on_host_); }

 private:
  std::vector<std::byte> on_host_;
  std::optional<parley::transports::cuda_space> space_;
  std::unique_ptr<parley::runtime::memory_space::block> on_device_;
};

/// Maps the other rank's memory and copies from it with CUDA alone. No message synchronizes the ranks.
class bare_copies {
 public:
  using handle = parley::transports::exported_memory;
  explicit bare_copies(parley::transports::cuda_copies& gpu) : driver_(gpu.driver()), device_(gpu.device()) {
    stream_ = driver_.make_stream(device_);
    event_ = driver_.make_event(device_);
  }
  ~bare_copies() {
    if (far_ != nullptr) driver_.close_imported(far_);
    driver_.destroy(event_);
    driver_.destroy(stream_);
  }
  bare_copies(const bare_copies&) = delete;
  bare_copies& operator=(const bare_copies&) = delete;
  void map(const handle& theirs) {
    far_ = driver_.import_memory(device_, theirs.handle).value().data();
    from_ = static_cast<std::byte*>(far_) + theirs.offset;
  }
  std::int64_t timed(std::span<std::byte> into) {
    using parley::runtime::errc;
    const std::int64_t start = now_ns();
    errc seen = driver_.copy(into.data(), from_, into.size(), stream_);
    if (seen == errc::none) seen = driver_.record(event_, stream_);
    if (seen == errc::none)
      while ((seen = driver_.query(event_)) == errc::pending) {}
    if (seen != errc::none) give_up(driver_.fault());
    return now_ns() - start;
  }

 private:
  parley::transports::cuda_driver& driver_;
  int device_;
  parley::transports::cuda_stream stream_;
  parley::transports::cuda_event event_;
  void* far_ = nullptr;
  std::byte* from_ = nullptr;
};

parley::task<> let_map(both& b, parley::transports::cuda_driver& gpu, bare_copies& by) {
  std::array<bare_copies::handle, 1> buffer{};
  if (b.sends()) {
    buffer[0] = gpu.export_memory(b.buffer.data()).value();
    co_await b.beat.send(std::as_bytes(std::span(buffer)), {.to = 1});
  } else {
    co_await b.beat.receive(std::as_writable_bytes(std::span(buffer)), {.from = 0});
    by.map(buffer[0]);
    b.bare_copy = [&by](std::span<std::byte> into) { return by.timed(into); };
  }
}

#else

void use_gpu(const std::string& only, const parley::ops::job_options&) {
  if (only == "gpu") give_up("this build has no GPU planes: configure with the CUDA toolkit (-DPARLEY_CUDA=ON)");
}

class payload_memory {
 public:
  payload_memory(parley::job& here, std::uint64_t bytes) : on_host_(bytes, std::byte(here.self().id() + 1)) {}
  static parley::runtime::memory_space* space() { return nullptr; }
  std::span<std::byte> bytes() { return on_host_; }

 private:
  std::vector<std::byte> on_host_;
};

#endif

parley::task<> receive(parley::transfer by, std::span<std::byte> into) { co_await by.receive(into, {.from = 0}); }

// Makes one transfer with the config of that index. Returns its time on the receiver, 0 on the sender.
parley::task<std::int64_t> timed(both& b, std::size_t config, std::uint64_t bytes) {
  const std::span<std::byte> part = b.buffer.first(bytes);
  if (config == b.ops.size()) co_return b.bare_copy == nullptr ? 0 : b.bare_copy(part);
  parley::transfer& by = b.ops[config];
  std::array<std::int64_t, 1> word{};
  if (b.sends()) {
    co_await b.beat.receive(word, {.from = 1});
    word[0] = now_ns();
    co_await by.send(part, {.to = 1});
    co_await b.beat.send(word, {.to = 1});
    co_return 0;
  }
  parley::runtime::scope& here = co_await parley::runtime::this_scope;
  parley::runtime::scope posted(here);
  posted.spawn(receive(by, part));
  co_await parley::runtime::yield;
  co_await b.beat.send(word, {.to = 0});
  co_await posted.join();
  const std::int64_t end = now_ns();
  co_await b.beat.receive(word, {.from = 0});
  co_return end - word[0];
}

bool decided(const parley::rank& self, std::uint64_t bytes) {
  for (const auto& e : self.agreements()) {
    if (e.op != "tuned") continue;
    const auto* c = e.assigned->find(bytes);
    return c != nullptr && c->is_decided();
  }
  return false;
}

parley::task<> agree(both& b, std::uint64_t bytes) {
  enum : std::int64_t { not_yet, agreed, too_late };
  for (const std::int64_t start = now_ns();;) {
    co_await timed(b, b.ops.size() - 1, bytes);
    std::array<std::int64_t, 1> word{not_yet};
    if (b.sends()) {  // only the sender knows
      if (decided(b.self, bytes)) word[0] = agreed;
      if (word[0] == not_yet && now_ns() - start > agree_within_ns) word[0] = too_late;
      co_await b.beat.send(word, {.to = 1});
    } else {
      co_await b.beat.receive(word, {.from = 0});
    }
    if (word[0] == agreed) co_return;
    if (word[0] == too_late)
      give_up("no agreement on " + std::to_string(bytes) + " B within 20 s" +
              (b.sends() ? ": " + b.ops.back().decision(bytes).why : ""));
  }
}

/// Prints to stderr, because this explains why an agreed config is not the best in hindsight.
void print_decision(const parley::transfer& op, std::uint64_t bytes) {
  const parley::ops::decision d = op.decision(bytes);
  std::string tried;
  for (const auto& e : d.evidence) {
    if (e.repetitions != 0)
      tried +=
          "; " + e.config + " " + std::to_string(std::int64_t(e.time_ns)) + " ns x" + std::to_string(e.repetitions);
  }
  std::fprintf(stderr, "%10llu B  %s: %s%s\n", static_cast<unsigned long long>(bytes), d.config.c_str(), d.why.c_str(),
               tried.c_str());
}

parley::task<> wait_a_little(both& b) {
  auto slept = co_await parley::runtime::sleep_until(b.self.where().deadline_in(300'000'000));
  static_cast<void>(slept);
}

parley::task<> measure(both& b, std::vector<std::uint64_t> sizes, std::int64_t repetitions, std::string only) {
  co_await wait_a_little(b);  // for the rehearsals
  std::vector<std::size_t> taking_part{the_default, the_put, the_get};
  if (only != "put") {
    taking_part.resize(b.ops.size() + (only == "gpu" ? 1 : 0));
    std::iota(taking_part.begin(), taking_part.end(), 0);
  }
  // Keeps the time that UCX or NCCL need when they first use a GPU out of the trials.
  for (std::size_t i = 0; only == "gpu" && i + 1 < b.ops.size(); ++i) {
    for (int n = 0; n < first_calls; ++n) co_await timed(b, i, sizes.front());
    co_await wait_a_little(b);
  }
  std::mt19937 dice(1);  // the same sequence on both ranks
  std::vector<double> regrets;
  std::vector<double> of_the_default;
  for (const std::uint64_t bytes : sizes) {
    if (only != "put") co_await agree(b, bytes);
    const bool large = bytes > (only == "gpu" ? 16U << 20U : 4U << 20U);
    const std::int64_t turns = std::max<std::int64_t>(repetitions / (large ? 8 : 1), 5);
    std::vector<std::vector<double>> times(b.ops.size() + 1);
    for (std::int64_t n = large ? -3 : -63; n < turns; ++n) {
      std::shuffle(taking_part.begin(), taking_part.end(), dice);
      for (const std::size_t i : taking_part) {
        const std::int64_t took = co_await timed(b, i, bytes);
        if (n >= 0) times[i].push_back(double(took));
      }
    }
    if (b.sends()) {
      if (only != "put") print_decision(b.ops.back(), bytes);
      continue;
    }
    std::vector<double> medians;
    for (auto& each : times) medians.push_back(each.empty() ? 0 : median(std::move(each)));
    if (only == "put") {
      report("figure", medians[the_put], "ns");
      report("default", medians[the_default], "ns");
      report("get", medians[the_get], "ns");
      continue;
    }
    const double bare = medians.back();
    medians.pop_back();
    if (only == "gpu") report("bare_" + std::to_string(bytes), bare, "ns");
    for (std::size_t i = 0; only == "gpu" && i + 1 < medians.size(); ++i)
      report(name_of(i) + "_" + std::to_string(bytes), medians[i], "ns");
    const double best = *std::min_element(medians.begin(), medians.end() - 1);
    const double mine = medians.back();
    regrets.push_back(std::max(0.0, 100 * (mine / best - 1)));
    of_the_default.push_back(100 * (medians[the_default] / best - 1));
    report("agreed_" + std::to_string(bytes), mine, "ns");
    report("best_" + std::to_string(bytes), best, "ns");
  }
  if (b.sends() || only == "put") co_return;
  report("worst", *std::max_element(regrets.begin(), regrets.end()), "percent");
  report("figure", median(std::move(regrets)), "percent");
  report("default", median(std::move(of_the_default)), "percent");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "regret");
  const auto sizes = sizes_of(given);
  const bool busy = given.text("busy", "no") == "yes";
  if (!is_rank()) {
    if (busy) keep_cores_busy();
    const auto figures = run_ranks(2, argc, argv);
    const double value = figure(figures[1], "figure");
    if (only != "put") {
      for (const std::uint64_t bytes : sizes) {
        const double agreed = figure(figures[1], "agreed_" + std::to_string(bytes));
        const double best = figure(figures[1], "best_" + std::to_string(bytes));
        std::fprintf(stderr, "%10llu B  agreed %12.0f ns  best in hindsight %12.0f ns  %+.1f %%\n",
                     static_cast<unsigned long long>(bytes), agreed, best, 100 * (agreed / best - 1));
        for (std::size_t i = 0; only == "gpu" && i < candidates(only).size(); ++i)
          report(word_of(candidates(only)[i]->id()) + "/" + std::to_string(bytes),
                 figure(figures[1], name_of(i) + "_" + std::to_string(bytes)), "ns");
        if (only == "gpu") report("agreed/" + std::to_string(bytes), agreed, "ns");
        if (only == "gpu")
          report("peer_in_turns/" + std::to_string(bytes), figure(figures[1], "bare_" + std::to_string(bytes)), "ns");
      }
    }
    if (only == "gpu") return 0;
    if (only == "regret") {
      const std::string suffix = busy ? "_busy" : "";
      report("transfer_sweep_regret" + suffix, value, "percent");
      report("transfer_sweep_regret_worst" + suffix, figure(figures[1], "worst"), "percent");
      report("default_sweep_regret" + suffix, figure(figures[1], "default"), "percent");
    } else {
      report("put_16MiB", value, "ns");
      report("put_16MiB_direct", figure(figures[1], "default"), "ns");
      report("get_16MiB", figure(figures[1], "get"), "ns");
    }
    return 0;
  }
  const auto folder = std::filesystem::temp_directory_path() / ("parley_sweep_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  parley::ops::job_options options;
  options.settings.results_path = (folder / "results.csv").string();
  options.settings.validators = {{"PARLEY_BENCH", "sweep"}};
  use_gpu(only, options);
  write_decisions(options, only, sizes);
  const int status = as_rank(
      [&](parley::job& here) {
        parley::rank& self = here.self();
        payload_memory memory(here, sizes.back());
        const auto op = [&](const std::string& name, std::vector<parley::config_ptr> configs) {
          return parley::transfer(
              self,
              {.name = name, .role = {}, .edges = {{0, 1}}, .configs = std::move(configs), .memory = memory.space()});
        };
        const auto configs = candidates(only);
        both b{self,
               {},
               parley::transfer(self, {.name = "beat", .role = {}, .edges = {{0, 1}, {1, 0}}}),
               memory.bytes(),
               {}};
        for (std::size_t i = 0; i < configs.size(); ++i)
          b.ops.push_back(op(name_of(i), i == 0 ? std::vector{configs[0]} : std::vector{configs[0], configs[i]}));
        b.ops.push_back(op("tuned", configs));
        for (auto& t : b.ops) b.registered.push_back(t.registered(b.buffer));
#ifdef PARLEY_WITH_CUDA
        std::optional<bare_copies> bare;
        if (only == "gpu") {
          bare.emplace(*here.gpu());
          parley::runtime::run(here.loop(), let_map(b, here.gpu()->driver(), *bare));
        }
#endif
        parley::runtime::run(here.loop(), measure(b, sizes, given.number("repetitions", 200), only));
      },
      options);
  std::filesystem::remove_all(folder);
  return status;
}
