// Credits, revokes and the fence between the two ends of a real edge; messages and puts take any time.
#include <parley/tests/support/edges.hpp>

#include <doctest/doctest.h>

#include <list>
#include <random>
#include <utility>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using parley::tests::edge_pair;
using parley::tests::memory_link_options;
using parley::tests::pattern;
using announcements = memory_link_options::announcements;

namespace {

constexpr std::uint64_t put_digest = 88;

struct put_or_sent {
  std::vector<std::byte> data;
  std::optional<errc> ended;
  std::uint64_t digest = 0;
};
struct watched {
  std::span<std::byte> buffer;
  std::optional<errc> ended;
  std::optional<std::uint64_t> invocation;
  std::uint64_t bytes = 0;
  bool landed = false;
  std::vector<std::byte> when_it_came_back;
};

enum class ends : std::uint8_t { well, failing, half_put, cancelled_behind_the_fence };

/// An edge that puts every message for which it has a credit.
struct putting : edge_pair {
  explicit putting(memory_link_options o = {}) : edge_pair({}, std::move(o)), memory(1 << 20), tasks(clock) {
    out.allow_one_sided({put_digest}, {});
    in.allow_one_sided(&device);
    handle = registered_memory(links[1], memory);
    in.add_memory(handle.region());
    in.want_credits();
    std::vector<remembered_best> best;
    for (const char* key : {"1B", "64B", "128B", "1KiB", "4KiB", "16KiB"}) best.push_back({key, "put", 1.0});
    assigned.open({77, put_digest}, {"whole", "put"}, std::move(best), 0);
  }
  ~putting() { tasks.cancel(); }

  static task<> send_one(putting& e, put_or_sent& s, ends how) {
    const until_free payload(e.sender_device, s.data, [&e] { e.out.readmit(0); });
    auto number = co_await e.out.admit(0, s.data.size(), never, &payload);
    if (!number) {
      s.ended = number.code();
      co_return;
    }
    const outgoing inv = e.out.begin(0, s.data.size(), *number, {}, s.data.data());
    s.digest = inv.mark.digest;
    part_sender ps(e.links[0], 1, inv.mark, inv.access);
    try {
      if (s.digest == put_digest) {
        co_await ps.put(0, std::span(s.data).first(s.data.size() / (how == ends::half_put ? 2 : 1)));
        if (how == ends::failing) ps.fail(errc::cancelled);
      } else {
        if (how == ends::failing) ps.fail(errc::cancelled);
        co_await ps.send(0, s.data);
      }
    } catch (const failure&) {}
    errc outcome = co_await ps.settle();
    if (ps.has_put()) {
      ps.fence();
      if (how == ends::cancelled_behind_the_fence) ps.fail(errc::cancelled);
      outcome = co_await ps.settle();
      if (how == ends::half_put) ps.fail(errc::config_failed);
      if (!ps.fenced()) {
        ps.fence();
        outcome = co_await ps.settle();
      }
      ps.announce();
    }
    e.out.end(inv, ps.failed());
    s.ended = ps.failed();
    static_cast<void>(outcome);
  }
  static task<> receive_one(putting& e, watched& r, time_ns deadline) {
    part_receiver pr(e.in, 0, r.buffer.size(), part_receiver::kind::user, nullptr, r.buffer.data());
    auto seen = co_await pr.match(deadline);
    if (pr.matched()) r.invocation = pr.invocation();
    if (seen) {
      r.bytes = seen->total_bytes;
      r.landed = pr.landed();
      try {
        if (!r.landed) co_await pr.receive(0, r.buffer.first(r.bytes));
      } catch (const failure&) {}
    }
    const errc settled = co_await pr.settle();
    r.ended = seen ? settled : seen.code();
    r.when_it_came_back.assign(r.buffer.begin(), r.buffer.end());
  }

  put_or_sent& send(std::size_t size, ends how = ends::well) {
    put_or_sent& s = sends.emplace_back();
    s.data = pattern(size, sends.size() - 1);
    tasks.spawn(send_one(*this, s, how));
    clock.turn();
    return s;
  }
  watched& receive(std::size_t size, time_ns deadline = never) {
    watched& r = receives.emplace_back();
    r.buffer = std::span(memory).subspan(used, size);
    used += size;
    tasks.spawn(receive_one(*this, r, deadline));
    clock.turn();
    return r;
  }
  /// Starts a receive and, once its credit has arrived, a send whose put is then in flight.
  std::pair<watched&, put_or_sent&> put_one(ends how = ends::well) {
    watched& r = receive(200);
    pass();
    put_or_sent& s = send(100, how);
    pass();
    return {r, s};
  }
  bool holds(const watched& r, std::uint64_t invocation) const {
    const auto& wanted = std::next(sends.begin(), static_cast<std::ptrdiff_t>(invocation))->data;
    return r.ended == errc::none && r.invocation == invocation && r.bytes == wanted.size() &&
           std::equal(wanted.begin(), wanted.end(), r.when_it_came_back.begin());
  }

  std::vector<std::byte> memory;
  registered_memory handle;
  // A memory space whose buffers the rank itself may be using.
  struct own_device final : memory_space {
    std::unique_ptr<block> make(std::size_t bytes) override { return host_memory().make(bytes); }
    task<> copy(std::span<std::byte> to, std::span<const std::byte> from) override {
      return host_memory().copy(to, from);
    }
    void gather(std::span<std::byte>, const memory_pieces&, device_stream) override {}
    void scatter(const memory_pieces&, std::span<const std::byte>, device_stream) override {}
    bool busy(std::span<const std::byte>) noexcept override { return at_work; }
    errc when_free(std::span<const std::byte>, completion* done) noexcept override {
      if (at_work) waiting.push_back(done);
      return at_work ? errc::pending : errc::none;
    }
    void forget(completion* done) noexcept override { std::erase(waiting, done); }
    // Ends the oldest wait.
    void finish_one() {
      completion* const first = waiting.front();
      waiting.erase(waiting.begin());
      first->on_end(*first, errc::none);
    }
    bool at_work = false;
    std::vector<completion*> waiting;
  };
  own_device device;
  own_device sender_device;
  std::size_t used = 0;
  std::list<put_or_sent> sends;
  std::list<watched> receives;
  scope tasks;
};

memory_link_options landing_by_hand() {
  memory_link_options o;
  o.landing_ns = never;
  return o;
}

}  // namespace

TEST_CASE("a buffer that its owner is still using gets no credit, and its message arrives by another config") {
  putting e;
  e.device.at_work = true;
  watched& first = e.receive(1000);
  e.pass();
  put_or_sent& sent = e.send(1000);
  e.pass();
  CHECK(sent.digest == 77);
  CHECK(e.holds(first, 0));
  CHECK(e.in.statistics().credits_sent == 0);
  CHECK(e.device.waiting.empty());
  e.device.at_work = false;
  watched& second = e.receive(1000);
  e.pass();
  put_or_sent& put = e.send(1000);
  e.pass();
  CHECK(put.digest == put_digest);
  CHECK(e.holds(second, 1));
}

TEST_CASE("a buffer gets its credit when its owner's work has ended, and later buffers do not overtake it") {
  putting e;
  e.device.at_work = true;
  watched& first = e.receive(1000);
  watched& second = e.receive(1000);
  e.device.at_work = false;
  watched& third = e.receive(1000);
  e.pass();
  CHECK(e.in.statistics().credits_sent == 0);
  e.device.finish_one();
  e.pass();
  CHECK(e.in.statistics().credits_sent == 3);
  for (int i = 0; i < 3; ++i) CHECK(e.send(1000).digest == put_digest);
  e.pass();
  CHECK(e.holds(first, 0));
  CHECK(e.holds(second, 1));
  CHECK(e.holds(third, 2));
}

TEST_CASE(
    "a payload that is being written waits for a credit or the end of the writing, and later sends wait behind it") {
  putting e;
  e.sender_device.at_work = true;
  put_or_sent& put = e.send(1000);
  e.sender_device.at_work = false;
  put_or_sent& behind = e.send(100);
  e.pass();
  CHECK(put.digest == 0);
  CHECK(behind.digest == 0);
  watched& first = e.receive(1000);
  watched& second = e.receive(1000);
  e.pass();
  CHECK(put.digest == put_digest);
  CHECK(e.holds(first, 0));
  CHECK(e.holds(second, 1));

  e.sender_device.at_work = true;
  put_or_sent& sent = e.send(1000);
  e.pass();
  CHECK(sent.digest == 0);
  e.sender_device.finish_one();
  e.pass();
  CHECK(sent.digest == 77);
  watched& third = e.receive(1000);
  e.pass();
  CHECK(e.holds(third, 2));
}

TEST_CASE("the sends behind a send that is cancelled while its payload is being written continue") {
  putting e;
  e.sender_device.at_work = true;
  put_or_sent& given_up = e.sends.emplace_back();
  given_up.data = pattern(1000, 0);
  std::optional<scope> call(std::in_place, e.tasks);
  call->spawn(putting::send_one(e, given_up, ends::well));
  e.clock.turn();
  e.sender_device.at_work = false;
  put_or_sent& behind = e.send(100);
  e.pass();
  CHECK(behind.digest == 0);
  call->cancel();
  e.pass();
  CHECK(given_up.ended == errc::cancelled);
  CHECK(behind.digest == 77);
  CHECK(e.sender_device.waiting.empty());
}

TEST_CASE("a message with a credit is put, and its receive ends only after the fence") {
  memory_link_options o = landing_by_hand();
  SUBCASE("the sender sends the stamp after the fence") { o.announces = announcements::none; }
  SUBCASE("the fence brings the stamp") { o.announces = announcements::arrive; }
  putting e(std::move(o));
  auto [r, s] = e.put_one();
  CHECK(s.digest == put_digest);
  CHECK_FALSE(r.ended);  // the put is in flight
  CHECK_FALSE(s.ended);
  CHECK(e.links.land());
  e.pass();
  CHECK(e.holds(r, 0));
  CHECK(r.landed);
  CHECK(s.ended == errc::none);
}

TEST_CASE("the stamp overtakes the data if the fence does nothing") {
  memory_link_options o = landing_by_hand();
  o.fence = memory_link_options::fences::do_nothing;
  SUBCASE("the sender sends the stamp") { o.announces = announcements::none; }
  SUBCASE("the fence brings the stamp") { o.announces = announcements::arrive; }
  putting e(std::move(o));
  auto& r = e.receive(200);
  e.pass();
  e.send(100);
  e.pass();
  CHECK(r.ended == errc::none);
  CHECK_FALSE(e.holds(r, 0));
}

TEST_CASE("without a credit, or with one that is too small, the sender stamps another config and does not wait") {
  putting e;
  auto& early = e.send(100);
  e.pass();
  CHECK(early.digest == 77);
  CHECK(early.ended == errc::none);
  auto& first = e.receive(200);
  auto& small = e.receive(50);
  auto& large = e.receive(9000);
  e.pass();
  auto& too_large = e.send(100);
  auto& fits = e.send(9000);
  e.pass();
  CHECK(e.holds(first, 0));
  CHECK(too_large.digest == 77);
  CHECK(small.ended == errc::buffer_too_small);
  CHECK(fits.digest == put_digest);
  CHECK(e.holds(large, 2));
  CHECK(e.links.puts().outside == 0);
}

TEST_CASE("a receive that times out with an outstanding credit ends when the sender has answered, and the later ones "
          "move up") {
  putting e;
  auto& a = e.receive(200, e.clock.deadline_in(100'000));
  auto& b = e.receive(300);
  e.pass(50'000);
  e.links.options().delay = [](auto, auto, link::channel on) { return on == link::channel::control ? 400'000 : 0; };
  e.pass(100'000);
  CHECK_FALSE(a.ended);  // its sender may be writing
  CHECK(e.in.statistics().revokes_sent == 1);
  e.pass(1'000'000);
  CHECK(a.ended == errc::timeout);
  CHECK_FALSE(a.invocation);
  CHECK(e.in.next_invocation(0) == 1);
  CHECK(e.in.statistics().credits_sent == 3);  // the receive that moved up got a new credit
  e.pass(1'000'000);
  auto& s = e.send(100);
  e.pass();
  CHECK(s.digest == put_digest);
  CHECK(e.holds(b, 0));
}

TEST_CASE("a revoke is repeated soon, and a bounded number of times, until its answer arrives") {
  putting e;
  auto& a = e.receive(200, e.clock.deadline_in(100'000));
  e.pass(50'000);
  bool lossy = true;
  e.links.options().lose = [&lossy](rank_id from, auto, link::channel on) {
    return lossy && from == 0 && on == link::channel::control;
  };
  e.pass(3'000'000);
  CHECK(e.in.statistics().revokes_sent >= 2);
  e.pass(1'000'000'000);
  CHECK(e.in.statistics().revokes_sent >= 12);
  CHECK(e.in.statistics().revokes_sent <= 64);
  CHECK_FALSE(a.ended);
  lossy = false;
  e.pass(100'000'000);
  CHECK(a.ended == errc::timeout);
  auto& b = e.receive(200, e.clock.deadline_in(100'000));  // a deadline as short as before
  lossy = true;
  const auto before = e.in.statistics().revokes_sent;
  e.pass(4'000'000);
  CHECK(e.in.statistics().revokes_sent >= before + 2);
  lossy = false;
  e.pass(100'000'000);
  CHECK(b.ended == errc::timeout);
}

TEST_CASE("a receive whose invocation has begun when its revoke arrives waits for its data") {
  putting e(landing_by_hand());
  auto& a = e.receive(200, e.clock.deadline_in(100'000));
  e.pass(50'000);
  auto& s = e.send(100);  // puts; the revoke arrives while the put is in flight
  e.pass(1'000'000);
  CHECK(e.in.statistics().revokes_sent == 1);
  CHECK_FALSE(a.ended);
  CHECK(e.links.land());
  e.pass();
  CHECK(e.holds(a, 0));
  CHECK(s.ended == errc::none);
}

TEST_CASE("a receive past its deadline does not end while its sender may be writing into its buffer") {
  putting e(landing_by_hand());
  auto& a = e.receive(200, e.clock.deadline_in(100'000));
  e.pass(50'000);
  auto& s = e.send(100);
  e.pass(10'000'000'000);
  CHECK_FALSE(a.ended);
  CHECK(e.links.land());
  e.pass();
  CHECK(e.holds(a, 0));
  CHECK(s.ended == errc::none);
}

TEST_CASE("a credit that arrives after its revoke is not used") {
  putting e;
  time_ns credits_take = 3'000'000;
  // The second control message, the revoke, overtakes the first one, the credit.
  e.links.options().delay = [&credits_take](rank_id from, auto, link::channel on) {
    return from == 1 && on == link::channel::control ? std::exchange(credits_take, 0) : 0;
  };
  auto& a = e.receive(200, e.clock.deadline_in(100'000));
  e.pass(1'000'000);
  CHECK(a.ended == errc::timeout);
  e.pass(5'000'000);
  CHECK(e.out.one_sided()->statistics().credits_ignored == 1);
  auto& s = e.send(100);
  e.pass();
  CHECK(s.digest == 77);
  CHECK(e.links.puts().landed == 0);
}

TEST_CASE("a cancelled receive waits for the sender's answer, and for its data if its invocation has begun") {
  putting e(landing_by_hand());
  scope inner(e.clock);
  watched a;
  a.buffer = std::span(e.memory).subspan(500'000, 200);
  inner.spawn(putting::receive_one(e, a, never));
  e.pass();
  auto& s = e.send(100);
  e.pass();
  inner.cancel();
  e.pass();
  CHECK_FALSE(a.ended);
  CHECK(e.links.land());
  e.pass();
  CHECK(a.ended == errc::cancelled);
  CHECK(s.ended == errc::none);
  watched b;
  b.buffer = a.buffer;
  scope other(e.clock);
  other.spawn(putting::receive_one(e, b, never));
  e.pass();
  other.cancel();
  CHECK_FALSE(b.ended);
  e.pass();
  CHECK(b.ended == errc::cancelled);
}

TEST_CASE("if the link brings the stamp, a receive ends when the put has landed, without waiting for its sender") {
  memory_link_options o = landing_by_hand();
  o.announces = announcements::arrive;
  putting e(std::move(o));
  const auto sent_by_itself = [&] {
    return e.links[0].statistics().sent[static_cast<std::size_t>(link::channel::data)];
  };
  auto [r, s] = e.put_one();
  CHECK_FALSE(r.ended);
  CHECK(e.links.land());
  e.clock.turn();  // no time passes
  CHECK(e.holds(r, 0));
  CHECK_FALSE(s.ended);
  e.pass();
  CHECK(s.ended == errc::none);
  CHECK(sent_by_itself() == 0);
}

TEST_CASE("a send cancelled while its stamp is in flight still ends its receive and does not affect the next message") {
  memory_link_options o = landing_by_hand();
  SUBCASE("the stamp arrives with the fence") { o.announces = announcements::arrive; }
  SUBCASE("a poison follows the fence instead of the stamp") { o.announces = announcements::none; }
  const bool brought = o.announces == announcements::arrive;
  putting e(std::move(o));
  auto& r = e.receive(200);
  auto& next = e.receive(200);
  e.pass();
  auto& s = e.send(100, ends::cancelled_behind_the_fence);
  e.pass();
  CHECK_FALSE(r.ended);
  CHECK(e.links.land());
  e.pass();
  CHECK(s.ended == errc::cancelled);
  CHECK(r.ended == (brought ? errc::none : errc::send_failed));
  if (brought) CHECK(e.holds(r, 0));
  e.send(100);
  e.pass();
  CHECK(e.links.land());
  e.pass();
  CHECK(e.holds(next, 1));
}

TEST_CASE("if the fence that carries the stamp is cut short, the receiver still learns that the send has failed") {
  memory_link_options o = landing_by_hand();
  o.announces = announcements::cut_short;
  putting e(std::move(o));
  auto [r, s] = e.put_one();
  CHECK_FALSE(r.ended);
  CHECK(e.links.land());
  e.pass();
  CHECK(s.ended == errc::cancelled);
  CHECK(r.ended == errc::send_failed);
}

TEST_CASE("a message that was put only in part is never announced and its receive fails") {
  memory_link_options o = landing_by_hand();
  o.announces = announcements::arrive;
  putting e(std::move(o));
  auto [r, s] = e.put_one(ends::half_put);
  CHECK(e.links.land());
  e.pass();
  CHECK(s.ended == errc::config_failed);
  CHECK(r.ended == errc::config_failed);
}

TEST_CASE("a send that fails after its put poisons its receive only after the fence") {
  memory_link_options o = landing_by_hand();
  SUBCASE("the fence brings no stamp") { o.announces = announcements::none; }
  SUBCASE("the fence could bring a stamp") { o.announces = announcements::arrive; }
  putting e(std::move(o));
  auto [r, s] = e.put_one(ends::failing);
  CHECK_FALSE(r.ended);
  CHECK(e.links.land());
  e.pass();
  CHECK(r.ended == errc::send_failed);
  CHECK(s.ended == errc::cancelled);
}

TEST_CASE("when the fence fails, the receiver hears nothing, and the sender has lost its peer") {
  memory_link_options o = landing_by_hand();
  o.fence = memory_link_options::fences::fail;
  SUBCASE("a fence without a stamp") { o.announces = announcements::none; }
  SUBCASE("a fence with the stamp") { o.announces = announcements::arrive; }
  putting e(std::move(o));
  auto [r, s] = e.put_one();
  CHECK(s.ended == errc::peer_failed);
  CHECK_FALSE(r.ended);
}

TEST_CASE("a living sender that was declared dead cannot write into memory that the user has back") {
  putting e(landing_by_hand());
  auto& r = e.receive(200);
  auto& plain = e.receive(200);
  e.pass();
  e.send(100);
  e.pass();
  e.in.fail(errc::peer_failed);
  e.clock.turn();
  CHECK(r.ended == errc::peer_failed);
  CHECK(plain.ended == errc::peer_failed);
  CHECK(e.in.statistics().withdrawn == 2);
  CHECK_FALSE(e.handle.lost());
  const auto before = e.memory;
  CHECK(e.links.land());
  CHECK(e.links.puts().nowhere == 1);
  CHECK(e.memory == before);
}

TEST_CASE("the memory says that it is lost if late writes cannot be stopped") {
  memory_link_options o = landing_by_hand();
  o.late = late_writes::may_land;
  putting e(std::move(o));
  e.receive(200);
  e.pass();
  e.in.fail(errc::peer_failed);
  CHECK(e.handle.lost());
}

TEST_CASE("a stamp that claims a put without a credit is refused") {
  putting e;
  e.handle = {};
  auto& r = e.receive(200);
  auto s = e.stamp(0, 100);
  s.digest = put_digest;
  s.flags = stamp_flags::landed;
  e.inject(s);
  e.pass();
  CHECK(r.ended == errc::config_mismatch);
}

TEST_CASE(
    "with any timing, successful receives are exact and in order, and no buffer changes after its receive has ended") {
  std::size_t puts = 0;
  std::size_t revokes = 0;
  std::size_t timeouts = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto up_to = [&random](unsigned most) { return static_cast<time_ns>(random() % (most + 1)); };
    memory_link_options o;
    o.delay = [&](auto, auto, auto) { return up_to(3) == 0 ? up_to(200'000) : up_to(5'000); };
    o.lose = [&](auto, auto, link::channel on) { return on == link::channel::control && up_to(19) == 0; };
    putting e(std::move(o));
    constexpr std::size_t messages = 15;
    const std::size_t sizes[] = {1, 60, 100, 3000, 9000};
    const auto consumed = [&] {
      return static_cast<std::size_t>(std::count_if(e.receives.begin(), e.receives.end(),
                                                    [](const watched& r) { return r.ended && r.invocation; }));
    };
    const auto waiting = [&] {
      return std::count_if(e.receives.begin(), e.receives.end(), [](const watched& r) { return !r.ended; });
    };
    for (int steps = 0; consumed() < messages; ++steps) {
      REQUIRE(steps < 20'000);
      e.links.options().landing_ns = up_to(100'000);
      if (e.sends.size() < messages && up_to(2) == 0)
        e.send(sizes[up_to(4)], up_to(7) == 0 ? ends::failing : ends::well);
      if (waiting() < 4 && e.used + 9000 < e.memory.size()) {
        const std::size_t size = up_to(5) == 0 ? 80 : 9000;
        e.receive(size, up_to(3) == 0 || e.receives.size() > 60 ? never : e.clock.deadline_in(10'000 + up_to(150'000)));
      }
      e.pass(1'000 + up_to(60'000));
    }
    // Everything left ends, and no put lands in memory that the user has back.
    e.links.options().lose = nullptr;
    e.tasks.cancel();
    e.pass(5'000'000'000);
    std::uint64_t last = 0;
    for (const watched& r : e.receives) {
      REQUIRE(r.ended);
      CHECK(std::equal(r.buffer.begin(), r.buffer.end(), r.when_it_came_back.begin()));
      if (r.ended == errc::timeout) ++timeouts;
      if (!r.invocation) continue;
      CHECK(*r.invocation == last++);
      const put_or_sent& s = *std::next(e.sends.begin(), static_cast<std::ptrdiff_t>(*r.invocation));
      if (r.ended == errc::none) CHECK(e.holds(r, *r.invocation));
      if (r.ended == errc::send_failed) CHECK(s.ended != errc::none);
      if (r.landed) CHECK(s.digest == put_digest);
    }
    CHECK(e.links.puts().outside == 0);
    puts += e.out.one_sided()->statistics().credits_used;
    revokes += e.in.statistics().revokes_sent;
  }
  CHECK(puts > 1000);  // the run did exercise puts, revokes and timeouts
  CHECK(revokes > 300);
  CHECK(timeouts > 300);
}
