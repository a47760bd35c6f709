#include <parley/simulation/world/trace.hpp>

#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/edge/matched_streams.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/wire/frame.hpp>

#include <array>
#include <cstring>

namespace parley::simulation {

namespace {

template <class M>
bool read(std::span<const std::byte> payload, M& to) {
  auto decoded = runtime::decode<M>(payload);
  if (decoded) to = std::move(*decoded);
  return static_cast<bool>(decoded);
}

// The log of an op without headers: each config, and the first invocation that runs it. The op's payloads do not show that.
std::string log_of(const std::vector<actors::lease_entry>& entries) {
  std::string text;
  for (const actors::lease_entry& e : entries) {
    text +=
        (text.empty() ? " " : "; ") + std::string(e.what == actors::lease_entry::kind::aborted ? "aborted" : "from ");
    if (e.what == actors::lease_entry::kind::aborted) continue;
    text += std::to_string(e.from);
    for (const actors::lease_segment& s : e.segments)
      text += ", " + std::to_string(s.count) + " of config " + trace::short_digest(s.digest);
    text += ", then config " + trace::short_digest(e.tail);
  }
  return text;
}

// The contents of a message that help most to follow a run; empty for messages whose name is enough.
std::string details(const parcel& p) {
  using namespace actors;
  if (p.on == runtime::link::channel::data) {
    stamp s;
    if (!read_stamp(p.header, s)) return "";
    return " " + std::to_string(s.invocation) + ", config " + trace::short_digest(s.digest) +
           (has(s.flags, stamp_flags::timed) ? ", timed" : "") + (has(s.flags, stamp_flags::flush) ? ", flush" : "") +
           ", offset " + std::to_string(s.offset) + " of " + std::to_string(s.total_bytes);
  }
  runtime::frame_header h;
  if (p.header.size() != sizeof h) return "";
  std::memcpy(&h, p.header.data(), sizeof h);
  const std::span<const std::byte> payload = p.replaced ? std::span<const std::byte>(p.instead) : p.payload;
  if (matched m; h.type == matched::message_type && read(payload, m))
    return m.what == matched::kind::question ? " question" : " " + std::to_string(m.count);
  if (matched_streams m; h.type == matched_streams::message_type && read(payload, m)) {
    constexpr std::array<std::string_view, 4> words{" question", "", " last words", " heard"};
    return std::string(words.at(static_cast<std::size_t>(m.what))) + " of " + std::to_string(m.streams.size());
  }
  if (credit m; h.type == credit::message_type && read(payload, m))
    return " " + std::to_string(m.number) + " for " + std::to_string(m.index) + ", room " + std::to_string(m.capacity);
  if (revoke m; h.type == revoke::message_type && read(payload, m)) return " up to " + std::to_string(m.number);
  if (revoked m; h.type == revoked::message_type && read(payload, m))
    return " up to " + std::to_string(m.number) + ", next " + std::to_string(m.next);
  if (report m; h.type == report::message_type && read(payload, m)) {
    std::string rows;
    for (const wire_row& r : m.rows) rows += " " + std::to_string(r.invocation) + (r.status == 0 ? "" : "!");
    return " of" + rows;
  }
  if (decide m; h.type == decide::message_type && read(payload, m)) return " " + m.key + ": " + m.why;
  if (lease_schedule m; h.type == lease_schedule::message_type && read(payload, m)) return log_of(m.entries);
  return "";
}

std::string named(const parcel& p) {
  return std::to_string(p.from) + "->" + std::to_string(p.to) + " " + std::string(type_of(p)) + details(p);
}

}  // namespace

std::string trace::short_digest(std::uint64_t digest) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += digits[digest >> static_cast<unsigned>(shift) & 15U];
  return text;
}

void trace::on_send(const parcel& p, const fate& f) {
  std::string what = named(p) + " leaves";
  if (f.lost) what += ", lost";
  if (f.doubled) what += ", doubled";
  if (f.extra_ns != 0) what += ", " + std::to_string(f.extra_ns) + " ns late";
  add(line_.now(), std::move(what));
}

bool trace::on_deliver(parcel& p) {
  add(line_.now(), named(p) + (p.copy ? " comes again" : " comes"));
  return true;
}

void trace::print(std::ostream& out) const {
  for (const auto& [when, text] : lines_) out << when << "  " << text << "\n";
}

}  // namespace parley::simulation
