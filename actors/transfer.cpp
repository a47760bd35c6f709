#include <parley/actors/transfer.hpp>

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

// What the transport still has lives until it lets go.
void parts_in_flight::abandon() noexcept {
  while (!parts_.empty()) {
    transfer_part& left = parts_.pop_front();
    left.owner = nullptr;
    if (!left.with_transport) delete &left;
  }
}

void parts_in_flight::fail(errc why) noexcept {
  if (failed_ != errc::none || why == errc::none) return;
  failed_ = why;
  on_failed();
  parts_.for_each([this](transfer_part& part) {
    if (part.with_transport) {
      net_.cancel(part);
    } else {  // nobody will bring it any more
      ended(&part, errc::none);
    }
  });
}

void part_sender::start(std::uint64_t offset, std::span<const std::byte> data) {
  if (failed() != errc::none) return;
  if (data.size() > stamp_.total_bytes || offset > stamp_.total_bytes - data.size()) {
    fail(errc::bad_argument);
    return;
  }
  stamp s = stamp_;
  s.offset = offset;
  sent_bytes_ += data.size();
  transfer_part* const part = begin_part();
  started(part, net_.send(to_, runtime::link::channel::data, bytes_of(s), data, part));
}

void part_sender::on_failed() noexcept {
  stamp poison = stamp_;
  poison.flags = poison.flags | stamp_flags::poison;
  // To a peer that is gone it need not go.
  static_cast<void>(net_.send(to_, runtime::link::channel::data, bytes_of(poison), {}, nullptr));
}

}  // namespace parley::actors
