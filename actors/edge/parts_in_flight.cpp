#include <parley/actors/edge/parts_in_flight.hpp>

namespace parley::actors {

using runtime::errc;

void transfer_part::on_part_end(completion& self, errc outcome) noexcept {
  auto* part = static_cast<transfer_part*>(&self);
  if (part->owner != nullptr) {
    part->owner->ended(part, outcome);
  } else {
    delete part;
  }
}

// The caller's buffer is about to be freed, so it must not be used after this call, at any cost. The transport owns the records of its
// parts until it completes them.
void parts_in_flight::abandon() noexcept {
  while (!parts_.empty()) {
    transfer_part& left = parts_.pop_front();
    left.owner = nullptr;
    if (left.with_transport) {
      net_.abandon(left);
    } else {
      delete &left;
    }
  }
}

// The failure also ends the first coroutine's wait, but the call ends with the error that is raised here.
void parts_in_flight::refuse_second_wait() {
  fail(errc::config_failed);
  runtime::raise(
      {errc::config_failed,
       "two coroutines wait for parts of one message; let one coroutine move all parts, with more in flight"});
}

void parts_in_flight::fail(errc why) noexcept {
  if (failed_ != errc::none || why == errc::none) return;
  failed_ = why;
  on_failed();
  parts_.for_each([this](transfer_part& part) {
    if (part.with_transport) {
      net_.cancel(part);
    } else {  // never started at the transport, so its completion will not be called
      ended(&part, errc::none);
    }
  });
}

}  // namespace parley::actors
