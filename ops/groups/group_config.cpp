#include <parley/group_config.hpp>

#include <parley/ops/groups/group_failure.hpp>
#include <parley/tuning/config.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace parley::ops {

using runtime::errc;
using runtime::task;

std::string_view name(collective_kind c) noexcept {
  switch (c) {
    case collective_kind::all_reduce: return "all_reduce";
    case collective_kind::broadcast: return "broadcast";
    case collective_kind::gather: return "gather";
  }
  return "unknown";
}

// ---- one call ---------------------------------------------------------------------------------------------------------

group_call::group_call(actors::group_invocation& inv, std::span<const rank_id> members, rank_id self, rank_id leader,
                       const group_work& work, pass which, runtime::memory_space* device)
    : inv_(inv), members_(members),
      self_(static_cast<std::size_t>(std::find(members.begin(), members.end(), self) - members.begin())),
      leader_(static_cast<std::size_t>(std::find(members.begin(), members.end(), leader) - members.begin())),
      work_(work), first_lane_(which == pass::first ? 0 : lanes), device_(device) {}

std::uint64_t group_call::piece_bytes(std::uint64_t bytes) const noexcept {
  if (bytes == 0) return std::max<std::uint64_t>(work_.total_bytes, 1);
  return std::max<std::uint64_t>(bytes - bytes % work_.element_bytes, work_.element_bytes);
}

std::span<std::byte> group_call::scratch(std::size_t bytes) { return scratch_.make(bytes, device_); }

task<> group_call::between() {
  if (std::exchange(between_ran_, true))
    runtime::raise({runtime::errc::bad_argument, "a config of a group asks twice for the step between its passes"});
  if (!work_.between) co_return;
  std::exception_ptr thrown;
  inv_.begin_waiting();
  try {
    if (device_ != nullptr) co_await device_->settled(work_.data);
    co_await work_.between(work_.data);
  } catch (const group_failure& of_others) {
    thrown = std::current_exception();
    actors::group_fault what = actors::seen_from_elsewhere(of_others.what_happened());
    what.why = of_others.code();
    inv_.fail(what);
  } catch (...) {
    thrown = std::current_exception();
    inv_.fail(runtime::describe(thrown).code(), members_[self_]);  // the caller is to blame, not the config
  }
  inv_.end_waiting();
  if (thrown) std::rethrow_exception(thrown);
}

namespace {

/// Cuts data into pieces of one size, in order; the last piece has the rest.
class pieces {
 public:
  pieces(std::span<std::byte> all, std::uint64_t piece_bytes) noexcept
      : piece(piece_bytes), data_(all), count_((all.size() + piece_bytes - 1) / piece_bytes) {}
  std::uint64_t count() const noexcept { return count_; }
  std::uint64_t offset(std::uint64_t i) const noexcept { return i * piece; }
  std::span<std::byte> operator[](std::uint64_t i) const noexcept {
    return data_.subspan(offset(i), std::min<std::uint64_t>(piece, data_.size() - offset(i)));
  }
  std::uint64_t piece;

 private:
  std::span<std::byte> data_;
  std::uint64_t count_;
};

/// Keeps a few pieces in flight: each step waits for the piece that was sent four steps ago.
class pace {
 public:
  explicit pace(group_call& g) noexcept : call_(g) {}
  actors::group_invocation::step sent(group_call::ticket m) noexcept {
    const group_call::ticket before = tickets_[at_];
    tickets_[at_] = m;
    at_ = (at_ + 1) % tickets_.size();
    return call_.until_sent(before);
  }

 private:
  group_call& call_;
  std::array<group_call::ticket, 4> tickets_{};
  std::size_t at_ = 0;
};

// ---- star -------------------------------------------------------------------------------------------------------------

tuning::config_identity chunked_identity(const char* name, std::uint64_t chunk_bytes) {
  tuning::config_identity identity;
  identity.name = name;
  identity.wire_class = name;
  if (chunk_bytes != 0) {
    identity.parameters.emplace_back("chunk_bytes", chunk_bytes);
    identity.wire_class += "_" + std::to_string(chunk_bytes);  // both ends must cut data into equal pieces
  }
  return identity;
}

/// A piece at least as long as the data means one piece, as if the data were not cut.
std::string shape_in_pieces(const group_config& config, std::uint64_t bytes, std::uint64_t chunk_bytes) {
  return chunk_bytes == 0 || chunk_bytes >= bytes ? config.identity().name + " whole" : config.id();
}

class star_config final : public group_config {
 public:
  explicit star_config(std::uint64_t chunk_bytes)
      : group_config(chunked_identity("star", chunk_bytes)), chunk_bytes_(chunk_bytes) {}

  task<> lead(group_call& g) const override {
    switch (g.what()) {
      case collective_kind::all_reduce: return reduce(g, chunk_bytes_);
      case collective_kind::broadcast: return give(g, chunk_bytes_);
      case collective_kind::gather: return collect(g, chunk_bytes_);
    }
    runtime::raise(errc::bad_argument);
  }
  task<> work(group_call& g) const override { return follow(g, chunk_bytes_); }
  std::string shape(std::uint64_t bytes) const override { return shape_in_pieces(*this, bytes, chunk_bytes_); }
  // The leader has one slot for each place, and two sets of slots if there are several pieces.
  tuning::demands demands_of(collective_kind c, std::size_t size) const override {
    if (c != collective_kind::all_reduce) return {};
    if (chunk_bytes_ == 0) return {.memory_per_byte = static_cast<double>(size)};
    return {.memory_per_byte = 2 * static_cast<double>(size), .memory_at_most = 2 * chunk_bytes_ * size};
  }

 private:
  static task<> reduce(group_call& g, std::uint64_t chunk_bytes);
  static task<> give(group_call& g, std::uint64_t chunk_bytes);
  static task<> collect(group_call& g, std::uint64_t chunk_bytes);
  static task<> follow(group_call& g, std::uint64_t chunk_bytes);
  std::uint64_t chunk_bytes_;
};

// `base`: the offset of `all` in the data of the call.
void return_piece(group_call& g, const pieces& all, std::uint64_t i, std::uint64_t base = 0, std::uint32_t lane = 0) {
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p != g.self()) g.send(p, base + all.offset(i), all[i], lane);
  }
}

// Contributions of one piece, one slot per place.
struct contributions {
  contributions(group_call& g, std::uint64_t piece) : slot_bytes(piece), memory(g.scratch(piece * g.size())) {}
  std::span<std::byte> slot(std::size_t place, std::size_t bytes) const {
    return memory.subspan(place * slot_bytes, bytes);
  }
  std::uint64_t slot_bytes;
  std::span<std::byte> memory;
};

group_call::ticket ask_for(group_call& g, const pieces& all, std::uint64_t i, const contributions& into,
                           std::uint64_t base = 0) {
  group_call::ticket last = 0;
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p != g.self()) last = g.receive(p, base + all.offset(i), into.slot(p, all[i].size()));
  }
  return last;
}

// Always in the order of places 0, 1, 2, …: floating-point sums depend on it.
void fold(group_call& g, std::span<std::byte> own, const contributions& from) {
  if (g.self() == 0) {
    for (std::size_t p = 1; p < g.size(); ++p) g.combine(own, from.slot(p, own.size()));
    return;
  }
  const std::span<std::byte> sum = from.slot(0, own.size());
  for (std::size_t p = 1; p < g.size(); ++p) g.combine(sum, p == g.self() ? own : from.slot(p, own.size()));
  g.copy(own, sum);
}

task<> star_config::reduce(group_call& g, std::uint64_t chunk_bytes) {
  const pieces all{g.data(), std::min<std::uint64_t>(g.piece_bytes(chunk_bytes), g.data().size())};
  std::array<std::optional<contributions>, 2> slots;
  std::array<group_call::ticket, 2> here{};
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(all.count(), 2); ++i) slots[i].emplace(g, all.piece);
  here[0] = ask_for(g, all, 0, *slots[0]);
  for (std::uint64_t i = 0; i < all.count(); ++i) {
    if (i + 1 < all.count()) here[(i + 1) % 2] = ask_for(g, all, i + 1, *slots[(i + 1) % 2]);
    co_await g.until(here[i % 2]);
    fold(g, all[i], *slots[i % 2]);
    if (!g.has_between()) return_piece(g, all, i);
  }
  if (g.has_between()) {
    co_await g.between();
    for (std::uint64_t i = 0; i < all.count(); ++i) return_piece(g, all, i);
  }
  co_await g.drain();
}

task<> star_config::give(group_call& g, std::uint64_t chunk_bytes) {
  const pieces all{g.data(), g.piece_bytes(chunk_bytes)};
  pace steps(g);
  for (std::uint64_t i = 0; i < all.count(); ++i) {
    return_piece(g, all, i);
    co_await steps.sent(g.posted());
  }
  co_await g.drain();
}

task<> star_config::collect(group_call& g, std::uint64_t chunk_bytes) {
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p == g.self()) continue;
    const std::uint64_t base = p * g.block_bytes();
    const pieces block{g.data().subspan(base, g.block_bytes()), g.piece_bytes(chunk_bytes)};
    for (std::uint64_t i = 0; i < block.count(); ++i) g.receive(p, base + block.offset(i), block[i]);
  }
  co_await g.drain();
}

task<> star_config::follow(group_call& g, std::uint64_t chunk_bytes) {
  const pieces all{g.data(), g.piece_bytes(chunk_bytes)};
  const std::uint64_t base = g.what() == collective_kind::gather ? g.self() * g.block_bytes() : 0;
  pace steps(g);
  for (std::uint64_t i = 0; i < all.count(); ++i) {
    if (g.what() != collective_kind::broadcast) g.send(g.leader(), base + all.offset(i), all[i]);
    // The result of a piece arrives in the memory of this rank's part. It cannot arrive before the leader has received that part.
    if (g.what() != collective_kind::gather) g.receive(g.leader(), all.offset(i), all[i]);
    co_await steps.sent(g.posted());
  }
  co_await g.drain();
}

// ---- chain ------------------------------------------------------------------------------------------------------------

class chain_config final : public group_config {
 public:
  explicit chain_config(std::uint64_t chunk_bytes)
      : group_config(chunked_identity("chain", chunk_bytes)), chunk_bytes_(chunk_bytes) {}
  bool does(collective_kind c) const noexcept override { return c != collective_kind::gather; }
  task<> lead(group_call& g) const override { return run(g, chunk_bytes_); }
  task<> work(group_call& g) const override { return run(g, chunk_bytes_); }
  std::string shape(std::uint64_t bytes) const override { return shape_in_pieces(*this, bytes, chunk_bytes_); }
  tuning::demands demands_of(collective_kind c, std::size_t) const override {
    if (c != collective_kind::all_reduce) return {};
    if (chunk_bytes_ == 0) return {.memory_per_byte = 2};
    return {.memory_per_byte = 2, .memory_at_most = 2 * chunk_bytes_};
  }

 private:
  static constexpr std::uint32_t partial = 0;
  static constexpr std::uint32_t whole = 1;
  static task<> run(group_call& g, std::uint64_t chunk_bytes);
  static task<> add_up(group_call& g, pieces all);
  static task<> pass_on(group_call& g, pieces all);
  std::uint64_t chunk_bytes_;
};

task<> chain_config::run(group_call& g, std::uint64_t chunk_bytes) {
  const pieces all{g.data(), std::min<std::uint64_t>(g.piece_bytes(chunk_bytes), g.data().size())};
  if (g.what() == collective_kind::all_reduce) co_await add_up(g, all);
  if (g.self() == g.leader()) co_await g.between();
  co_await pass_on(g, all);
}

// Adds up along the places. The last one has the sum and sends it to the leader.
task<> chain_config::add_up(group_call& g, pieces all) {
  const std::size_t last = g.size() - 1;
  const std::size_t me = g.self();
  if (me == 0 && last != 0) {
    for (std::uint64_t i = 0; i < all.count(); ++i) g.send(1, all.offset(i), all[i], partial);
  } else if (me != 0) {
    std::array<std::span<std::byte>, 2> sum{g.scratch(all.piece), g.scratch(all.piece)};
    std::array<group_call::ticket, 2> left{};
    for (std::uint64_t i = 0; i < all.count(); ++i) {
      const std::span<std::byte> own = all[i];
      co_await g.until_sent(left[i % 2]);  // the memory is free again
      const std::span<std::byte> piece = sum[i % 2].first(own.size());
      const auto here = g.receive(me - 1, all.offset(i), piece, partial);
      co_await g.until(here);
      g.combine(piece, own);
      if (me != last) {
        left[i % 2] = g.send(me + 1, all.offset(i), piece, partial);
        // Posted now, not after the last piece: the last place waits until its sums are received, and the places before it wait for the
        // last place.
        if (me == g.leader()) g.receive(last, all.offset(i), own, whole);
      } else if (me != g.leader()) {
        left[i % 2] = g.send(g.leader(), all.offset(i), piece, whole);
      } else {
        g.copy(own, piece);
      }
    }
  }
  if (me == 0 && me == g.leader() && me != last) {
    for (std::uint64_t i = 0; i < all.count(); ++i) g.receive(last, all.offset(i), all[i], whole);
  }
  co_await g.drain();
}

// Passes the result from the leader along the other places.
task<> chain_config::pass_on(group_call& g, pieces all) {
  std::vector<std::size_t> line{g.leader()};
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p != g.leader()) line.push_back(p);
  }
  const auto mine = static_cast<std::size_t>(std::find(line.begin(), line.end(), g.self()) - line.begin());
  constexpr std::uint32_t back = 2;
  for (std::uint64_t i = 0; i < all.count(); ++i) {
    if (mine != 0) {
      const auto here = g.receive(line[mine - 1], all.offset(i), all[i], back);
      co_await g.until(here);
    }
    if (mine + 1 < line.size()) g.send(line[mine + 1], all.offset(i), all[i], back);
  }
  co_await g.drain();
}

// ---- tree -------------------------------------------------------------------------------------------------------------

class tree_config final : public group_config {
 public:
  tree_config() : group_config(chunked_identity("tree", 0)) {}
  task<> lead(group_call& g) const override { return run(g); }
  task<> work(group_call& g) const override { return run(g); }
  tuning::demands demands_of(collective_kind c, std::size_t size) const override {
    if (c == collective_kind::broadcast) return {};
    return {.memory_per_byte = c == collective_kind::all_reduce ? static_cast<double>(size) : 1};
  }

 private:
  // Converts a place into its distance from the leader, and back.
  static std::size_t turned(const group_call& g, std::size_t place) {
    return (place + g.size() - g.leader()) % g.size();
  }
  static std::size_t place_of(const group_call& g, std::size_t turned) { return (turned + g.leader()) % g.size(); }
  // The number of places in the subtree of one, itself included: the lowest bit of its number.
  static std::size_t below(const group_call& g, std::size_t turned) {
    const std::size_t whole = turned == 0 ? g.size() : turned & (~turned + 1);
    return std::min(whole, g.size() - turned);
  }
  static task<> run(group_call& g);
  static task<> collect(group_call& g);
  static task<> give(group_call& g);
  static constexpr std::size_t most_places = 1024;
  static constexpr std::uint32_t back = most_places;  // the lane of results; contributors have the lanes below
};

task<> tree_config::run(group_call& g) {
  if (g.size() > most_places) runtime::raise({errc::unavailable, "a tree has at most 1024 places"});
  if (g.what() != collective_kind::broadcast) co_await collect(g);
  if (g.what() == collective_kind::gather) co_return;
  if (g.self() == g.leader()) co_await g.between();
  co_await give(g);
}

// Each contribution travels up on its own lane.
task<> tree_config::collect(group_call& g) {
  const bool gathers = g.what() == collective_kind::gather;
  const std::size_t me = turned(g, g.self());
  const std::size_t mine = below(g, me);
  const std::uint64_t bytes = gathers ? g.block_bytes() : g.data().size();
  const bool root = me == 0;
  // The leader of a gather receives each block in its place.
  const std::span<std::byte> others = gathers && root ? std::span<std::byte>() : g.scratch(bytes * mine);
  const auto slot = [&](std::size_t which) {  // `which` is counted from the leader
    if (gathers && root) return g.data().subspan(place_of(g, which) * bytes, bytes);
    return others.subspan((which - me) * bytes, bytes);
  };
  const auto offset = [&](std::size_t which) { return gathers ? place_of(g, which) * bytes : 0; };
  for (std::size_t child = 1; child < mine; child *= 2) {
    for (std::size_t i = 0; i < below(g, me + child); ++i) {
      const std::size_t which = me + child + i;
      g.receive(place_of(g, me + child), offset(which), slot(which), static_cast<std::uint32_t>(which));
    }
  }
  if (!root) {
    const std::size_t parent = place_of(g, me & (me - 1));
    const std::span<std::byte> own = gathers ? g.data() : g.data().first(bytes);
    g.send(parent, offset(me), own, static_cast<std::uint32_t>(me));
    co_await g.drain();  // now the contributions of the subtree are here
    for (std::size_t i = 1; i < mine; ++i)
      g.send(parent, offset(me + i), slot(me + i), static_cast<std::uint32_t>(me + i));
  }
  co_await g.drain();
  if (!root || gathers) co_return;
  const auto from = [&](std::size_t place) { return place == g.self() ? g.data() : slot(turned(g, place)); };
  const std::span<std::byte> sum = slot(0);  // a free slot: the leader's own contribution stays in its data
  g.copy(sum, from(0));
  for (std::size_t place = 1; place < g.size(); ++place) g.combine(sum, from(place));
  g.copy(g.data(), sum);
}

task<> tree_config::give(group_call& g) {
  const std::size_t me = turned(g, g.self());
  if (me != 0) {
    const auto here = g.receive(place_of(g, me & (me - 1)), 0, g.data(), back);
    co_await g.until(here);
  }
  std::size_t child = 1;
  while (child < below(g, me)) child *= 2;
  // The largest subtree first.
  for (; child > 1; child /= 2) {
    if (child / 2 < below(g, me)) g.send(place_of(g, me + child / 2), 0, g.data(), back);
  }
  co_await g.drain();
}

// ---- without a root ---------------------------------------------------------------------------------------------------

/// A config for all_reduce only, the same in both roles.
class rootless_config : public group_config {
 public:
  bool does(collective_kind c) const noexcept final { return c == collective_kind::all_reduce; }
  bool returns_later() const noexcept final { return false; }
  task<> lead(group_call& g) const final { return run(g); }
  task<> work(group_call& g) const final { return run(g); }

 protected:
  using group_config::group_config;

 private:
  virtual task<> run(group_call& g) const = 0;
};

class one_shot_config final : public rootless_config {
 public:
  one_shot_config() : rootless_config(chunked_identity("one_shot", 0)) {}
  tuning::demands demands_of(collective_kind, std::size_t size) const override {
    return {.memory_per_byte = static_cast<double>(size)};
  }

 private:
  task<> run(group_call& g) const override {
    const pieces all{g.data(), g.data().size()};
    const contributions others(g, all.piece);
    ask_for(g, all, 0, others);
    return_piece(g, all, 0);
    co_await g.drain();  // sends must also have ended: the sum overwrites the memory that they read
    fold(g, g.data(), others);
  }
};

class two_shot_config final : public rootless_config {
 public:
  explicit two_shot_config(std::uint64_t chunk_bytes)
      : rootless_config(chunked_identity("two_shot", chunk_bytes)), chunk_bytes_(chunk_bytes) {}
  std::string shape(std::uint64_t bytes) const override { return shape_in_pieces(*this, bytes, chunk_bytes_); }
  tuning::demands demands_of(collective_kind, std::size_t size) const override {
    if (chunk_bytes_ == 0) return {.memory_per_byte = 1};
    return {.memory_per_byte = 2, .memory_at_most = 2 * chunk_bytes_ * size};
  }

 private:
  static constexpr std::uint32_t sums = 1;  // the lane of sums; contributions have the first one
  task<> run(group_call& g) const override;
  std::uint64_t chunk_bytes_;
};

task<> two_shot_config::run(group_call& g) const {
  // If the elements do not divide evenly, the first places have one more than the last ones.
  const std::uint64_t elements = g.data().size() / g.element_bytes();
  const auto begin = [&](std::size_t place) {
    return (place * (elements / g.size()) + std::min<std::uint64_t>(place, elements % g.size())) * g.element_bytes();
  };
  const std::uint64_t largest = begin(1);
  const std::uint64_t piece = std::min(g.piece_bytes(chunk_bytes_), largest);
  const auto share = [&](std::size_t place) {
    return pieces{g.data().subspan(begin(place), begin(place + 1) - begin(place)), piece};
  };
  const pieces mine = share(g.self());
  const std::uint64_t base = begin(g.self());
  std::array<std::optional<contributions>, 2> slots;
  std::array<group_call::ticket, 2> here{};
  const auto ask = [&](std::uint64_t i) {
    if (i >= mine.count()) return;
    if (!slots[i % 2]) slots[i % 2].emplace(g, piece);
    here[i % 2] = ask_for(g, mine, i, *slots[i % 2], base);
  };
  ask(0);
  for (std::uint64_t i = 0; i * piece < largest; ++i) {
    ask(i + 1);
    for (std::size_t p = 0; p < g.size(); ++p) {
      const pieces its = share(p);
      if (p == g.self() || i >= its.count()) continue;
      g.send(p, begin(p) + its.offset(i), its[i]);
      // The sum arrives in the memory of this rank's part. It cannot arrive before its owner has received that part.
      g.receive(p, begin(p) + its.offset(i), its[i], sums);
    }
    if (i >= mine.count()) continue;
    co_await g.until(here[i % 2]);
    fold(g, mine[i], *slots[i % 2]);
    return_piece(g, mine, i, base, sums);
  }
  co_await g.drain();
}

// ---- two functions ----------------------------------------------------------------------------------------------------

class function_group final : public group_config {
 public:
  function_group(tuning::config_identity identity, group_function leads, group_function works)
      : group_config(std::move(identity)), lead_(leads), work_(works) {
    if (leads == nullptr || works == nullptr)
      runtime::raise({errc::bad_argument, "config " + id() + " has no implementation for role " +
                                              (leads == nullptr ? "leader" : "worker") +
                                              "; a group config needs one for each"});
  }
  task<> lead(group_call& g) const override { return lead_(g); }
  task<> work(group_call& g) const override { return work_(g); }

 private:
  group_function lead_;
  group_function work_;
};

}  // namespace

}  // namespace parley::ops

namespace parley::configs {

ops::group_config_ptr star(std::uint64_t chunk_bytes) { return std::make_shared<ops::star_config>(chunk_bytes); }
ops::group_config_ptr chain(std::uint64_t chunk_bytes) { return std::make_shared<ops::chain_config>(chunk_bytes); }
ops::group_config_ptr tree() { return std::make_shared<ops::tree_config>(); }
ops::group_config_ptr one_shot() { return std::make_shared<ops::one_shot_config>(); }
ops::group_config_ptr two_shot(std::uint64_t chunk_bytes) {
  return std::make_shared<ops::two_shot_config>(chunk_bytes);
}

}  // namespace parley::configs

namespace parley::ops {

group_config_ptr grouped(tuning::config_identity identity, group_function lead, group_function work) {
  return std::make_shared<function_group>(std::move(identity), lead, work);
}

// ---- by name ----------------------------------------------------------------------------------------------------------

namespace {

runtime::error unknown_group_config(std::string_view text, const std::string& why) {
  return {errc::bad_argument,
          "config \"" + std::string(text) + "\" " + why +
              "; known are star, chain and two_shot, each with chunk_bytes=SIZE or without, tree and one_shot"};
}

}  // namespace

runtime::result<group_config_ptr> named_group_config(std::string_view text) {
  const auto parsed = tuning::parse_config_id(text);
  if (!parsed) return unknown_group_config(text, "cannot be read: " + parsed.reason().text);
  const bool has_chunks = parsed->name == "star" || parsed->name == "chain" || parsed->name == "two_shot";
  if (!has_chunks && parsed->name != "tree" && parsed->name != "one_shot")
    return unknown_group_config(text, "is unknown");
  std::optional<std::uint64_t> chunk_bytes;
  for (const tuning::parameter& p : parsed->parameters) {
    if (!has_chunks || p.name != "chunk_bytes") return unknown_group_config(text, "has an unknown parameter " + p.name);
    const auto number = tuning::parse_byte_size(p.value);
    if (!number || number.value() == 0) return unknown_group_config(text, "has an impossible value for chunk_bytes");
    chunk_bytes = number.value();
  }
  if (parsed->name == "tree") return configs::tree();
  if (parsed->name == "one_shot") return configs::one_shot();
  if (parsed->name == "star") return configs::star(chunk_bytes.value_or(0));
  if (parsed->name == "two_shot") return configs::two_shot(chunk_bytes.value_or(0));
  return chunk_bytes ? configs::chain(*chunk_bytes) : configs::chain();
}

}  // namespace parley::ops
