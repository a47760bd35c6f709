#include <parley/transports/thread_family.hpp>

#include <parley/tests/support/deadline.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

using parley::tests::deadline;
using parley::transports::thread_family;

TEST_CASE("a thread family has others until the last thread that it started directly or indirectly has ended") {
  std::atomic<bool> child_may_go = false, grandchild_may_go = false;
  bool at_first = true, with_child = false, with_grandchild = false, other_has = true, at_last = true;
  std::thread([&] {  // in a thread of its own, because a thread keeps the family's name
    const thread_family family("tested");
    at_first = family.has_others();
    std::thread grandchild;
    std::thread child([&] {
      grandchild = std::thread([&] { grandchild_may_go.wait(false); });
      child_may_go.wait(false);
    });
    with_child = family.has_others();
    child_may_go = true;
    child_may_go.notify_all();
    child.join();
    with_grandchild = family.has_others();
    std::thread([&] {
      const thread_family other("tested");
      other_has = other.has_others();
    }).join();
    grandchild_may_go = true;
    grandchild_may_go.notify_all();
    grandchild.join();
    for (const deadline limit;
         (at_last = family.has_others()) && !limit.is_over();) {  // the kernel may list a joined thread for a moment
    }
  })
      .join();
  CHECK_FALSE(at_first);
  CHECK(with_child);
  CHECK(with_grandchild);
  CHECK_FALSE(other_has);
  CHECK_FALSE(at_last);
}
