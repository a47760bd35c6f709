#include <parley/runtime/record/flight_dump.hpp>
#include <parley/runtime/record/json_words.hpp>

#include <fmt/format.h>

#include <iterator>

namespace parley::runtime {

namespace {

std::string named(const std::function<std::string(std::uint64_t)>& names, std::uint64_t number) {
  const std::string name = names ? names(number) : std::string();
  return in_quotes(name.empty() ? fmt::format("{:016x}", number) : name);
}

}  // namespace

std::string_view name(flight_event what) noexcept {
  switch (what) {
    case flight_event::sent: return "sent";
    case flight_event::received: return "received";
    case flight_event::send_failed: return "send_failed";
    case flight_event::receive_failed: return "receive_failed";
    case flight_event::offered: return "offered";
    case flight_event::merged: return "merged";
    case flight_event::warmed: return "warmed";
    case flight_event::reported: return "reported";
    case flight_event::measured: return "measured";
    case flight_event::decided: return "decided";
    case flight_event::quarantined: return "quarantined";
    case flight_event::rejected: return "rejected";
    case flight_event::peer_lost: return "peer_lost";
    case flight_event::credited: return "credited";
    case flight_event::revoked: return "revoked";
  }
  return "unknown";
}

namespace {

void write(std::string& text, const waiting_call& w, time_ns now_ns) {
  const auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"since_ns":{},"for_ns":{},"what":"{}","op":{},"generation":"{:016x}")", w.since_ns,
                 now_ns - w.since_ns, w.what, in_quotes(w.op), w.generation);
  if (w.invocation) fmt::format_to(out, R"(,"invocation":{})", *w.invocation);
  if (w.tag) fmt::format_to(out, R"(,"tag":{})", *w.tag);
  fmt::format_to(out, R"(,"bytes":{},"peers":[{}],"lacks":{})", w.bytes, fmt::join(w.peers, ","), in_quotes(w.lacks));
  if (w.batch != 0) fmt::format_to(out, R"(,"batch":{})", w.batch);
  fmt::format_to(out, R"(,"rehearsal":{}}})", w.rehearsal);
}

void write(std::string& text, const untaken_messages& u) {
  fmt::format_to(std::back_inserter(text),
                 R"({{"op":{},"generation":"{:016x}","peer":{},"tag":{},"invocation":{},"parts":{},"bytes":{}}})",
                 in_quotes(u.op), u.generation, u.peer, u.tag, u.invocation, u.parts, u.bytes);
}

}  // namespace

std::string flight_text(const flight_recorder& recorder, const flight_names& names, const flight_header& about,
                        const std::vector<std::string>& decisions, const waiting_list& now) {
  const std::vector<flight_record> records = recorder.in_order();
  std::string text = fmt::format(R"({{"rank":{},"why":{},"now_ns":{},"records_lost":{},"waiting":[)", about.rank,
                                 in_quotes(about.why), about.now_ns, recorder.total() - records.size());
  const auto out = std::back_inserter(text);
  for (const waiting_call& w : now.calls) {
    text += &w == now.calls.data() ? "\n" : ",\n";
    write(text, w, about.now_ns);
  }
  text += R"(],"untaken":[)";
  for (const untaken_messages& u : now.untaken) {
    text += &u == now.untaken.data() ? "\n" : ",\n";
    write(text, u);
  }
  text += R"(],"decisions":[)";
  for (const std::string& d : decisions) text += (&d == decisions.data() ? "\n" : ",\n") + d;
  text += R"(],"records":[)";
  std::string_view between = "\n";
  for (const flight_record& r : records) {
    fmt::format_to(out, R"({}{{"at_ns":{},"took_ns":{},"what":"{}","op":{},"generation":"{:016x}")", between,
                   r.began_ns, r.ended_ns - r.began_ns, name(r.what), named(names.op, r.op), r.generation);
    between = ",\n";
    if (r.digest != 0) fmt::format_to(out, R"(,"config":{})", named(names.config, r.digest));
    fmt::format_to(out, R"(,"{}":{},"bytes":{})", is_transfer(r.what) ? "invocation" : "count", r.invocation, r.bytes);
    fmt::format_to(out, R"(,"{}":{})", is_transfer(r.what) ? "tag" : "peer", r.tag);
    if (is_transfer(r.what))
      fmt::format_to(out, R"(,"trial":{},"rehearsal":{})", (r.flags & 1U) != 0, (r.flags & 4U) != 0);
    text += '}';
  }
  return text + "\n]}\n";
}

}  // namespace parley::runtime
