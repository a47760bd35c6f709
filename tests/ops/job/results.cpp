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
  REQUIRE(search_of(w, "128KiB")->where() == actors::search::stage::decided);
  if (winner != nullptr) *winner = search_of(w, "128KiB")->chosen().config;
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
    run_until(clock, [&] { return !ranks[0]->agreements().empty() && !searches().empty(); });
    what();
    run_until(clock, [&] { return calls.running() == 0; });
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
  }
  const std::vector<std::unique_ptr<actors::search>>& searches() {
    return ranks[0]->agreements().front().assigned->searches();
  }
  const actors::search& search() { return *searches().front(); }
  virtual_time clock;
  memory_world links;
  std::vector<memory_storage> disks;
  std::vector<std::unique_ptr<rank>> ranks;
  transfer out, in;
};

}  // namespace

TEST_CASE("both ranks write results files, with the same decision and validators") {
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
  CHECK(again.search().chosen().from_results());
  CHECK(again.search().chosen().config == winner);
  CHECK(again.search().trials() == 0);
  CHECK(again.search().is_decided());
}

TEST_CASE("a search that a rank requests before its results file is applied is still made") {
  const auto files = tuned();
  for (rank_id asks = 0; asks < 2; ++asks) {
    CAPTURE(asks);
    second_run again(files, with_file());
    again.move_and([&] {
      REQUIRE(again.search().where() == actors::search::stage::waiting);
      CHECK(again.ranks[asks]->retune("activations", "the link is another one") == 1);
    });
    again.move();
    CHECK(again.search().number() == 2);
    CHECK(again.search().trials() > 0);
    CHECK(again.search().chosen().source == actors::decision_source::trials);
  }
}

TEST_CASE("a run writes the decisions that it read from a results file back unchanged") {
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
  CHECK_FALSE(again.search().chosen().from_results());
  CHECK(again.search().trials() > 0);
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

TEST_CASE("a file of a job with another world size is named, ignored and kept, even on the same machine") {
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
  CHECK_FALSE(again.search().chosen().from_results());
  CHECK(again.search().trials() > 0);
  for (rank_id r = 0; r < 2; ++r) {
    const std::string own = "results" + std::to_string(r) + ".csv";
    CHECK(again.ranks[r]->write_results().value() != own);
    CHECK(again.disks[r].files.at(own) == before[r].at(own));
  }
}

TEST_CASE("a receiver's results file counts when both ranks have the same validators") {
  auto files = tuned();
  files[0].clear();
  second_run again(files, with_file());
  CHECK(again.ranks[1]->warnings().empty());
  again.move();
  CHECK(again.search().chosen().from_results());
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
    CHECK_FALSE(again.search().chosen().from_results());
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
  CHECK(again.search().chosen().config == "direct");
  CHECK(again.search().trials() == 0);
  CHECK(again.search().chosen().source == actors::decision_source::pin);
}

TEST_CASE("ranks do not copy a pin of the common file into their own files, so that its owner can remove the pin") {
  auto files = tuned();
  const auto& own = files[0].at("results0.csv");
  const std::string header = own.substr(0, own.find("activations"));
  for (rank_id r = 0; r < 2; ++r) files[r] = {{"results.csv", header + "activations/0>1,128KiB,Default\n"}};
  second_run again(files, with_file());
  again.move();
  CHECK(again.search().chosen().source == actors::decision_source::pin);
  for (rank_id r = 0; r < 2; ++r) {
    const auto written = again.ranks[r]->write_results();
    CHECK(written);
    const auto& disk = again.disks[r].files;
    for (const auto& [name, text] : disk) CHECK((name == "results.csv") == (text.find("Default") != std::string::npos));
  }
}

TEST_CASE("a remembered config that no rank has is ignored, and its key is tuned again") {
  auto files = tuned();
  for (rank_id r = 0; r < 2; ++r) {
    auto& text = files[r].at("results" + std::to_string(r) + ".csv");
    const auto at = text.find("activations/0>1");
    text = text.substr(0, at) + "activations/0>1,128KiB,telepathy,0.001\n";
  }
  second_run again(files, with_file());
  again.move();
  CHECK_FALSE(again.search().chosen().from_results());
  CHECK(again.search().trials() > 0);
}

TEST_CASE("a results file whose entries have another dtype than the op decides nothing, and a warning says so") {
  auto files = tuned();
  for (auto& disk : files) {
    for (auto& [name, text] : disk) text.replace(text.find("128KiB"), 6, "128KiB_bf16");
  }
  second_run again(files, with_file());
  again.move();
  CHECK(again.search().trials() > 0);
  const std::vector<std::string>& said = again.ranks[0]->warnings();
  REQUIRE(said.size() == 1);
  CHECK(said.front().find(
            "results for activations/0>1,128KiB_bf16 are not used: activations is declared with no dtype") == 0);
  // Entries of both kinds are results of two programs: each reads its own.
  for (auto& disk : files) {
    for (auto& [name, text] : disk) text += "activations/0>1,128KiB,direct,0.1\n";
  }
  second_run third(files, with_file());
  third.move();
  CHECK(third.search().chosen().from_results());
  CHECK(third.ranks[0]->warnings().empty());
}

TEST_CASE(
    "a results file that names by_piece as a winner decides nothing: messages may have other pieces now, or none") {
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
  CHECK(r.search().trials() > 0);
  CHECK(r.search().chosen().config == winner);
}

TEST_CASE("an entry of the common file overrides the entry of a rank's own file, and decides the key") {
  std::string winner;
  auto files = tuned(&winner);
  const std::string other = winner == "direct" ? catalogue()[1]->id() : "direct";
  const auto& own = files[0].at("results0.csv");
  const auto header = own.substr(0, own.find("activations"));
  for (auto& of_rank : files) of_rank["results.csv"] = header + "activations/0>1,128KiB," + other + ",9\n";
  second_run again(files, with_file());
  again.move();
  CHECK(again.search().chosen().config == other);
  CHECK(again.search().chosen().from_results());
}

TEST_CASE("a decision is on each rank's disk within a second, even if the rank is then killed") {
  world w(2, with_file());
  CHECK(move_each(w, catalogue(), catalogue(), many).failed() == 0);
  REQUIRE(search_of(w, "128KiB")->where() == actors::search::stage::decided);
  const std::string winner = search_of(w, "128KiB")->chosen().config;
  pass(w, 1'000'000'000);
  for (rank_id r = 0; r < 2; ++r) {
    w.ranks[r].reset();  // like a killed process: nobody asks it to write
    const auto read = tuning::parse_results(w.disk[r].files.at("results" + std::to_string(r) + ".csv"));
    const auto* entry = read->file.find("activations/0>1", "128KiB");
    REQUIRE(entry != nullptr);
    CHECK(entry->solution == winner);
  }
}

TEST_CASE("a surviving rank writes a decision that it made with a rank that has died") {
  world w(2, with_file());
  CHECK(move_each(w, catalogue(), catalogue(), many).failed() == 0);
  REQUIRE(search_of(w, "128KiB")->where() == actors::search::stage::decided);
  w.ranks[1].reset();
  w[0].on_lost(1, "it was killed");
  pass(w, 1'000'000'000);
  REQUIRE(w.disk[0].files.contains("results0.csv"));
  CHECK(tuning::parse_results(w.disk[0].files.at("results0.csv")).value().file.find("activations/0>1", "128KiB") !=
        nullptr);
}

TEST_CASE("a rank with write_results_soon off writes its results only when it is asked") {
  auto s = with_file();
  s.write_results_soon = false;
  world w(2, s);
  CHECK(move_each(w, catalogue(), catalogue(), many).failed() == 0);
  pass(w, 5'000'000'000);
  CHECK(w.disk[0].files.empty());
  CHECK(w[0].write_results().value() == "results0.csv");
}

TEST_CASE("a decision that replaces an edge's unusable remembered winner names that winner") {
  auto files = tuned();
  for (rank_id r = 0; r < 2; ++r) {
    auto& text = files[r].at("results" + std::to_string(r) + ".csv");
    text = text.substr(0, text.find("activations/0>1")) + "activations/0>1,128KiB,dierct,0.001\n";
  }
  second_run again(files, with_file());
  again.move();
  REQUIRE(again.search().is_decided());
  CHECK(again.search().chosen().source == actors::decision_source::trials);
  CHECK(again.search().chosen().why.find("dierct") != std::string::npos);
}
