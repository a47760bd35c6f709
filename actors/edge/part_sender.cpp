#include <parley/actors/edge/part_sender.hpp>

#include <parley/actors/one_sided/one_sided.hpp>

#include <algorithm>

namespace parley::actors {

using runtime::errc;

bool part_sender::note_beyond(std::uint64_t offset) {
  if (beyond_ == nullptr) beyond_ = std::make_unique<std::unordered_set<std::uint64_t>>();
  return beyond_->insert(offset).second;
}

void part_sender::on_failed() noexcept {
  if (!has_put_) say_poison();
  if (access_ != nullptr) access_->from.ask_soon();
}

stamp part_sender::poison() const noexcept {
  stamp s = stamp_;
  s.flags = s.flags | stamp_flags::poison;
  s.next_digest = static_cast<std::uint64_t>(failed());
  return s;
}

// Sends a stamp without a payload.
errc part_sender::say(const stamp& s) noexcept {
  return net_.send(to_, runtime::link::channel::data, bytes_of(s), {}, nullptr);
}

void part_sender::say_poison() noexcept {
  const errc sent = say(poison());
  owes_poison_ = sent != errc::none && sent != errc::pending;
}

namespace {
std::span<const std::byte> around(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  const std::byte* const begin = std::min(a.data(), b.data());
  return {begin, std::max(a.data() + a.size(), b.data() + b.size())};
}
}  // namespace

void part_sender::start_put(std::uint64_t offset, std::span<const std::byte> data, runtime::device_copy by) noexcept {
  if (failed() != errc::none) return;
  // S8: nothing is written without a credit, or outside what the credit allows.
  const bool allowed = access_ != nullptr && !access_->region && access_->credit.capacity >= stamp_.total_bytes;
  if (!allowed || data.size() > stamp_.total_bytes || offset > stamp_.total_bytes - data.size()) {
    fail(allowed ? errc::bad_argument : errc::config_failed);
    return;
  }
  has_put_ = true;
  sent_bytes_ += data.size();
  transfer_part* const part = new_part();
  const runtime::remote_place there{access_->credit.key, access_->credit.address + offset, by};
  started(part, net_.put(to_, there, data, part));
  put_from_ = put_from_.empty() ? data : around(put_from_, data);
  const bool all_started = failed() == errc::none && sent_bytes_ == stamp_.total_bytes;
  if (all_started && access_->credit.flag != 0) net_.set_flag(to_, there, access_->credit.flag, put_from_);
}

void part_sender::fence() noexcept {
  transfer_part* const part = new_part();
  fenced_ = errc::pending;
  part->report = &fenced_;
  announced_ = false;  // an earlier fence has failed and has sent no stamp
  errc outcome = errc::unavailable;
  if (failed() == errc::none && sent_bytes_ == stamp_.total_bytes) {
    stamp s = stamp_;
    s.flags = s.flags | stamp_flags::landed;
    outcome = net_.announce(to_, runtime::link::channel::data, bytes_of(s), part);
    announced_ = outcome == errc::none || outcome == errc::pending;
  }
  started(part, outcome == errc::unavailable ? net_.fence(to_, part) : outcome);
}

void part_sender::announce() noexcept {
  if (fence_failed()) {
    fail(fenced_ == errc::device_failed ? fenced_ : errc::peer_failed);
  } else if (!announced_) {
    if (failed() == errc::none) {
      stamp s = stamp_;
      s.flags = s.flags | stamp_flags::landed;
      fail(say(s));
    }
    if (failed() != errc::none) say_poison();
  }
}

void part_sender::start_offer() noexcept {
  if (failed() != errc::none) return;
  if (access_ == nullptr || !access_->region) {
    fail(errc::config_failed);
    return;
  }
  if (const errc over = access_->from.failed(); over != errc::none) {  // the edge has failed: no read may begin
    fail(over);
    return;
  }
  stamp s = stamp_;
  s.flags = s.flags | stamp_flags::to_be_got;
  const errc sent =
      net_.send(to_, runtime::link::channel::data, bytes_of(s), std::as_bytes(std::span(&access_->place, 1)), nullptr);
  if (sent != errc::none) {
    fail(sent);
    return;
  }
  sent_bytes_ = stamp_.total_bytes;
  transfer_part* const part = new_part();
  part->with_transport = true;  // the receiver has the offer, so even a failure must wait for the receiver's report
  await(*part);
  access_->from.await_taken(access_->stream, access_->invocation, *part);
}

}  // namespace parley::actors
