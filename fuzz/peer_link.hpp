#pragma once
/// A link on which the input acts as all other ranks: `bring` delivers bytes as if a peer had sent them. Whatever this rank sends is only
/// counted, and the latest header is kept for a peer that answers it.
///
///     peer_link wire;
///     lent_payloads under_test(wire, {}, take);
///     wire.bring(link::channel::loans, header, body);
#include "fuzz.hpp"

#include <parley/runtime/wire/link.hpp>

#include <array>
#include <vector>

namespace parley::fuzz {

class peer_link final : public runtime::link {
 public:
  runtime::rank_id rank() const noexcept override { return 1; }
  runtime::rank_id world_size() const noexcept override { return 4; }
  void listen(channel on, handler* to) override { to_[static_cast<std::size_t>(on)] = to; }
  void on_failure(failure_handler*) override {}
  runtime::errc send(runtime::rank_id, channel, std::span<const std::byte> header, std::span<const std::byte>,
                     runtime::completion*) override {
    ++sent;
    latest.assign(header.begin(), header.end());
    return runtime::errc::none;
  }
  runtime::errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion*) override {
    const runtime::arrival taken = std::move(message);
    if (taken.remote() || into.size() < taken.length()) return runtime::errc::peer_failed;
    std::copy(taken.payload().begin(), taken.payload().end(), into.begin());
    return runtime::errc::none;
  }
  void cancel(runtime::completion&) override {}
  const counters& statistics() const noexcept override { return counted_; }
  void bring(channel on, std::span<const std::byte> header, std::span<const std::byte> body) {
    if (header.size() > max_header_bytes) return;  // no link delivers a longer header
    handler* const to = to_[static_cast<std::size_t>(on)];
    if (to != nullptr) to->on_arrival(runtime::arrival(this, header, body.size(), body.data(), false));
  }
  std::uint64_t sent = 0;
  std::vector<std::byte> latest;

 private:
  void release(const void*, bool) noexcept override {}
  std::array<handler*, channels> to_{};
  counters counted_;
};

}  // namespace parley::fuzz
