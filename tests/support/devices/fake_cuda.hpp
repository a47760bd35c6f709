#pragma once
/// A GPU for tests without one. Enqueued operations take effect later: each `query` and each `look_at` is a tick, and an operation ends so
/// many ticks after the one before it in its stream. Copies read their source when they end, not when they are enqueued, so a missing
/// order shows as wrong bytes. Device memory has addresses that the processor may not follow: touching one is a segmentation fault.
/// Streams of a device share its queues in turn: while an operation that waits is at the head of a queue, nothing that was enqueued later
/// goes on in that queue. All copies that a device makes out of other devices' memory go through one more queue, in the order in which
/// they were enqueued, whichever streams they are in, as bench/gpu/queues.cpp saw it on H100s.
#include <parley/config.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace parley::tests {

using runtime::errc;
using transports::cuda_event;
using transports::cuda_stream;
using transports::memory_place;

class fake_cuda final : public transports::cuda_driver {
 public:
  explicit fake_cuda(int devices = 1);
  explicit fake_cuda(std::vector<transports::cuda_device> devices);
  ~fake_cuda() override;  // in a source of its own, so that only that one has all functions of this class

  static constexpr double ns_per_tick = 1'000;
  std::uint64_t ticks_per_copy = 5;
  std::map<int, std::uint64_t> ticks_of_sums;  ///< of sums of several parts, by device, if they differ from copies
  enum class ipc_state { works, refused } ipc = ipc_state::works;
  std::optional<int> exports_nothing{};  ///< the device whose memory cannot be exported
  std::optional<int> imports_nothing{};  ///< the device that can import none
  int imported = 0;
  std::uint64_t sums_by_kernel = 0;
  std::uint64_t sums_at_once = 0;  ///< kernels of one member that ran at the same time, with one number
  std::uint64_t copies_that_hold =
      0;  ///< copies of memory that is not pinned, behind a waiting operation: in CUDA these block their caller
  /// A copy: its stream, and the number of blocks of its kernel; 0: a copy engine made it.
  struct seen_copy {
    cuda_stream in;
    unsigned blocks;
  };
  std::vector<seen_copy> seen_copies{};
  bool word_operations = true;
  bool waits_for_words = true;
  unsigned queues_there = 32;
  /// From the `n`-th copy on, counted from 1, everything on its device fails, as after a sticky error.
  std::optional<std::uint64_t> break_at_copy{};
  /// How often `query` still fails although its device works.
  unsigned queries_that_fail = 0;
  /// Breaks a device, as a kernel does that writes to an invalid address.
  void fault_now(int device = 0) noexcept { broken_.insert(device); }
  /// Bytes left on the devices. If there are none, there is no pinned memory either.
  std::size_t memory_left = std::size_t{1} << 30U;

  /// Enqueues a kernel.
  void launch(cuda_stream s, std::uint64_t ticks, std::function<void()> effect) {
    push(s, {operation::kind::work, std::move(effect), ticks, nullptr, 0, {}});
  }
  /// Enqueues a kernel that runs until `over` returns true.
  void launch_until(cuda_stream s, std::function<bool()> over) {
    push(s, {operation::kind::work, {}, 0, nullptr, 0, std::move(over)});
  }
  /// The address at which the processor may access device memory; null: it is no device memory.
  std::byte* shadow(const void* address) {
    const auto at = block_of(address);
    if (at == blocks_.end()) return nullptr;
    return at->second.bytes.data() + (static_cast<const std::byte*>(address) - static_cast<std::byte*>(at->first));
  }
  /// Allocates memory as other code in the program does that has its own context.
  void* allocate_in_other_context(int device, std::size_t bytes) {
    void* const at = allocate(device, bytes);
    blocks_[at].other_context = true;
    return at;
  }
  std::size_t blocks() const { return blocks_.size(); }
  std::size_t pinned() const { return pinned_; }
  std::uint64_t copies() const { return copies_; }
  std::size_t streams() const { return streams_.size(); }
  std::size_t events() const { return events_.size(); }

  const std::vector<transports::cuda_device>& devices() const noexcept override { return devices_; }
  unsigned queues() const noexcept override { return queues_there; }
  int driver_version() const noexcept override { return 13000; }
  int runtime_version() const noexcept override { return 13000; }
  void make_current(int) override {}
  cuda_stream make_stream(int device) override {
    const std::size_t turn = made_[device]++ % queues_there;
    streams_.push_back(std::make_unique<stream>(device, turn * devices_.size() + static_cast<std::size_t>(device)));
    return reinterpret_cast<cuda_stream>(streams_.back().get());
  }
  void destroy(cuda_stream s) noexcept override {
    std::erase_if(streams_, [&](const auto& own) { return own.get() == reinterpret_cast<stream*>(s); });
  }
  cuda_event make_event(int device) override {
    events_.push_back(std::make_shared<event>(device));
    return reinterpret_cast<cuda_event>(events_.back().get());
  }
  cuda_event make_timed_event(int device) override { return make_event(device); }
  runtime::result<double> elapsed_ns(cuda_event from, cuda_event to) override {
    const auto at = [](cuda_event e) { return reinterpret_cast<const event*>(e)->tick; };
    return static_cast<double>(at(to) - at(from)) * ns_per_tick;
  }
  /// Operations that were enqueued with the event go on with it, as in CUDA.
  void destroy(cuda_event e) noexcept override {
    std::erase_if(events_, [&](const auto& own) { return own.get() == reinterpret_cast<event*>(e); });
  }
  void* allocate(int device, std::size_t bytes) override {
    const std::size_t reserved = (bytes + 4095) / 4096 * 4096;
    void* const at = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || bytes > memory_left)
      runtime::raise({errc::unavailable, "cudaErrorMemoryAllocation: out of memory"});
    memory_left -= bytes;
    blocks_[at] = {std::vector<std::byte>(bytes), reserved, device, false};
    return at;
  }
  void* allocate_pinned(std::size_t bytes) override {
    if (memory_left == 0) runtime::raise({errc::unavailable, "cudaErrorMemoryAllocation: out of pinned memory"});
    ++pinned_;
    auto* const made = new std::byte[bytes];
    pinned_blocks_[made] = bytes;
    return made;
  }
  void release(void* memory, memory_place::kind what) noexcept override {
    if (what == memory_place::kind::pinned) {
      --pinned_;
      pinned_blocks_.erase(static_cast<std::byte*>(memory));
      delete[] static_cast<std::byte*>(memory);
      return;
    }
    for (int i = 0; i < 10; ++i) tick();  // CUDA frees memory once all enqueued operations have ended
    const auto at = blocks_.find(memory);
    memory_left += at->second.bytes.size();
    ::munmap(memory, at->second.reserved);
    blocks_.erase(at);
  }
  errc record(cuda_event e, cuda_stream after) noexcept override {
    if (is_broken(after)) return errc::device_failed;
    auto* const ev = reinterpret_cast<event*>(e);
    push(after, {operation::kind::record, {}, 0, ev->shared_from_this(), ++ev->recorded, {}});
    return errc::none;
  }
  errc wait(cuda_stream s, cuda_event e) noexcept override {
    if (is_broken(s)) return errc::device_failed;
    auto* const ev = reinterpret_cast<event*>(e);
    push(s, {operation::kind::wait, {}, 0, ev->shared_from_this(), ev->recorded, {}});
    return errc::none;
  }
  errc query(cuda_event e) noexcept override {
    tick();
    const auto* const ev = reinterpret_cast<event*>(e);
    if (broken_.contains(ev->device)) return errc::device_failed;
    if (queries_that_fail != 0) {
      --queries_that_fail;
      return errc::device_failed;
    }
    return ev->happened >= ev->recorded ? errc::none : errc::pending;
  }
  errc copy(void* to, const void* from, std::size_t bytes, cuda_stream s) noexcept override {
    if (is_broken(s)) return errc::device_failed;
    const std::uint64_t number = ++copies_;
    seen_copies.push_back({s, 0});
    push(s, {operation::kind::work,
             [this, to, from, bytes, number, device = stream_of(s).device] {
               if (break_at_copy && number >= *break_at_copy) return fault_now(device);
               if (bytes != 0) std::memmove(here(to), here(from), bytes);  // an empty range may have no address
             },
             ticks_per_copy,
             nullptr,
             0,
             {},
             is_out_of_another(from, stream_of(s).device)});
    const auto& before = stream_of(s).todo;
    const auto waits = [](const operation& o) { return o.holds_its_queue(); };
    if ((is_pageable(to) || is_pageable(from)) && std::ranges::any_of(before, waits)) ++copies_that_hold;
    return errc::none;
  }
  std::uint64_t filled_bytes = 0;  ///< by fills that have ended
  errc fill(std::span<std::byte> memory, std::byte with, cuda_stream s) noexcept override {
    if (is_broken(s)) return errc::device_failed;
    push(s, {operation::kind::work,
             [this, memory, with] {
               std::memset(here(memory.data()), std::to_integer<int>(with), memory.size());
               filled_bytes += memory.size();
             },
             ticks_per_copy,
             nullptr,
             0,
             {}});
    return errc::none;
  }
  std::uint64_t instruction_flushes = 0;
  errc flush_instructions(cuda_stream s) noexcept override {
    ++instruction_flushes;
    return is_broken(s) ? errc::device_failed : errc::none;
  }
  errc copy_by_kernel(void* to, const void* from, std::size_t bytes, unsigned blocks, cuda_stream s) noexcept override {
    const errc started = copy(to, from, bytes, s);
    if (started != errc::none) return started;
    last_of(stream_of(s)).pulls = false;
    seen_copies.back().blocks = blocks;
    return started;
  }
  errc move_pieces(void* packed, const runtime::memory_pieces& p, transports::pieces_way way,
                   cuda_stream s) noexcept override {
    if (is_broken(s)) return errc::device_failed;
    launch(s, ticks_per_copy, [this, packed, p, way] {
      runtime::memory_pieces seen = p;
      seen.base = shadow(p.base);
      if (!p.offsets.empty()) {
        const auto* const list = reinterpret_cast<const std::uint64_t*>(shadow(p.offsets_there.get()));
        seen.offsets.assign(list, list + p.offsets.size());
      }
      way == transports::pieces_way::gather ? seen.gather(shadow(packed)) : seen.scatter(shadow(packed));
    });
    return errc::none;
  }
  errc add(void* into, const void* from, std::size_t bytes, runtime::summand of, cuda_stream s) noexcept override {
    if (is_broken(s)) return errc::device_failed;
    launch(s, ticks_per_copy, [this, into, from, bytes, of, device = stream_of(s).device] {
      const auto each = [&]<class Number>(Number) {
        for (std::size_t at = 0; at < bytes; at += sizeof(Number)) {
          Number a{};
          Number b{};
          std::memcpy(&a, shadow(into) + at, sizeof a);
          std::memcpy(&b, shadow(from) + at, sizeof b);
          a = static_cast<Number>(a + b);
          std::memcpy(shadow(into) + at, &a, sizeof a);
        }
      };
      switch (of) {
        case runtime::summand::f32: return each(0.F);
        case runtime::summand::f64: return each(0.0);
        case runtime::summand::i8: return each(std::uint8_t{});
        case runtime::summand::i16: return each(std::uint16_t{});
        case runtime::summand::i32: return each(std::uint32_t{});
        case runtime::summand::i64: return each(std::uint64_t{});
        case runtime::summand::f16: return each(runtime::f16{});
        case runtime::summand::bf16: return each(runtime::bf16{});
        case runtime::summand::none: fault_now(device);
      }
    });
    ++sums_by_kernel;
    return errc::none;
  }
  /// Number of kernels of `sum_with_peers` that run.
  std::size_t sums_that_wait() const { return summing_.size(); }
  // Kernels of one call find each other by the first member's box, which has the same address for all members here.
  errc sum_with_peers(std::span<std::byte> floats, const transports::peer_boxes& with,
                      cuda_stream s) noexcept override {
    if (is_broken(s)) return errc::device_failed;
    launch_until(s, [this, floats, with, all = std::shared_ptr<joint_sum>(), number = std::uint32_t{0}]() mutable {
      if (all == nullptr) {
        sums_at_once += summing_.insert(with.calls).second ? 0 : 1;
        std::memcpy(&number, here(with.calls), sizeof number);
        ++number;
        std::memcpy(here(with.calls), &number, sizeof number);
        auto& joint = sums_[{with.box[0], number}];
        if (joint == nullptr) joint = std::make_shared<joint_sum>();
        all = joint;
        all->memory.push_back(floats);
      }
      if (all->memory.size() == with.members && !std::exchange(all->over, true)) add_up(all->memory);
      const bool ends = all->over || *with.stop != 0;
      if (!ends) return false;
      sums_.erase({with.box[0], number});  // another communicator may get this box next
      summing_.erase(with.calls);
      all = nullptr;
      return true;
    });
    return errc::none;
  }
  errc add_up(std::span<std::byte> floats, std::span<const std::byte* const> parts, unsigned,
              cuda_stream s) noexcept override {
    if (is_broken(s)) return errc::device_failed;
    const auto takes = ticks_of_sums.find(stream_of(s).device);
    const std::uint64_t ticks = takes == ticks_of_sums.end() ? ticks_per_copy : takes->second;
    launch(s, ticks, [this, floats, all = std::vector(parts.begin(), parts.end())] {
      std::vector<float> sum(floats.size() / sizeof(float));
      std::vector<float> theirs(sum.size());
      for (const std::byte* const part : all) {
        std::memcpy(theirs.data(), shadow(part), floats.size());
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
      }
      std::memcpy(shadow(floats.data()), sum.data(), floats.size());
    });
    ++sums_by_kernel;
    return errc::none;
  }
  errc wait_value(cuda_stream s, const void* at, std::uint32_t value) noexcept override {
    if (is_broken(s) || !word_operations || !waits_for_words) return errc::device_failed;
    const auto there = [this, at, value] {
      std::uint32_t seen = 0;
      std::memcpy(&seen, here(at), sizeof seen);
      return static_cast<std::int32_t>(seen - value) >= 0;
    };
    push(s, {operation::kind::wait_for_word, {}, 0, nullptr, 0, there});
    return errc::none;
  }
  errc write_value(cuda_stream s, void* at, std::uint32_t value) noexcept override {
    if (is_broken(s) || !word_operations) return errc::device_failed;
    launch(s, 1, [this, at, value] { std::memcpy(here(at), &value, sizeof value); });
    return errc::none;
  }
  errc begin_capture(cuda_stream s) noexcept override {
    stream_of(s).captured.emplace();
    return is_broken(s) ? errc::device_failed : errc::none;
  }
  bool is_capturing(cuda_stream s) noexcept override { return stream_of(s).captured.has_value(); }
  runtime::result<transports::cuda_graph> end_capture(cuda_stream s) override {
    auto captured = std::exchange(stream_of(s).captured, {});
    if (!captured || is_broken(s))
      return runtime::error{errc::unavailable, "cudaErrorStreamCaptureInvalidated: planted"};
    graphs_.push_back(std::make_unique<std::vector<operation>>(std::move(*captured)));
    return reinterpret_cast<transports::cuda_graph>(graphs_.back().get());
  }
  errc replay(transports::cuda_graph g, cuda_stream s) noexcept override {
    if (is_broken(s)) return errc::device_failed;
    for (const operation& o : *reinterpret_cast<const std::vector<operation>*>(g)) push(s, o);
    return errc::none;
  }
  void destroy(transports::cuda_graph g) noexcept override {
    std::erase_if(graphs_, [&](const auto& own) { return own.get() == reinterpret_cast<std::vector<operation>*>(g); });
  }
  std::size_t graphs() const { return graphs_.size(); }
  std::uint32_t look_at(const std::uint32_t* word) noexcept override {
    tick();
    return *word;
  }
  memory_place place_of(const void* address) noexcept override {
    const auto in = block_of(address);
    if (in != blocks_.end()) return {memory_place::kind::device, in->second.device};
    return is_pageable(address) ? memory_place{} : memory_place{memory_place::kind::pinned};
  }
  bool is_of_other_context(const void* address, int) noexcept override {
    const auto in = block_of(address);
    return in != blocks_.end() && in->second.other_context;
  }
  runtime::result<transports::exported_memory> export_memory(const void* address) override {
    if (ipc == ipc_state::refused) return runtime::error{errc::unavailable, "cudaErrorNotSupported: planted"};
    const auto at = block_of(address);
    if (exports_nothing == at->second.device)
      return runtime::error{errc::unavailable, "cudaErrorNotSupported: planted"};
    transports::exported_memory made;
    std::memcpy(made.handle.bytes.data(), static_cast<const void*>(&at->first), sizeof at->first);
    made.offset =
        static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - static_cast<std::byte*>(at->first));
    return made;
  }
  runtime::result<std::span<std::byte>> import_memory(int device, const transports::cuda_ipc_handle& handle) override {
    if (imports_nothing == device) return runtime::error{errc::unavailable, "cudaErrorInvalidDevice: planted"};
    void* at = nullptr;
    std::memcpy(static_cast<void*>(&at), handle.bytes.data(), sizeof at);
    const auto its = blocks_.find(at);
    if (its == blocks_.end()) return runtime::error{errc::unavailable, "cudaErrorInvalidValue: no such handle"};
    ++imported;
    return std::span(static_cast<std::byte*>(at), its->second.bytes.size());
  }
  void close_imported(void*) noexcept override { --imported; }
  std::string fault() const override { return broken_.empty() ? "" : "cudaErrorIllegalAddress: planted"; }

 private:
  struct event : std::enable_shared_from_this<event> {
    explicit event(int d) : device(d) {}
    int device;
    std::uint64_t recorded = 0;
    std::uint64_t happened = 0;
    std::uint64_t tick = 0;  // the tick at which it happened
  };
  struct operation {
    enum class kind { work, record, wait, wait_for_word } what;
    std::function<void()> effect;
    std::uint64_t ticks;
    std::shared_ptr<event> on;
    std::uint64_t number;
    std::function<bool()> over{};
    bool pulls = false;       // copies out of another device's memory
    std::uint64_t place = 0;  // in the order of enqueueing

    bool holds_its_queue() const {
      return (what == kind::wait && on->happened < number) || (what == kind::wait_for_word && !over());
    }
  };
  struct joint_sum {
    std::vector<std::span<std::byte>> memory;
    bool over = false;
  };
  void add_up(const std::vector<std::span<std::byte>>& all) {
    std::vector<float> sum(all.front().size() / sizeof(float));
    std::vector<float> theirs(sum.size());
    for (const auto& each : all) {
      std::memcpy(theirs.data(), shadow(each.data()), sum.size() * sizeof(float));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
    }
    for (const auto& each : all) std::memcpy(shadow(each.data()), sum.data(), sum.size() * sizeof(float));
  }
  struct stream {
    stream(int d, std::size_t q) : device(d), queue(q) {}
    int device;
    std::size_t queue;
    std::deque<operation> todo{};
    std::optional<std::vector<operation>> captured{};
  };
  void push(cuda_stream into, operation o) {
    stream& s = stream_of(into);
    o.place = ++enqueued_;
    s.captured ? s.captured->push_back(std::move(o)) : s.todo.push_back(std::move(o));
  }
  static operation& last_of(stream& s) { return s.captured ? s.captured->back() : s.todo.back(); }
  struct block {
    std::vector<std::byte> bytes;
    std::size_t reserved = 0;
    int device = 0;
    bool other_context = false;
  };
  // The block in which the address lies; the end: in none.
  std::map<void*, block>::iterator block_of(const void* address) {
    auto at = blocks_.upper_bound(const_cast<void*>(address));
    if (at == blocks_.begin()) return blocks_.end();
    --at;
    const auto* const begin = static_cast<const std::byte*>(at->first);
    return static_cast<const std::byte*>(address) < begin + at->second.bytes.size() ? at : blocks_.end();
  }
  bool is_pageable(const void* address) {
    const auto* const at = static_cast<const std::byte*>(address);
    if (block_of(address) != blocks_.end()) return false;
    const auto after = pinned_blocks_.upper_bound(at);
    return after == pinned_blocks_.begin() || at >= std::prev(after)->first + std::prev(after)->second;
  }
  bool is_out_of_another(const void* address, int device) {
    const memory_place at = place_of(address);
    return at.what == memory_place::kind::device && at.device != device;
  }
  stream& stream_of(cuda_stream s) { return *reinterpret_cast<stream*>(s); }
  bool is_broken(cuda_stream s) { return broken_.contains(stream_of(s).device); }
  void* here(const void* address) {
    std::byte* const seen = shadow(address);
    return seen == nullptr ? const_cast<void*>(address) : seen;
  }
  // By queue: the place of the first operation that waits. Operations before it may go on.
  std::vector<std::uint64_t> goes_on_up_to() const {
    std::vector<std::uint64_t> first(queues_there * devices_.size(), ~std::uint64_t{0});
    for (const auto& s : streams_) {
      for (const operation& o : s->todo) {
        if (o.place < first[s->queue] && o.holds_its_queue()) first[s->queue] = o.place;
      }
    }
    return first;
  }
  // By device: the place of the first unfinished copy out of another device's memory.
  std::vector<std::uint64_t> first_pulls() const {
    std::vector<std::uint64_t> first(devices_.size(), ~std::uint64_t{0});
    for (const auto& s : streams_) {
      auto& of_device = first[static_cast<std::size_t>(s->device)];
      for (const operation& o : s->todo) {
        if (o.pulls) of_device = std::min(of_device, o.place);
      }
    }
    return first;
  }
  void tick() {
    ++ticks_;
    const std::vector<std::uint64_t> goes_on = goes_on_up_to();
    const std::vector<std::uint64_t> pulls = first_pulls();
    for (auto& s : streams_) {
      while (!s->todo.empty() && !broken_.contains(s->device)) {
        operation& first = s->todo.front();
        if (first.place > goes_on[s->queue]) break;
        if (first.pulls && first.place > pulls[static_cast<std::size_t>(s->device)]) break;
        if (first.what == operation::kind::wait && first.on->happened < first.number) break;
        if (first.what == operation::kind::work && first.ticks > 0) {
          --first.ticks;
          break;
        }
        if (first.over && !first.over()) break;
        if (first.what == operation::kind::record) {
          first.on->happened = first.number;
          first.on->tick = ticks_;
        }
        if (first.effect) first.effect();
        s->todo.pop_front();
      }
    }
  }

  std::vector<transports::cuda_device> devices_;
  std::map<int, std::size_t> made_;  // streams made so far, by device
  std::uint64_t enqueued_ = 0;
  std::uint64_t ticks_ = 0;
  std::vector<std::unique_ptr<stream>> streams_;
  std::vector<std::shared_ptr<event>> events_;
  std::vector<std::unique_ptr<std::vector<operation>>> graphs_;
  std::map<void*, block> blocks_;
  std::map<std::pair<const std::byte*, std::uint32_t>, std::shared_ptr<joint_sum>> sums_;
  std::set<const std::uint32_t*> summing_;  // members whose kernel runs, by their call counters
  std::size_t pinned_ = 0;
  std::map<const std::byte*, std::size_t> pinned_blocks_;
  std::uint64_t copies_ = 0;
  std::set<int> broken_;  // devices
};

/// Fills device memory with bytes, and checks them.
inline void fill(fake_cuda& gpu, std::span<std::byte> memory, unsigned seed) {
  std::byte* const at = gpu.shadow(memory.data());
  for (std::size_t i = 0; i < memory.size(); ++i) at[i] = static_cast<std::byte>(i * 31 + i / 256 + seed);
}
inline bool holds(fake_cuda& gpu, std::span<const std::byte> memory, unsigned seed) {
  const std::byte* const at = gpu.shadow(memory.data());
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (at[i] != static_cast<std::byte>(i * 31 + i / 256 + seed)) return false;
  }
  return true;
}

}  // namespace parley::tests
