#pragma once
/// A stand-in for a library whose calls carry no header, such as one of collectives: the i-th calls of all members on one communicator
/// meet, whatever configs they run. The library records every meeting, so that a test can check that all members ran the same config
/// for the same invocation.
#include <parley/tests/support/world.hpp>

#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/symmetric.hpp>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace parley::tests {

/// Counts the calls and the rehearsals that each member is in at a time.
class calls_book {
 public:
  /// One call or rehearsal, from its begin to its end, however it ends.
  class entry {
   public:
    entry(calls_book& b, rank_id member, bool rehearsal) : here_(b.of_[member]), rehearsal_(rehearsal) {
      ++(rehearsal_ ? here_.rehearsals : here_.calls);
      if (here_.rehearsals != 0 && here_.calls != 0) ++b.together_;
    }
    entry(const entry&) = delete;
    entry& operator=(const entry&) = delete;
    ~entry() { --(rehearsal_ ? here_.rehearsals : here_.calls); }

   private:
    struct counts {
      int calls = 0;
      int rehearsals = 0;
    };
    friend calls_book;
    counts& here_;
    bool rehearsal_;
  };
  /// How often a call began during a rehearsal of the same member, or a rehearsal during a call.
  std::size_t together() const noexcept { return together_; }

 private:
  std::map<rank_id, entry::counts> of_;
  std::size_t together_ = 0;
};

/// The state that all members of one communicator share.
class meeting_place {
 public:
  meeting_place(runtime::executor& ex, std::size_t members, std::shared_ptr<calls_book> b)
      : book(std::move(b)), executor_(ex), members_(members) {}
  const std::shared_ptr<calls_book> book;

  struct meeting {
    std::set<std::uint64_t> digests;
    std::set<std::uint64_t> invocations;
    std::set<std::uint64_t> sizes;
    std::size_t entered = 0;
    time_ns ends_ns = runtime::never;
    bool failed = false;
  };

  class [[nodiscard]] entering : private runtime::waiter {
   public:
    entering(meeting_place& place, std::size_t at) noexcept : waiter(&on_cancelled), place_(place), at_(at) {}
    bool await_ready() const noexcept { return place_.meetings_[at_].ends_ns != runtime::never || place_.aborted_; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (!enter(caller)) return false;
      hook_.owner = this;
      place_.waiting_.push_back(hook_);
      return true;
    }
    /// The time at which the work ends, or the reason why it never will.
    runtime::result<time_ns> await_resume() const noexcept {
      if (outcome != errc::none) return outcome;
      if (place_.aborted_) return errc::io;
      return place_.meetings_[at_].ends_ns;
    }

   private:
    friend meeting_place;
    struct hook : runtime::list_hook {
      entering* owner = nullptr;
    } hook_;
    static void on_cancelled(waiter& self, errc why) noexcept {
      auto& e = static_cast<entering&>(self);
      e.hook_.unlink();
      e.wake(why);
    }
    meeting_place& place_;
    std::size_t at_;
  };

  entering enter(std::size_t at, std::uint64_t digest, std::uint64_t invocation, std::uint64_t bytes,
                 time_ns takes_ns) {
    meeting& m = meetings_[at];
    m.digests.insert(digest);
    m.invocations.insert(invocation);
    m.sizes.insert(bytes);
    if (++m.entered == members_) {
      m.ends_ns = executor_.deadline_in(takes_ns);
      wake([at](const entering& e) { return e.at_ == at; });
    }
    return {*this, at};
  }
  void abort() noexcept {
    aborted_ = true;
    wake([](const entering&) { return true; });
  }
  bool aborted() const noexcept { return aborted_; }
  const std::map<std::size_t, meeting>& meetings() const noexcept { return meetings_; }
  /// Number of meetings in which members ran different configs, or for which they had different invocations or sizes.
  std::size_t mismatches() const {
    std::size_t n = 0;
    for (const auto& [at, m] : meetings_)
      n += m.digests.size() > 1 || m.invocations.size() > 1 || m.sizes.size() > 1 ? 1 : 0;
    return n;
  }

 private:
  template <class Which>
  void wake(Which which) noexcept {
    waiting_.for_each([&](entering::hook& h) {
      if (!which(*h.owner)) return;
      h.unlink();
      h.owner->wake(errc::none);
    });
  }
  runtime::executor& executor_;
  std::size_t members_;
  std::map<std::size_t, meeting> meetings_;
  runtime::intrusive_list<entering::hook> waiting_;
  bool aborted_ = false;
};

/// One member's handle.
class library_communicator final : public ops::communicator {
 public:
  explicit library_communicator(std::shared_ptr<meeting_place> p) : place(std::move(p)) {}
  void abort() noexcept override { place->abort(); }
  std::shared_ptr<meeting_place> place;
  std::size_t next = 0;
};

/// All communicators of a job.
class library {
 public:
  library(runtime::executor& e, std::size_t m) : ex(e), members(m) {}
  std::shared_ptr<meeting_place> make() {
    return places.emplace_back(std::make_shared<meeting_place>(ex, members, book));
  }
  std::size_t mismatches() const {
    std::size_t n = 0;
    for (const auto& p : places) n += p->mismatches();
    return n;
  }
  runtime::executor& ex;
  std::size_t members;
  std::shared_ptr<calls_book> book = std::make_shared<calls_book>();
  std::vector<std::shared_ptr<meeting_place>> places;
};

class library_source final : public ops::communicator_source {
 public:
  explicit library_source(library& l) : library_(l) {}
  std::vector<std::byte> make_id() override {
    const bool in_turn = every_other_throws && ++asked % 2 != 0;
    if (throws != 0 || in_turn) {
      if (throws != 0) --throws;
      runtime::raise({errc::unavailable, "no id to be had"});
    }
    const std::uint64_t number = library_.places.size();
    library_.make();
    std::vector<std::byte> id(sizeof number);
    std::memcpy(id.data(), &number, sizeof number);
    return id;
  }
  runtime::task<std::shared_ptr<ops::communicator>> connect(std::vector<std::byte> id) override {
    if (refuse) runtime::raise({errc::unavailable, "no more communicators"});
    if (makes_none) co_return nullptr;
    std::uint64_t number = 0;
    std::memcpy(&number, id.data(), sizeof number);
    co_return std::make_shared<library_communicator>(library_.places.at(number));
  }
  bool beside_calls() const noexcept override { return beside; }
  bool beside = true;
  bool refuse = false;
  bool makes_none = false;
  int throws = 0;  ///< how often `make_id` throws before it works
  bool every_other_throws = false;
  unsigned asked = 0;

 private:
  library& library_;
};

/// The behaviour of an algorithm: a fixed time, and a rank on which it fails.
struct algorithm_traits {
  time_ns takes_ns = 10'000;
  rank_id fails_on = static_cast<rank_id>(-1);
  std::uint64_t fails_from_call = static_cast<std::uint64_t>(-1);
  bool fails_in_rehearsals = false;
  std::function<void(const ops::symmetric_call& call, std::span<std::byte> data)> computes{};
  std::function<time_ns(const ops::symmetric_call& call)> stalls{};  ///< how long a call waits before it begins
  tuning::demands demands{};
  std::string wire_class = "library";
};

class algorithm final : public ops::symmetric_config {
 public:
  algorithm(std::string name, algorithm_traits t)
      : symmetric_config({.name = std::move(name), .wire_class = t.wire_class}), traits_(std::move(t)) {}
  runtime::task<> run(ops::symmetric_call call, std::span<std::byte> data) const override {
    auto& over = static_cast<library_communicator&>(*call.communicator);
    const bool rehearsal = call.on == ops::symmetric_call::stream::rehearsal;
    const calls_book::entry noted(*over.place->book, call.self, rehearsal);
    if (const time_ns stall = traits_.stalls ? traits_.stalls(call) : 0; stall != 0) {
      auto woken = co_await runtime::sleep_for(std::chrono::nanoseconds(stall));
      if (!woken) runtime::raise(woken.reason());
    }
    auto met = co_await over.place->enter(over.next++, digest(), call.invocation, call.bytes, traits_.takes_ns);
    if (!met) runtime::raise(met.reason());
    auto slept = co_await runtime::sleep_until(*met);
    if (!slept) runtime::raise(slept.reason());
    if (traits_.computes) traits_.computes(call, data);
    if (traits_.fails_on != call.self) co_return;
    if (rehearsal ? traits_.fails_in_rehearsals : call.invocation >= traits_.fails_from_call)
      runtime::raise({errc::unavailable, "out of registers"});
  }
  tuning::demands demands() const override { return traits_.demands; }

 private:
  algorithm_traits traits_;
};

inline ops::symmetric_config_ptr takes(std::string name, time_ns ns) {
  return std::make_shared<algorithm>(std::move(name), algorithm_traits{.takes_ns = ns});
}

}  // namespace parley::tests
