#pragma once
/// One rank of a test over UCX: a connected link that records arrivals.
#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/recorder.hpp>
#include <parley/tests/transports/launch/processes.hpp>

#include <parley/transports/ucx/ucx_link.hpp>

#include <chrono>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace parley::tests {

using runtime::arrival;
using runtime::completion;
using runtime::errc;
using runtime::link;
using transports::ucx_link;
using channel = link::channel;

inline std::runtime_error late(const std::source_location& where) {
  return std::runtime_error(std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": not true in time");
}

class node {
 public:
  /// A link without connections.
  explicit node(const ucx_link::options& o) : wire(o) {}
  node(rank_id rank, rank_id world, meeting& all, transports::transfer_way transfers = transports::transfer_way::best)
      : wire({.rank = rank, .world_size = world, .transfers = transfers}) {
    const auto addresses = all.gather(wire.address());
    for (rank_id peer = 0; peer < world; ++peer) wire.connect(peer, addresses[peer]);
  }
  void listen() {
    wire.listen(channel::control, &control);
    wire.listen(channel::data, &data);
    wire.on_failure(&failed);
  }
  template <class Condition>
  void until(Condition&& condition, std::chrono::milliseconds within = long_enough,
             std::source_location where = std::source_location::current()) {
    const auto deadline = std::chrono::steady_clock::now() + within;
    while (!condition()) {
      if (!wire.poll()) ::sched_yield();
      if (std::chrono::steady_clock::now() > deadline) throw late(where);
    }
  }
  /// Sends, and waits until the payload may be reused.
  errc send_and_wait(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload) {
    awaited sent;
    const errc started = wire.send(to, on, header, payload, &sent);
    if (started != errc::pending) return started;
    until([&] { return sent.calls > 0; });
    return sent.outcome;
  }
  errc fetch_and_wait(arrival&& message, std::span<std::byte> into) {
    awaited fetched;
    const errc started = wire.fetch(std::move(message), into, &fetched);
    if (started != errc::pending) return started;
    until([&] { return fetched.calls > 0; });
    return fetched.outcome;
  }
  /// Waits for all ranks and keeps polling meanwhile: no rank may stop before all are done.
  void finish(meeting& all) {
    const std::string text = "finished";
    for (rank_id peer = 0; peer < wire.world_size(); ++peer)
      wire.send(peer, channel::control, bytes_of(text), {}, nullptr);
    until([&] {
      std::size_t seen = 0;
      for (const arrival& message : control.got) seen += text_of(message.header()) == text ? 1 : 0;
      return seen == wire.world_size();
    });
    control.got.clear();
    data.got.clear();
    all.barrier();
  }

  ucx_link wire;  // first, so that it is destroyed last: arrivals must be gone before their link
  recorder control;
  recorder data;
  failures failed;
};

}  // namespace parley::tests
