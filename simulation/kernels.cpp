#include <parley/simulation/kernels.hpp>

#include <parley/simulation/config_text.hpp>

#include <memory>

namespace parley::simulation {

using runtime::errc;
using runtime::task;

namespace {

// Kernels come after the data: what its sender does while a receiver is late is not charged to a config.

// How a simulated config misbehaves, in the role that it says, from its so-manieth run on.
class misdeed {
 public:
  misdeed() = default;
  /// Of `failing:NAME:NS:ROLE:AFTER`, `hanging:NAME:NS:ROLE`, `corrupting:NAME:NS[:AFTER]`; none for others.
  explicit misdeed(const words& w) {
    const std::string kind_of_it = w.text(0);
    if (kind_of_it == "failing") {
      what_ = kind::fails;
      role_ = w.text(3);
      after_ = w.number(4, 0);
    } else if (kind_of_it == "hanging") {
      what_ = kind::hangs;
      role_ = w.text(3);
    } else if (kind_of_it == "corrupting") {
      what_ = kind::corrupts;
      after_ = w.number(3, 0);
    }
  }
  bool none() const noexcept { return what_ == kind::none; }
  task<> before(std::string role) const {
    if (role_ != role) co_return;
    if (what_ == kind::fails && ran_++ >= after_)
      runtime::raise({errc::config_failed, "a simulated fault of the " + role_});
    if (what_ != kind::hangs) co_return;
    auto slept = co_await runtime::sleep_until(runtime::never);
    if (!slept) runtime::raise(slept.reason());
  }
  void after(std::span<std::byte> data) const noexcept {
    if (what_ == kind::corrupts && ran_++ >= after_ && !data.empty()) data.front() ^= std::byte{1};
  }

 private:
  enum class kind : std::uint8_t { none, fails, hangs, corrupts } what_ = kind::none;
  std::string role_;
  std::uint64_t after_ = 0;
  mutable std::uint64_t ran_ = 0;  // a fault that comes late needs a memory
};

class timed_config final : public ops::paired_config {
 public:
  timed_config(const std::string& name, std::uint32_t abi, timing t, misdeed m)
      : paired_config({.name = name, .wire_class = "simulated_" + name, .abi = abi}), timing_(t),
        misdeed_(std::move(m)) {}
  task<> send(ops::part_sender& out, std::span<const std::byte> data) const override {
    co_await misdeed_.before("sender");
    co_await out.send(0, data);
  }
  task<> receive(ops::part_receiver& in, std::span<std::byte> data) const override {
    co_await misdeed_.before("receiver");
    co_await in.receive(0, data);
    co_await in.drain();
    co_await timing_.pass(data.size());
    misdeed_.after(data);
  }

 private:
  timing timing_;
  misdeed misdeed_;
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
  timed_group(const std::string& name, std::uint32_t abi, timing t, misdeed m)
      : group_config({.name = name, .wire_class = "simulated_" + name, .abi = abi}), timing_(t), misdeed_(std::move(m)),
        like_(ops::star()) {}
  task<> lead(ops::group_call& g) const override {
    co_await misdeed_.before("leader");
    co_await like_->lead(g);
  }
  task<> work(ops::group_call& g) const override {
    co_await misdeed_.before("worker" + std::to_string(g.self()));
    co_await like_->work(g);
    co_await timing_.pass(g.total_bytes());
    misdeed_.after(g.data());
  }

 private:
  timing timing_;
  misdeed misdeed_;
  ops::group_config_ptr like_;
};

}  // namespace

config_text text_for(std::string_view text, rank_id self) {
  const words w(text);
  const bool ours = w.number_if(1) == self;
  // What is behind so many words.
  const auto behind = [&](std::size_t count) {
    static_cast<void>(w.text(count));
    return text.substr(static_cast<std::size_t>(w.all[count].data() - text.data()));
  };
  if (w.text(0) == "on") return {behind(2), ours};
  if (w.text(0) == "abi") return {behind(3), true, ours ? static_cast<std::uint32_t>(w.number(2, 1)) : 1};
  return {text};
}

ops::config_ptr config_from(std::string_view text, kernel_times& times, std::uint32_t abi) {
  const words w(text);
  const std::string kind = w.text(0);
  if (kind == "direct") return ops::direct();
  if (kind == "chunked") return ops::chunked(w.number(1, 4096), w.number(2, 2));
  if (kind == "put") return ops::put(w.number(1, 0));
  if (kind == "get") return ops::get(w.number(1, 0));
  if (kind == "by_piece") return ops::by_piece(w.number(1, 4));
  if (kind == "torn") return std::make_shared<torn_put>(w.text(1), w.number(2, 0));
  const bool sound = is_sound(kind);
  const timing t = timing_of(w, times);
  misdeed m(w);
  if (!sound && m.none()) w.refuse("there is no such kind; docs/simulation.md lists them");
  return std::make_shared<timed_config>(w.text(1), abi, t, std::move(m));
}

ops::group_config_ptr group_config_from(std::string_view text, kernel_times& times, std::uint32_t abi) {
  const words w(text);
  const std::string kind = w.text(0);
  if (kind == "star") return ops::star(w.number(1, 0));
  if (kind == "chain") return ops::chain(w.number(1, 65'536));
  if (kind == "tree") return ops::tree();
  if (kind == "one_shot") return ops::one_shot();
  if (kind == "two_shot") return ops::two_shot(w.number(1, 0));
  const bool sound = is_sound(kind);
  misdeed m(w);
  if (!sound && m.none()) w.refuse("there is no such kind for groups; docs/simulation.md lists them");
  const timing t = timing_of(w, times);
  return std::make_shared<timed_group>(w.text(1), abi, t, std::move(m));
}

time_ns usual_time_of(std::string_view text, std::uint64_t bytes, const kernel_model& model) {
  const words w(text);
  const steadiness how = steadiness_of(w.text(0));
  if (!is_sound(w.text(0))) return 0;
  const auto steady = static_cast<time_ns>(w.number(2, 0) + bytes * w.number(3, 0) / 1000);
  return how == steadiness::steady ? steady : steady + steady * model.drifted(model.drift_until_ns) / 1000;
}

}  // namespace parley::simulation
