#pragma once
/// Where the ranks of a job meet and which key they share, also where their launcher says neither.
///
///     auto found = find_meeting(from_environment().value(), 30_s);      // may wait for rank 0
///     if (!found) return found.reason();
///     rendezvous here(io, options_for(*found), std::move(found->key)); // what is left of the limit is for joining
///     …                                                                // all have joined:
///     found->published.remove();
///
/// - address: as given. On several hosts a key from PARLEY_KEY_FILE is needed, or the rendezvous refuses to open; on loopback without
///   one other users of the host can join.
/// - file: rank 0 listens on loopback, makes a fresh key, and writes both to a 0600 file in a folder that only this user can
///   enter: PMIX_SERVER_TMPDIR or XDG_RUNTIME_DIR where they are fit for it, otherwise /tmp/parley-UID. The others wait for
///   that file. Rank 0 holds a lock on it, so that one which an older job has left behind is told apart, and removes it.
/// - pmi: rank 0 tells its address and a fresh key through the launcher (pmi.hpp).
///
/// A key that the user has given (PARLEY_KEY_FILE, PARLEY_KEY_FD) is used instead of a fresh one.
///
/// Failure, as a value within the limit: `timeout` when rank 0's file never comes, `unauthenticated` when folder or file belong
/// to somebody else or may be read by others, `bad_argument` when a second process is rank 0 of the job, `malformed`, `io`,
/// and what pmi.hpp says.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/join/job_key.hpp>
#include <parley/transports/launch/environment.hpp>

#include <string>
#include <utility>

namespace parley::transports {

struct rendezvous_options;

/// Rank 0's file for as long as this object lives.
class meeting_file {
 public:
  meeting_file() noexcept = default;
  meeting_file(meeting_file&& other) noexcept
      : path_(std::exchange(other.path_, {})), fd_(std::exchange(other.fd_, -1)) {}
  meeting_file& operator=(meeting_file&& other) noexcept;
  ~meeting_file() { remove(); }

  /// Writes it whole or not at all, locked.
  static runtime::result<meeting_file> publish(const std::string& path, const std::string& content);
  /// Waits for one whose writer lives.
  static runtime::result<std::string> await(const std::string& path, runtime::time_ns limit_ns);
  /// Nobody needs it any more.
  void remove() noexcept;

 private:
  std::string path_;
  int fd_ = -1;
};

struct meeting {
  placement place;  ///< with rendezvous_host and rendezvous_port, or listening_fd
  job_key key;
  meeting_file published;        ///< keep it until all have joined
  runtime::time_ns left_ns = 0;  ///< of the limit: finding rank 0 and joining it share one
};

/// `limit_ns` counts from now.
runtime::result<meeting> find_meeting(placement place, runtime::time_ns limit_ns);
/// How to join there within what is left of that limit.
rendezvous_options options_for(const meeting& found);

/// The first of these that is a folder of this user's alone, otherwise /tmp/parley-UID, which is made.
runtime::result<std::string> private_folder(const std::vector<std::string>& candidates);

}  // namespace parley::transports
