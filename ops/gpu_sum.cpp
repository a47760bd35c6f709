#include <parley/ops/gpu_sum.hpp>
#include <parley/ops/rank.hpp>
#include <parley/runtime/scope.hpp>
#include <parley/transports/cuda_space.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::failure;
using runtime::task;

namespace {

constexpr std::size_t most_captures = 64;

struct stream_end final : runtime::completion {
  stream_end() : completion(&on_reached) {}
  static void on_reached(completion& self, errc) noexcept { static_cast<stream_end&>(self).here = true; }
  bool here = false;
};

gpu_world& world_of(const symmetric_call& call, const std::string& config) {
  auto* const world = dynamic_cast<gpu_world*>(call.over);
  if (world == nullptr)
    runtime::raise({errc::bad_argument, config + " runs over a gpu_world; give the op one as `over`, and a "
                                                 "gpu_world_source as `rehearse`"});
  return *world;
}

class nccl_sum_config final : public symmetric_config {
 public:
  nccl_sum_config() : symmetric_config({.name = "nccl_sum", .wire_class = "nccl_sum"}) {}
  std::vector<std::string> requirements() const override { return {"nccl"}; }
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    co_await world_of(call, id()).run(gpu_sum::by_nccl(data), call.replayed);
  }
  bool can_be_captured() const noexcept override { return true; }
  task<> capture(symmetric_call call, std::span<std::byte> data, runtime::device_stream stream) const override {
    co_await world_of(call, id()).capture(gpu_sum::by_nccl(data), static_cast<transports::cuda_stream>(stream));
  }
};

// A wire class of its own: NCCL may let the others reach a buffer that is named in a graph.
class nccl_graph_sum_config final : public symmetric_config {
 public:
  nccl_graph_sum_config() : symmetric_config({.name = "nccl_graph_sum", .wire_class = "nccl_graph_sum"}) {}
  std::vector<std::string> requirements() const override { return {"nccl"}; }
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    co_await world_of(call, id()).run(gpu_sum::by_nccl(data), true);
  }
};

class kernel_sum_config final : public symmetric_config {
 public:
  explicit kernel_sum_config(unsigned blocks)
      : symmetric_config({.name = "kernel_sum",
                          .parameters = {{"blocks", std::uint64_t{blocks}}},
                          .wire_class = "kernel_sum_" + std::to_string(blocks)}),
        blocks_(blocks) {}
  std::vector<std::string> requirements() const override { return {"ipc", "peer_access"}; }
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    co_await world_of(call, id()).run(gpu_sum::by_kernel(data, blocks_), call.replayed);
  }
  bool can_be_captured() const noexcept override { return true; }
  task<> capture(symmetric_call call, std::span<std::byte> data, runtime::device_stream stream) const override {
    co_await world_of(call, id())
        .capture(gpu_sum::by_kernel(data, blocks_), static_cast<transports::cuda_stream>(stream));
  }

 private:
  unsigned blocks_;
};

}  // namespace

gpu_world::gpu_world(transports::nccl_library& library, transports::cuda_copies& copies,
                     transports::nccl_communicator handle, options o, std::shared_ptr<gpu_world_remains> remains)
    : library_(library), copies_(copies), options_(o), handle_(handle),
      stream_(copies.driver().make_stream(copies.device())), remains_(std::move(remains)) {}

gpu_world::~gpu_world() {
  abort();
  remains_->mapped.insert(remains_->mapped.end(), mapped_.begin(), mapped_.end());
  remains_->memory.push_back(std::move(stop_));
  remains_->memory.push_back(std::move(box_));
  copies_.driver().destroy(stream_);
}

// NCCL has a thread for what goes on behind the scenes, which may share this one's core.
task<> gpu_world::ready() {
  runtime::scope& here = co_await runtime::this_scope;
  for (;;) {
    if (handle_ == nullptr)
      runtime::raise({errc::unavailable, "its communicator was aborted; connect another one and rejoin"});
    const errc seen = library_.state(handle_);
    if (seen == errc::none) co_return;
    if (seen != errc::pending) runtime::raise({errc::device_failed, library_.fault()});
    if (here.cancelled() != errc::none) runtime::raise(here.cancelled());
    std::this_thread::yield();
    co_await runtime::yield;
  }
}

void gpu_world::abort() noexcept {
  if (handle_ == nullptr) return;
  captures_.clear();  // NCCL waits for those that name its communicator
  if (!stop_.bytes().empty()) std::atomic_ref(stop()).store(1);
  library_.abort(std::exchange(handle_, nullptr));
  see_to_its_end();
}

// Kernels that have been told to stop do so soon; until then they touch buffers.
void gpu_world::see_to_its_end() noexcept {
  stream_end end;
  if (copies_.watch(stream_, &end) != errc::pending) return;
  while (!end.here) static_cast<void>(copies_.poll());
}

void gpu_world::check(const gpu_sum& what) {
  if (what.how == gpu_sum::way::kernel && !no_kernel_.empty())
    runtime::raise({errc::unavailable, "its kernel reads the others' memory, and " + no_kernel_});
  if (what.how == gpu_sum::way::kernel && what.floats.size() > boxes_.stage_bytes)
    runtime::raise({errc::unavailable, "its kernel sums up to " + std::to_string(boxes_.stage_bytes) +
                                           " bytes, as kernel_bytes says, not " + std::to_string(what.floats.size())});
  if (what.floats.size() % sizeof(float) != 0)
    runtime::raise(
        {errc::bad_argument, "a sum of floats has a multiple of 4 bytes, not " + std::to_string(what.floats.size())});
  copies_.check(what.floats, sizeof(float)).value();
}

task<> gpu_world::run(gpu_sum what, bool replayed) {
  check(what);
  if (what.floats.empty()) co_return;
  std::exception_ptr thrown;
  runtime::result<> ended;
  try {
    const errc ordered = copies_.order(stream_, what.floats);
    if (ordered != errc::none) runtime::raise({ordered, copies_.driver().fault()});
    if (replayed) {
      co_await replay(what);
    } else {
      co_await enqueue(what, stream_);
    }
    ended = co_await transports::reached(copies_, stream_);
    if (ended && aborted()) runtime::raise({errc::unavailable, "its communicator was aborted meanwhile"});
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown && ended) co_return;
  // Nobody knows what the others have done of it.
  abort();
  if (thrown) std::rethrow_exception(thrown);
  runtime::raise(ended.reason());
}

task<> gpu_world::capture(gpu_sum what, transports::cuda_stream stream) {
  check(what);
  if (what.floats.empty()) co_return;
  std::exception_ptr thrown;
  try {
    co_await enqueue(what, stream);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown) co_return;
  abort();
  std::rethrow_exception(thrown);
}

// NCCL takes one call at a time, and has put it into the stream only when it says so. Those that wait go on in their order.
task<> gpu_world::enqueue(gpu_sum what, transports::cuda_stream stream) {
  while (calling_ && !aborted()) co_await runtime::yield;
  co_await ready();
  if (what.how == gpu_sum::way::kernel) {
    transports::peer_boxes with = boxes_;
    with.blocks = what.blocks;
    const errc launched = copies_.driver().sum_with_peers(what.floats, with, stream);
    if (launched != errc::none) runtime::raise({launched, copies_.driver().fault()});
    co_return;
  }
  calling_ = true;
  const errc called = library_.sum_floats(what.floats, handle_, stream);
  if (called != errc::none && called != errc::pending) runtime::raise({called, library_.fault()});
  co_await ready();
  calling_ = false;
}

task<> gpu_world::replay(gpu_sum what) {
  transports::cuda_driver& gpu = copies_.driver();
  auto at = std::find_if(captures_.begin(), captures_.end(), [&](const captured_sum& r) { return r.what == what; });
  if (at == captures_.end()) {
    co_await ready();
    transports::capture_stream in(gpu, copies_.device());
    co_await enqueue(what, in.stream());
    if (captures_.size() >= most_captures) captures_.erase(captures_.begin());
    captures_.push_back({what, in.end()});
    at = captures_.end() - 1;
  }
  const errc launched = at->graph.replay(stream_);
  if (launched != errc::none) runtime::raise({launched, gpu.fault()});
}

// ---- meeting ----------------------------------------------------------------------------------------------------------

task<> gpu_world::meet() {
  co_await ready();
  if (options_.kernel_bytes != 0) co_await exchange_boxes();
}

task<> gpu_world::move(std::span<std::byte> to, std::span<const std::byte> from) {
  auto ended = co_await transports::copied(copies_, to, from);
  ended.value();
}

// The same on all members.
task<std::vector<float>> gpu_world::added_up(std::vector<float> numbers) {
  const auto host = std::as_writable_bytes(std::span(numbers));
  remains_->memory.push_back(transports::cuda_memory::on_device(copies_.driver(), copies_.device(), host.size()));
  const std::span<std::byte> table = remains_->memory.back().bytes();
  co_await move(table, host);
  co_await run(gpu_sum::by_nccl(table));
  co_await move(host, table);
  co_return numbers;
}

// Memory that the others are to reach, and where it is for them. Throws where there is none.
gpu_world::box_address gpu_world::make_box(std::size_t stage_bytes) {
  transports::cuda_driver& gpu = copies_.driver();
  if (options_.members > transports::peer_boxes::most_members)
    runtime::raise({errc::unavailable, "there are more than 8 members"});
  box_ =
      transports::cuda_memory::on_device(gpu, copies_.device(), transports::peer_boxes::head_bytes + 2 * stage_bytes);
  stop_ = transports::cuda_memory::pinned(gpu, sizeof(std::uint32_t));
  stop() = 0;
  const auto exported = gpu.export_memory(box_.bytes().data());
  return {exported.value().handle, exported.value().offset};
}

std::byte* gpu_world::reach(const box_address& theirs) {
  const auto opened = copies_.driver().import_memory(copies_.device(), theirs.handle);
  const std::span<std::byte> all = opened.value();
  mapped_.push_back(all.data());
  if (theirs.offset > all.size())
    runtime::raise({errc::malformed, "a member's memory lies outside of what it has exported"});
  return all.data() + theirs.offset;
}

// What the others need to reach a member's box travels as numbers, byte by byte, in a sum to which each adds zeros for the others.
// Who has none, or does not reach another's, keeps the kernel from all, and nothing else.
task<> gpu_world::exchange_boxes() {
  const std::size_t stage = (options_.kernel_bytes + 255) / 256 * 256;
  const unsigned members = options_.members;
  constexpr std::size_t each = sizeof(box_address);
  std::vector<float> addresses(members * (each + 1));  // and who has none
  std::string why;
  try {
    const box_address mine = make_box(stage);
    std::array<unsigned char, each> bytes{};
    std::memcpy(bytes.data(), &mine, each);
    std::copy(bytes.begin(), bytes.end(), addresses.begin() + static_cast<std::ptrdiff_t>(options_.place * each));
  } catch (const failure& f) {
    why = f.reason().text();
  }
  if (why.empty()) {
    const std::vector<std::byte> zeros(transports::peer_boxes::head_bytes);
    co_await move(box_.bytes().first(zeros.size()), zeros);
  }
  addresses[members * each + options_.place] = why.empty() ? 0 : 1;
  addresses = co_await added_up(std::move(addresses));
  std::vector<float> cannot(addresses.end() - members, addresses.end());
  if (std::ranges::count(cannot, 0.F) == members) {
    try {
      for (unsigned m = 0; m < members; ++m) {
        std::array<unsigned char, each> bytes{};
        for (std::size_t i = 0; i < each; ++i) bytes[i] = static_cast<unsigned char>(addresses[m * each + i]);
        box_address theirs;
        std::memcpy(&theirs, bytes.data(), each);
        boxes_.box[m] = m == options_.place ? box_.bytes().data() : reach(theirs);
      }
    } catch (const failure& f) {
      why = f.reason().text();
    }
    cannot[options_.place] = why.empty() ? 0 : 1;
    cannot = co_await added_up(std::move(cannot));
  }
  for (unsigned m = 0; m < members; ++m) {
    if (cannot[m] == 0) continue;
    no_kernel_ = "member " + std::to_string(m) + " cannot share memory with the others" +
                 (m == options_.place ? ": " + why : std::string());
    co_return;
  }
  boxes_.members = members;
  boxes_.place = options_.place;
  boxes_.stage_bytes = stage;
  boxes_.stop = &stop();
  boxes_.calls = reinterpret_cast<std::uint32_t*>(box_.bytes().data() + transports::peer_boxes::flag_bytes);
}

std::vector<std::byte> gpu_world_source::make_id() {
  const auto made = library_.make_id();
  if (!made) runtime::raise(made.reason());
  return {made->bytes.begin(), made->bytes.end()};
}

task<std::shared_ptr<communicator>> gpu_world_source::connect(std::vector<std::byte> id) {
  transports::nccl_id theirs;
  if (id.size() != theirs.bytes.size())
    runtime::raise({errc::malformed, "an id of NCCL has 128 bytes, not " + std::to_string(id.size())});
  std::memcpy(theirs.bytes.data(), id.data(), id.size());
  const auto begun =
      library_.connect(theirs, static_cast<int>(options_.members), static_cast<int>(options_.place), copies_.device());
  if (!begun) runtime::raise(begun.reason());
  auto made = std::make_shared<gpu_world>(library_, copies_, *begun, options_, remains_);
  co_await made->meet();
  co_return made;
}

task<std::shared_ptr<communicator>> connect_all(rank& self, gpu_world_source& source, std::string name) {
  std::vector<std::pair<rank_id, rank_id>> edges;
  for (rank_id r = 1; r < self.world_size(); ++r) edges.emplace_back(0, r);
  std::vector<std::byte> id(sizeof(transports::nccl_id::bytes));
  if (!edges.empty()) {
    auto ids = self.declare(paired_transfer{.name = name + "_id", .edges = edges});
    if (self.id() == 0) {
      id = source.make_id();
      for (rank_id r = 1; r < self.world_size(); ++r) co_await ids.send(id, {.to = r});
    } else {
      co_await ids.receive(id, {.from = 0});
    }
  } else {
    id = source.make_id();
  }
  auto made = co_await source.connect(std::move(id));
  co_return made;
}

symmetric_config_ptr nccl_sum() { return std::make_shared<nccl_sum_config>(); }

symmetric_config_ptr nccl_graph_sum() { return std::make_shared<nccl_graph_sum_config>(); }

symmetric_config_ptr kernel_sum(unsigned blocks) {
  if (blocks == 0 || blocks > transports::peer_boxes::most_blocks)
    runtime::raise({errc::bad_argument, "kernel_sum takes 1 to 64 blocks, not " + std::to_string(blocks)});
  return std::make_shared<kernel_sum_config>(blocks);
}

}  // namespace parley::ops
