#pragma once
/// Finds the address where the ranks of a job meet, and their common key, even if the launcher gives neither.
///
///     auto found = find_meeting(from_environment().value(), 30_s);      // may wait for rank 0
///     if (!found) return found.reason();
///     rendezvous here(io, options_for(*found), std::move(found->key)); // joining may use the rest of the limit
///     …                                                                // all have joined:
///     found->published.remove();
///
/// The placement names one of three ways:
/// - address: the address is given. On several hosts the ranks need a key from PARLEY_KEY_FILE, or the rendezvous refuses to open. On
///   loopback without a key other users of the host can join.
/// - file: rank 0 listens on loopback, makes a fresh key, and writes both to a file of mode 0600 in a folder that only this user can
///   enter: PMIX_SERVER_TMPDIR or XDG_RUNTIME_DIR if they are such folders, otherwise /tmp/parley-UID. The other ranks wait for the
///   file. Rank 0 keeps the file locked, so that the others recognise a file that an older job left behind, and finally removes it.
/// - pmi: rank 0 sends its address and a fresh key through the launcher (pmi.hpp).
///
/// If the user has given a key (PARLEY_KEY_FILE, PARLEY_KEY_FD), the ranks use that key instead of a fresh one.
///
/// Errors are returned within the limit: `timeout` if rank 0's file does not appear, `unauthenticated` if the folder or file belongs
/// to another user or others may read it, `bad_argument` if a second process is rank 0 of the job, `malformed`, `io`, and the errors
/// of pmi.hpp.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/join/job_key.hpp>
#include <parley/transports/launch/environment.hpp>

#include <string>
#include <utility>

namespace parley::transports {

struct rendezvous_options;

/// Owns rank 0's file, which exists as long as this object lives.
class meeting_file {
 public:
  meeting_file() noexcept = default;
  meeting_file(meeting_file&& other) noexcept
      : path_(std::exchange(other.path_, {})), fd_(std::exchange(other.fd_, -1)) {}
  meeting_file& operator=(meeting_file&& other) noexcept;
  ~meeting_file() { remove(); }

  /// Makes the complete, locked file visible at `path`, or nothing.
  static runtime::result<meeting_file> publish(const std::string& path, const std::string& content);
  /// Waits for a file whose writer is alive, and returns its content.
  static runtime::result<std::string> await(const std::string& path, runtime::time_ns limit_ns);
  /// Removes the file. Call it once all ranks have joined.
  void remove() noexcept;

 private:
  std::string path_;
  int fd_ = -1;
};

struct meeting {
  placement place;  ///< with rendezvous_host and rendezvous_port, or listening_fd
  job_key key;
  meeting_file published;        ///< keep it until all have joined
  runtime::time_ns left_ns = 0;  ///< the rest of the limit, which finding rank 0 and joining share
};

/// `limit_ns` counts from now.
runtime::result<meeting> find_meeting(placement place, runtime::time_ns limit_ns);
/// Options for joining there within the rest of that limit.
rendezvous_options options_for(const meeting& found);

/// Returns the first of `candidates` that is a folder which only this user can enter; otherwise /tmp/parley-UID, which it creates.
runtime::result<std::string> private_folder(const std::vector<std::string>& candidates);

}  // namespace parley::transports
