#include <parley/gpu_sum.hpp>

#include <parley/cuda_space.hpp>
#include <parley/ops/core/all_exchange.hpp>
#include <parley/ops/groups/gpu_world_remains.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/scope.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

namespace {

constexpr std::size_t most_captures = 64;

/// Watches a stream: `here()` is true once all that the stream has now is done.
class stream_end final : runtime::completion {
 public:
  stream_end(transports::cuda_copies& copies, transports::cuda_stream s) noexcept
      : completion(&on_reached), copies_(copies), here_(s == nullptr || copies.watch(s, this) != errc::pending) {}
  stream_end(const stream_end&) = delete;
  stream_end& operator=(const stream_end&) = delete;
  ~stream_end() {
    if (!here_) copies_.forget(this);
  }
  bool here() const noexcept { return here_; }

 private:
  static void on_reached(completion& self, errc) noexcept { static_cast<stream_end&>(self).here_ = true; }
  transports::cuda_copies& copies_;
  bool here_;
};

runtime::result<> is_a_world(const communicator* over, const std::string& config) {
  if (dynamic_cast<const gpu_world*>(over) != nullptr) return {};
  return error{
      errc::bad_argument,
      config + " runs over a gpu_world; give the op one as `communicator`, and a gpu_world_source as `rehearse`"};
}
gpu_world& world_of(const symmetric_call& call, const std::string& config) {
  is_a_world(call.communicator, config).value();
  return dynamic_cast<gpu_world&>(*call.communicator);
}

/// A config that sums in a world of GPUs, in one of several ways.
class gpu_sum_config : public symmetric_config {
 public:
  gpu_sum_config(tuning::config_identity identity, gpu_sum::way how, unsigned blocks = 0)
      : symmetric_config(std::move(identity)), how_(how), blocks_(blocks) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    co_await world_of(call, id()).run(sum_of(data), call.replayed);
  }
  runtime::result<> works_over(const communicator* over) const override {
    if (const auto is = is_a_world(over, id()); !is) return is;
    const std::string& why = dynamic_cast<const gpu_world&>(*over).lacks(how_);
    return why.empty() ? runtime::result<>() : error{errc::unavailable, why};
  }
  std::size_t alignment() const noexcept override { return sizeof(float); }

 protected:
  gpu_sum sum_of(std::span<std::byte> data) const { return {how_, data, blocks_}; }

 private:
  gpu_sum::way how_;
  unsigned blocks_;
};

class captured_sum_config : public gpu_sum_config {
 public:
  using gpu_sum_config::gpu_sum_config;
  bool can_be_captured() const noexcept override { return true; }
  task<> capture(symmetric_call call, std::span<std::byte> data, runtime::device_stream stream) const override {
    co_await world_of(call, id()).capture(sum_of(data), static_cast<transports::cuda_stream>(stream));
  }
};

class nccl_sum_config final : public captured_sum_config {
 public:
  nccl_sum_config() : captured_sum_config({.name = "nccl_sum", .wire_class = "nccl_sum"}, gpu_sum::way::nccl) {}
  std::vector<std::string> requirements() const override { return {"nccl"}; }
};

// It has its own wire class, because NCCL may give the other members access to a buffer that is named in a graph.
class nccl_graph_sum_config final : public gpu_sum_config {
 public:
  nccl_graph_sum_config()
      : gpu_sum_config({.name = "nccl_graph_sum", .wire_class = "nccl_graph_sum"}, gpu_sum::way::nccl) {}
  std::vector<std::string> requirements() const override { return {"nccl"}; }
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    co_await world_of(call, id()).run(sum_of(data), true);
  }
};

tuning::config_identity in_blocks(const std::string& name, unsigned blocks) {
  if (blocks == 0 || blocks > transports::peer_boxes::most_blocks)
    runtime::raise({errc::bad_argument, name + " takes 1 to 64 blocks, not " + std::to_string(blocks)});
  return {.name = name,
          .parameters = {{"blocks", std::uint64_t{blocks}}},
          .wire_class = name + "_" + std::to_string(blocks)};
}

class kernel_sum_config final : public captured_sum_config {
 public:
  explicit kernel_sum_config(unsigned blocks)
      : captured_sum_config(in_blocks("kernel_sum", blocks), gpu_sum::way::kernel, blocks) {}
  std::vector<std::string> requirements() const override { return {"ipc", "peer_access"}; }
};

// It declares no requirements: they depend on where the members are, so the world checks them.
class gathered_sum_config final : public gpu_sum_config {
 public:
  explicit gathered_sum_config(unsigned blocks)
      : gpu_sum_config(in_blocks("gathered_sum", blocks), gpu_sum::way::gathered, blocks) {}
};

/// A member sends this message when its floats are in its box.
struct gathered_call {
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;
  friend bool operator==(const gathered_call&, const gathered_call&) = default;
};

}  // namespace

gpu_world::gpu_world(transports::cuda_copies& copies, options o, transfer messages, std::uint32_t number,
                     std::shared_ptr<gpu_world_remains> remains)
    : copies_(copies), options_(std::move(o)), messages_(std::move(messages)), number_(number),
      remains_(std::move(remains)) {}

gpu_world::~gpu_world() {
  abort();
  // Calls wait for the end of their own kernels, except calls that were torn down.
  while (nothing_more_ != nullptr && !nothing_more_->load()) static_cast<void>(copies_.poll());
  {
    const stream_end own(copies_, stream_);
    const stream_end prompt(copies_, copies_.prompt());
    while (!own.here() || !prompt.here()) static_cast<void>(copies_.poll());
  }
  remains_->mapped.insert(remains_->mapped.end(), mapped_.begin(), mapped_.end());
  remains_->memory.push_back(std::move(stop_));
  if (!box_.bytes().empty()) remains_->boxes.push_back(std::move(box_));
  if (stream_ != nullptr) copies_.driver().destroy(stream_);
}

void gpu_world::raise_if_aborted() const {
  if (aborted_) runtime::raise({errc::unavailable, "its communicator was aborted; connect another one and rejoin"});
}

// Yields the processor while it waits, because NCCL's own thread may share this thread's core.
task<> gpu_world::ready() {
  runtime::scope& here = co_await runtime::this_scope;
  for (;;) {
    raise_if_aborted();
    const errc seen = options_.nccl->state(handle_);
    if (seen == errc::none) co_return;
    if (seen != errc::pending) runtime::raise({errc::device_failed, options_.nccl->fault()});
    if (here.cancelled() != errc::none) runtime::raise(here.cancelled());
    std::this_thread::yield();
    co_await runtime::yield;
  }
}

void gpu_world::abort() noexcept {
  if (std::exchange(aborted_, true)) return;
  captures_.clear();  // NCCL waits for captures that name its communicator
  if (!stop_.bytes().empty()) std::atomic_ref(stop()).store(1);
  if (handle_ != nullptr) {
    auto over = options_.nccl->abort(std::exchange(handle_, nullptr));
    if (has_called_nccl_) nothing_more_ = std::move(over);
  }
  if (nothing_more_ == nullptr || nothing_more_->load()) capturing_.reset();
  if (telling_ != nullptr) telling_->cancel();
}

// Waits until all kernels have ended: even after the abort they touch buffers until then. A kernel behind a wait for a message starts once
// the message has arrived or failed. This rank's other calls continue during this wait, because one of them may have to receive that
// message. If NCCL was still connecting for a call, that call enters the stream late.
task<> gpu_world::until_its_end() {
  while (nothing_more_ != nullptr && !nothing_more_->load()) co_await runtime::yield;
  capturing_.reset();
  const stream_end own(copies_, stream_);
  const stream_end prompt(copies_, copies_.prompt());
  while (!own.here() || !prompt.here()) co_await runtime::yield;
}

const std::string& gpu_world::lacks(gpu_sum::way how) const noexcept {
  switch (how) {
    case gpu_sum::way::nccl: return no_nccl_;
    case gpu_sum::way::kernel: return no_kernel_;
    case gpu_sum::way::gathered: break;
  }
  return no_boxes_;
}

void gpu_world::check(const gpu_sum& what) const {
  raise_if_aborted();
  if (const std::string& why = lacks(what.how); !why.empty()) runtime::raise({errc::unavailable, why});
  if (what.how != gpu_sum::way::nccl && what.floats.size() > boxes_.stage_bytes)
    runtime::raise({errc::unavailable, "its kernel sums up to " + std::to_string(boxes_.stage_bytes) +
                                           " bytes, as kernel_bytes says, not " + std::to_string(what.floats.size())});
  if (what.floats.size() % sizeof(float) != 0)
    runtime::raise(
        {errc::bad_argument, "a sum of floats has a multiple of 4 bytes, not " + std::to_string(what.floats.size())});
}

task<> gpu_world::run(gpu_sum what, bool replayed) {
  runtime::scope& here = co_await runtime::this_scope;
  check(what);
  if (what.floats.empty()) co_return;
  // Aborts the world if this call is torn down: it is unknown how far the other members got with the call, and its kernel waits for them.
  // The abort has to be immediate, because the wait for the end of kernels comes before everything else that would abort the world.
  bool is_over = false;
  const runtime::finally torn_down([this, &is_over] {
    if (!is_over) abort();
  });
  std::exception_ptr thrown;
  try {
    copies_.check(what.floats, sizeof(float)).value();  // may fail on this member alone, while the others make the call
    if (what.how == gpu_sum::way::gathered) {
      co_await gather(what);
    } else {
      if (replayed) {
        co_await replay(what);
      } else {
        co_await enqueue(what, stream_, place::stream);
      }
      co_await ended(stream_);
    }
  } catch (...) {
    thrown = std::current_exception();
  }
  is_over = true;
  const bool by_another = aborted_;
  if (!thrown && !by_another) co_return;
  // It is unknown how far the other members got with the call.
  abort();
  co_await until_its_end();
  if (by_another && (!thrown || here.cancelled() == errc::none))
    runtime::raise({errc::unavailable, "its communicator was aborted during the call; connect another one and rejoin"});
  std::rethrow_exception(thrown);
}

task<> gpu_world::ended(transports::cuda_stream stream) {
  auto all = co_await transports::reached(copies_, stream);
  all.value();
}

task<> gpu_world::capture(gpu_sum what, transports::cuda_stream stream) {
  check(what);
  if (what.floats.empty()) co_return;
  bool is_over = false;
  const runtime::finally torn_down([this, &is_over] {  // see `run`
    if (!is_over) abort();
  });
  std::exception_ptr thrown;
  try {
    copies_.check(what.floats, sizeof(float)).value();
    co_await enqueue(what, stream, place::capture);
  } catch (...) {
    thrown = std::current_exception();
  }
  is_over = true;
  if (!thrown) co_return;
  abort();
  co_await until_its_end();
  std::rethrow_exception(thrown);
}

// If this member threw without an abort, the other members would wait for it. So this aborts the world before it throws.
task<> gpu_world::own_turn() {
  runtime::scope& here = co_await runtime::this_scope;
  const std::uint64_t mine = asked_++;
  while (served_ != mine && !aborted_) {
    if (here.cancelled() != errc::none) {
      abort();  // otherwise the calls behind would wait for this turn
      runtime::raise(here.cancelled());
    }
    co_await runtime::yield;
  }
  raise_if_aborted();
}

// Called in this call's turn. Any earlier, the previous call might not be in the stream yet, and would then wait for the work that only
// this call has to wait for.
void gpu_world::order_behind(std::span<const std::byte> floats) {
  const errc ordered = copies_.order_behind_all(stream_, floats);
  if (ordered != errc::none) runtime::raise({ordered, copies_.driver().fault()});
}

// Calls of one member share the number that its kernel counts, and its boxes. NCCL's calls share their communicator.
void gpu_world::order_behind_latest(transports::cuda_stream stream) {
  if (latest_in_ == nullptr || (stream == stream_ && latest_in_ == stream_)) return;
  if (latest_ == nullptr) latest_ = copies_.moment_of(stream_);
  copies_.in_words(copies_.order(stream, latest_)).value();
}

// A user's stream is noted at once, because it may be gone when the next call is made.
void gpu_world::note_latest(transports::cuda_stream stream) {
  latest_in_ = stream;
  latest_ = stream == stream_ ? nullptr : copies_.moment_of(stream);
}

void gpu_world::launch_in_turn(transports::cuda_stream stream, const std::function<void()>& launch) {
  order_behind_latest(stream);
  launch();
  note_latest(stream);
  ++served_;
}

task<> gpu_world::in_turn(runtime::device_stream stream, const std::function<void()>& launch) {
  co_await own_turn();
  launch_in_turn(static_cast<transports::cuda_stream>(stream), launch);
}

// NCCL accepts one call at a time, and the call is in the stream only once NCCL reports that.
task<> gpu_world::enqueue(gpu_sum what, transports::cuda_stream stream, place where) {
  co_await own_turn();
  if (where == place::stream) {
    order_behind(what.floats);
    order_behind_latest(stream);
  }
  co_await put(what, stream);
  if (where == place::stream) note_latest(stream);
  ++served_;
}

// Called in its turn.
task<> gpu_world::put(gpu_sum what, transports::cuda_stream stream) {
  if (what.how == gpu_sum::way::kernel) {
    transports::peer_boxes with = boxes_;
    with.blocks = what.blocks;
    const errc launched = copies_.driver().sum_with_peers(what.floats, with, stream);
    if (launched != errc::none) runtime::raise({launched, copies_.driver().fault()});
    co_return;
  }
  co_await ready();
  has_called_nccl_ = true;
  const errc called = options_.nccl->sum_floats(what.floats, handle_, stream);
  if (called != errc::none && called != errc::pending) runtime::raise({called, options_.nccl->fault()});
  co_await ready();
}

// Captures and launches in one turn. So members make their calls in one order, even if only some of them have to capture.
task<> gpu_world::replay(gpu_sum what) {
  co_await own_turn();
  transports::cuda_driver& gpu = copies_.driver();
  auto at = std::find_if(captures_.begin(), captures_.end(), [&](const captured_sum& r) { return r.what == what; });
  if (at == captures_.end()) {
    if (what.how == gpu_sum::way::nccl) co_await ready();
    capturing_.emplace(gpu, copies_.device());
    co_await put(what, capturing_->stream());
    raise_if_aborted();
    if (captures_.size() >= most_captures) captures_.erase(captures_.begin());
    captures_.push_back({what, capturing_->end()});
    capturing_.reset();
    at = captures_.end() - 1;
  }
  order_behind(what.floats);
  const std::function<void()> launch = [&] {
    const errc launched = at->graph.replay(stream_);
    if (launched != errc::none) runtime::raise({launched, gpu.fault()});
  };
  launch_in_turn(stream_, launch);
}

// No kernel here waits for another member, so GPUs may queue these kernels behind each other. The kernels run in the stream for prompt
// work, because streams may share queues, and these kernels must not be queued behind a kernel that waits.
task<> gpu_world::gather(gpu_sum what) {
  runtime::scope& here = co_await runtime::this_scope;
  co_await own_turn();
  transports::cuda_driver& gpu = copies_.driver();
  const transports::cuda_stream stream = copies_.prompt();
  const gathered_call mine{what.floats.size(), ++gathered_};
  // This member writes a stage again two calls later. By then the stage's readers have sent their messages of the call in between, so they
  // have ended this call. The first two stages are for the kernels that wait for each other.
  const std::size_t stage = transports::peer_boxes::head_bytes + (2 + mine.number % 2) * boxes_.stage_bytes;
  auto settled = co_await transports::device_step(
      copies_, [&](runtime::completion* done) { return copies_.settle(what.floats, done); });
  settled.value();
  raise_if_aborted();
  const errc filling = gpu.copy(boxes_.box[boxes_.place] + stage, what.floats.data(), what.floats.size(), stream);
  if (filling != errc::none) runtime::raise({filling, gpu.fault()});
  co_await ended(stream);
  raise_if_aborted();
  {
    const all_exchange_options who{
        .self = boxes_.place, .ranks = boxes_.members, .tag = number_, .timeout_ns = runtime::never};
    all_exchange<gathered_call> said(here, messages_, who);
    telling_ = &said.within();  // `abort` cancels it
    const runtime::finally over([this] { telling_ = nullptr; });
    said.say(mine);
    co_await said.heard();
    for (rank_id m = 0; m < boxes_.members; ++m) {
      if (said.by(m) == mine) continue;
      runtime::raise({errc::config_mismatch, "member " + std::to_string(m) + " sums " +
                                                 std::to_string(said.by(m).bytes) + " bytes in its call " +
                                                 std::to_string(said.by(m).number) + ", this one " +
                                                 std::to_string(mine.bytes) + " in " + std::to_string(mine.number)});
    }
  }
  raise_if_aborted();
  std::array<const std::byte*, transports::peer_boxes::most_members> all{};
  for (unsigned m = 0; m < boxes_.members; ++m) all[m] = boxes_.box[m] + stage;
  const errc adding = gpu.add_up(what.floats, std::span(all).first(boxes_.members), what.blocks, stream);
  if (adding != errc::none) runtime::raise({adding, gpu.fault()});
  ++served_;
  co_await ended(stream);
}

std::vector<symmetric_config_ptr> default_first(const communicator& over, std::vector<symmetric_config_ptr> configs) {
  std::string all;
  for (auto c = configs.begin(); c != configs.end(); ++c) {
    const auto works = (*c)->works_over(&over);
    if (works) {
      std::rotate(configs.begin(), c, c + 1);
      return configs;
    }
    all += (all.empty() ? "" : "; ") + (*c)->id() + ": " + works.reason().text();
  }
  runtime::raise({errc::unavailable, "none of these configs can run on all members: " + all});
}

}  // namespace parley::ops

namespace parley::configs {

ops::symmetric_config_ptr nccl_sum() { return std::make_shared<ops::nccl_sum_config>(); }

ops::symmetric_config_ptr nccl_graph_sum() { return std::make_shared<ops::nccl_graph_sum_config>(); }

ops::symmetric_config_ptr kernel_sum(unsigned blocks) { return std::make_shared<ops::kernel_sum_config>(blocks); }

ops::symmetric_config_ptr gathered_sum(unsigned blocks) { return std::make_shared<ops::gathered_sum_config>(blocks); }

}  // namespace parley::configs
