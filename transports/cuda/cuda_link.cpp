#include <parley/cuda_link.hpp>
#include <parley/transports/cuda/device_rest.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

namespace parley::transports {

using runtime::completion;
using runtime::errc;
using runtime::rank_id;

namespace {

constexpr std::size_t smallest_stage = std::size_t{64} << 10U;
// While a peer's allocation is mapped here, the memory stays in use even after the peer has freed it. When there are this many, `map`
// unmaps the least recently used one, if no copy is in flight and no stream waits for a message. At `most_mapped` it refuses to map more.
constexpr std::size_t usually_mapped = 1'024;
constexpr std::size_t most_mapped = 65'536;

// The first byte of a key. The key of the link below follows it, or an `ipc_key`.
enum class key_kind : std::uint8_t { below = 1, ipc = 2, unreachable = 3 };

struct ipc_key {
  cuda_ipc_handle handle;     // zeros where the memory is unreachable
  std::uint64_t number = 0;   // the owner's name for the exposed memory
  std::uint64_t offset = 0;   // of the memory in its allocation
  std::uint64_t address = 0;  // at its owner
  std::uint64_t bytes = 0;
  cuda_ipc_handle flags{};  // the owner's cuda_flags; zeros if it has none
  std::uint64_t flags_offset = 0;
};

bool read_key(const runtime::remote_place& at, ipc_key& key) noexcept {
  if (at.key.size() != 1 + sizeof key) return false;
  std::memcpy(&key, at.key.data() + 1, sizeof key);
  return true;
}

bool covers(const ipc_key& key, std::uint64_t address, std::uint64_t bytes) noexcept {
  return address >= key.address && address - key.address <= key.bytes && bytes <= key.bytes - (address - key.address);
}

std::vector<std::byte> key_of(key_kind kind, std::span<const std::byte> rest) {
  std::vector<std::byte> key(1 + rest.size(), static_cast<std::byte>(kind));
  std::copy(rest.begin(), rest.end(), key.begin() + 1);
  return key;
}

}  // namespace

// ---- messages, staged through pinned memory ---------------------------------------------------------------------------

// State that messages in flight keep alive, because they may outlive the link.
struct cuda_link::shared {
  shared(cuda_copies& c, std::size_t most) noexcept : copies(c), most_bytes(most) {}
  // Pinned memory is slow to allocate, so blocks are kept, by size.
  cuda_memory take(std::size_t bytes) {
    const std::size_t size = std::bit_ceil(std::max(bytes, smallest_stage));
    const auto kept = free.find(size);
    if (kept != free.end() && !kept->second.empty()) return last_of(kept->second);
    if (pinned_bytes + size > most_bytes) {
      const auto larger =
          std::find_if(free.lower_bound(size), free.end(), [](const auto& f) { return !f.second.empty(); });
      if (larger != free.end()) return last_of(larger->second);
      let_go_of_idle();
    }
    const std::size_t in_use = pinned_bytes - idle_bytes();  // idle blocks cannot be freed while a stream waits
    if (in_use + size > most_bytes)
      runtime::raise({errc::full, "messages in flight may use " + std::to_string(most_bytes >> 20U) +
                                      " MiB of pinned memory, of which " + std::to_string(in_use >> 20U) +
                                      " MiB are in use, and a message of " + std::to_string(bytes) + " bytes needs " +
                                      std::to_string(size >> 20U) +
                                      " MiB more; send it in pieces, for example with config chunked"});
    cuda_memory made = cuda_memory::pinned(copies.driver(), size);
    pinned_bytes += size;
    return made;
  }
  static cuda_memory last_of(std::vector<cuda_memory>& kept) {
    cuda_memory last = std::move(kept.back());
    kept.pop_back();
    return last;
  }
  std::size_t idle_bytes() const noexcept {
    std::size_t all = 0;
    for (const auto& [size, blocks] : free) all += size * blocks.size();
    return all;
  }
  // Freeing pinned memory waits for all streams, and a stream may wait for a message that this thread must receive.
  void let_go_of_idle() noexcept {
    const device_rest::quiet now(device_rest::of_this_process(), {});
    if (!now.at_rest()) return;
    pinned_bytes -= idle_bytes();
    free.clear();
  }
  void give_back(cuda_memory block) { free[block.bytes().size()].push_back(std::move(block)); }

  cuda_copies& copies;
  const std::size_t most_bytes;
  runtime::link* below = nullptr;  // null once the link has ended
  std::vector<staging*> active;
  std::vector<handing*> held_up;
  std::map<std::size_t, std::vector<cuda_memory>> free;
  std::size_t pinned_bytes = 0;
};

// One message between a device buffer and the link below. A send first copies to host memory and then sends; a fetch first fetches and then
// copies to the device.
struct cuda_link::staging final : completion {
  staging(std::shared_ptr<shared> s, std::size_t room, completion* user)
      : completion(&on_step), with(std::move(s)), block(with->take(room)), done(user) {
    with->active.push_back(this);
  }
  ~staging() {
    std::erase(with->active, this);
    with->give_back(std::move(block));
  }
  static void on_step(completion& self, errc outcome) noexcept { static_cast<staging&>(self).step(outcome); }
  // Called when the current step has ended.
  void step(errc outcome) noexcept {
    below_has_it = false;
    if (outcome == errc::none && !second && given_up) outcome = errc::cancelled;
    if (outcome == errc::none && !second) {
      second = true;
      outcome = with->below == nullptr ? errc::closed : begin_second();
      if (outcome == errc::pending) return;
    }
    completion* const user = done;
    delete this;
    if (user != nullptr) user->on_end(*user, outcome);
  }
  errc begin_second() noexcept {
    if (!into.empty()) return with->copies.copy(into, block.bytes().first(into.size()), this);
    const errc sent =
        with->below->send(to, on, std::span(header).first(header_bytes), block.bytes().first(bytes), this);
    below_has_it = sent == errc::pending;
    return sent;
  }

  std::shared_ptr<shared> with;
  cuda_memory block;
  completion* done;
  bool second = false;
  bool below_has_it = false;
  bool given_up = false;
  std::span<std::byte> into{};  // for a fetch
  // For a send:
  rank_id to = 0;
  channel on = channel::data;
  std::size_t bytes = 0;
  std::size_t header_bytes = 0;
  std::array<std::byte, max_header_bytes> header{};
};

// A device buffer that is passed to the link below as it is, once no kernel uses it any more.
struct cuda_link::handing final : completion {
  using give = std::function<errc(runtime::link& below, completion* done)>;
  handing(std::shared_ptr<shared> s, completion* user, give g)
      : completion(&on_free), with(std::move(s)), done(user), give_it(std::move(g)) {
    with->held_up.push_back(this);
  }
  ~handing() { std::erase(with->held_up, this); }
  static void on_free(completion& self, errc outcome) noexcept {
    const std::unique_ptr<handing> me(static_cast<handing*>(&self));
    if (outcome == errc::none) outcome = me->give_away();
    if (outcome != errc::pending) me->done->on_end(*me->done, outcome);
  }
  errc give_away() noexcept {
    if (given_up) return errc::cancelled;
    try {
      return with->below == nullptr ? errc::closed : give_it(*with->below, done);
    } catch (const runtime::failure& f) {
      return with->copies.refused(f);
    }
  }

  std::shared_ptr<shared> with;
  completion* done;
  give give_it;
  bool given_up = false;
};

cuda_link::cuda_link(runtime::link& below, cuda_copies& copies, options o)
    : below_(below), copies_(copies), shared_(std::make_shared<shared>(copies, o.most_pinned_bytes)),
      no_nccl_(std::move(o.no_nccl)) {
  shared_->below = &below;
  const auto may = [this](const nccl_pairs::place& at) { return is_exposed(at); };
  if (o.nccl != nullptr) nccl_.emplace(below, copies, *o.nccl, may, o.pairs);
  ipc_ = o.no_ipc.empty() ? can_export(copies.driver(), copies.device()) : runtime::error{errc::unavailable, o.no_ipc};
}

cuda_link::~cuda_link() {
  end_joint();
  shared_->below = nullptr;
  for (handing* const h : shared_->held_up) h->give_it = nullptr;  // it may hold an arrival of the link below
  for (const waiting_fence& f : fences_) f.done->on_end(*f.done, errc::closed);
  // Puts into peers' memory must end before that memory is unmapped.
  while (!puts_.empty()) copies_.poll();
  for (const auto& [handle, m] : mapped_) copies_.driver().close_imported(m.all.data());
}

bool cuda_link::on_device(const void* address) const noexcept {
  return copies_.driver().place_of(address).what == memory_place::kind::device;
}

errc cuda_link::send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                     completion* done) {
  if (payload.empty() || on == channel::control || !on_device(payload.data()))
    return below_.send(to, on, header, payload, done);
  // Without a completion the op did not declare device memory.
  if (to >= world_size() || header.size() > max_header_bytes || done == nullptr) return errc::bad_argument;
  try {
    auto stage = std::make_unique<staging>(shared_, payload.size(), done);
    stage->to = to;
    stage->on = on;
    stage->bytes = payload.size();
    stage->header_bytes = header.size();
    std::copy(header.begin(), header.end(), stage->header.begin());
    ++planes_.staged;
    planes_.staged_bytes += payload.size();
    const errc started = copies_.copy(stage->block.bytes(), payload, stage.get());
    if (started == errc::pending) static_cast<void>(stage.release());
    return started;
  } catch (const runtime::failure& f) {
    return copies_.refused(f);
  }
}

errc cuda_link::fetch(runtime::arrival&& message, std::span<std::byte> into, completion* done) {
  const auto bytes = static_cast<std::size_t>(message.length());
  if (bytes == 0 || into.size() < bytes || !on_device(into.data())) return below_.fetch(std::move(message), into, done);
  if (done == nullptr) return errc::bad_argument;
  try {
    auto stage = std::make_unique<staging>(shared_, bytes, done);
    stage->into = into.first(bytes);
    ++planes_.staged;
    planes_.staged_bytes += bytes;
    errc started = below_.fetch(std::move(message), stage->block.bytes().first(bytes), stage.get());
    stage->below_has_it = started == errc::pending;
    if (started == errc::none) {
      stage->second = true;
      started = stage->begin_second();
    }
    if (started == errc::pending) static_cast<void>(stage.release());
    return started;
  } catch (const runtime::failure& f) {
    return copies_.refused(f);
  }
}

void cuda_link::cancel(completion& pending) {
  if (!nccl_ || !nccl_->stop(pending)) stop(pending, &runtime::link::cancel);
}
void cuda_link::abandon(completion& pending) noexcept {
  if (!nccl_ || !nccl_->abandon(pending)) stop(pending, &runtime::link::abandon);
}

// A copy in flight ends soon by itself, and its second step is not started. The link below can be asked to stop its operation.
void cuda_link::stop(completion& pending, void (runtime::link::*how)(completion&)) {
  for (handing* const h : shared_->held_up) {
    if (h->done != &pending) continue;
    h->given_up = true;
    h->give_it = nullptr;  // drops the arrival that it may hold
    return;
  }
  const auto is_its = [&](const staging* s) { return s->done == &pending; };
  const auto at = std::find_if(shared_->active.begin(), shared_->active.end(), is_its);
  if (at == shared_->active.end()) {
    const bool ours = std::any_of(fences_.begin(), fences_.end(), [&](const auto& f) { return f.done == &pending; });
    if (!ours) (below_.*how)(pending);
  } else if ((*at)->below_has_it) {
    (below_.*how)(**at);
  } else {
    (*at)->given_up = true;
  }
}

// ---- puts and gets, from GPU to GPU -----------------------------------------------------------------------------------

// Without exported flags a peer's device cannot announce its puts; the processors' messages still do.
const exported_memory& cuda_link::exported_flags() {
  if (flags_exported_) return *flags_exported_;
  flags_exported_.emplace();
  try {
    if (auto exported = copies_.driver().export_memory(copies_.flags().memory().data())) *flags_exported_ = *exported;
  } catch (const runtime::failure&) {}  // the device cannot wait for words
  return *flags_exported_;
}

runtime::result<runtime::exposed_memory> cuda_link::expose(std::span<std::byte> memory) {
  if (memory.empty() || !on_device(memory.data())) {
    auto made = below_.expose(memory);
    if (made) made->key = key_of(key_kind::below, made->key);
    return made;
  }
  runtime::exposed_memory made;
  made.bytes = memory;
  made.number = ++last_exposed_;
  exposed_[made.number] = memory;
  ipc_key key;
  key.number = made.number;
  key.address = reinterpret_cast<std::uint64_t>(memory.data());
  key.bytes = memory.size();
  const auto exported = ipc_ ? copies_.driver().export_memory(memory.data()) : ipc_.reason();
  if (exported) {
    key.handle = exported->handle;
    key.offset = exported->offset;
    key.flags = exported_flags().handle;
    key.flags_offset = exported_flags().offset;
  } else {
    planes_.ipc_refused = exported.reason().text();
  }
  made.key = key_of(exported ? key_kind::ipc : key_kind::unreachable, std::as_bytes(std::span(&key, 1)));
  return made;
}

runtime::late_writes cuda_link::withdraw(const runtime::exposed_memory& memory) {
  if (!memory.key.empty() && memory.key.front() == static_cast<std::byte>(key_kind::below)) {
    runtime::exposed_memory theirs = memory;
    theirs.key.erase(theirs.key.begin());
    return below_.withdraw(theirs);
  }
  exposed_.erase(memory.number);
  return runtime::late_writes::may_land;
}

// A peer's allocation, mapped here; empty, with the reason in `why`, if it cannot be mapped.
std::span<std::byte> cuda_link::map(const cuda_ipc_handle& handle, errc& why) {
  const std::uint64_t use = ++uses_of_mapped_;
  if (const auto known = mapped_.find(handle); known != mapped_.end()) {
    known->second.last_use = use;
    return known->second.all;
  }
  // Unmap only while no copy is in flight and no stream waits for a message, because unmapping also waits for all streams.
  const device_rest::quiet now(device_rest::of_this_process(), {});
  while (mapped_.size() >= usually_mapped && copies_.pending() == 0 && now.at_rest()) {
    const auto used_before = [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; };
    const auto oldest = std::min_element(mapped_.begin(), mapped_.end(), used_before);
    copies_.driver().close_imported(oldest->second.all.data());
    mapped_.erase(oldest);
  }
  if (mapped_.size() == most_mapped) {
    why = errc::full;
    return {};
  }
  auto opened = copies_.driver().import_memory(copies_.device(), handle);
  if (!opened) {
    planes_.ipc_refused = opened.reason().text();
    why = errc::unavailable;
    return {};
  }
  mapped_.emplace(handle, mapped{*opened, use});
  return *opened;
}

// The local address of a place in a peer's memory; null, with the reason in `why`, if it cannot be reached.
std::byte* cuda_link::reach(const runtime::remote_place& at, std::size_t bytes, errc& why) {
  ipc_key key;
  why = errc::bad_argument;
  if (at.key.empty()) return nullptr;
  if (at.key.front() == static_cast<std::byte>(key_kind::unreachable)) why = errc::unavailable;
  if (at.key.front() != static_cast<std::byte>(key_kind::ipc) || !read_key(at, key)) return nullptr;
  if (!covers(key, at.address, bytes)) return nullptr;
  const std::span<std::byte> all = map(key.handle, why);
  if (all.empty()) return nullptr;
  const std::uint64_t inside = at.address - key.address;
  why = errc::malformed;  // the key is remote input: check it against the allocation's real size
  if (key.offset > all.size() || inside > all.size() - key.offset || bytes > all.size() - key.offset - inside)
    return nullptr;
  return all.data() + key.offset + inside;
}

// Mapping memory takes longer than copying into it, so map the memory and the peer's flags in advance.
void cuda_link::prepare(const runtime::remote_place& at) {
  ipc_key key;
  errc why = errc::none;
  if (at.key.empty()) return;
  if (at.key.front() == static_cast<std::byte>(key_kind::below))
    return below_.prepare({at.key.subspan(1), at.address, {}});
  if (reach(at, 0, why) == nullptr || !read_key(at, key) || key.flags == cuda_ipc_handle{}) return;
  map(key.flags, why);
}

struct cuda_link::peer_copy final : completion {
  explicit peer_copy(cuda_link& l) noexcept : completion(&on_copied), link(l) {}
  static void on_copied(completion& self, errc outcome) noexcept {
    const std::unique_ptr<peer_copy> me(static_cast<peer_copy*>(&self));
    if (me->number != 0) {
      std::erase_if(me->link.puts_, [&](const auto& p) { return p.second == me->number; });
      if (me->link.put_failed_ == errc::none) me->link.put_failed_ = outcome;
    }
    if (me->done != nullptr) me->done->on_end(*me->done, outcome);
    if (me->number != 0) me->link.look_at_fences();
  }
  cuda_link& link;
  completion* done = nullptr;
  std::uint64_t number = 0;  // the number of a put; 0 for a get
};

errc cuda_link::copy_peer(std::span<std::byte> to, std::span<const std::byte> from, rank_id put_to,
                          runtime::device_copy by, completion* done) {
  auto copying = std::make_unique<peer_copy>(*this);
  copying->done = done;
  if (put_to < world_size()) copying->number = ++last_put_;
  ++planes_.ipc;
  planes_.ipc_bytes += from.size();
  const errc started = copying->number != 0 ? copies_.copy(to, from, copying.get(), nullptr, by)
                                            : copies_.pull(to, from, copying.get(), nullptr, by);
  if (started != errc::pending) return started;
  if (copying->number != 0) puts_.emplace_back(put_to, copying->number);
  static_cast<void>(copying.release());
  return started;
}

errc cuda_link::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data, completion* done) {
  if (to >= world_size() || at.key.size() > max_remote_key_bytes) return errc::bad_argument;
  if (!at.key.empty() && at.key.front() == static_cast<std::byte>(key_kind::below))
    return on_device(data.data()) ? errc::unavailable : below_.put(to, {at.key.subspan(1), at.address, {}}, data, done);
  errc why = errc::none;
  std::byte* const there = reach(at, data.size(), why);
  return there == nullptr ? why : copy_peer({there, data.size()}, data, to, at.by, done);
}

// The write counts as a put, so that a fence waits for it. It therefore never lands after its flag has been reused.
void cuda_link::set_flag(rank_id to, const runtime::remote_place& at, std::uint64_t flag,
                         std::span<const std::byte> data) {
  ipc_key key;
  errc why = errc::none;
  if (to >= world_size() || at.key.empty() || at.key.front() != static_cast<std::byte>(key_kind::ipc)) return;
  if (!read_key(at, key) || key.flags == cuda_ipc_handle{} || !cuda_flags::is_one(flag)) return;
  const std::span<std::byte> flags = map(key.flags, why);
  const std::size_t all_flags = sizeof(std::uint32_t) * cuda_flags::words;
  if (flags.size() < all_flags || key.flags_offset > flags.size() - all_flags) return;
  auto setting = std::make_unique<peer_copy>(*this);
  setting->number = ++last_put_;
  std::byte* const word = flags.data() + key.flags_offset + cuda_flags::offset_of(flag);
  if (copies_.write_behind(data, word, cuda_flags::value_of(flag), setting.get()) != errc::pending) return;
  ++planes_.flags_set;
  puts_.emplace_back(to, setting->number);
  static_cast<void>(setting.release());
}

errc cuda_link::get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into, completion* done) {
  if (from >= world_size() || at.key.size() > max_remote_key_bytes) return errc::bad_argument;
  if (!at.key.empty() && at.key.front() == static_cast<std::byte>(key_kind::below))
    return on_device(into.data()) ? errc::unavailable
                                  : below_.get(from, {at.key.subspan(1), at.address, {}}, into, done);
  errc why = errc::none;
  const std::byte* const there = reach(at, into.size(), why);
  return there == nullptr ? why : copy_peer(into, {there, into.size()}, world_size(), at.by, done);
}

// ---- by the link below --------------------------------------------------------------------------------------------------

errc cuda_link::hand_over(std::span<const std::byte> memory, completion* done,
                          std::function<errc(runtime::link& below, completion* done)> give) {
  if (done == nullptr) return errc::bad_argument;
  ++planes_.by_transport;
  planes_.by_transport_bytes += memory.size();
  auto held = std::make_unique<handing>(shared_, done, std::move(give));
  const errc busy = copies_.when_free(memory, held.get());
  if (busy == errc::pending) static_cast<void>(held.release());
  return busy == errc::none ? held->give_away() : busy;
}

errc cuda_link::send_device(rank_id to, channel on, std::span<const std::byte> header,
                            std::span<const std::byte> payload, completion* done) {
  if (to >= world_size() || header.size() > max_header_bytes || !on_device(payload.data())) return errc::bad_argument;
  std::array<std::byte, max_header_bytes> kept{};
  std::copy(header.begin(), header.end(), kept.begin());
  return hand_over(payload, done, [=, bytes = header.size()](runtime::link& below, completion* user) {
    return below.send_device(to, on, std::span(kept).first(bytes), payload, user);
  });
}

errc cuda_link::fetch_device(runtime::arrival&& message, std::span<std::byte> into, completion* done) {
  if (message.length() == 0) return errc::none;
  if (into.size() < message.length() || !on_device(into.data())) return errc::bad_argument;
  const auto taken = std::make_shared<runtime::arrival>(std::move(message));
  return hand_over(into, done, [taken, into](runtime::link& below, completion* user) {
    return below.fetch_device(std::move(*taken), into, user);
  });
}

// ---- by both GPUs -----------------------------------------------------------------------------------------------------

runtime::result<> cuda_link::joint() const {
  if (nccl_) return {};
  return runtime::error{errc::unavailable, no_nccl_};
}

errc cuda_link::joint_get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into, completion* done) {
  if (!nccl_) return errc::unavailable;
  if (from >= world_size() || at.key.empty()) return errc::bad_argument;
  // Both memories must lie on devices.
  if (at.key.front() == static_cast<std::byte>(key_kind::below) || !on_device(into.data())) return errc::unavailable;
  ipc_key key;
  if (!read_key(at, key) || !covers(key, at.address, into.size())) return errc::bad_argument;
  return nccl_->get(from, {key.number, at.address, into.size()}, into, done);
}

bool cuda_link::is_exposed(const nccl_pairs::place& at) const noexcept {
  const auto found = exposed_.find(at.region);
  if (found == exposed_.end()) return false;
  const auto begin = reinterpret_cast<std::uint64_t>(found->second.data());
  const std::uint64_t size = found->second.size();
  return at.address >= begin && at.address - begin <= size && at.bytes <= size - (at.address - begin);
}

void cuda_link::on_peer_failed(rank_id peer) noexcept {
  if (nccl_) nccl_->on_peer_failed(peer);
}

// Waits for this rank's own GPU copies to the peer, which have landed when they end, and then for puts through the link below.
errc cuda_link::fence(rank_id to, completion* done) {
  if (to >= world_size()) return errc::bad_argument;
  const bool waits = std::any_of(puts_.begin(), puts_.end(), [&](const auto& p) { return p.first == to; });
  if (!waits) return put_failed_ != errc::none ? put_failed_ : below_.fence(to, done);
  fences_.push_back({to, last_put_, done});
  return errc::pending;
}

void cuda_link::look_at_fences() {
  std::vector<waiting_fence> over;
  std::erase_if(fences_, [&](const waiting_fence& f) {
    const bool waits = std::any_of(puts_.begin(), puts_.end(),
                                   [&](const auto& p) { return p.first == f.to && p.second <= f.last_put; });
    if (!waits) over.push_back(f);
    return !waits;
  });
  for (const waiting_fence& f : over) {
    const errc outcome = put_failed_ != errc::none ? put_failed_ : below_.fence(f.to, f.done);
    if (outcome != errc::pending) f.done->on_end(*f.done, outcome);
  }
}

}  // namespace parley::transports
