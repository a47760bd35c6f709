#pragma once
/// The ranks that are gone, as one rank has heard, in words: what errors say of them, and with which rank a chain of ends began.
///
///     losses gone(self, ranks_come_back);
///     if (const loss* l = gone.add(2, "it was killed", departure::died, now)) …     // null: that was known
///     error why{errc::peer_failed, about, "rank 2" + l->what, &l->began_with};
///
/// What is found out first says most about a death, so a second reason is not taken.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace parley::actors {

/// How a rank came to be gone.
enum class departure : std::uint8_t {
  died,      ///< somebody has seen that
  vanished,  ///< nobody has said anything of it, but a connection broke: after another loss, because of that one
  failed,    ///< it said with which error it ended, or because of whose end
  cut_off,   ///< this rank has broken their connection: a message that was under way was torn down with its call
  returned,  ///< it has done all that its program does
};

struct loss {
  runtime::rank_id who = 0;
  std::string what;  ///< behind `rank 3`
  departure how = departure::died;
  runtime::root_cause began_with;
  runtime::time_ns noted_ns = 0;
};

class losses {
 public:
  using rank_id = runtime::rank_id;
  using time_ns = runtime::time_ns;

  losses(rank_id self, bool ranks_come_back) noexcept : self_(self), ranks_come_back_(ranks_come_back) {}

  /// Null where that rank is known to be gone. It is valid until that rank comes back.
  const loss* add(rank_id lost, std::string_view why, departure how, time_ns now_ns);
  /// Of one that has said what it ended with: what `cause_of` returned there.
  const loss* add_ended(rank_id ended, const runtime::root_cause& began_with, time_ns now_ns);
  /// A new process is in its place.
  void forget(rank_id back);
  const std::deque<loss>& all() const noexcept { return all_; }
  /// Whether it is gone, and did not return from its program.
  bool has_failed(rank_id r) const noexcept;
  /// A send that failed because its peer did, with what has become known of a rank that has gone in the last second; any other error as it is.
  runtime::error traced(const runtime::error& why, time_ns now_ns) const;
  /// What the others are to be told of an error that ends this rank: the rank that it began with, which may be another one.
  runtime::root_cause cause_of(const runtime::error& why) const;

 private:
  loss in_words(rank_id lost, std::string_view why, departure how) const;
  const loss* add(loss l, time_ns now_ns);

  rank_id self_;
  bool ranks_come_back_;
  std::deque<loss> all_;
};

}  // namespace parley::actors
