// Messages of peers about memory: memory that they lend, put into, get from, or let GPUs read and write.
#include "peer_link.hpp"

#include "../tests/support/devices/fake_nccl.hpp"

#include <parley/config.hpp>
#include <parley/cuda_link.hpp>
#include <parley/transports/nccl/nccl_pairs.hpp>
#include <parley/transports/ucx/carried_memory.hpp>
#include <parley/transports/ucx/lent_payloads.hpp>

#include <unistd.h>

#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>

namespace parley::fuzz {

using runtime::arrival;
using runtime::completion;
using runtime::errc;
using runtime::link;

namespace {

// A header of the channels of transports/. The first words are the kind and the source; the others are numbers.
template <std::size_t words>
struct header_of {
  std::uint16_t what = 0;
  std::uint16_t restarts = 0;
  std::uint32_t from = 0;
  std::array<std::uint64_t, words> rest{};
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }
};

// Usually one of the right values, otherwise any number from the input.
std::uint64_t number(choices& from, std::initializer_list<std::uint64_t> right) {
  const std::uint64_t which = from.below(right.size() + 2);
  if (which < right.size()) return *(right.begin() + which);
  std::uint64_t any = from.byte();
  if (which == right.size() + 1) any = any << from.below(64) | from.byte();
  return any;
}

std::uint64_t place_of(const void* at) { return reinterpret_cast<std::uint64_t>(at); }

struct counted final : completion {
  counted() : completion([](completion& self, errc) noexcept { ++static_cast<counted&>(self).calls; }) {}
  int calls = 0;
};

}  // namespace

// Peers lend payloads, fetch them, take them back and repay them. No message delivers more than one payload, a payload has the length that
// its header says, and no completion ends twice.
void lent_payloads(input bytes) {
  choices from(bytes);
  peer_link wire;
  std::list<arrival> here;
  std::uint64_t brought = 0;
  std::uint64_t taken = 0;
  transports::lent_payloads::options may;
  may.from = 1;
  transports::lent_payloads loans(wire, may, [&](link::channel, arrival&& m) {
    ++taken;
    if (here.size() < 64) here.push_back(std::move(m));
  });
  std::array<std::byte, 256> mine{};
  std::array<std::byte, 4096> into{};
  std::list<counted> pending;
  std::uint64_t words[4] = {77, 1, 2, 3};
  for (; brought < 200 && !from.empty(); ++brought) {
    switch (from.below(6)) {
      case 4:  // this rank lends a payload
        if (loans.may_lend(2, mine.size()))
          static_cast<void>(loans.lend(2, link::channel::data, {}, mine, pending.emplace_back()));
        continue;
      case 5: {
        if (here.empty()) continue;
        arrival next = std::move(here.front());
        here.pop_front();
        if (next.length() > into.size()) continue;
        const std::size_t length = next.length();
        if (const void* const held = next.surrender(); held != nullptr && loans.holds(held))
          static_cast<void>(loans.fetch(held, std::span(into).first(length), &pending.emplace_back()));
        continue;
      }
      default: break;
    }
    header_of<7> h;
    h.what = static_cast<std::uint16_t>(from.below(9));
    h.from = static_cast<std::uint32_t>(from.below(5));
    h.restarts = from.below(8) == 7 ? from.byte() : 0;
    header_of<7> said;  // the latest header that this rank has sent
    if (wire.latest.size() == sizeof said) std::memcpy(&said, wire.latest.data(), sizeof said);
    h.rest = {number(from, {77, 1, 2, said.rest[0], said.rest[0]}),       // number
              number(from, {place_of(&words), place_of(&mine)}),          // address
              number(from, {8, 16, 256}),                                 // bytes
              number(from, {place_of(&words)}),                           // guard
              number(from, {0, 1, 2}),                                    // on
              number(from, {static_cast<std::uint64_t>(::getpid()), 0}),  // process
              number(from, {77, said.rest[6]})};                          // token
    // The memory of other processes is never read here.
    if (h.rest[5] != static_cast<std::uint64_t>(::getpid())) h.rest[5] = 0;
    const input body = from.bytes(80);
    wire.bring(link::channel::loans, h.bytes(), body);
    if (from.below(4) == 0) loans.work();
    if (from.below(16) == 15) loans.on_peer_failed(static_cast<runtime::rank_id>(from.below(4)));
  }
  require(taken <= brought, "no message brings two payloads");
  require(wire.sent <= 4 * brought + 4, "no message makes this rank send many");
  here.clear();
  loans.close();
  for (const counted& c : pending) require(c.calls <= 1, "nothing ends twice");
}

// Puts, gets and fences for memory whose key a peer may know. Nothing may be written outside the exposed memory.
void carried_memory(input bytes) {
  choices from(bytes);
  peer_link wire;
  std::uint64_t taken = 0;
  transports::carried_memory carried(wire, link::channel::transfers, [&](link::channel, arrival&&) { ++taken; });
  std::array<std::byte, 256> memory{};
  const std::span<std::byte> exposed = std::span(memory).subspan(64, 128);
  const auto key = carried.expose(1, exposed);
  const auto known = transports::read_carried_key(key);
  require(known.has_value(), "a key can be read by whoever made it");
  if (const auto read = transports::read_carried_key(bytes))
    static_cast<void>(transports::covers(*read, read->address, read->bytes));
  std::list<counted> pending;
  std::array<std::byte, 64> into{};
  std::uint64_t brought = 0;
  for (; brought < 200 && !from.empty(); ++brought) {
    switch (from.below(8)) {
      case 5: static_cast<void>(carried.get(2, *known, known->address, into, &pending.emplace_back())); continue;
      case 6: static_cast<void>(carried.fence(2, &pending.emplace_back())); continue;
      case 7:
        if (from.below(8) == 0) carried.on_peer_failed(static_cast<runtime::rank_id>(from.below(4)));
        if (from.below(16) == 0) carried.withdraw(1);
        continue;
      default: break;
    }
    const input body = from.bytes(200);
    header_of<7> h;
    h.what = static_cast<std::uint16_t>(from.below(7));
    h.from = static_cast<std::uint32_t>(from.below(5));
    h.restarts = from.below(8) == 7 ? from.byte() : 0;
    h.rest = {number(from, {1, 2}),                    // region
              number(from, {known->token}),            // token
              known->address + number(from, {0, 64}),  // address
              number(from, {body.size(), 0, 64}),      // bytes
              number(from, {0, 1, 2, brought}),        // number
              number(from, {1, 2, 3}),                 // request
              number(from, {0, 1, 2})};                // outcome
    wire.bring(link::channel::transfers, h.bytes(), body);
  }
  const auto outside = [&](std::span<const std::byte> part) {
    return std::all_of(part.begin(), part.end(), [](std::byte b) { return b == std::byte{}; });
  };
  require(outside(std::span(memory).first(64)) && outside(std::span(memory).last(64)),
          "nothing is written beside what is exposed (S8)");
  require(taken <= brought, "no message brings two");
  carried.close();
  for (const counted& c : pending) require(c.calls <= 1, "nothing ends twice");
}

namespace {

runtime::time_ns fuzz_clock() { return 1'000'000; }

}  // namespace

// Requests of peers for data that this GPU sends. Nothing is sent that is not exposed, and the number of communicators is bounded.
void nccl_requests(input bytes) {
  choices from(bytes);
  tests::fake_cuda gpu;
  tests::fake_nccl library(gpu);
  transports::cuda_copies copies(gpu, 0);
  peer_link wire;
  const auto memory = transports::cuda_memory::on_device(gpu, 0, 1'000);
  const std::uint64_t begin = place_of(memory.bytes().data());
  const auto is_exposed = [&](const transports::nccl_pairs::place& at) {
    return at.region == 3 && at.address >= begin && at.address - begin <= 1'000 &&
           at.bytes <= 1'000 - (at.address - begin);
  };
  transports::nccl_pairs pairs(wire, copies, library, is_exposed, {.patience_ns = 1'000, .clock = &fuzz_clock});
  std::uint64_t brought = 0;
  for (; brought < 100 && !from.empty(); ++brought) {
    // Kind, source, pair and sequence number; then region, address and bytes.
    struct {
      std::uint32_t what;
      std::uint32_t source;
      std::uint64_t pair;
      std::uint64_t sequence;
      std::uint64_t region;
      std::uint64_t address;
      std::uint64_t bytes;
    } h{};
    h.what = static_cast<std::uint32_t>(from.below(6));
    h.source = static_cast<std::uint32_t>(from.below(5));
    h.pair = number(from, {1, 2});
    h.sequence = number(from, {1, 2, 3});
    h.region = number(from, {3});
    h.address = begin + number(from, {0, 500});
    h.bytes = number(from, {1'000, 500, 1});
    const input body = from.below(2) == 0 ? from.bytes(200) : input{};
    std::array<std::byte, sizeof(transports::nccl_id)> id{};
    wire.bring(link::channel::devices, std::as_bytes(std::span(&h, 1)), body.empty() ? input(id) : body);
    if (from.below(4) == 0) wire.bring(link::channel::devices, body, {});
    copies.poll();
    pairs.poll();
  }
  require(pairs.statistics().sends <= brought, "no request is served twice");
  require(wire.sent <= 4 * brought + 4, "no message makes this rank send many");
}

// Keys of a peer's device memory. Whatever a key says, nothing is copied outside the memory that the driver has mapped.
void cuda_keys(input bytes) {
  choices from(bytes);
  tests::fake_cuda gpu;
  transports::cuda_copies copies(gpu, 0);
  peer_link wire;
  transports::cuda_link device(wire, copies);
  const auto memory = transports::cuda_memory::on_device(gpu, 0, 1'000);
  const auto exposed = device.expose(memory.bytes());
  if (!exposed) return;
  std::vector<std::byte> key = exposed->key;
  std::list<counted> pending;
  const auto own = transports::cuda_memory::on_device(gpu, 0, 256);
  for (int i = 0; i < 50 && !from.empty(); ++i) {
    std::vector<std::byte> told = key;
    for (std::uint64_t n = from.below(4); n != 0; --n)
      told[from.byte() % told.size()] = static_cast<std::byte>(from.byte());
    if (from.below(8) == 7) told.resize(from.below(told.size() + 1));
    if (from.below(8) == 7) {
      const input raw = from.bytes(200);
      told.assign(raw.begin(), raw.end());
    }
    const runtime::remote_place at{told, place_of(exposed->bytes.data()) + number(from, {0, 100, 744})};
    const auto part = own.bytes().first(static_cast<std::size_t>(from.byte()));
    switch (from.below(4)) {
      case 0: device.prepare(at); break;
      case 1: static_cast<void>(device.put(2, at, part, &pending.emplace_back())); break;
      case 2: static_cast<void>(device.get(2, at, part, &pending.emplace_back())); break;
      default: device.set_flag(2, at, number(from, {1}), part); break;
    }
    for (int tick = 0; tick < 20; ++tick) copies.poll();
  }
  for (int tick = 0; tick < 2'000; ++tick) copies.poll();
  for (const counted& c : pending) require(c.calls <= 1, "nothing ends twice");
}

}  // namespace parley::fuzz
