#include <parley/simulation/kernels.hpp>

#include <parley/simulation/config_text.hpp>

#include <memory>

namespace parley::simulation {

using runtime::errc;
using runtime::task;

namespace {

// Kernels come after the data: what its sender does while a receiver is late is not charged to a config.

// How a simulated config misbehaves.
struct misdeed {
  enum class kind : std::uint8_t { none, fails, hangs, corrupts } what = kind::none;
  std::string role;
  std::uint64_t after = 0;
};

class timed_config final : public ops::paired_config {
 public:
  timed_config(const std::string& name, timing t, misdeed m)
      : paired_config({.name = name, .wire_class = "simulated_" + name}), timing_(t), misdeed_(std::move(m)) {}
  task<> send(ops::part_sender& out, std::span<const std::byte> data) const override {
    co_await misbehave("sender");
    co_await out.send(0, data);
  }
  task<> receive(ops::part_receiver& in, std::span<std::byte> data) const override {
    co_await misbehave("receiver");
    co_await in.receive(0, data);
    co_await in.drain();
    co_await timing_.pass(data.size());
    if (misdeed_.what == misdeed::kind::corrupts) data.front() ^= std::byte{1};
  }

 private:
  task<> misbehave(std::string_view role) const {
    if (misdeed_.role != role) co_return;
    if (misdeed_.what == misdeed::kind::fails && ran_++ >= misdeed_.after)
      runtime::raise({errc::config_failed, "a simulated fault of the " + misdeed_.role});
    if (misdeed_.what != misdeed::kind::hangs) co_return;
    auto slept = co_await runtime::sleep_until(runtime::never);
    if (!slept) runtime::raise(slept.reason());
  }
  timing timing_;
  misdeed misdeed_;
  mutable std::uint64_t ran_ = 0;  // a fault that comes late needs a memory
};

class torn_put final : public ops::paired_config {
 public:
  torn_put(const std::string& name, std::uint64_t after)
      : paired_config({.name = name, .wire_class = "torn_" + name}, 0, ops::needs::credit), after_(after) {}
  task<> send(ops::part_sender& out, std::span<const std::byte> data) const override {
    const std::size_t half = data.size() / 2;
    co_await out.put(0, data.first(half));
    if (ran_++ >= after_) runtime::raise({errc::config_failed, "a simulated fault between two puts"});
    co_await out.put(half, data.subspan(half));
  }
  task<> receive(ops::part_receiver&, std::span<std::byte>) const override { co_return; }

 private:
  std::uint64_t after_;
  mutable std::uint64_t ran_ = 0;
};

class timed_group final : public ops::group_config {
 public:
  timed_group(const std::string& name, timing t)
      : group_config({.name = name, .wire_class = "simulated_" + name}), timing_(t), like_(ops::star()) {}
  task<> lead(ops::group_call& g) const override { co_await like_->lead(g); }
  task<> work(ops::group_call& g) const override {
    co_await like_->work(g);
    co_await timing_.pass(g.total_bytes());
  }

 private:
  timing timing_;
  ops::group_config_ptr like_;
};

}  // namespace

config_text text_for(std::string_view text, rank_id self) {
  const words w(text);
  if (w.text(0) != "on") return {text, true};
  return {text.substr(text.find(':', 3) + 1), w.number(1, 0) == self};
}

ops::config_ptr config_from(std::string_view text, kernel_times& times) {
  const words w(text);
  const std::string kind = w.text(0);
  if (kind == "direct") return ops::direct();
  if (kind == "chunked") return ops::chunked(w.number(1, 4096), w.number(2, 2));
  if (kind == "put") return ops::put(w.number(1, 0));
  if (kind == "get") return ops::get(w.number(1, 0));
  if (kind == "torn") return std::make_shared<torn_put>(w.text(1), w.number(2, 0));
  const timing t{times, static_cast<time_ns>(w.number(2, 0)), kind == "timed" ? w.number(3, 0) : 0};
  misdeed m;
  if (kind == "failing") {
    m = {misdeed::kind::fails, w.text(3), w.number(4, 0)};
  } else if (kind == "hanging") {
    m = {misdeed::kind::hangs, w.text(3), 0};
  } else if (kind == "corrupting") {
    m = {misdeed::kind::corrupts, {}, 0};
  } else if (kind != "timed") {
    w.refuse("there is no such kind");
  }
  return std::make_shared<timed_config>(w.text(1), t, std::move(m));
}

ops::group_config_ptr group_config_from(std::string_view text, kernel_times& times) {
  const words w(text);
  const std::string kind = w.text(0);
  if (kind == "star") return ops::star(w.number(1, 0));
  if (kind == "chain") return ops::chain(w.number(1, 65'536));
  if (kind == "one_shot") return ops::one_shot();
  if (kind == "two_shot") return ops::two_shot(w.number(1, 0));
  if (kind != "timed") w.refuse("there is no such kind for groups");
  return std::make_shared<timed_group>(w.text(1), timing{times, static_cast<time_ns>(w.number(2, 0)), w.number(3, 0)});
}

time_ns usual_time_of(std::string_view text, std::uint64_t bytes) {
  const words w(text);
  if (w.text(0) != "timed") return 0;
  return static_cast<time_ns>(w.number(2, 0) + bytes * w.number(3, 0) / 1000);
}

}  // namespace parley::simulation
