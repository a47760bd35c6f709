// Gets: the receiver reads a payload from the sender's memory. When does the caller get that memory back?
#include <parley/tests/support/edges.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <list>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::uint64_t got = 99;

memory_link_options slow_reads() {
  memory_link_options o;
  o.one_sided_ns_per_byte = 100;
  return o;
}

/// A sender that offers a payload of 10,000 bytes for a get; reading it takes 1 ms.
struct offering : edge_pair {
  explicit offering(memory_link_options o = slow_reads(), time_ns detection_ns = 2'000'000'000)
      : edge_pair({}, std::move(o)), data(pattern(10'000, 1)), right(data), memory(links[0], data), buffer(data.size()),
        tasks(clock) {
    sending.shared.detection_ns = detection_ns;
    out.allow_one_sided({}, {got});
    in.allow_one_sided(nullptr);
    out.one_sided()->add_memory(memory.region());
    pass();
    given = out.begin_rehearsal(got, data.size(), data.data());
    REQUIRE(given->access != nullptr);
  }
  void send() { tasks.spawn(offer(*this)); }
  void receive() { tasks.spawn(read(*this)); }
  static task<> offer(offering& o) {
    part_sender out(o.links[0], 1, o.given->mark, o.given->access);
    try {
      co_await out.offer();
    } catch (const failure&) {}
    o.sent = co_await out.settle();
    o.out.one_sided()->end(o.given->access);
    std::fill(o.data.begin(), o.data.end(), std::byte{0xEE});  // the caller may overwrite its buffer now
  }
  static task<> read(offering& o) {
    part_receiver in(o.in, 0, o.buffer.size(), part_receiver::kind::rehearsal);
    auto seen = co_await in.match(never);
    if (seen) {
      try {
        co_await in.get(0, o.buffer);
      } catch (const failure&) {}
    }
    o.received = seen ? co_await in.settle() : seen.code();
    o.in.note_end(in);
  }

  std::vector<std::byte> data, right;
  registered_memory memory;
  std::vector<std::byte> buffer;
  std::optional<outgoing> given;
  std::optional<errc> sent, received;
  scope tasks;
};

}  // namespace

TEST_CASE("a payload is not offered once its edge has failed, as nobody would wait for its reader") {
  offering o;
  o.out.fail(errc::peer_restarted, one_sided_sender::reader::may_live);
  o.receive();
  o.send();
  o.pass(100'000'000);
  CHECK(o.sent == errc::peer_restarted);
  CHECK(o.received == errc::send_failed);
  CHECK(o.buffer == std::vector<std::byte>(o.buffer.size()));  // nothing was read
}

TEST_CASE("the caller gets the memory of a payload back only after a read that was in flight when the edge failed") {
  offering o;
  o.receive();
  o.send();
  o.pass(20'000);
  o.out.fail(errc::peer_restarted, one_sided_sender::reader::may_live);
  o.pass(100'000);
  CHECK_FALSE(o.sent);
  o.pass(100'000'000);
  CHECK(o.sent == errc::peer_restarted);
  CHECK(o.buffer == o.right);
}

TEST_CASE("registering memory during a get does not make the receiver forget where the offered payload lies") {
  offering o;
  o.send();
  o.pass();
  std::list<std::vector<std::byte>> others;
  std::list<registered_memory> handles;
  for (std::uint64_t i = 0; i < most_regions + 3; ++i) {
    others.emplace_back(64);
    handles.emplace_back(o.links[0], others.back());
    o.out.one_sided()->add_memory(handles.back().region());
    o.pass();
  }
  o.receive();
  o.pass(100'000'000);
  CHECK(o.sent == errc::none);
  CHECK(o.received == errc::none);
  CHECK(o.buffer == o.right);
  // The receiver learns of regions that had to wait when the sender next sends something in them.
  const auto may_be_got = [&] {
    for (const lacking_config& c : o.out.one_sided()->lacking(0, 1, others.back())) {
      if (c.digest == got) return false;
    }
    return true;
  };
  CHECK_FALSE(may_be_got());
  o.pass();
  CHECK(may_be_got());
}

TEST_CASE("a sender waits for a silent reader of a failed edge about as long as the detection time") {
  constexpr time_ns second = 1'000'000'000;
  const auto waits = [&](time_ns detection_ns, time_ns span) {
    memory_link_options o = slow_reads();
    bool says_nothing = false;
    o.lose = [&](rank_id from, rank_id, link::channel) { return from == 1 && says_nothing; };
    offering silent(std::move(o), detection_ns);
    says_nothing = true;
    silent.send();
    silent.pass();
    silent.out.fail(errc::peer_restarted, one_sided_sender::reader::may_live);
    silent.pass(span);
    const bool waited = !silent.sent;
    silent.out.fail(errc::closed, one_sided_sender::reader::gone);
    silent.pass();
    return waited;
  };
  CHECK(waits(2 * second, 2 * second + second / 2));
  CHECK_FALSE(waits(2 * second, 4 * second));
  CHECK(waits(10 * second, 10 * second + second / 2));
  CHECK_FALSE(waits(10 * second, 12 * second));
  CHECK(waits(0, 100 * second));
}
