#include <parley/transports/in_process/process_world.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace parley::transports {

using runtime::completion;
using runtime::errc;
using runtime::rank_id;

// A copy in flight on a GPU, with the completions to call when it ends.
struct process_world::copying final : completion {
  explicit copying(process_world& w) noexcept : completion(&on_copied), world(w) {}
  static void on_copied(completion& self, errc outcome) noexcept {
    const std::unique_ptr<copying> me(static_cast<copying*>(&self));
    me->finish(outcome);
  }
  // Called from `poll` of the copies. `end` queues completions for the world's next `poll`.
  void finish(errc outcome) noexcept {
    process_world& w = world;
    w.end(done, outcome);
    w.end(sender, outcome);
    if (written == nullptr) return;
    --written->written;
    std::erase_if(w.puts_, [&](const flying_put& p) {
      if (p.number == put && outcome != errc::none) w.links_[p.from]->put_failed_ = true;
      return p.number == put;
    });
    w.look_at_fences();
  }
  process_world& world;
  completion* done = nullptr;
  completion* sender = nullptr;  // of the message's sender
  runtime::arrival message;      // the message whose payload is being copied
  region* written = nullptr;     // what a put writes
  std::uint64_t put = 0;
};

// ---- one rank ---------------------------------------------------------------------------------------------------------

void process_link::listen(channel on, handler* to) {
  const auto c = static_cast<std::size_t>(on);
  handlers_[c] = to;
  if (to != nullptr && !kept_[c].empty()) world_.listeners_.push_back({rank_, on});
}

void process_link::hand_over(channel on) {
  const auto c = static_cast<std::size_t>(on);
  for (auto& m : std::exchange(kept_[c], {})) {
    if (handlers_[c] != nullptr) {
      handlers_[c]->on_arrival(std::move(m));
    } else {
      kept_[c].push_back(std::move(m));
    }
  }
}

bool process_link::on_device(const void* address) const noexcept {
  return copies_ != nullptr && copies_->driver().place_of(address).what == memory_place::kind::device;
}

errc process_link::send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                        completion* done) {
  if (to >= world_size() || header.size() > max_header_bytes) return errc::bad_argument;
  ++counters_.sent[static_cast<std::size_t>(on)];
  counters_.payload_bytes_sent += payload.size();
  process_link& target = world_[to];
  const bool there = !payload.empty() && on_device(payload.data());
  if (there && done == nullptr) return errc::bad_argument;  // the op did not declare device memory
  const bool stays = done != nullptr && (payload.size() > process_world::eager_bytes || there);
  if (stays) {
    auto* const offer = new process_world::offered(payload, done, this);
    world_.offers_.push_back(*offer);
    world_.messages_.push_back({to, on, runtime::arrival(&target, header, payload.size(), offer, true)});
    return errc::pending;
  }
  if (header.size() + payload.size() <= runtime::arrival::inline_bytes) {
    world_.messages_.push_back({to, on, runtime::arrival(header, payload)});
  } else {
    auto* const copy = new std::byte[payload.size()];
    std::memcpy(copy, payload.data(), payload.size());
    world_.messages_.push_back({to, on, runtime::arrival(&target, header, payload.size(), copy, false)});
  }
  return errc::none;
}

// Copies at once, or returns `pending` if a GPU copies.
errc process_link::move(std::span<std::byte> to, std::span<const std::byte> from, const process_link& other,
                        completion* done, runtime::device_copy by) noexcept {
  if (on_device(to.data()) || on_device(from.data())) {
    const bool across = copies_ != nullptr && other.copies_ != nullptr && copies_->device() != other.copies_->device();
    return across ? copies_->pull(to, from, done, other.copies_, by) : copies_->copy(to, from, done, other.copies_, by);
  }
  std::copy(from.begin(), from.end(), to.begin());
  return errc::none;
}

errc process_link::fetch(runtime::arrival&& message, std::span<std::byte> into, completion* done) {
  if (message.length() == 0) return errc::none;
  if (done == nullptr && on_device(into.data())) return errc::bad_argument;
  auto moving = std::make_unique<process_world::copying>(world_);
  moving->done = done;
  moving->message = std::move(message);
  std::span<const std::byte> payload = moving->message.payload();
  const process_link* from = this;
  if (moving->message.remote()) {
    const std::unique_ptr<const process_world::offered> offer(
        static_cast<const process_world::offered*>(moving->message.surrender()));
    payload = offer->payload;
    moving->sender = offer->sender;
    from = offer->from;
  } else {
    counters_.copied_bytes += payload.size();
  }
  if (into.size() < payload.size()) {
    world_.end(moving->sender, errc::none);
    return errc::buffer_too_small;
  }
  if (moving->message.remote() && moving->sender == nullptr) return errc::send_failed;
  const errc started = move(into.first(payload.size()), payload, *from, moving.get(), {});
  if (started == errc::pending) {
    static_cast<void>(moving.release());
  } else {
    world_.end(moving->sender, started);
  }
  return started;
}

void process_link::abandon(completion& pending) noexcept {
  process_world::offered* const kept =
      world_.offers_.find_if([&](const process_world::offered& o) { return o.sender == &pending; });
  if (kept == nullptr) return;
  kept->payload = {};
  world_.end(std::exchange(kept->sender, nullptr), errc::cancelled);
}

void process_link::release(const void* held, bool remote) noexcept {
  if (!remote) {
    delete[] static_cast<const std::byte*>(held);
    return;
  }
  const std::unique_ptr<const process_world::offered> offer(static_cast<const process_world::offered*>(held));
  world_.end(offer->sender, errc::none);
}

// ---- puts and gets ----------------------------------------------------------------------------------------------------

runtime::result<runtime::exposed_memory> process_link::expose(std::span<std::byte> memory) {
  world_.regions_.push_back({rank_, memory});
  runtime::exposed_memory made;
  made.number = world_.regions_.size();
  made.bytes = memory;
  made.key.resize(sizeof made.number);
  std::memcpy(made.key.data(), &made.number, sizeof made.number);
  return made;
}

// `may_land` while a put is in flight: a copy that a GPU has begun cannot be stopped.
runtime::late_writes process_link::withdraw(const runtime::exposed_memory& memory) {
  auto& region = world_.regions_.at(memory.number - 1);
  region.withdrawn = true;
  return region.written == 0 ? runtime::late_writes::fail : runtime::late_writes::may_land;
}

process_world::region* process_world::find(rank_id owner, const runtime::remote_place& at, std::size_t bytes) noexcept {
  std::uint64_t number = 0;
  if (at.key.size() != sizeof number) return nullptr;
  std::memcpy(&number, at.key.data(), sizeof number);
  if (number == 0 || number > regions_.size()) return nullptr;
  region& r = regions_[number - 1];
  const auto begin = reinterpret_cast<std::uint64_t>(r.bytes.data());
  if (r.owner != owner || r.withdrawn || at.address < begin || at.address - begin > r.bytes.size() ||
      bytes > r.bytes.size() - (at.address - begin))
    return nullptr;
  return &r;
}

errc process_link::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data, completion* done) {
  if (to >= world_size()) return errc::bad_argument;
  process_world::region* const region = world_.find(to, at, data.size());
  if (region == nullptr) return errc::bad_argument;
  counters_.payload_bytes_sent += data.size();
  auto moving = std::make_unique<process_world::copying>(world_);
  moving->done = done;
  moving->written = region;
  moving->put = ++world_.last_put_;
  const std::span<std::byte> into(reinterpret_cast<std::byte*>(at.address), data.size());
  const errc started = move(into, data, world_[to], moving.get(), at.by);
  if (started != errc::pending) return started;
  ++region->written;
  world_.puts_.push_back({rank_, to, moving.release()->put});
  return started;
}

errc process_link::get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into, completion* done) {
  if (from >= world_size()) return errc::bad_argument;
  if (world_.find(from, at, into.size()) == nullptr) return errc::bad_argument;
  auto moving = std::make_unique<process_world::copying>(world_);
  moving->done = done;
  const std::span<const std::byte> payload(reinterpret_cast<const std::byte*>(at.address), into.size());
  const errc started = move(into, payload, world_[from], moving.get(), at.by);
  if (started == errc::pending) static_cast<void>(moving.release());
  return started;
}

errc process_link::fence(rank_id to, completion* done) {
  if (to >= world_size()) return errc::bad_argument;
  world_.fences_.push_back({rank_, to, world_.last_put_, done});
  world_.look_at_fences();
  return errc::pending;
}

void process_world::look_at_fences() {
  std::erase_if(fences_, [this](const waiting_fence& f) {
    const bool waits = std::any_of(puts_.begin(), puts_.end(), [&](const flying_put& p) {
      return p.from == f.from && p.to == f.to && p.number <= f.last_put;
    });
    // The outcome is `peer_failed` even if this rank's own device failed. After `device_failed` this rank would leave, and its peers
    // would have to see its connections end; inside one process no connection ends. After `peer_failed` this rank declares the peer
    // lost and tells it.
    if (!waits) end(f.done, links_[f.from]->put_failed_ ? errc::peer_failed : errc::none);
    return !waits;
  });
}

// ---- the world --------------------------------------------------------------------------------------------------------

process_world::process_world(rank_id ranks) : process_world(std::vector<cuda_copies*>(ranks, nullptr)) {}

process_world::process_world(const std::vector<cuda_copies*>& copies) : event_fd_(::eventfd(0, EFD_CLOEXEC)) {
  for (rank_id r = 0; r < copies.size(); ++r) links_.push_back(std::make_unique<process_link>(*this, r, copies[r]));
}

process_world::~process_world() {
  messages_.clear();  // drops unread messages, which ends their sends
  for (auto& link : links_) {
    for (auto& kept : link->kept_) kept.clear();
  }
  for (const waiting_fence& f : fences_) end(f.done, errc::closed);
  for (const ended_operation& e : std::exchange(ended_, {})) e.done->on_end(*e.done, e.outcome);
  ::close(event_fd_);
}

// Handles only the entries that are queued now. Entries that handlers add wait for the next poll, so that other work gets its turn.
bool process_world::poll() {
  if (idle()) return false;
  for (const ended_operation& e : std::exchange(ended_, {})) e.done->on_end(*e.done, e.outcome);
  for (const new_listener& l : std::exchange(listeners_, {})) links_[l.rank]->hand_over(l.on);
  for (std::size_t i = messages_.size(); i > 0; --i) {
    message m = std::move(messages_.front());
    messages_.pop_front();
    process_link& to = *links_[m.to];
    ++to.counters_.received[static_cast<std::size_t>(m.on)];
    auto& kept = to.kept_[static_cast<std::size_t>(m.on)];
    if (auto* const handler = to.handlers_[static_cast<std::size_t>(m.on)]; handler != nullptr && kept.empty()) {
      handler->on_arrival(std::move(m.what));
    } else {
      kept.push_back(std::move(m.what));
    }
  }
  return true;
}

}  // namespace parley::transports
