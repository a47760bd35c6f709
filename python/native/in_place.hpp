#pragma once
/// A call that Python waits for where it is made: without a coroutine and without a `Work`. A short message mostly ends within its first
/// turns of the loop, with the GIL.
#include "calls.hpp"

#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/finally.hpp>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace parley::python {

/// `Make` returns a call of an edge (parley/ops/edges/calls.hpp).
template <class Make>
class waited final : public abandoned_call, public runtime::frame_pool::pooled, private runtime::ready_call {
 public:
  waited(home& where, const Make& make, keep k)
      : ready_call(&on_woken), where_(where), root_(where.loop), keeps_(std::move(k)), call_(make()) {}
  ~waited() override {
    finish(*this, where_);
    if (is_taken_) return;
    try {
      static_cast<void>(call_.await_resume());  // it tells its edge that the call is over
    } catch (...) {                             // NOLINT(bugprone-empty-catch): nobody waits for it any more
    }
  }
  void begin() {
    const bool is_ready = call_.await_ready();
    is_taken_ = false;
    is_over_ = is_ready || !call_.suspend(root_, *this);
  }
  bool done() const noexcept override { return is_over_; }
  void cancel() noexcept override { root_.cancel(); }
  auto result() {
    is_taken_ = true;
    try {
      return call_.await_resume();
    } catch (const runtime::failure&) {
      if (PyErr_CheckSignals() != 0)
        throw nb::python_error();  // Ctrl-C in a function of the program that the call has run
      throw;
    }
  }

 private:
  static void on_woken(ready_call& self) noexcept {
    auto& mine = static_cast<waited&>(self);
    mine.is_over_ = true;
    mine.where_.note_end();
  }
  home& where_;
  runtime::scope root_;  // outlives the call, whose waits are linked into it
  keep keeps_;
  std::invoke_result_t<Make> call_;
  bool is_over_ = true, is_taken_ = true;  // until it has begun
};

/// The result of the call that `make` returns. `bytes`: of its buffer. A signal such as Ctrl-C ends the wait: the call is cancelled.
template <class Make>
auto wait_in_place(const home_ptr& where, const Make& make, keep k, std::size_t bytes) {
  constexpr std::size_t most_short = 64U << 10U;
  const hold held = where->check();
  where->tidy();
  where->must_not_run_here();
  auto it = std::make_unique<waited<Make>>(*where, make, std::move(k));
  it->begin();
  if (it->done()) {
    where->loop.turn();  // a transport may have queued it
    return it->result();
  }
  const runtime::finally left([&] {
    if (it->done()) return;
    it->cancel();
    where->abandoned.push_back(std::move(it));
  });
  const int looks = bytes <= most_short ? 128 : 0;
  if (!where->wait_until([&it = *it] { return it.done(); }, looks)) throw nb::python_error();
  return it->result();
}

}  // namespace parley::python
