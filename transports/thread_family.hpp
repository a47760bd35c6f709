#pragma once
/// Finds out whether a library's threads have ended, if the library does not report them.
///
///     thread_family mine("nccl abort");   // gives this thread the name; it should be a thread made for this
///     library_that_starts_threads();      // on Linux a new thread inherits the name of the thread that starts it
///     while (mine.has_others()) …         // its threads, and those that they start, unless one was renamed
///
/// A number is appended to each family's name, so that two families are not confused.
#include <string>
#include <string_view>

namespace parley::transports {

class thread_family {
 public:
  /// `name` has up to 10 characters; Linux keeps 15.
  explicit thread_family(std::string_view name);
  /// True if one look at /proc shows a thread of this process with the name, other than the caller. It may miss a thread while
  /// another one ends, and it finds none if /proc cannot be read.
  bool has_others() const;

 private:
  std::string name_;
};

}  // namespace parley::transports
