#pragma once
/// The records that a rank keeps of an invocation that has ended on it: a flight record and, if it was timed, a row.
///
///     const time_ns ended_ns = note_ended(services, rows, {.mark = stamp, .invocation = i, …, .what = flight_event::sent});
///
/// Both ends of an edge call it last. For an invocation that is no trial, it costs one record.
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/services.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/record/flight_recorder.hpp>

#include <cstdint>

namespace parley::actors {

struct ended_invocation {
  const stamp& mark;
  std::uint64_t invocation = 0;
  std::uint64_t ran = 0;  ///< digest of the config that ran
  runtime::time_ns began_ns = 0;
  runtime::time_ns worked_ns = 0;  ///< time that was not spent waiting for parts; 0: not known
  runtime::errc outcome = runtime::errc::none;
  runtime::flight_event what = runtime::flight_event::sent;  ///< the event's kind if the invocation succeeded
  runtime::flight_event failed = runtime::flight_event::send_failed;
};

/// Adds the row and the flush that only trials have.
[[gnu::cold]] inline void note_trial(row_log& rows, const ended_invocation& e, runtime::time_ns ended_ns) {
  if (has(e.mark.flags, stamp_flags::timed)) {
    wire_row row;
    row.tag = e.mark.tag;
    row.invocation = e.invocation;
    row.digest = e.ran;
    row.start_ns = e.began_ns;
    row.end_ns = ended_ns;
    row.worked_ns = e.worked_ns;
    row.status = row_status_of(e.outcome);
    rows.add(row);
  }
  if (has(e.mark.flags, stamp_flags::flush)) rows.flush(e.mark.tag, e.invocation);
}

/// Keeps the records of an invocation that ended at `ended_ns`. Returns `ended_ns`.
inline runtime::time_ns note_ended_at(services& s, row_log& rows, const ended_invocation& e,
                                      runtime::time_ns ended_ns) {
  s.flight.add({.op = e.mark.op,
                .generation = e.mark.generation,
                .invocation = e.invocation,
                .digest = e.ran,
                .bytes = e.mark.total_bytes,
                .began_ns = e.began_ns,
                .ended_ns = ended_ns,
                .tag = e.mark.tag,
                .what = e.outcome == runtime::errc::none ? e.what : e.failed,
                .flags = static_cast<std::uint8_t>(static_cast<unsigned>(e.mark.flags) & 7U)});
  if (!is_plain(e.mark.flags)) note_trial(rows, e, ended_ns);
  if (!has(e.mark.flags, stamp_flags::rehearsal)) rows.ended(e.began_ns, e.invocation, ended_ns);
  return ended_ns;
}
/// Keeps the records of an invocation that has ended now.
inline runtime::time_ns note_ended(services& s, row_log& rows, const ended_invocation& e) {
  return note_ended_at(s, rows, e, rows.clock());
}

}  // namespace parley::actors
