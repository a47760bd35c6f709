// How the members of a gpu_world meet: each sends an introduction, each judges all introductions by the same rules, and then each sends a
// verdict on the outcome.
#include <parley/actors/services.hpp>
#include <parley/cuda_space.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/ops/core/all_exchange.hpp>
#include <parley/ops/groups/gpu_world_remains.hpp>
#include <parley/rank.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::failure;
using runtime::task;

namespace {

/// A text in a message, cut to its size. A text from another member may lack the zero at its end.
using said_text = std::array<char, 240>;
said_text said(const std::string& text) {
  said_text s{};
  std::copy_n(text.begin(), std::min(text.size(), s.size() - 1), s.begin());
  return s;
}
std::string text_of(const said_text& s) { return {s.begin(), std::find(s.begin(), s.end(), '\0')}; }

std::string member(rank_id m) { return "member " + std::to_string(m); }

bool in_this_process(rank& self, rank_id other) {
  return other == self.id() || self.services().net.shares_process_with(other);
}

}  // namespace

struct gpu_world::introduction {
  said_text no_nccl{};  // the reason; empty: it has NCCL
  said_text no_box{};
  said_text gpu{};
  std::int32_t device = 0;  // as its process numbers devices
  std::uint32_t in_one_process = 0;
  std::uint64_t stage_bytes = 0;
  transports::cuda_ipc_handle handle{};
  std::uint64_t offset = 0;
  std::uint64_t address = 0;  // in its process
};

struct gpu_world::verdict {
  said_text no_nccl{};
  said_text no_box{};
};

task<> gpu_world::move(std::span<std::byte> to, std::span<const std::byte> from) {
  auto ended = co_await transports::copied(copies_, to, from);
  ended.value();
}

task<> gpu_world::meet(rank& self, transports::nccl_id id) {
  runtime::scope& here = co_await runtime::this_scope;
  boxes_.members = self.world_size();
  boxes_.place = self.id();
  boxes_.stage_bytes = (options_.kernel_bytes + 255) / 256 * 256;
  const all_exchange_options who{.self = self.id(), .ranks = self.world_size(), .tag = number_};
  const introduction mine = introduce(self);
  all_exchange<introduction> introduced(here, messages_, who);
  introduced.say(mine);
  co_await introduced.heard();
  judge(introduced.all());
  all_exchange<verdict> judged(here, messages_, who);
  verdict outcome;
  std::exception_ptr thrown;
  try {
    if (no_nccl_.empty() || no_kernel_.empty()) stream_ = copies_.driver().make_stream(copies_.device());
    if (no_boxes_.empty()) {
      const std::vector<std::byte> zeros(transports::peer_boxes::head_bytes);
      co_await move(box_.bytes().first(zeros.size()), zeros);
      outcome.no_box = said(reach_all(self, introduced.all()));
    }
    if (no_nccl_.empty()) {
      const std::string why = co_await connect_nccl(id, judged);
      outcome.no_nccl = said(why);
    }
  } catch (...) {  // the others wait for this member's verdict
    thrown = std::current_exception();
    outcome.no_nccl = outcome.no_box = said(runtime::describe(thrown).what());
  }
  judged.say(outcome);
  co_await judged.heard();
  if (thrown) std::rethrow_exception(thrown);
  for (rank_id m = 0; m < who.ranks; ++m) {
    if (const std::string why = text_of(judged.by(m).no_nccl); no_nccl_.empty() && !why.empty())
      no_nccl_ = "NCCL has refused " + member(m) + ": " + why;
    if (const std::string why = text_of(judged.by(m).no_box); no_boxes_.empty() && !why.empty())
      no_boxes_ = member(m) + " cannot share memory with the others: " + why;
  }
  if (!no_nccl_.empty() && handle_ != nullptr) options_.nccl->abort(std::exchange(handle_, nullptr));
  if (!no_nccl_.empty() && !no_boxes_.empty())
    runtime::raise({errc::unavailable, "its members cannot sum: " + no_nccl_ + "; " + no_boxes_});
  if (!no_boxes_.empty()) no_boxes_ = "its kernel reads the others' memory, and " + no_boxes_;
  if (!no_boxes_.empty()) no_kernel_ = no_boxes_;
}

// ---- introductions ----------------------------------------------------------------------------------------------------

gpu_world::introduction gpu_world::introduce(rank& self) {
  introduction mine;
  if (options_.nccl == nullptr) mine.no_nccl = said(options_.no_nccl);
  mine.gpu = said(copies_.driver().devices()[static_cast<std::size_t>(copies_.device())].uuid);
  mine.device = copies_.device();
  mine.stage_bytes = boxes_.stage_bytes;
  bool alone = true;  // in its process
  bool together = true;
  for (rank_id m = 0; m < self.world_size(); ++m) {
    if (m != self.id()) (in_this_process(self, m) ? alone : together) = false;
  }
  mine.in_one_process = alone ? 0 : 1;
  try {
    make_box();
    mine.address = reinterpret_cast<std::uint64_t>(box_.bytes().data());
    if (together) return mine;
    self.machine().has("ipc").value();
    const auto exported = copies_.driver().export_memory(box_.bytes().data());
    mine.handle = exported.value().handle;
    mine.offset = exported.value().offset;
  } catch (const failure& f) {
    mine.no_box = said(f.reason().text());
  }
  return mine;
}

// Makes the memory that the other members must be able to reach. Throws if there is none.
void gpu_world::make_box() {
  transports::cuda_driver& gpu = copies_.driver();
  if (boxes_.stage_bytes == 0) runtime::raise({errc::unavailable, "its kernel_bytes are 0"});
  if (boxes_.members > transports::peer_boxes::most_members)
    runtime::raise({errc::unavailable, "there are more than 8 members"});
  constexpr std::size_t stages = 4;
  const std::size_t bytes = transports::peer_boxes::head_bytes + stages * boxes_.stage_bytes;
  if (!remains_->boxes.empty()) {
    box_ = std::move(remains_->boxes.back());
    remains_->boxes.pop_back();
  } else {
    box_ = transports::cuda_memory::on_device(gpu, copies_.device(), bytes);
  }
  stop_ = transports::cuda_memory::pinned(gpu, sizeof(std::uint32_t));
  stop() = 0;
  boxes_.stop = &stop();
  boxes_.calls = reinterpret_cast<std::uint32_t*>(box_.bytes().data() + transports::peer_boxes::flag_bytes);
}

// Has the same result on all members, because all have the same introductions.
void gpu_world::judge(std::span<const introduction> all) {
  std::string shared;
  for (rank_id m = 0; m < all.size(); ++m) {
    for (rank_id earlier = 0; earlier < m && shared.empty(); ++earlier) {
      if (all[m].gpu == all[earlier].gpu)
        shared = "members " + std::to_string(earlier) + " and " + std::to_string(m) + " share " + text_of(all[m].gpu);
    }
  }
  for (rank_id m = 0; m < all.size(); ++m) {
    if (shared.empty() && all[m].in_one_process != 0) shared = member(m) + " shares its process with another one";
    if (const std::string why = text_of(all[m].no_nccl); no_nccl_.empty() && !why.empty())
      no_nccl_ = member(m) + " has no NCCL: " + why;
    if (const std::string why = text_of(all[m].no_box); no_boxes_.empty() && !why.empty())
      no_boxes_ = member(m) + " cannot share memory with the others: " + why;
    if (no_boxes_.empty() && all[m].stage_bytes != all[0].stage_bytes)
      no_boxes_ = member(m) + " has other kernel_bytes than member 0";
  }
  if (shared.empty()) return;
  if (no_nccl_.empty()) no_nccl_ = "NCCL needs one process and one GPU per member, but " + shared;
  no_kernel_ = "its kernels wait for each other, but " + shared + ", where one kernel may be queued behind another";
}

// ---- connecting -------------------------------------------------------------------------------------------------------

/// Returns the reason why a box cannot be reached; empty: all boxes are reached.
std::string gpu_world::reach_all(rank& self, std::span<const introduction> all) {
  try {
    for (rank_id m = 0; m < boxes_.members; ++m)
      boxes_.box[m] = m == self.id() ? box_.bytes().data() : reach(self, all[m], in_this_process(self, m));
    return {};
  } catch (const failure& f) {
    return f.reason().text();
  }
}

std::byte* gpu_world::reach(rank& self, const introduction& theirs, bool in_this_process) {
  transports::cuda_driver& gpu = copies_.driver();
  const auto& device = gpu.devices()[static_cast<std::size_t>(copies_.device())];
  if (text_of(theirs.gpu) != device.uuid) self.machine().has("peer_access").value();
  if (in_this_process) {
    if (theirs.device != copies_.device() && std::ranges::count(device.peers, theirs.device) == 0)
      runtime::raise({errc::unavailable, "device " + std::to_string(copies_.device()) +
                                             " does not reach the memory of device " + std::to_string(theirs.device)});
    return reinterpret_cast<std::byte*>(theirs.address);
  }
  const auto opened = gpu.import_memory(copies_.device(), theirs.handle);
  const std::span<std::byte> all = opened.value();
  mapped_.push_back(all.data());
  if (theirs.offset > all.size() || all.size() - theirs.offset < box_.bytes().size())
    runtime::raise({errc::malformed, "a member's memory lies outside of what it has exported"});
  return all.data() + theirs.offset;
}

/// Returns the reason why this member cannot connect; empty if it can. If NCCL refuses a member, or a member is gone, the others stop
/// waiting for that member.
task<std::string> gpu_world::connect_nccl(transports::nccl_id id, all_exchange<verdict>& others) {
  runtime::scope& here = co_await runtime::this_scope;
  transports::nccl_library& nccl = *options_.nccl;
  const auto begun =
      nccl.connect(id, static_cast<int>(boxes_.members), static_cast<int>(boxes_.place), copies_.device());
  if (!begun) co_return begun.reason().text();
  handle_ = *begun;
  const auto refused = [](const verdict& v) { return v.no_nccl.front() != '\0'; };
  for (;;) {
    const errc seen = nccl.state(handle_);
    if (seen == errc::none || std::ranges::any_of(others.all(), refused)) co_return std::string();
    if (seen != errc::pending) co_return nccl.fault();
    if (others.within().cancelled() != errc::none) co_return std::string("a member is gone");
    if (here.cancelled() != errc::none) runtime::raise(here.cancelled());
    std::this_thread::yield();
    co_await runtime::yield;
  }
}

// ---- worlds ------------------------------------------------------------------------------------------------------------

namespace {
// Members find each other by this id: in messages, and in NCCL.
struct world_id {
  std::uint32_t number = 0;
  transports::nccl_id of_nccl{};
};

std::vector<std::pair<rank_id, rank_id>> all_pairs(rank_id ranks) {
  std::vector<std::pair<rank_id, rank_id>> pairs;
  for (rank_id from = 0; from < ranks; ++from) {
    for (rank_id to = 0; to < ranks; ++to) {
      if (from != to) pairs.emplace_back(from, to);
    }
  }
  return pairs;
}
}  // namespace

gpu_world_source::gpu_world_source(rank& self, const std::string& name, transports::cuda_copies& copies, options o)
    : self_(self), copies_(copies), options_(std::move(o)),
      remains_(std::make_shared<gpu_world_remains>(copies.driver())) {
  if (const auto nccl = self.machine().has("nccl"); !nccl) {
    options_.nccl = nullptr;
    options_.no_nccl = nccl.reason().text();
  }
  if (options_.nccl != nullptr) options_.nccl->prepare(copies_.device());
  if (self.world_size() > 1) messages_ = transfer(self, {.name = name + "_id", .edges = all_pairs(self.world_size())});
}

std::vector<std::byte> gpu_world_source::make_id() {
  world_id made;
  // No other rank makes this number, either. 0 is the tag of ids.
  made.number = made_++ * self_.world_size() + self_.id() + 1;
  if (options_.nccl != nullptr) {
    const auto of_nccl = options_.nccl->make_id();
    if (of_nccl) {
      made.of_nccl = *of_nccl;
    } else {
      options_.nccl = nullptr;
      options_.no_nccl = of_nccl.reason().text();
    }
  }
  const auto bytes = std::as_bytes(std::span(&made, 1));
  return {bytes.begin(), bytes.end()};
}

task<std::shared_ptr<communicator>> gpu_world_source::connect(std::vector<std::byte> id) {
  world_id theirs;
  if (id.size() != sizeof theirs)
    runtime::raise({errc::malformed, "the id of a gpu_world has " + std::to_string(sizeof theirs) + " bytes, not " +
                                         std::to_string(id.size())});
  std::memcpy(&theirs, id.data(), sizeof theirs);
  auto made = std::make_shared<gpu_world>(copies_, options_, messages_, theirs.number, remains_);
  co_await made->meet(self_, theirs.of_nccl);
  co_return made;
}

task<std::shared_ptr<communicator>> gpu_world_source::connect_all() {
  std::vector<std::byte> id(sizeof(world_id));
  if (self_.id() == 0) {
    id = make_id();
    for (rank_id r = 1; r < self_.world_size(); ++r) co_await messages_.send(id, {.to = r});
  } else {
    co_await messages_.receive(id, {.from = 0});
  }
  auto made = co_await connect(std::move(id));
  co_return made;
}

}  // namespace parley::ops
