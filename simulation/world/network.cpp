#include <parley/simulation/world/network.hpp>

#include <parley/runtime/intrusive_list.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

namespace parley::simulation {

using runtime::arrival;
using runtime::completion;
using runtime::intrusive_list;
using runtime::link;
using runtime::list_hook;

namespace {

// A payload that travels with its message lies in recycled memory, behind its size.
constexpr std::size_t before_payload = alignof(std::max_align_t);

std::byte* carry(std::span<const std::byte> payload) {
  auto* const block = static_cast<std::byte*>(runtime::frame_pool::allocate(before_payload + payload.size()));
  const std::size_t size = payload.size();
  std::memcpy(block, &size, sizeof size);
  std::copy(payload.begin(), payload.end(), block + before_payload);
  return block + before_payload;
}

void put_down(const void* carried) noexcept {
  auto* const block = static_cast<std::byte*>(const_cast<void*>(carried)) - before_payload;
  std::size_t size = 0;
  std::memcpy(&size, block, sizeof size);
  runtime::frame_pool::release(block, before_payload + size);
}

}  // namespace

// An operation in flight. Its completion is called once: when the operation ends, or when its owner gives up the peer.
struct network::operation : list_hook, runtime::frame_pool::pooled {
  operation(rank_id o, rank_id p, std::uint64_t l, completion* d) noexcept : owner(o), peer(p), life(l), done(d) {}
  void end(errc outcome) noexcept {
    unlink();
    if (done != nullptr) {
      completion* const told = std::exchange(done, nullptr);
      told->on_end(*told, outcome);
    }
  }
  rank_id owner;
  rank_id peer;
  std::uint64_t life;  // of the peer
  completion* done;
  bool abandoned = false;  // its buffer is gone
};

// A payload that stays with its sender until it is fetched.
struct network::offered : list_hook, runtime::frame_pool::pooled {
  std::span<const std::byte> payload;
  rank_id from = 0;
  std::uint64_t life = 0;  // of `from`
  void withdraw() noexcept {
    withdrawn = true;
    payload = {};
  }
  bool withdrawn = false;   // its sender has ended, or has abandoned it
  bool taken_back = false;  // its sender has taken it back: a fetch fails
  std::unique_ptr<operation> sender;
};

struct network::waiting_fence {
  rank_id from;
  rank_id to;
  std::uint64_t last_put;
  std::unique_ptr<operation> op;
  link::channel on;
  std::vector<std::byte> header;  // of the message that the fence delivers; empty: none
};

class network::port final : public link {
 public:
  port(network& n, rank_id r) : net_(n), rank_(r) {}

  rank_id rank() const noexcept override { return rank_; }
  rank_id world_size() const noexcept override { return static_cast<rank_id>(net_.ports_.size()); }
  void listen(channel on, handler* to) override {
    const auto c = static_cast<std::size_t>(on);
    handlers_[c] = to;
    const auto is_for_it = [on](const early& e) { return e.on == on; };
    if (to != nullptr && std::any_of(early_.begin(), early_.end(), is_for_it)) hand_over_early(on);
  }
  void on_failure(failure_handler* to) override { failure_ = to; }
  errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            completion* done) override;
  errc fetch(arrival&& message, std::span<std::byte> into, completion* done) override;
  // Cancels only a payload that can be taken back. Others stay offered, as in a transport that cannot cancel.
  void cancel(completion& pending) override { static_cast<void>(take_back(pending)); }
  void abandon(completion& pending) noexcept override;
  const counters& statistics() const noexcept override { return counters_; }
  std::size_t wiring_bytes() const noexcept override { return net_.model_.wiring_bytes; }
  runtime::result<> one_sided() const override;
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override;
  runtime::late_writes withdraw(const runtime::exposed_memory& memory) override;
  errc put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data, completion* done) override;
  errc get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into, completion* done) override;
  errc fence(rank_id to, completion* done) override;
  errc announce(rank_id to, channel on, std::span<const std::byte> header, completion* done) override;

 private:
  friend network;
  friend delivery;
  friend handing_over;
  errc start_fence(rank_id to, completion* done, channel on, std::span<const std::byte> header);
  bool take_back(const completion& pending);
  void hand_over_early(channel on);
  void deliver(channel on, arrival&& m) {
    const auto c = static_cast<std::size_t>(on);
    ++counters_.received[c];
    if (handlers_[c] != nullptr) {
      handlers_[c]->on_arrival(std::move(m));
    } else {
      early_.push_back({on, std::move(m)});
    }
  }
  void release(const void* held, bool remote) noexcept override;

  // The wire from this rank to one other rank.
  struct wire {
    rank_id to = 0;
    std::uint64_t messages[channels]{};
    time_ns free_at = 0;  // when all its payloads have left
  };
  wire& wire_to(rank_id to) {
    if (latest_ < wires_.size() && wires_[latest_].to == to) return wires_[latest_];
    for (latest_ = 0; latest_ < wires_.size(); ++latest_) {
      if (wires_[latest_].to == to) return wires_[latest_];
    }
    wires_.push_back({to});
    return wires_.back();
  }
  struct early {
    channel on;
    arrival message;
  };

  // The members that every message uses, close together in memory.
  network& net_;
  rank_id rank_;
  bool dead_ = false;
  std::uint64_t life_ = 0;
  std::uint64_t back_since_ = 0;  // the life that began with `come_back`; messages for earlier lives are lost
  time_ns egress_free_at_ = 0;    // when all payloads that this rank has sent have left
  time_ns ingress_free_at_ = 0;   // when all payloads in flight to this rank have arrived
  std::vector<wire> wires_;
  std::size_t latest_ = 0;
  handler* handlers_[channels]{};
  counters counters_;
  intrusive_list<operation> open_;  // operations of this rank
  intrusive_list<offered> offers_;  // payloads offered by this rank
  std::vector<early> early_;        // messages that arrived before their channel had a handler
  failure_handler* failure_ = nullptr;
};

// --- Messages --------------------------------------------------------------------------------------------------------

struct network::delivery final : event {
  explicit delivery(network& n) noexcept : net(n) {}
  ~delivery() override {
    if (held == nullptr) return;
    if (remote) {
      delete static_cast<const offered*>(held);
    } else {
      put_down(held);
    }
  }
  parcel as_parcel() {
    auto* const bytes = remote ? nullptr : const_cast<std::byte*>(static_cast<const std::byte*>(held));
    parcel p;
    p.from = from;
    p.to = to;
    p.on = on;
    p.header = {header.data(), header_size};
    p.payload = {bytes, bytes == nullptr ? 0 : static_cast<std::size_t>(length)};
    p.payload_bytes = length;
    p.number = number;
    p.mark = mark;
    p.copy = copy;
    return p;
  }
  void replace_payload(std::span<const std::byte> by) {
    if (held != nullptr) put_down(held);
    held = carry(by);
    length = by.size();
  }
  void happen() override {
    port& target = *net.ports_[to];
    if (target.dead_ || to_life < target.back_since_ || net.gave_up(to, from, from_life)) return drop();
    if (net.weather_ != nullptr) {
      parcel p = as_parcel();
      if (!net.weather_->deliver(p)) return drop();
      if (p.replaced && !remote) replace_payload(p.instead);
    }
    if (on == runtime::link::channel::data) ++net.payloads_;
    target.deliver(on, arrival(&target, {header.data(), header_size}, length, std::exchange(held, nullptr), remote));
  }
  // The sender's operation stays open until the sender gives up the peer.
  void drop() {
    if (!remote || held == nullptr) return;
    const std::unique_ptr<const offered> offer(static_cast<const offered*>(std::exchange(held, nullptr)));
    net.keep(std::move(const_cast<offered&>(*offer).sender));
  }

  network& net;
  rank_id from = 0;
  rank_id to = 0;
  link::channel on = link::channel::control;
  bool remote = false;
  bool copy = false;
  std::uint8_t header_size = 0;
  std::uint64_t from_life = 0;
  std::uint64_t to_life = 0;
  std::uint64_t length = 0;
  std::uint64_t number = 0;
  std::uint8_t mark = 0;
  const void* held = nullptr;
  std::array<std::byte, link::max_header_bytes> header;  // the first `header_size`
};

// Delivers the early messages of a channel to its handler.
struct network::handing_over final : event {
  handing_over(port& p, link::channel c) noexcept : to(p), on(c) {}
  void happen() override {
    const auto c = static_cast<std::size_t>(on);
    if (to.handlers_[c] == nullptr) return;
    std::vector<port::early> others;
    std::vector<arrival> mine;
    for (port::early& e : std::exchange(to.early_, {})) {
      if (e.on == on) {
        mine.push_back(std::move(e.message));
      } else {
        others.push_back(std::move(e));
      }
    }
    to.early_ = std::move(others);
    for (arrival& m : mine) {
      if (to.handlers_[c] != nullptr) to.handlers_[c]->on_arrival(std::move(m));
    }
  }
  port& to;
  link::channel on;
};

// Ends an operation at its owner.
struct network::finishing final : event {
  finishing(std::unique_ptr<operation> o, errc how) noexcept : op(std::move(o)), outcome(how) {}
  void happen() override { op->end(outcome); }
  std::unique_ptr<operation> op;
  errc outcome;
};

// A fetched payload on its way from its sender to the receiver.
struct network::bringing final : event {
  explicit bringing(network& n) noexcept : net(n) {}
  void happen() override {
    if (fetching->done == nullptr) {  // the receiver has ended, or has given up the sender
      net.keep(std::move(offer->sender));
      return;
    }
    if (offer->taken_back) return fetching->end(errc::send_failed);
    if (offer->withdrawn || fetching->abandoned || net.gave_up(fetching->owner, fetching->peer)) {
      net.keep(std::move(offer->sender));
      return net.keep(std::move(fetching));
    }
    std::copy(offer->payload.begin(), offer->payload.end(), into.begin());
    ++net.payloads_;
    net.finish(std::move(offer->sender), net.model_.latency_ns);
    fetching->end(errc::none);
  }
  network& net;
  std::unique_ptr<offered> offer;
  std::unique_ptr<operation> fetching;
  std::span<std::byte> into;
};

network::network(timeline& line, rank_id ranks, link_model model, interference* weather)
    : line_(line), model_(model), weather_(weather) {
  ports_.reserve(ranks);
  for (rank_id r = 0; r < ranks; ++r) ports_.push_back(std::make_unique<port>(*this, r));
}

// Ends all operations in flight, as a transport that closes does: their owners get their buffers back.
network::~network() {
  for (auto& p : ports_) {
    p->dead_ = true;
    while (!p->open_.empty()) p->open_.front().end(errc::peer_failed);
  }
}

link& network::operator[](rank_id r) noexcept { return *ports_[r]; }
bool network::alive(rank_id rank) const noexcept { return !ports_[rank]->dead_; }
bool network::is_of(rank_id rank, std::uint64_t life) const noexcept {
  return !ports_[rank]->dead_ && ports_[rank]->life_ == life;
}

std::unique_ptr<network::operation> network::open(rank_id owner, rank_id peer, completion* done) {
  auto op = std::make_unique<operation>(owner, peer, known_life(owner, peer), done);
  ports_[owner]->open_.push_back(*op);
  return op;
}

void network::finish(std::unique_ptr<operation> op, time_ns delay, errc outcome) {
  const rank_id owner = op->owner;
  line_.at(line_.now() + delay, owner, std::make_unique<finishing>(std::move(op), outcome));
}

// Keeps an operation that ends only when its owner gives up the peer, or ends itself.
void network::keep(std::unique_ptr<operation> op) {
  if (op && op->done != nullptr) kept_.push_back(std::move(op));
}

time_ns network::crossed(rank_id from, rank_id to, std::uint64_t bytes, link::channel on) {
  const auto busy = static_cast<time_ns>(model_.ns_per_byte * static_cast<double>(bytes));
  if (on == link::channel::control) return line_.now() + model_.latency_ns + busy;
  return carried(from, to, line_.now(), busy);
}

// Returns the arrival time of a payload that waits for its wires from `begins` on and keeps each of them busy for `busy`.
time_ns network::carried(rank_id from, rank_id to, time_ns begins, time_ns busy) {
  const auto host = [this](rank_id r) { return r - r % model_.ranks_per_host; };
  time_ns leaves = begins + busy;
  if (model_.shared_wire) {
    time_ns& free_at = ports_[from]->wire_to(to).free_at;
    leaves = free_at = std::max(free_at, begins) + model_.per_message_ns + busy;
  }
  const bool goes_out = host(from) != host(to);
  if (model_.shared_egress && goes_out) {
    time_ns& free_at = ports_[host(from)]->egress_free_at_;
    leaves = free_at = std::max(leaves, std::max(free_at, begins) + model_.per_message_ns + busy);
  }
  time_ns arrives = leaves + model_.latency_ns;
  if (model_.shared_ingress && goes_out) {
    time_ns& free_at = ports_[host(to)]->ingress_free_at_;
    arrives = free_at = std::max(arrives, free_at + model_.per_message_ns + busy);
  }
  return arrives;
}

errc network::port::send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                         completion* done) {
  if (to >= world_size() || header.size() > max_header_bytes) return errc::bad_argument;
  if (net_.gave_up(rank_, to)) return errc::peer_failed;
  const auto c = static_cast<std::size_t>(on);
  ++counters_.sent[c];
  counters_.payload_bytes_sent += payload.size();
  const bool eager = done == nullptr || payload.size() <= net_.model_.eager_bytes;
  auto made = std::make_unique<delivery>(net_);
  made->from = rank_;
  made->to = to;
  made->on = on;
  made->from_life = life_;
  made->to_life = net_.known_life(rank_, to);
  made->remote = !eager;
  made->header_size = static_cast<std::uint8_t>(header.size());
  made->length = payload.size();
  made->number = ++wire_to(to).messages[c];
  std::copy(header.begin(), header.end(), made->header.begin());
  if (!eager) {
    auto* offer = new offered;
    offer->payload = payload;
    offer->from = rank_;
    offer->life = life_;
    offer->sender = net_.open(rank_, to, done);
    offers_.push_back(*offer);
    made->held = offer;
  } else if (!payload.empty()) {
    made->held = carry(payload);
  }
  fate f;
  if (net_.weather_ != nullptr) f = net_.weather_->judge(made->as_parcel());
  made->mark = f.mark;
  const errc outcome = eager ? errc::none : errc::pending;
  if (f.lost && eager) return outcome;
  if (f.doubled && eager) {
    auto twin = std::make_unique<delivery>(net_);
    twin->from = rank_;
    twin->to = to;
    twin->on = on;
    twin->from_life = made->from_life;
    twin->to_life = made->to_life;
    twin->copy = true;
    twin->header_size = made->header_size;
    twin->length = made->length;
    twin->number = made->number;
    std::copy(header.begin(), header.end(), twin->header.begin());
    if (!payload.empty()) twin->held = carry(payload);
    net_.line_.at(net_.line_.now() + net_.model_.latency_ns + f.copy_extra_ns, to, std::move(twin));
  }
  const time_ns when = net_.crossed(rank_, to, eager ? payload.size() : 0, on) + f.extra_ns;
  net_.line_.at(when, to, std::move(made));
  return outcome;
}

errc network::port::fetch(arrival&& message, std::span<std::byte> into, completion* done) {
  arrival taken = std::move(message);  // the message is consumed in every case below
  if (into.size() < taken.length()) return errc::buffer_too_small;
  if (!taken.remote()) {
    std::copy(taken.payload().begin(), taken.payload().end(), into.begin());
    counters_.copied_bytes += taken.length();
    return errc::none;
  }
  auto brought = std::make_unique<bringing>(net_);
  brought->offer.reset(const_cast<offered*>(static_cast<const offered*>(taken.surrender())));
  const rank_id from = brought->offer->from;
  const std::uint64_t life = brought->offer->life;
  if (net_.gave_up(rank_, from) || life < net_.known_life(rank_, from)) {
    net_.keep(std::move(brought->offer->sender));
    return errc::peer_failed;
  }
  if (brought->offer->taken_back) return errc::send_failed;
  brought->fetching = net_.open(rank_, from, done);
  brought->fetching->life = life;
  brought->into = into;
  const time_ns when = net_.crossed(from, rank_, brought->offer->payload.size(), channel::data);
  net_.line_.at(when, rank_, std::move(brought));
  return errc::pending;
}

void network::port::release(const void* held, bool remote) noexcept {
  if (!remote) {
    put_down(held);
    return;
  }
  const std::unique_ptr<offered> offer(const_cast<offered*>(static_cast<const offered*>(held)));
  if (!offer->sender || offer->sender->done == nullptr) return;
  if (dead_) {
    net_.keep(std::move(offer->sender));
  } else {
    net_.finish(std::move(offer->sender), net_.model_.latency_ns);  // as with UCX: a drop is not a failed send
  }
}

void network::port::hand_over_early(channel on) {
  net_.line_.at(net_.line_.now(), rank_, std::make_unique<handing_over>(*this, on));
}

bool network::port::take_back(const completion& pending) {
  if (!net_.model_.takes_back || dead_) return false;
  offered* const kept = offers_.find_if([&](const offered& o) { return o.sender && o.sender->done == &pending; });
  if (kept == nullptr) return false;
  kept->withdraw();
  kept->taken_back = true;
  net_.finish(std::move(kept->sender), 0, errc::cancelled);
  return true;
}

// As with UCX, an operation in flight cannot be taken back, so the connection breaks, with all operations on it. The other side notices
// one latency later.
void network::port::abandon(completion& pending) noexcept {
  if (take_back(pending)) return;
  operation* left = nullptr;
  open_.for_each([&](operation& op) {
    if (op.done == &pending) left = &op;
  });
  if (left == nullptr) return;
  left->abandoned = true;
  offers_.for_each([&](offered& o) {
    if (o.sender.get() == left) o.withdraw();
  });
  if (!dead_) net_.break_connection(rank_, left->peer);
}

// --- Ranks that end --------------------------------------------------------------------------------------------------

struct network::breaking final : event {
  breaking(network& n, rank_id w, rank_id p, std::uint64_t peers) noexcept
      : net(n), who(w), peer(p), life(n.ports_[w]->life_), life_of_peer(peers) {}
  void happen() override {
    if (net.ports_[who]->life_ == life && net.known_life(who, peer) == life_of_peer) net.give_up(who, peer);
  }
  network& net;
  rank_id who;
  rank_id peer;
  std::uint64_t life;
  std::uint64_t life_of_peer;
};

void network::begin_crash(rank_id rank) { ports_[rank]->dead_ = true; }

void network::forget_transfers_of(rank_id rank) {
  ports_[rank]->open_.for_each([](operation& op) { op.done = nullptr; });
}

void network::end_crash(rank_id rank) {
  port& p = *ports_[rank];
  for (auto& handler : p.handlers_) handler = nullptr;
  p.failure_ = nullptr;
  p.offers_.for_each([](offered& o) { o.withdraw(); });
  p.offers_.clear();
  while (!p.open_.empty()) p.open_.front().end(errc::peer_failed);
  p.early_.clear();
  for (flying_put& w : flying_) {
    if (w.from == rank && !w.left_origin) w.number = 0;
  }
  std::erase_if(flying_, [](const flying_put& w) { return w.number == 0; });
  std::erase_if(fences_, [](const waiting_fence& f) { return f.op->done == nullptr; });
  std::erase_if(kept_, [](const auto& op) { return op->done == nullptr; });
  end_fences();
}

void network::revive(rank_id rank) {
  const auto of_it = [&](const auto& entry) { return entry.first.first == rank || entry.first.second == rank; };
  ports_[rank]->dead_ = false;
  ++ports_[rank]->life_;
  ports_[rank]->back_since_ = 0;
  std::erase_if(given_up_, of_it);
  std::erase_if(outdated_, of_it);
}

void network::come_back(rank_id rank) {
  const auto its_own = [&](const auto& entry) { return entry.first.first == rank; };
  for (rank_id other = 0; other < ports_.size(); ++other) {
    if (other != rank) outdated_.try_emplace({other, rank}, ports_[rank]->life_);
  }
  ports_[rank]->dead_ = false;
  ports_[rank]->back_since_ = ++ports_[rank]->life_;
  std::erase_if(given_up_, its_own);
  std::erase_if(outdated_, its_own);
}

void network::meet(rank_id who, rank_id peer) { outdated_.erase({who, peer}); }

std::uint64_t network::known_life(rank_id who, rank_id peer) const noexcept {
  if (!outdated_.empty()) {
    if (const auto old = outdated_.find({who, peer}); old != outdated_.end()) return old->second;
  }
  return ports_[peer]->life_;
}

bool network::gave_up(rank_id who, rank_id peer, std::uint64_t life) const {
  const auto at = given_up_.find({who, peer});
  return at != given_up_.end() && life <= at->second;
}

void network::give_up(rank_id who, rank_id peer) {
  port& p = *ports_[who];
  if (p.dead_ || gave_up(who, peer)) return;
  given_up_[{who, peer}] = known_life(who, peer);
  end_operations(who, peer, known_life(who, peer) + 1);
  if (p.failure_ != nullptr) p.failure_->on_peer_failed(peer);
}

void network::let_go(rank_id who, rank_id peer) { end_operations(who, peer, known_life(who, peer)); }

void network::end_operations(rank_id who, rank_id peer, std::uint64_t before_life) {
  std::vector<operation*> ending;
  ports_[who]->open_.for_each([&](operation& op) {
    if (op.peer == peer && op.life < before_life) ending.push_back(&op);
  });
  for (operation* op : ending) op->end(errc::peer_failed);
  std::erase_if(kept_, [](const auto& op) { return op->done == nullptr; });
  std::erase_if(fences_, [](const waiting_fence& f) { return f.op->done == nullptr; });
}

void network::break_connection(rank_id who, rank_id peer) {
  const auto tell = [this](rank_id one, rank_id other, time_ns when) {
    line_.at(when, one, std::make_unique<breaking>(*this, one, other, known_life(one, other)));
  };
  tell(who, peer, line_.now());
  if (who != peer) tell(peer, who, line_.now() + model_.latency_ns);
}

std::size_t network::pending() noexcept {
  std::size_t n = 0;
  for (auto& p : ports_) {
    p->open_.for_each([&](operation& op) { n += alive(op.peer) || gave_up(op.owner, op.peer) ? 1 : 0; });
  }
  return n;
}

std::size_t network::exposed() const noexcept {
  return static_cast<std::size_t>(std::count_if(
      regions_.begin(), regions_.end(), [&](const region& r) { return !r.withdrawn && is_of(r.owner, r.life); }));
}

// --- One-sided transfers ---------------------------------------------------------------------------------------------

// The time at which the bytes of a put or a get arrive at their other end.
time_ns network::put_or_got(rank_id from, rank_id to, time_ns begins, std::uint64_t bytes) {
  const auto busy = static_cast<time_ns>(model_.one_sided_ns_per_byte * static_cast<double>(bytes));
  return model_.shared_one_sided ? carried(from, to, begins, busy) : begins + model_.latency_ns + busy;
}

runtime::result<> network::port::one_sided() const {
  if (net_.model_.one_sided == link_model::memory::exposed) return {};
  return runtime::error{errc::unavailable, "this simulated network has no one-sided transfers"};
}

runtime::result<runtime::exposed_memory> network::port::expose(std::span<std::byte> memory) {
  if (const auto can = one_sided(); !can) return can.reason();
  runtime::exposed_memory made;
  made.number = net_.regions_.size() + 1;
  made.bytes = memory;
  made.key.resize(sizeof made.number);
  std::memcpy(made.key.data(), &made.number, sizeof made.number);
  net_.regions_.push_back({rank_, life_, memory});
  return made;
}

runtime::late_writes network::port::withdraw(const runtime::exposed_memory& memory) {
  net_.regions_[memory.number - 1].withdrawn = true;
  return net_.model_.late;
}

// The number of the exposed memory that contains the range named by the key and the address, or 0.
std::uint64_t network::place_of(rank_id owner, std::span<const std::byte> key, std::uint64_t address,
                                std::uint64_t bytes) const {
  std::uint64_t number = 0;
  if (key.size() != sizeof number) return 0;
  std::memcpy(&number, key.data(), sizeof number);
  if (number == 0 || number > regions_.size()) return 0;
  const region& r = regions_[number - 1];
  const auto begin = reinterpret_cast<std::uint64_t>(r.bytes.data());
  if (r.owner != owner || address < begin || address - begin > r.bytes.size() ||
      bytes > r.bytes.size() - (address - begin))
    return 0;
  return number;
}

struct network::leaving final : event {
  leaving(network& n, std::unique_ptr<operation> o, std::uint64_t w, std::span<const std::byte> d) noexcept
      : net(n), op(std::move(o)), number(w), data(d) {}
  void happen() override {
    if (op->done == nullptr ||
        op->abandoned) {  // the origin has given up the peer, has ended, or may have reused the buffer
      net.forget_put(number);
      return net.keep(std::move(op));
    }
    net.leave_origin(number, data);
    op->end(errc::none);
  }
  network& net;
  std::unique_ptr<operation> op;
  std::uint64_t number;
  std::span<const std::byte> data;
};

struct network::landing_put final : event {
  landing_put(network& n, std::uint64_t w) noexcept : net(n), number(w) {}
  void happen() override {
    for (std::size_t i = 0; i < net.flying_.size(); ++i) {
      if (net.flying_[i].number == number) return net.land(i);
    }
  }
  network& net;
  std::uint64_t number;
};

struct network::reading final : event {
  reading(network& n, std::unique_ptr<operation> o, std::uint64_t r, std::span<const std::byte> p,
          std::span<std::byte> i) noexcept
      : net(n), op(std::move(o)), from_region(r), place(p), into(i) {}
  void happen() override {
    if (op->done == nullptr) return;
    const region& r = net.regions_[from_region - 1];
    if (!net.is_of(r.owner, r.life) || op->abandoned || net.gave_up(op->owner, op->peer))
      return net.keep(std::move(op));
    if (r.withdrawn) {
      ++net.puts_.lost_reads;
      return op->end(errc::unavailable);
    }
    std::copy(place.begin(), place.end(), into.begin());
    ++net.payloads_;
    op->end(errc::none);
  }
  network& net;
  std::unique_ptr<operation> op;
  std::uint64_t from_region;
  std::span<const std::byte> place;
  std::span<std::byte> into;
};

errc network::port::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                        completion* done) {
  if (to >= world_size()) return errc::bad_argument;
  if (net_.gave_up(rank_, to)) return errc::peer_failed;
  counters_.payload_bytes_sent += data.size();
  const std::uint64_t region = net_.place_of(to, at.key, at.address, data.size());
  if (region == 0) {
    ++net_.puts_.outside;
    return errc::bad_argument;
  }
  const std::uint64_t number = ++net_.last_put_;
  net_.flying_.push_back({number, rank_, life_, to, region, at.address, {}});
  net_.line_.at(net_.put_or_got(rank_, to, net_.line_.now(), data.size()), rank_,
                std::make_unique<leaving>(net_, net_.open(rank_, to, done), number, data));
  return errc::pending;
}

errc network::port::get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into, completion* done) {
  if (from >= world_size()) return errc::bad_argument;
  if (net_.gave_up(rank_, from)) return errc::peer_failed;
  const std::uint64_t region = net_.place_of(from, at.key, at.address, into.size());
  if (region == 0) {
    ++net_.puts_.outside;
    return errc::bad_argument;
  }
  const std::span<const std::byte> bytes = net_.regions_[region - 1].bytes;
  const std::size_t offset = at.address - reinterpret_cast<std::uint64_t>(bytes.data());
  net_.line_.at(
      net_.put_or_got(from, rank_, net_.line_.now() + net_.model_.latency_ns, into.size()), rank_,
      std::make_unique<reading>(net_, net_.open(rank_, from, done), region, bytes.subspan(offset, into.size()), into));
  return errc::pending;
}

errc network::port::fence(rank_id to, completion* done) { return start_fence(to, done, channel::data, {}); }

// Real links either can announce or cannot. This one can every other time, so that each run covers both.
errc network::port::announce(rank_id to, channel on, std::span<const std::byte> header, completion* done) {
  if (net_.last_put_ % 2 == 0) return errc::unavailable;
  const errc started = start_fence(to, done, on, header);
  return started == errc::none ? send(to, on, header, {}, nullptr) : started;
}

errc network::port::start_fence(rank_id to, completion* done, channel on, std::span<const std::byte> header) {
  if (to >= world_size()) return errc::bad_argument;
  if (net_.gave_up(rank_, to)) return errc::peer_failed;
  if (net_.model_.fence == link_model::fences::do_nothing) return errc::none;
  if (net_.model_.fence == link_model::fences::fail && net_.line_.now() >= net_.model_.fence_fails_from_ns)
    return errc::peer_failed;
  net_.fences_.push_back({rank_, to, net_.last_put_, net_.open(rank_, to, done), on, {header.begin(), header.end()}});
  net_.end_fences(net_.model_.latency_ns);
  return errc::pending;
}

// The link of the target delivers this message itself, so the weather does not decide its fate.
void network::bring(const waiting_fence& f, time_ns way) {
  auto made = std::make_unique<delivery>(*this);
  made->from = f.from;
  made->to = f.to;
  made->on = f.on;
  made->from_life = ports_[f.from]->life_;
  made->to_life = f.op->life;
  made->header_size = static_cast<std::uint8_t>(f.header.size());
  made->number = ++ports_[f.from]->wire_to(f.to).messages[static_cast<std::size_t>(f.on)];
  std::copy(f.header.begin(), f.header.end(), made->header.begin());
  line_.at(line_.now() + way, f.to, std::move(made));
}

void network::leave_origin(std::uint64_t number, std::span<const std::byte> data) {
  const auto at = std::find_if(flying_.begin(), flying_.end(), [&](const auto& w) { return w.number == number; });
  if (at == flying_.end()) return;
  at->data.assign(data.begin(), data.end());
  at->left_origin = true;
  ++puts_.in_the_air;
  time_ns takes = model_.landing_ns;
  if (weather_ != nullptr) takes = weather_->landing(at->from, at->to, takes);
  if (takes == runtime::never) return;
  line_.at(line_.now() + takes, nobody, std::make_unique<landing_put>(*this, number));
}

void network::forget_put(std::uint64_t number) {
  std::erase_if(flying_, [&](const flying_put& w) { return w.number == number; });
  end_fences();
}

bool network::land() {
  for (std::size_t i = 0; i < flying_.size(); ++i) {
    if (!flying_[i].left_origin) continue;
    land(i);
    return true;
  }
  return false;
}

void network::land(std::size_t at) {
  const flying_put w = std::move(flying_[at]);
  flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(at));
  --puts_.in_the_air;
  ++payloads_;
  const region& r = regions_[w.region - 1];
  const bool lives = is_of(r.owner, r.life);
  if (!lives || (r.withdrawn && model_.late == runtime::late_writes::fail)) {
    ++puts_.nowhere;
    if (lives && put_too_late) put_too_late(w.address, w.data);
  } else {
    std::copy(w.data.begin(), w.data.end(), reinterpret_cast<std::byte*>(w.address));
    ++puts_.landed;
  }
  end_fences();
}

// `way` is the latency of the message of a fence that was requested just now.
void network::end_fences(time_ns way) {
  for (std::size_t i = 0; i < fences_.size();) {
    const waiting_fence& f = fences_[i];
    // A fence is between two processes: it does not wait for puts of other processes in their places.
    const auto before_it = [&](const flying_put& w) {
      return w.from == f.from && is_of(w.from, w.life) && w.to == f.to && regions_[w.region - 1].life == f.op->life &&
             w.number <= f.last_put;
    };
    const bool waits = !is_of(f.to, f.op->life) || std::any_of(flying_.begin(), flying_.end(), before_it);
    if (waits) {
      ++i;
      continue;
    }
    if (!f.header.empty()) bring(f, way);
    std::unique_ptr<operation> op = std::move(fences_[i].op);
    fences_.erase(fences_.begin() + static_cast<std::ptrdiff_t>(i));
    finish(std::move(op), model_.latency_ns);
  }
}

}  // namespace parley::simulation
