#pragma once
/// Keeps the ranks that are gone, as far as this rank knows: for each of them the text for errors, and the rank with which a chain of
/// failures began.
///
///     losses gone(self, ranks_come_back);
///     if (const loss* l = gone.add(2, "it was killed", departure::died, now)) …     // null: that was known
///     error why{errc::peer_failed, about, "rank 2" + l->what, &l->began_with};
///
/// The first news of a death is the most precise, so later reasons for the same rank are ignored.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace parley::actors {

/// How a rank has gone.
enum class departure : std::uint8_t {
  died,      ///< a process has noticed that it died
  vanished,  ///< its connection broke for an unknown reason; an earlier loss of another rank counts as the cause
  failed,    ///< it has reported the error, or the other rank's end, that ended it
  cut_off,   ///< this rank cut the connection: a call was torn down while its message was in flight
  returned,  ///< its program has returned
};

struct loss {
  runtime::rank_id who = 0;
  std::string what;  ///< follows `rank 3` in a text
  departure how = departure::died;
  runtime::root_cause began_with;
  runtime::time_ns noted_ns = 0;
};

class losses {
 public:
  using rank_id = runtime::rank_id;
  using time_ns = runtime::time_ns;

  losses(rank_id self, bool ranks_come_back) noexcept : self_(self), ranks_come_back_(ranks_come_back) {}

  /// Null if that rank is already known to be gone. The pointer is valid until that rank comes back.
  const loss* add(rank_id lost, std::string_view why, departure how, time_ns now_ns);
  /// For a rank that has reported why it ended: `began_with` is the result of `cause_of` on that rank.
  const loss* add_ended(rank_id ended, const runtime::root_cause& began_with, time_ns now_ns);
  /// A new process has taken that rank's place.
  void forget(rank_id back);
  const std::deque<loss>& all() const noexcept { return all_; }
  /// True if that rank is gone without having returned from its program.
  bool has_failed(rank_id r) const noexcept;
  /// For a `send_failed` without a cause: the error, with the first rank that failed within the last second added as its cause, if there is
  /// one. Other errors are returned unchanged.
  runtime::error traced(const runtime::error& why, time_ns now_ns) const;
  /// The cause that this rank reports to the others when an error ends it: the rank with which the error began, which may be another rank.
  runtime::root_cause cause_of(const runtime::error& why) const;

 private:
  loss in_words(rank_id lost, std::string_view why, departure how) const;
  const loss* add(loss l, time_ns now_ns);

  rank_id self_;
  bool ranks_come_back_;
  std::deque<loss> all_;
};

}  // namespace parley::actors
