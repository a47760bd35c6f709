#pragma once
/// Whether threads that a library has started, of which it says nothing, have ended.
///
///     thread_family mine("nccl abort");   // gives this thread the name; it should be a thread made for this
///     library_that_starts_threads();      // on Linux a thread is born with the name of the one that starts it
///     while (mine.has_others()) …         // those that it has started, and that these start, but for those that were given another name
///
/// Each family's name has a number behind it, so that two of them are not taken for one.
#include <string>
#include <string_view>

namespace parley::transports {

class thread_family {
 public:
  /// `name` has up to 10 characters; Linux keeps 15.
  explicit thread_family(std::string_view name);
  /// Whether any thread of this process but the caller has the name, as far as one look at /proc shows: it may miss one while another
  /// one ends, and sees none where /proc cannot be read.
  bool has_others() const;

 private:
  std::string name_;
};

}  // namespace parley::transports
