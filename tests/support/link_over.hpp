#pragma once
/// A link that forwards its calls to a link below. Tests derive links from it that do some of the calls differently.
///
///     struct deaf final : link_over {
///       explicit deaf(link& below) : link_over(below) {}
///       void listen(channel, handler*) override {}
///     };
///
/// One-sided transfers, and transfers of devices, are not forwarded.
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace parley::tests {

class link_over : public runtime::link {
 public:
  using rank_id = runtime::rank_id;

  rank_id rank() const noexcept override { return below_.rank(); }
  rank_id world_size() const noexcept override { return below_.world_size(); }
  void listen(channel on, handler* to) override { below_.listen(on, to); }
  void on_failure(failure_handler* to) override { below_.on_failure(to); }
  runtime::errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                     runtime::completion* done) override {
    return below_.send(to, on, header, payload, done);
  }
  runtime::errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override {
    return below_.fetch(std::move(message), into, done);
  }
  void cancel(runtime::completion& pending) override { below_.cancel(pending); }
  void abandon(runtime::completion& pending) noexcept override { below_.abandon(pending); }
  const counters& statistics() const noexcept override { return below_.statistics(); }

 protected:
  explicit link_over(runtime::link& below) : below_(below) {}
  runtime::link& below_;

 private:
  void release(const void*, bool) noexcept override {}  // arrivals belong to the link below
};

}  // namespace parley::tests
