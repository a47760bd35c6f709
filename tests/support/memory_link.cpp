#include <parley/tests/support/memory_link.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace parley::tests {

struct memory_world::event : runtime::timer {
  event(memory_world& w, std::function<void(outcome)> f) : timer(&on_time), owner(w), action(std::move(f)) {}
  static void on_time(timer& self) noexcept {
    auto& e = static_cast<event&>(self);
    auto action = std::move(e.action);
    e.owner.events_.erase(e.place);
    action(outcome::due);
  }
  memory_world& owner;
  std::function<void(outcome)> action;
  std::list<std::unique_ptr<event>>::iterator place;
};

void memory_link::listen(channel on, handler* to) {
  handlers_[static_cast<std::size_t>(on)] = to;
  if (to == nullptr) return;
  auto kept = std::move(kept_[static_cast<std::size_t>(on)]);
  kept_[static_cast<std::size_t>(on)].clear();
  for (auto& m : kept) to->on_arrival(std::move(m));
}

void memory_link::deliver(channel on, runtime::arrival&& m) {
  if (gone_) {
    const runtime::arrival dropped = std::move(m);
    return;
  }
  ++counters_.received[static_cast<std::size_t>(on)];
  auto* h = handlers_[static_cast<std::size_t>(on)];
  if (h != nullptr) {
    h->on_arrival(std::move(m));
  } else {
    kept_[static_cast<std::size_t>(on)].push_back(std::move(m));
  }
}

memory_world::memory_world(runtime::executor& ex, rank_id n, memory_link_options o) : ex_(ex), options_(std::move(o)) {
  for (rank_id r = 0; r < n; ++r) links_.push_back(std::make_unique<memory_link>(*this, r));
}

memory_world::~memory_world() {
  while (!events_.empty()) {
    auto last = std::move(events_.front());
    events_.pop_front();
    last->action(outcome::torn_down);
  }
  for (const waiting_fence& f : fences_) f.done->on_end(*f.done, errc::peer_failed);
}

void memory_world::end_process(rank_id r) {
  links_[r]->gone_ = true;
  for (auto& kept : links_[r]->kept_) kept.clear();
  end_fences();
}

bool memory_world::land() {
  const auto oldest = std::find_if(flying_.begin(), flying_.end(), [](const auto& w) { return w.left_origin; });
  if (oldest == flying_.end()) return false;
  land(oldest);
  return true;
}

void memory_world::after(time_ns delay, std::function<void(outcome)> f) {
  events_.push_back(std::make_unique<event>(*this, std::move(f)));
  events_.back()->place = std::prev(events_.end());
  ex_.arm_in(*events_.back(), delay);
}

bool memory_world::take_back(const runtime::completion& pending) {
  std::erase_if(offers_, [](const auto& o) { return o.expired(); });
  for (const auto& kept : offers_) {
    const offer o = kept.lock();
    if (!options_.takes_back || o->sender != &pending) continue;
    after(0, [sender = std::exchange(o->sender, nullptr)](outcome) { sender->on_end(*sender, errc::cancelled); });
    o->payload = {};
    return true;
  }
  return false;
}

std::byte* memory_world::place_of(rank_id owner, std::span<const std::byte> key, std::uint64_t address,
                                  std::size_t bytes) {
  std::uint64_t number = 0;
  if (key.size() != sizeof number) return nullptr;
  std::memcpy(&number, key.data(), sizeof number);
  for (const region& r : regions_) {
    if (r.owner != owner || r.number != number) continue;
    const auto begin = reinterpret_cast<std::uint64_t>(r.bytes.data());
    if (address < begin || address - begin > r.bytes.size() || bytes > r.bytes.size() - (address - begin))
      return nullptr;
    return r.bytes.data() + (address - begin);
  }
  return nullptr;
}

std::deque<memory_world::flying_put>::iterator memory_world::find_put(std::uint64_t number) {
  return std::find_if(flying_.begin(), flying_.end(), [&](const auto& w) { return w.number == number; });
}

void memory_world::leave_origin(std::uint64_t number, std::span<const std::byte> data) {
  const auto at = find_put(number);
  at->data.assign(data.begin(), data.end());
  at->left_origin = true;
  ++puts_.in_the_air;
  if (options_.landing_ns == runtime::never) return;
  after(options_.landing_ns, [this, number](outcome how) {
    const auto put = find_put(number);
    if (how == outcome::due && put != flying_.end()) land(put);
  });
}

void memory_world::land(const std::deque<flying_put>::iterator& at) {
  const flying_put w = std::move(*at);
  flying_.erase(at);
  --puts_.in_the_air;
  region& r = regions_[w.key - 1];
  if (links_[w.to]->gone_ || (r.withdrawn && options_.late == runtime::late_writes::fail)) {
    ++puts_.nowhere;
  } else {
    std::copy(w.data.begin(), w.data.end(), reinterpret_cast<std::byte*>(w.address));
    ++puts_.landed;
  }
  end_fences();
}

void memory_world::end_fences() {
  for (std::size_t i = 0; i < fences_.size();) {
    const waiting_fence f = fences_[i];
    const bool waits = ex_.now() < f.asked_there_ns ||
                       std::any_of(
                           flying_.begin(), flying_.end(),
                           [&](const auto& w) { return w.from == f.from && w.to == f.to && w.number <= f.last_put; });
    if (waits) {
      ++i;
      continue;
    }
    fences_.erase(fences_.begin() + static_cast<std::ptrdiff_t>(i));
    if (f.brings) links_[f.to]->deliver(f.brings->first, runtime::arrival(f.brings->second, {}));
    after(options_.latency_ns, [this, f](outcome how) {
      was_abandoned(f.done);
      f.done->on_end(*f.done, how == outcome::due && !links_[f.to]->gone_ ? errc::none : errc::peer_failed);
    });
  }
}

bool memory_world::was_abandoned(runtime::completion* c) { return c != nullptr && abandoned_.erase(c) != 0; }

rank_id memory_link::world_size() const noexcept { return static_cast<rank_id>(world_.links_.size()); }

std::size_t memory_link::short_bytes() const noexcept { return world_.options_.short_bytes; }

errc memory_link::send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                       runtime::completion* done) {
  if (world_.options_.breaks && world_.options_.breaks(rank_, to, on)) return errc::peer_failed;
  ++counters_.sent[static_cast<std::size_t>(on)];
  counters_.payload_bytes_sent += payload.size();
  if (gone_ || (world_.options_.lose && world_.options_.lose(rank_, to, on))) return errc::none;
  const bool eager = done == nullptr || payload.size() <= world_.options_.eager_bytes;
  const void* held = nullptr;
  if (!eager) {
    auto* const offer = new memory_world::offer(new memory_world::offered{payload, done, rank_});
    world_.offers_.emplace_back(*offer);
    held = offer;
  } else if (!payload.empty()) {
    auto* copy = new std::byte[payload.size()];
    std::copy(payload.begin(), payload.end(), copy);
    held = copy;
  }
  auto message = std::make_shared<runtime::arrival>(world_.links_[to].get(), header, payload.size(), held, !eager);
  const time_ns extra = world_.options_.delay ? world_.options_.delay(rank_, to, on) : 0;
  world_.after(extra + world_.time_of(eager ? payload.size() : 0), [this, to, on, message](memory_world::outcome how) {
    if (how == memory_world::outcome::due) world_.links_[to]->deliver(on, std::move(*message));
  });
  return eager ? errc::none : errc::pending;
}

errc memory_link::fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) {
  if (!message.remote()) {
    std::copy(message.payload().begin(), message.payload().end(), into.begin());
    counters_.copied_bytes += message.length();
    const runtime::arrival dropped = std::move(message);
    return errc::none;
  }
  const std::unique_ptr<const memory_world::offer> held(static_cast<const memory_world::offer*>(message.surrender()));
  const memory_world::offer& offer = *held;
  if (offer->sender == nullptr) return errc::send_failed;
  world_.after(world_.time_of(offer->payload.size()), [this, offer, into, done](memory_world::outcome how) {
    const auto payload = offer->payload;
    auto* const sender = offer->sender;
    if (sender == nullptr) {
      if (done != nullptr) done->on_end(*done, errc::send_failed);
      return;
    }
    offer->sender = nullptr;  // from now on the sender cannot take it back
    const memory_link& origin = *world_.links_[offer->from];
    const bool sender_went = world_.was_abandoned(sender);
    const bool receiver_went = world_.was_abandoned(done);
    const bool ends = gone_ || origin.gone_;
    const bool due = how == memory_world::outcome::due && !sender_went && !receiver_went && !ends;
    if (due) std::copy(payload.begin(), payload.end(), into.begin());
    if (done != nullptr) done->on_end(*done, due ? errc::none : errc::peer_failed);
    if (!due) return sender->on_end(*sender, errc::peer_failed);
    world_.after(world_.options_.latency_ns, [&w = world_, sender](memory_world::outcome) {
      w.was_abandoned(sender);
      sender->on_end(*sender, errc::none);
    });
  });
  return errc::pending;
}

runtime::result<> memory_link::one_sided() const {
  if (world_.options_.one_sided == memory_link_options::memory::exposed) return {};
  return runtime::error{errc::unavailable, "memory_link was told to have no one-sided transfers"};
}

runtime::result<runtime::exposed_memory> memory_link::expose(std::span<std::byte> memory) {
  if (const auto can = one_sided(); !can) return can.reason();
  runtime::exposed_memory made;
  made.number = world_.regions_.size() + 1;
  made.bytes = memory;
  made.key.resize(sizeof made.number);
  std::memcpy(made.key.data(), &made.number, sizeof made.number);
  world_.regions_.push_back({rank_, made.number, memory});
  return made;
}

runtime::late_writes memory_link::withdraw(const runtime::exposed_memory& memory) {
  world_.regions_[memory.number - 1].withdrawn = true;
  return world_.options_.late;
}

errc memory_link::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                      runtime::completion* done) {
  counters_.payload_bytes_sent += data.size();
  if (world_.place_of(to, at.key, at.address, data.size()) == nullptr) {
    ++world_.puts_.outside;
    return errc::bad_argument;
  }
  std::uint64_t key = 0;
  std::memcpy(&key, at.key.data(), sizeof key);
  const std::uint64_t number = ++world_.last_put_;
  world_.flying_.push_back({number, rank_, to, key, at.address, {}});
  world_.after(world_.one_sided_time_of(data.size()), [&w = world_, number, data, done](auto how) {
    if (w.was_abandoned(done)) {
      w.flying_.erase(w.find_put(number));
      w.end_fences();
      return done->on_end(*done, errc::peer_failed);
    }
    if (how == memory_world::outcome::torn_down) return done->on_end(*done, errc::peer_failed);
    w.leave_origin(number, data);
    done->on_end(*done, errc::none);
  });
  return errc::pending;
}

errc memory_link::get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                      runtime::completion* done) {
  const std::byte* const place = world_.place_of(from, at.key, at.address, into.size());
  if (place == nullptr) return errc::bad_argument;
  world_.after(world_.options_.latency_ns + world_.one_sided_time_of(into.size()),
               [&w = world_, &origin = *world_.links_[from], place, into, done](auto how) {
                 const bool due = !w.was_abandoned(done) && how == memory_world::outcome::due && !origin.gone_;
                 if (due) std::copy(place, place + into.size(), into.begin());
                 done->on_end(*done, due ? errc::none : errc::peer_failed);
               });
  return errc::pending;
}

errc memory_link::fence(rank_id to, runtime::completion* done) { return start_fence(to, done, {}); }

errc memory_link::announce(rank_id to, channel on, std::span<const std::byte> header, runtime::completion* done) {
  using announcements = memory_link_options::announcements;
  if (world_.options_.announces == announcements::none) return errc::unavailable;
  if (world_.options_.announces == announcements::cut_short) {
    world_.after(world_.options_.latency_ns, [done](memory_world::outcome) { done->on_end(*done, errc::cancelled); });
    return errc::pending;
  }
  if (world_.options_.fence == memory_link_options::fences::do_nothing) return send(to, on, header, {}, nullptr);
  return start_fence(to, done, std::pair(on, std::vector(header.begin(), header.end())));
}

errc memory_link::start_fence(rank_id to, runtime::completion* done, message_behind brings) {
  if (world_.options_.fence == memory_link_options::fences::do_nothing) return errc::none;
  if (world_.options_.fence == memory_link_options::fences::fail) return errc::peer_failed;
  const time_ns asked_there_ns = world_.ex_.deadline_in(world_.options_.latency_ns);
  world_.fences_.push_back({rank_, to, world_.last_put_, asked_there_ns, done, std::move(brings)});
  world_.after(world_.options_.latency_ns, [&w = world_](memory_world::outcome how) {
    if (how == memory_world::outcome::due) w.end_fences();
  });
  return errc::pending;
}

// Cancels a payload that can be taken back, or a fence without a message. Other operations go on, as in a transport that cannot cancel.
void memory_link::cancel(runtime::completion& pending) {
  if (world_.take_back(pending)) return;
  const auto waits = [&](const memory_world::waiting_fence& f) { return f.done == &pending && !f.brings; };
  if (std::erase_if(world_.fences_, waits) == 0) return;
  world_.after(0, [&w = world_, &pending](memory_world::outcome) {
    w.was_abandoned(&pending);
    pending.on_end(pending, errc::cancelled);
  });
}
// An abandoned operation ends at its usual time at both ends, but moves no data.
void memory_link::abandon(runtime::completion& pending) noexcept {
  if (!world_.take_back(pending)) world_.abandoned_.insert(&pending);
}

void memory_link::release(const void* held, bool remote) noexcept {
  if (!remote) {
    delete[] static_cast<const std::byte*>(held);
    return;
  }
  const std::unique_ptr<const memory_world::offer> offer(static_cast<const memory_world::offer*>(held));
  auto* const sender = std::exchange((*offer)->sender, nullptr);
  if (sender == nullptr) return;
  world_.was_abandoned(sender);
  sender->on_end(*sender, gone_ ? errc::peer_failed : errc::none);  // as with UCX: a drop is not a failed send
}

}  // namespace parley::tests
