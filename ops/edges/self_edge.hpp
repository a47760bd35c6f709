#pragma once
/// What a rank sends to itself: matched by tag and order like that of others, and copied once, from buffer to buffer, when
/// both sides are there.
///
///     scope.spawn(edge.send(x, {.tag = 3}));
///     std::uint64_t got = co_await edge.receive(y, {.tag = 3});
///
/// Failure: `timeout` for a side whose partner never came, `buffer_too_small` for a receive, with nothing written.
/// Cancellation ends the wait for the partner; a copy that has begun is waited for.
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
  /// Answers how many bytes came; `into` may be larger.
  runtime::task<std::uint64_t> receive(std::span<std::byte> into, call_options o);
  std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }
  void list_waiting(runtime::waiting_list& all);
  /// Of how many tags somebody waits.
  std::size_t known_tags() const noexcept { return lines_.size(); }
  /// Whether a side waits there for its other one.
  bool is_awaited(std::uint32_t tag) const noexcept { return lines_.contains(tag); }

 private:
  struct copying;
  struct side : runtime::list_hook {
    std::span<std::byte> bytes;
    time_ns since_ns = 0;  // it waits
    std::uint64_t batch = 0;
    std::uint16_t type = 0;
    call_watcher* watcher = nullptr;
    std::shared_ptr<copying> met;  // once the partner is there
    runtime::news changed;
  };
  struct line {
    runtime::intrusive_list<side> sends;
    runtime::intrusive_list<side> receives;
  };
  enum class way : std::uint8_t { sends, receives };
  runtime::task<std::shared_ptr<copying>> meet(side& mine, way what, call_options o, const char* verb);
  void forget_if_idle(std::uint32_t tag) noexcept;
  /// Of both sides, where one does not take what the other sends.
  void throw_misfit(const copying& c, const char* verb, std::uint32_t tag) const;
  /// The error that a call ends with, which is noted.
  runtime::error_facts about(std::uint32_t tag) const;
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
