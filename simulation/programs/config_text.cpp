#include <parley/simulation/programs/config_text.hpp>

#include <limits>
#include <memory>

namespace parley::simulation {

using runtime::errc;
using runtime::task;

namespace {

// Simulated configs compute after the data has arrived, so that no config is charged for the sender's work while a receiver is late.

// The misbehaviour of a simulated config: its kind, its role, and the first run in which it happens.
class misdeed {
 public:
  misdeed() = default;
  /// Reads `failing:NAME:NS:ROLE:AFTER`, `hanging:NAME:NS:ROLE` and `corrupting:NAME:NS[:AFTER]`; other kinds do not misbehave.
  template <class IsRole>
  misdeed(const words& w, const IsRole& is_role) {
    const std::string kind_of_it = w.text(0);
    if (kind_of_it == "failing") {
      what_ = kind::fails;
      after_ = w.number(4);
    } else if (kind_of_it == "hanging") {
      what_ = kind::hangs;
    } else if (kind_of_it == "corrupting") {
      what_ = kind::corrupts;
      after_ = w.number(3, 0);
    }
    constexpr std::size_t words_of[] = {4, 5, 4, 4};  // none, fails, hangs, corrupts
    w.end_at(words_of[static_cast<std::size_t>(what_)]);
    if (what_ != kind::fails && what_ != kind::hangs) return;
    role_ = w.text(3);
    if (!is_role(role_)) w.refuse("its op has no role `" + role_ + "`");
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
  enum class kind : std::uint8_t { none, fails, hangs, corrupts };
  kind what_ = kind::none;
  std::string role_;
  std::uint64_t after_ = 0;
  mutable std::uint64_t ran_ = 0;  // runs so far in which it could misbehave
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
        like_(configs::star()) {}
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
  // The text after `count` words.
  const auto behind = [&](std::size_t count) {
    static_cast<void>(w.text(count));
    return text.substr(static_cast<std::size_t>(w.all[count].data() - text.data()));
  };
  if (w.text(0) == "on") return {behind(2), w.number(1) == self};
  if (w.text(0) != "abi") return {text};
  if (w.number(2) > std::numeric_limits<std::uint32_t>::max()) w.refuse("an ABI is a number of 32 bits");
  const auto abi = static_cast<std::uint32_t>(w.number(2));
  return {behind(3), true, w.number(1) == self ? abi : 1};
}

namespace {

// A kind of parley's own configs, and how to make one from its words.
template <class Ptr>
struct own_kind {
  std::string_view name;
  std::size_t most_words;
  Ptr (*make)(const words& w);
};

template <class Ptr, std::size_t N>
Ptr own_config(const words& w, std::uint32_t abi, const own_kind<Ptr> (&kinds)[N]) {
  for (const own_kind<Ptr>& k : kinds) {
    if (k.name != w.all.front()) continue;
    w.end_at(k.most_words);
    if (abi != 1) w.refuse("its ABI is the library's: `abi` is for timed ones");
    return k.make(w);
  }
  return nullptr;
}

bool is_role_of_edge(const std::string& role) { return role == "sender" || role == "receiver"; }
// True for `leader` or, for example, `worker2`. Does not check that the group has such a place, because the group is not known here.
bool is_role_of_group(const std::string& role) {
  constexpr std::string_view worker = "worker";
  return role == "leader" || (role.starts_with(worker) && words(role.substr(worker.size())).number_if(0));
}

}  // namespace

ops::config_ptr config_from(std::string_view text, kernel_times& times, std::uint32_t abi) {
  using made = ops::config_ptr;
  static constexpr own_kind<made> own[] = {
      {"direct", 1, [](const words&) -> made { return configs::direct(); }},
      {"chunked", 3, [](const words& w) -> made { return configs::chunked(w.number(1, 4096), w.number(2, 2)); }},
      {"put", 2, [](const words& w) -> made { return configs::put(w.number(1, 0)); }},
      {"get", 2, [](const words& w) -> made { return configs::get(w.number(1, 0)); }},
      {"by_piece", 2, [](const words& w) -> made { return configs::by_piece(w.number(1, 4)); }},
      {"torn", 3, [](const words& w) -> made { return std::make_shared<torn_put>(w.text(1), w.number(2)); }}};
  const words w(text);
  if (made c = own_config(w, abi, own)) return c;
  const std::string kind = w.text(0);
  misdeed m(w, is_role_of_edge);
  if (!is_sound(kind) && m.none()) w.refuse("there is no such kind for edges; docs/simulation.md lists them");
  return std::make_shared<timed_config>(w.text(1), abi, timing_of(w, times), std::move(m));
}

ops::group_config_ptr group_config_from(std::string_view text, kernel_times& times, std::uint32_t abi) {
  using made = ops::group_config_ptr;
  static constexpr own_kind<made> own[] = {
      {"star", 2, [](const words& w) -> made { return configs::star(w.number(1, 0)); }},
      {"chain", 2, [](const words& w) -> made { return configs::chain(w.number(1, 65'536)); }},
      {"tree", 1, [](const words&) -> made { return configs::tree(); }},
      {"one_shot", 1, [](const words&) -> made { return configs::one_shot(); }},
      {"two_shot", 2, [](const words& w) -> made { return configs::two_shot(w.number(1, 0)); }}};
  const words w(text);
  if (made c = own_config(w, abi, own)) return c;
  const std::string kind = w.text(0);
  misdeed m(w, is_role_of_group);
  if (!is_sound(kind) && m.none()) w.refuse("there is no such kind for groups; docs/simulation.md lists them");
  return std::make_shared<timed_group>(w.text(1), abi, timing_of(w, times), std::move(m));
}

kernel_spec kernel_from(std::string_view text) {
  const words w(text);
  const std::string kind = w.text(0);
  if (kind != "timed" && kind != "failing")
    w.refuse("there is no such kind for kernels; docs/simulation.md lists them");
  kernel_spec k{w.text(1), static_cast<time_ns>(w.number(2)), kind == "failing"};
  if (k.fails) {
    k.fails_on = static_cast<rank_id>(w.number(3));
    k.after = w.number(4);
  }
  w.end_at(k.fails ? 5 : 3);
  return k;
}

time_ns usual_time_of(std::string_view text, std::uint64_t bytes, const kernel_model& model) {
  const words w(text);
  const steadiness how = steadiness_of(w.text(0));
  if (!is_sound(w.text(0))) return 0;
  const auto steady = static_cast<time_ns>(w.number(2) + bytes * w.number(3, 0) / 1000);
  return how == steadiness::steady ? steady : steady + steady * model.drifted(model.drift_until_ns) / 1000;
}

}  // namespace parley::simulation
