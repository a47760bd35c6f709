// Exceptions in the user's own functions that answer parley's questions: they are reported, and end no op.
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <new>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

enum class thrown : std::uint8_t { nothing, failure, standard, memory, something };

void do_throw(thrown what) {
  if (what == thrown::failure) raise({errc::device_failed, "the driver does not answer"});
  if (what == thrown::standard) throw std::runtime_error("the driver does not answer");
  if (what == thrown::memory) throw std::bad_alloc();
  if (what == thrown::something) throw 7;
}

struct questions {
  int available = 0;
  int demands = 0;
  int works_over = 0;
};

/// Sends the whole payload at once; throws when parley asks the questions that the test chooses.
class moody final : public paired_config {
 public:
  moody(thrown at_available, thrown at_demands, questions* asked = nullptr, thrown at_works_over = thrown::nothing)
      : paired_config({.name = "moody"}), at_available_(at_available), at_demands_(at_demands),
        at_works_over_(at_works_over), asked_(asked) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }
  result<> available() const override {
    if (asked_ != nullptr) ++asked_->available;
    do_throw(at_available_);
    return {};
  }
  tuning::demands demands() const override {
    if (asked_ != nullptr) ++asked_->demands;
    do_throw(at_demands_);
    return {};
  }
  result<> works_over(const runtime::link&, const runtime::memory_space*) const override {
    if (asked_ != nullptr) ++asked_->works_over;
    do_throw(at_works_over_);
    return {};
  }

 private:
  thrown at_available_, at_demands_, at_works_over_;
  questions* asked_;
};

/// Accepts the link of the first two ranks that ask, the two ends of its op. A later question throws.
struct weary final : paired_config {
  weary() : paired_config({.name = "weary"}) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }
  result<> works_over(const runtime::link&, const runtime::memory_space*) const override {
    if (++asked > 2) do_throw(thrown::standard);
    return {};
  }
  mutable int asked = 0;
};

rank_settings careful() {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  s.constraints.relative_error = 1e-3;  // so that parley asks for the configs' demands
  return s;
}

// A rank sets up the first 16 edges when they are declared, and each later edge at its first call or message.
// These fillers use up those 16.
void declare_fillers(world& w) {
  for (std::size_t n = 0; n < 16; ++n) {
    auto op = pair_of({direct()});
    op.name = "filler" + std::to_string(n);
    static_cast<void>(transfer(w[0], op));
    static_cast<void>(transfer(w[1], op));
  }
  pass(w, 1'000'000'000);
}

bool mentions(const std::vector<std::string>& lines, std::string_view text) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE(
    "a config that throws when parley asks it does not run, its rank and the leader learn why, and the op continues") {
  for (const bool at_sender : {true, false}) {
    for (const char* const asked_for : {"available", "demands", "works_over"}) {
      for (const thrown what : {thrown::failure, thrown::standard, thrown::memory, thrown::something}) {
        if (at_sender && what != thrown::failure) continue;  // at the sender one kind of exception is enough
        CAPTURE(at_sender);
        CAPTURE(asked_for);
        CAPTURE(static_cast<int>(what));
        world w(2, careful());
        declare_fillers(w);
        const auto good = std::make_shared<moody>(thrown::nothing, thrown::nothing);
        const auto throws_at = [&](const char* question) {
          return asked_for == std::string_view(question) ? what : thrown::nothing;
        };
        const auto bad =
            std::make_shared<moody>(throws_at("available"), throws_at("demands"), nullptr, throws_at("works_over"));
        transfer out(w[0], pair_of({direct(), at_sender ? bad : good}));
        transfer in(w[1], pair_of({direct(), at_sender ? good : bad}));
        CHECK(move_each(w, out, in, std::vector<std::size_t>(20, 100'000)).failed() == 0);
        pass(w, 1'000'000'000);
        const auto agreed = w[0].agreements().back();
        CHECK(agreed.assigned->ids() == std::vector<std::string>{"direct"});
        const std::string who = std::string("rank ") + (at_sender ? "0" : "1");
        CHECK(mentions(*agreed.warm_errors, who + ": config moody: "));
        CHECK(mentions(*agreed.warm_errors, " threw "));
        CHECK(mentions(w[at_sender ? 0 : 1].warnings(), "config moody: "));
        CHECK(w[at_sender ? 1 : 0].warnings().empty());
        if (what == thrown::failure) CHECK(mentions(*agreed.warm_errors, "the driver does not answer"));
      }
    }
  }
}

TEST_CASE("if a capability function throws, a warning and both decisions name the rank and the text that was thrown") {
  for (const rank_id odd : {0U, 1U}) {
    CAPTURE(odd);
    world w(2);
    std::vector<transfer> ends;
    for (rank_id r = 0; r < 2; ++r) {
      auto op = pair_of({direct(), chunked(16_KiB, 2)});
      if (r == odd) op.can_run = [](rank_id) -> std::vector<bool> { throw std::runtime_error("no such card"); };
      ends.emplace_back(w[r], op);
    }
    CHECK(move_each(w, ends[0], ends[1], {1'000, 100'000}).failed() == 0);
    pass(w, 1'000'000'000);
    const std::string number = std::to_string(odd);
    REQUIRE(w[odd].warnings().size() == 1);
    CHECK(w[odd].warnings().front() ==
          "activations 0->1, on rank " + number + (odd == 0 ? " (sender)" : " (receiver)") +
              ": its capability function, asked about rank " + number +
              ", threw \"no such card\"; none of its configs but the default will be tried");
    for (const transfer& end : ends) {  // both ends name the rank that lacks the config, and the reason
      const std::string why = end.decision(1'000).why;
      const std::string lack = "rank " + number + " cannot run " + chunked(16_KiB, 2)->id() +
                               ": its capability function, asked about rank " + number + ", threw \"no such card\"";
      CHECK_MESSAGE(why.find(lack) != std::string::npos, why);
    }
  }
}

TEST_CASE("a config is asked once a rank, even if its op is set up again, and a default only whether it can run") {
  world w(2, careful());
  declare_fillers(w);
  questions first;
  questions second;
  const auto op = pair_of({std::make_shared<moody>(thrown::memory, thrown::memory, &first),
                           std::make_shared<moody>(thrown::nothing, thrown::nothing, &second)});
  CHECK_THROWS_AS(transfer(w[0], op), failure);  // both configs have the same name
  first = {};
  auto named = pair_of({std::make_shared<moody>(thrown::nothing, thrown::memory, &first), chunked(16_KiB, 2)});
  transfer out(w[0], named);
  transfer in(w[1], named);
  CHECK(first.available == 2);  // one question on each rank
  CHECK(first.demands == 0);
  CHECK(move_each(w, out, in, {1'000, 100'000}).failed() == 0);

  auto another = pair_of({direct(), std::make_shared<moody>(thrown::nothing, thrown::nothing, &second)});
  another.name = "another";
  out = transfer(w[0], another);
  in = transfer(w[1], another);
  const questions declared = second;
  CHECK(declared.available == 2);  // one question on each rank
  CHECK(declared.demands == 2);
  CHECK(declared.works_over == 2);
  CHECK(move_each(w, out, in, {1'000, 100'000}).failed() == 0);
  w.restart(0);
  w.tell_of(0);  // rank 1 sets up its end again
  CHECK(second.available == declared.available);
  CHECK(second.demands == declared.demands);
  CHECK(second.works_over == declared.works_over);
}

TEST_CASE("an edge continues with a new process although its config would throw if parley asked again") {
  world w(2, careful());
  const auto config = std::make_shared<weary>();
  transfer out(w[0], pair_of({direct(), config}));
  transfer in(w[1], pair_of({direct(), config}));
  CHECK(move_each(w, out, in, {1'000}).failed() == 0);
  w.restart(0);
  CHECK_NOTHROW(w.tell_of(0));
  out = transfer(w[0], pair_of({direct(), chunked(16_KiB, 2)}));
  CHECK(move_each(w, out, in, {1'000}).failed() == 0);
}
