#include <parley/simulation/programs/collectives.hpp>

#include <parley/news.hpp>
#include <parley/simulation/programs/config_text.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

namespace parley::simulation {

using runtime::errc;
using runtime::task;

namespace {

class member;

struct meeting {
  std::uint64_t digest = 0;
  std::uint64_t invocation = 0;
  std::uint64_t bytes = 0;
  rank_id first = 0;
  std::size_t entered = 0;
  std::vector<std::byte> sum{};  // of the data of the members so far
  time_ns ends_ns = runtime::never;
};

}  // namespace

// The state that all members of one communicator share.
struct collectives::place {
  stage& line;
  time_ns latency_ns;
  const std::function<void(std::string)>& mismatch;
  std::map<std::uint64_t, std::uint32_t>& rehearsed;
  std::string title;  // `op gradients, communicator 3`
  std::size_t size;
  std::deque<meeting> meetings{};
  std::vector<std::pair<rank_id, std::weak_ptr<member>>> members{};
  bool aborted = false;

  void enter(std::uint64_t at, const ops::symmetric_call& call, std::uint64_t digest, std::span<const std::byte> data);
  void abort();
  void tell(time_ns when);
};

namespace {

class member final : public ops::communicator {
 public:
  explicit member(std::shared_ptr<collectives::place> p) : place_(std::move(p)) {}
  void abort() noexcept override { place_->abort(); }
  /// Ends when all members have made their call of the same number. Throws if the communicator is aborted or the caller is cancelled.
  task<> meet(const ops::symmetric_call& call, std::uint64_t digest, std::span<std::byte> data) {
    const std::uint64_t at = next_++;
    place_->enter(at, call, digest, data);
    while (place_->line.now() < place_->meetings[at].ends_ns) {
      if (place_->aborted) runtime::raise({errc::io, "the communicator was aborted"});
      auto woken = co_await changed.next(runtime::never);
      if (!woken) runtime::raise(woken.reason());
    }
    const std::vector<std::byte>& sum = place_->meetings[at].sum;
    std::copy_n(sum.begin(), std::min(sum.size(), data.size()), data.begin());
  }
  runtime::news changed;

 private:
  std::shared_ptr<collectives::place> place_;
  std::uint64_t next_ = 0;
};

class member_source final : public ops::communicator_source {
 public:
  member_source(collectives& of, std::string op, rank_id rank, std::size_t members, bool beside)
      : of_(of), op_(std::move(op)), rank_(rank), members_(members), beside_(beside) {}
  std::vector<std::byte> make_id() override {
    const std::uint64_t number = of_.make(members_, op_);
    std::vector<std::byte> id(sizeof number);
    std::memcpy(id.data(), &number, sizeof number);
    return id;
  }
  task<std::shared_ptr<ops::communicator>> connect(std::vector<std::byte> id) override {
    std::uint64_t number = 0;
    std::memcpy(&number, id.data(), std::min(sizeof number, id.size()));
    co_return of_.join(number, rank_);
  }
  bool beside_calls() const noexcept override { return beside_; }

 private:
  collectives& of_;
  std::string op_;
  rank_id rank_;
  std::size_t members_;
  bool beside_;
};

class timed_collective final : public ops::symmetric_config {
 public:
  enum class misdeed : std::uint8_t { none, fails, hangs, corrupts };
  struct bad_member {
    misdeed does = misdeed::none;
    rank_id rank = 0;
    std::uint64_t after = 0;
  };
  timed_collective(const std::string& name, std::uint32_t abi, timing t, bad_member bad)
      : symmetric_config({.name = name, .wire_class = "simulated_" + name, .abi = abi}), timing_(t), bad_(bad) {}
  task<> run(ops::symmetric_call call, std::span<std::byte> data) const override {
    const bool bad = bad_.does != misdeed::none && call.self == bad_.rank && ran_++ >= bad_.after;
    const bool fails = bad && bad_.does == misdeed::fails;
    const auto fail = [this] {
      runtime::raise({errc::unavailable, "a simulated fault of rank " + std::to_string(bad_.rank)});
    };
    // In every other rehearsal the rank fails before it takes part, so only the communicator of the rehearsal hangs. In a call of the
    // user the rank takes part before it fails: otherwise the others' calls would meet its next call.
    const bool alone = call.on == ops::symmetric_call::stream::rehearsal && call.invocation % 2 == 0;
    if (fails && alone) fail();
    if (bad && bad_.does == misdeed::hangs) {
      auto slept = co_await runtime::sleep_until(runtime::never);
      if (!slept) runtime::raise(slept.reason());
    }
    co_await static_cast<member&>(*call.communicator).meet(call, digest(), data);
    if (fails) fail();
    co_await timing_.pass(call.bytes);
    if (bad && bad_.does == misdeed::corrupts && !data.empty()) data.front() ^= std::byte{1};
  }

 private:
  timing timing_;
  bad_member bad_;
  mutable std::uint64_t ran_ = 0;  // runs of the bad rank so far
};

}  // namespace

void collectives::place::tell(time_ns when) {
  for (const auto& [rank, weak] : members) {
    line.at(when, rank, [who = weak] {
      if (const auto alive = who.lock()) alive->changed.tell();
    });
  }
}

void collectives::place::abort() {
  if (std::exchange(aborted, true)) return;
  tell(line.now());
}

void collectives::place::enter(std::uint64_t at, const ops::symmetric_call& call, std::uint64_t digest,
                               std::span<const std::byte> data) {
  while (meetings.size() <= at) meetings.emplace_back();
  meeting& m = meetings[at];
  if (m.entered == 0) {
    m.digest = digest;
    m.invocation = call.invocation;
    m.bytes = call.bytes;
    m.first = call.self;
  } else if (m.digest != digest || m.invocation != call.invocation || m.bytes != call.bytes) {
    mismatch(title + ", call " + std::to_string(at) + ": ranks " + std::to_string(m.first) + " and " +
             std::to_string(call.self) +
             (m.digest != digest ? " run different configs" : " are at different invocations"));
  }
  m.sum.resize(std::max(m.sum.size(), data.size()));
  for (std::size_t i = 0; i < data.size(); ++i)
    m.sum[i] = static_cast<std::byte>(static_cast<unsigned>(m.sum[i]) + static_cast<unsigned>(data[i]));
  if (++m.entered < size) return;
  if (call.on == ops::symmetric_call::stream::rehearsal) ++rehearsed[digest];
  m.ends_ns = line.now() + latency_ns;
  tell(m.ends_ns);
}

collectives::collectives(stage& line, time_ns latency_ns, std::function<void(std::string)> mismatch)
    : line_(line), latency_ns_(latency_ns), mismatch_(std::move(mismatch)) {}
collectives::~collectives() = default;

std::uint64_t collectives::make(std::size_t members, const std::string& op) {
  const std::uint64_t number = places_.size();
  const std::string title = "op " + op + ", communicator " + std::to_string(number);
  places_.push_back(std::make_shared<place>(place{line_, latency_ns_, mismatch_, rehearsed_, title, members}));
  return number;
}

std::shared_ptr<ops::communicator> collectives::join(std::uint64_t number, rank_id rank) {
  if (number >= places_.size()) runtime::raise({errc::unavailable, "there is no such communicator"});
  auto joined = std::make_shared<member>(places_[number]);
  places_[number]->members.emplace_back(rank, joined);
  return joined;
}

std::shared_ptr<ops::communicator_source> collectives::source(rank_id rank, std::size_t members, bool beside_calls,
                                                              const std::string& op) {
  return std::make_shared<member_source>(*this, op, rank, members, beside_calls);
}

ops::symmetric_config_ptr collective_from(std::string_view text, kernel_times& times, std::uint32_t abi) {
  const words w(text);
  const std::string kind = w.text(0);
  const bool sound = is_sound(kind);
  timed_collective::bad_member bad;
  if (kind == "failing") bad.does = timed_collective::misdeed::fails;
  if (kind == "hanging") bad.does = timed_collective::misdeed::hangs;
  if (kind == "corrupting") bad.does = timed_collective::misdeed::corrupts;
  if (!sound && bad.does == timed_collective::misdeed::none)
    w.refuse("there is no such kind for ops without headers; docs/simulation.md lists them");
  if (!sound) {
    bad.rank = static_cast<rank_id>(w.number(3));
    bad.after = bad.does == timed_collective::misdeed::fails ? w.number(4) : w.number(4, 0);
  }
  w.end_at(sound ? 4 : 5);
  return std::make_shared<timed_collective>(w.text(1), abi, timing_of(w, times), bad);
}

}  // namespace parley::simulation
