#pragma once
/// Each rank sends one value to all other ranks and receives theirs. An object serves one such exchange.
///
///     all_exchange<verdict> said(here, messages, {.self = 1, .ranks = 4, .tag = 7});
///     said.say(mine);
///     co_await said.heard();                       // all of them
///     said.by(2)                                   // zeros until it has arrived
///
/// `messages` is an op with an edge from each rank to each other rank. If one of its messages fails, `heard` throws its error.
#include <parley/scope.hpp>
#include <parley/transfer.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::ops {

struct all_exchange_options {
  rank_id self = 0;
  rank_id ranks = 1;
  std::uint32_t tag = 0;   ///< must differ from the tags of all other messages in flight
  time_ns timeout_ns = 0;  ///< 0: the op's
};

template <class T>
class all_exchange {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  all_exchange(runtime::scope& parent, transfer messages, all_exchange_options o)
      : messages_(std::move(messages)), options_(o), all_(o.ranks), within_(parent) {
    for_others([this](rank_id r) { within_.spawn(hear(messages_, options_, r, bytes_of(all_[r]))); });
  }
  void say(const T& mine) {
    all_[options_.self] = mine;
    for_others([this](rank_id r) { within_.spawn(tell(messages_, options_, r, bytes_of(all_[options_.self]))); });
  }
  runtime::scope::joiner heard() noexcept { return within_.join(); }
  const T& by(rank_id r) const noexcept { return all_[r]; }
  std::span<const T> all() const noexcept { return all_; }
  /// The scope in which the messages run.
  runtime::scope& within() noexcept { return within_; }

 private:
  static std::span<std::byte> bytes_of(T& value) noexcept { return std::as_writable_bytes(std::span(&value, 1)); }
  template <class Each>
  void for_others(Each each) {
    for (rank_id r = 0; r < options_.ranks; ++r) {
      if (r != options_.self) each(r);
    }
  }
  static runtime::task<> hear(transfer messages, all_exchange_options o, rank_id from, std::span<std::byte> into) {
    const std::uint64_t came = co_await messages.receive(
        into, {.from = from, .tag = o.tag, .timeout = std::chrono::nanoseconds(o.timeout_ns)});
    if (came != into.size())
      runtime::raise({runtime::errc::malformed, "rank " + std::to_string(from) + " says " + std::to_string(came) +
                                                    " bytes, not " + std::to_string(into.size())});
  }
  static runtime::task<> tell(transfer messages, all_exchange_options o, rank_id to, std::span<const std::byte> what) {
    co_await messages.send(what, {.to = to, .tag = o.tag, .timeout = std::chrono::nanoseconds(o.timeout_ns)});
  }

  transfer messages_;
  all_exchange_options options_;
  std::vector<T> all_;
  runtime::scope within_;
};

}  // namespace parley::ops
