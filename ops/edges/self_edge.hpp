#pragma once
/// The messages of a rank to itself. They match by tag and order, like messages between ranks, and are copied once, from buffer to buffer,
/// when both sides are posted.
///
///     scope.spawn(edge.send(x, {.tag = 3}));
///     std::uint64_t got = co_await edge.receive(y, {.tag = 3});
///
/// Failure: `timeout` if the other side is not posted in time. `buffer_too_small`, or `declaration_mismatch` if the element types differ,
/// on both sides; then nothing is written. Cancellation ends the wait for the other side; if the copy has begun, the call still waits for
/// it.
#include <parley/actors/services.hpp>
#include <parley/news.hpp>
#include <parley/ops/edges/calls.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/record/waiting_call.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace parley::ops {

class self_edge {
 public:
  runtime::memory_space& memory() const noexcept { return memory_; }
  self_edge(const actors::services& s, runtime::memory_space& memory, std::string op, time_ns timeout_ns)
      : services_(s), memory_(memory), op_(std::move(op)), timeout_ns_(timeout_ns) {}
  self_edge(const self_edge&) = delete;
  self_edge& operator=(const self_edge&) = delete;

  runtime::task<> send(std::span<const std::byte> data, call_options o);
  /// Returns the number of bytes received; `into` may be larger.
  runtime::task<std::uint64_t> receive(std::span<std::byte> into, call_options o);
  std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }
  void list_waiting(runtime::waiting_list& all);
  /// The number of tags under which a side waits.
  std::size_t known_tags() const noexcept { return lines_.size(); }
  /// True if a side waits under this tag for its other side.
  bool is_awaited(std::uint32_t tag) const noexcept { return lines_.contains(tag); }

 private:
  struct copying;
  struct side : runtime::list_hook {
    std::span<std::byte> bytes;
    time_ns since_ns = 0;  // when it began to wait
    std::uint64_t batch = 0;
    std::uint16_t type = 0;
    call_watcher* watcher = nullptr;
    std::shared_ptr<copying> met;  // once both sides are posted
    runtime::news changed;
  };
  struct line {
    runtime::intrusive_list<side> sends;
    runtime::intrusive_list<side> receives;
  };
  enum class way : std::uint8_t { sends, receives };
  runtime::task<std::shared_ptr<copying>> meet(side& mine, way what, call_options o, const char* verb);
  void forget_if_idle(std::uint32_t tag) noexcept;
  /// Throws, on each side, if the receive does not accept the sent message.
  void throw_misfit(const copying& c, const char* verb, std::uint32_t tag) const;
  runtime::error_facts about(std::uint32_t tag) const;
  /// Records the error that a call ends with, and returns it.
  runtime::failure explained(runtime::errc code, const runtime::error_facts& about, const char* verb,
                             const std::string& what) const;
  static runtime::task<> copy(runtime::memory_space& memory, std::shared_ptr<copying> c);

  const actors::services& services_;
  runtime::memory_space& memory_;
  std::string op_;
  time_ns timeout_ns_;
  std::uint64_t copied_bytes_ = 0;
  std::map<std::uint32_t, line> lines_;  // by tag, while a side waits
};

}  // namespace parley::ops
