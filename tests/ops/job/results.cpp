#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

rank_settings with_file() {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  s.results_path = "results.csv";
  s.validators = {{"PARLEY_PROCESSOR", "test"}};
  return s;
}
const std::vector<std::size_t> many(200, 100'000);
std::vector<config_ptr> catalogue() { return {direct(), chunked(8_KiB, 1), chunked(64_KiB, 4)}; }

/// The files that a first run leaves on its two ranks.
std::vector<std::map<std::string, std::string>> tuned(std::string* winner = nullptr) {
  world w(2, with_file());
  const auto all = move_each(w, catalogue(), catalogue(), many);
  CHECK(all.failed() == 0);
  pass(w, 5'000'000'000);
  REQUIRE(campaign_of(w, "128KiB")->where() == actors::search::stage::decided);
  if (winner != nullptr) *winner = campaign_of(w, "128KiB")->chosen().config;
  CHECK(w[0].write_results().value() == "results0.csv");
  CHECK(w[1].write_results().value() == "results1.csv");
  return {w.disk[0].files, w.disk[1].files};
}

/// A run that begins with results files. `world` reads the files when it is made, so the test cannot write them into a `world`.
struct second_run {
  second_run(std::vector<std::map<std::string, std::string>> files, const rank_settings& s,
             const std::vector<config_ptr>& configs = catalogue())
      : links(clock, 2), disks(2) {
    for (rank_id r = 0; r < 2; ++r) {
      disks[r].files = std::move(files[r]);
      ranks.push_back(std::make_unique<rank>(rank_foundation{clock, links[r], &disks[r], {{1, 2}}, {}}, s));
    }
    out = transfer(*ranks[0], pair_of(configs));
    in = transfer(*ranks[1], pair_of(configs));
  }
  void move() {
    move_and([] {});
  }
  /// Calls `what` as soon as a search has begun, while the messages move.
  template <class Do>
  void move_and(Do what) {
    call_outcomes all;
    const auto both = [](transfer o, transfer i, call_outcomes& c) -> task<> {
      auto done = co_await when_all(send_each(o, many, c), receive_each(i, many, 0, c));
      static_cast<void>(done);
    };
    scope calls(clock);
    calls.spawn(both(out, in, all));
    run_until(clock, [&] { return !ranks[0]->agreements().empty() && !campaigns().empty(); });
    what();
    run_until(clock, [&] { return calls.running() == 0; });
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
  }
  const std::vector<std::unique_ptr<actors::search>>& campaigns() {
    return ranks[0]->agreements().front().assigned->searches();
  }
  const actors::search& campaign() { return *campaigns().front(); }
  virtual_time clock;
  memory_world links;
  std::vector<memory_storage> disks;
  std::vector<std::unique_ptr<rank>> ranks;
  transfer out, in;
};

}  // namespace

TEST_CASE("results are written by both ranks, with the same decision and validators") {
  std::string winner;
  const auto files = tuned(&winner);
  for (rank_id r = 0; r < 2; ++r) {
    const auto parsed = tuning::parse_results(files[r].at("results" + std::to_string(r) + ".csv"));
    REQUIRE(parsed);
    CHECK(parsed->warnings.empty());
    const auto* entry = parsed->file.find("activations/0>1", "128KiB");
    REQUIRE(entry != nullptr);
    CHECK(entry->solution == winner);
    CHECK(entry->time_ms > 0);
    CHECK(parsed->file.validators().size() == 3);
  }
}

TEST_CASE("a second run takes the decision from the file, without a trial") {
  std::string winner;
  auto files = tuned(&winner);
  SUBCASE("on both ranks") {}
  SUBCASE("on the sender alone") { files[1].clear(); }
  SUBCASE("on the receiver alone") { files[0].clear(); }
  second_run again(files, with_file());
  again.move();
  CHECK(again.campaign().chosen().from_results());
  CHECK(again.campaign().chosen().config == winner);
  CHECK(again.campaign().trials() == 0);
  CHECK(again.campaign().is_decided());
}

TEST_CASE("a search that is asked for before a file has been heeded is made") {
  const auto files = tuned();
  for (rank_id asks = 0; asks < 2; ++asks) {
    CAPTURE(asks);
    second_run again(files, with_file());
    again.move_and([&] {
      REQUIRE(again.campaign().where() == actors::search::stage::waiting);
      CHECK(again.ranks[asks]->retune("activations", "the link is another one") == 1);
    });
    again.move();
    CHECK(again.campaign().number() == 2);
    CHECK(again.campaign().trials() > 0);
    CHECK(again.campaign().chosen().source == actors::decision_source::trials);
  }
}

TEST_CASE("what a run took from a file is written again") {
  auto files = tuned();
  const auto before = files[0].at("results0.csv");
  second_run again(files, with_file());
  again.move();
  CHECK(again.ranks[0]->write_results());
  CHECK(again.disks[0].files.at("results0.csv") == before);
}

TEST_CASE("a file of another machine is named, ignored and kept") {
  auto files = tuned();
  const auto before = files;  // NOLINT(performance-unnecessary-copy-initialization): to compare with
  auto elsewhere = with_file();
  elsewhere.validators = {{"PARLEY_PROCESSOR", "another"}};
  second_run again(files, elsewhere);
  for (rank_id r = 0; r < 2; ++r) {
    REQUIRE(again.ranks[r]->warnings().size() == 1);
    const std::string& text = again.ranks[r]->warnings().front();
    for (const std::string& words : {"results" + std::to_string(r) + ".csv", std::string("PARLEY_PROCESSOR")})
      CHECK(text.find(words) != std::string::npos);
  }
  again.move();
  CHECK_FALSE(again.campaign().chosen().from_results());
  CHECK(again.campaign().trials() > 0);
  for (rank_id r = 0; r < 2; ++r) {
    const auto written = again.ranks[r]->write_results();
    REQUIRE(written);
    const std::string own = "results" + std::to_string(r) + ".csv";
    CHECK(again.disks[r].files.at(own) == before[r].at(own));
    CHECK(*written != own);
    CHECK(again.disks[r].files.at(*written).find("PARLEY_PROCESSOR,another") != std::string::npos);
    CHECK(again.ranks[r]->warnings().back().find(*written) != std::string::npos);
  }
}

TEST_CASE("a file of a job of another size is named, ignored and kept, also on the same machine") {
  auto files = tuned();
  for (rank_id r = 0; r < 2; ++r) {
    std::string& text = files[r].at("results" + std::to_string(r) + ".csv");
    const std::string world_of_two = "Validator,PARLEY_WORLD,2\n";
    REQUIRE(text.find(world_of_two) != std::string::npos);
    text.replace(text.find(world_of_two), world_of_two.size(), "Validator,PARLEY_WORLD,4\n");
  }
  const auto before = files;  // NOLINT(performance-unnecessary-copy-initialization): to compare with
  second_run again(files, with_file());
  for (rank_id r = 0; r < 2; ++r) {
    REQUIRE(again.ranks[r]->warnings().size() == 1);
    CHECK(again.ranks[r]->warnings().front().find("PARLEY_WORLD") != std::string::npos);
  }
  again.move();
  CHECK_FALSE(again.campaign().chosen().from_results());
  CHECK(again.campaign().trials() > 0);
  for (rank_id r = 0; r < 2; ++r) {
    const std::string own = "results" + std::to_string(r) + ".csv";
    CHECK(again.ranks[r]->write_results().value() != own);
    CHECK(again.disks[r].files.at(own) == before[r].at(own));
  }
}

TEST_CASE("a receiver's file counts only when both ranks trust the same validators") {
  auto files = tuned();
  files[0].clear();
  second_run again(files, with_file());
  CHECK(again.ranks[1]->warnings().empty());
  again.move();
  CHECK(again.campaign().chosen().from_results());
}

TEST_CASE("a file that cannot be read is named, ignored and kept") {
  auto files = tuned();
  for (const std::string& broken :
       {std::string("Validator,A\n"), std::string(3'000'000, 'x'), std::string("\0\1\2,", 4)}) {
    files[0]["results0.csv"] = broken;
    files[1].clear();
    second_run again(files, with_file());
    CHECK_FALSE(again.ranks[0]->warnings().empty());
    again.move();
    CHECK_FALSE(again.campaign().chosen().from_results());
    CHECK(again.ranks[0]->write_results().value().starts_with("results0.for-"));
    CHECK(again.disks[0].files.at("results0.csv") == broken);
  }
}

TEST_CASE("Default written by hand pins the default") {
  auto files = tuned();
  for (rank_id r = 0; r < 2; ++r) {
    auto& text = files[r].at("results" + std::to_string(r) + ".csv");
    const auto at = text.find("activations/0>1");
    text = text.substr(0, at) + "activations/0>1,128KiB,Default\n";
  }
  second_run again(files, with_file());
  again.move();
  CHECK(again.campaign().chosen().config == "direct");
  CHECK(again.campaign().trials() == 0);
  CHECK(again.campaign().chosen().source == actors::decision_source::pin);
}

TEST_CASE("a pin of the common file is not copied, so that it is gone when its owner takes it back") {
  auto files = tuned();
  const auto& own = files[0].at("results0.csv");
  const std::string header = own.substr(0, own.find("activations"));
  for (rank_id r = 0; r < 2; ++r) files[r] = {{"results.csv", header + "activations/0>1,128KiB,Default\n"}};
  second_run again(files, with_file());
  again.move();
  CHECK(again.campaign().chosen().source == actors::decision_source::pin);
  for (rank_id r = 0; r < 2; ++r) {
    const auto written = again.ranks[r]->write_results();
    CHECK(written);
    const auto& disk = again.disks[r].files;
    for (const auto& [name, text] : disk) CHECK((name == "results.csv") == (text.find("Default") != std::string::npos));
  }
}

TEST_CASE("a config that nobody has any more is a miss, and is tuned anew") {
  auto files = tuned();
  for (rank_id r = 0; r < 2; ++r) {
    auto& text = files[r].at("results" + std::to_string(r) + ".csv");
    const auto at = text.find("activations/0>1");
    text = text.substr(0, at) + "activations/0>1,128KiB,telepathy,0.001\n";
  }
  second_run again(files, with_file());
  again.move();
  CHECK_FALSE(again.campaign().chosen().from_results());
  CHECK(again.campaign().trials() > 0);
}

TEST_CASE("a file that names a way for pieces decides nothing: messages may have others now, or none") {
  std::string winner;
  auto files = tuned(&winner);
  for (auto& disk : files) {
    for (auto& [name, text] : disk) {
      const std::size_t at = text.find(winner);
      REQUIRE(at != std::string::npos);
      text.replace(at, winner.size(), by_piece()->id());
    }
  }
  auto configs = catalogue();
  configs.push_back(by_piece());
  second_run r(files, with_file(), configs);
  r.move();
  CHECK(r.campaign().trials() > 0);
  CHECK(r.campaign().chosen().config == winner);
}

TEST_CASE("the common file is read first, a rank's own file fills the gaps") {
  auto files = tuned();
  const auto& own = files[0].at("results0.csv");
  const auto header = own.substr(0, own.find("activations"));
  for (auto& of_rank : files)
    of_rank["results.csv"] = header + "activations/0>1,128KiB,direct,9\nactivations/0>1,1KiB,direct,9\n";
  second_run again(files, with_file());
  again.move();
  CHECK(again.campaign().chosen().config == "direct");
  CHECK(again.campaign().chosen().from_results());
}

TEST_CASE("what was decided is on each rank's disk within a second, whatever ends the ranks then") {
  world w(2, with_file());
  CHECK(move_each(w, catalogue(), catalogue(), many).failed() == 0);
  REQUIRE(campaign_of(w, "128KiB")->where() == actors::search::stage::decided);
  const std::string winner = campaign_of(w, "128KiB")->chosen().config;
  pass(w, 1'000'000'000);
  for (rank_id r = 0; r < 2; ++r) {
    w.ranks[r].reset();  // like a killed process: nobody asks it to write
    const auto read = tuning::parse_results(w.disk[r].files.at("results" + std::to_string(r) + ".csv"));
    const auto* entry = read->file.find("activations/0>1", "128KiB");
    REQUIRE(entry != nullptr);
    CHECK(entry->solution == winner);
  }
}

TEST_CASE("a survivor keeps what was decided with a rank that has died") {
  world w(2, with_file());
  CHECK(move_each(w, catalogue(), catalogue(), many).failed() == 0);
  REQUIRE(campaign_of(w, "128KiB")->where() == actors::search::stage::decided);
  w.ranks[1].reset();
  w[0].on_lost(1, "it was killed");
  pass(w, 1'000'000'000);
  REQUIRE(w.disk[0].files.contains("results0.csv"));
  CHECK(tuning::parse_results(w.disk[0].files.at("results0.csv")).value().file.find("activations/0>1", "128KiB") !=
        nullptr);
}

TEST_CASE("a rank that shall write only when it is asked does so") {
  auto s = with_file();
  s.write_results_soon = false;
  world w(2, s);
  CHECK(move_each(w, catalogue(), catalogue(), many).failed() == 0);
  pass(w, 5'000'000'000);
  CHECK(w.disk[0].files.empty());
  CHECK(w[0].write_results().value() == "results0.csv");
}

TEST_CASE("an edge's remembered winner that cannot be used is told of in what is decided instead") {
  auto files = tuned();
  for (rank_id r = 0; r < 2; ++r) {
    auto& text = files[r].at("results" + std::to_string(r) + ".csv");
    text = text.substr(0, text.find("activations/0>1")) + "activations/0>1,128KiB,dierct,0.001\n";
  }
  second_run again(files, with_file());
  again.move();
  REQUIRE(again.campaign().is_decided());
  CHECK(again.campaign().chosen().source == actors::decision_source::trials);
  CHECK(again.campaign().chosen().why.find("dierct") != std::string::npos);
}
