// Runs the examples on virtual ranks as people start them. PARLEY_EXAMPLES comes from CMake.
#include <parley/tests/support/started.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using parley::tests::started;

started example(const std::string& words) {
  const parley::tests::scratch_folder here;
  return parley::tests::start_in(here, PARLEY_EXAMPLES "/" + words);
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

// ---- jacobi -csv ------------------------------------------------------------------------------------------------------

struct csv_line {
  std::vector<std::string> fields;
  double together_s() const { return std::stod(fields.at(7)); }
  double alone_s() const { return std::stod(fields.at(8)); }
};
csv_line jacobi(const std::string& words) {
  const started s = example("jacobi " + words);
  INFO(s.error);
  REQUIRE(s.status == 0);
  REQUIRE(lines_of(s.out).size() == 1);
  csv_line line;
  std::istringstream in(lines_of(s.out)[0]);
  for (std::string field; std::getline(in, field, ',');) {
    field.erase(0, field.find_first_not_of(' '));
    line.fields.push_back(field);
  }
  return line;
}

// ---- training ---------------------------------------------------------------------------------------------------------

struct trained {
  double makespan_ms = 0;
  double idle_percent = 0;  // of the rank that is idle the longest
  std::vector<std::uint64_t> alive;
  std::uint64_t messages = 0;
};
trained train(std::uint32_t ranks, std::uint32_t microbatches, const std::string& schedule) {
  const started s = example("training --sim " + std::to_string(ranks) + " --microbatches " +
                            std::to_string(microbatches) + " --links free --steps 1 --width 64 --schedule " + schedule);
  INFO(s.error);
  REQUIRE(s.status == 0);
  trained t;
  t.alive.resize(ranks);
  for (const std::string& line : lines_of(s.out)) {
    unsigned rank = 0;
    double took_ms = 0;
    double idle = 0;
    double ideal = 0;
    unsigned alive = 0;
    unsigned long long sent = 0;
    REQUIRE(std::sscanf(line.c_str(),
                        "rank %u: last step %lf ms, idle %lf %% (ideal %lf %%), %u microbatches alive, %llu messages",
                        &rank, &took_ms, &idle, &ideal, &alive, &sent) == 6);
    t.makespan_ms = std::max(t.makespan_ms, took_ms);
    t.idle_percent = std::max(t.idle_percent, idle);
    t.alive.at(rank) = alive;
    t.messages += sent;
    CHECK(idle == ideal);
  }
  // Nothing else takes time, so the whole run lasts exactly one makespan.
  char whole[64];
  std::snprintf(whole, sizeof whole, ": %.6f ms of virtual time", t.makespan_ms);
  CHECK(has(s.error, whole));
  return t;
}

}  // namespace

TEST_CASE("over free links the training example takes exactly the makespan of its schedule") {
  struct row {
    std::uint32_t ranks;
    std::uint32_t microbatches;
    double makespan_ms;
    double idle_percent;
    std::uint64_t messages;
  };
  for (const row& r : {row{2, 8, 27, 11.1, 16}, row{3, 8, 30, 20.0, 32}, row{4, 8, 33, 27.3, 48},
                       row{4, 16, 57, 15.8, 96}, row{16, 16, 93, 48.4, 480}}) {
    CAPTURE(r.ranks);
    CAPTURE(r.microbatches);
    const trained t = train(r.ranks, r.microbatches, "1f1b");
    CHECK(t.makespan_ms == r.makespan_ms);
    CHECK(t.idle_percent == r.idle_percent);
    CHECK(t.messages == r.messages);
    for (std::uint32_t stage = 0; stage < r.ranks; ++stage) CHECK(t.alive[stage] == r.ranks - stage);
  }
  struct chunked_row {
    std::uint32_t ranks;
    std::uint32_t microbatches;
    std::uint32_t chunks;
    double makespan_ms;
    double idle_percent;
    std::uint64_t messages;
  };
  for (const chunked_row& r : {chunked_row{2, 8, 2, 25.5, 5.9, 48}, chunked_row{2, 8, 4, 24.75, 3.0, 112},
                               chunked_row{4, 8, 2, 28.5, 15.8, 112}, chunked_row{4, 8, 4, 26.25, 8.6, 240},
                               chunked_row{4, 16, 2, 52.5, 8.6, 224}, chunked_row{4, 16, 4, 50.25, 4.5, 480}}) {
    CAPTURE(r.ranks);
    CAPTURE(r.microbatches);
    CAPTURE(r.chunks);
    const trained t = train(r.ranks, r.microbatches, "interleaved --chunks " + std::to_string(r.chunks));
    CHECK(t.makespan_ms == r.makespan_ms);
    CHECK(t.idle_percent == r.idle_percent);
    CHECK(t.messages == r.messages);
  }
}

TEST_CASE("the training example reads lists of actions from a file, which also places the stages") {
  const parley::tests::scratch_folder folder;
  const std::string file = folder.file("folded.txt");
  std::string forward[2], backward[2];
  for (int m = 0; m < 8; ++m) {
    const std::string n = std::to_string(m);
    forward[0] += "0F" + n + ",";
    forward[1] += "1F" + n + ",2F" + n + ",";
    backward[0] += "3F" + n + ",3B" + n + ",";
    backward[1] += "2B" + n + ",1B" + n + ",";
  }
  for (int m = 0; m < 8; ++m) backward[0] += "0B" + std::to_string(m) + ",";
  std::ofstream(file) << forward[0] << backward[0] << "\n" << forward[1] << backward[1] << "\n";
  const trained t = train(2, 8, file);
  CHECK(t.messages == 48);
  CHECK(train(2, 8, "gpipe").makespan_ms == 27);
  const started nowhere = example("training --sim 2 --steps 1 --schedule /nowhere");
  CHECK(nowhere.status != 0);
  CHECK(has(nowhere.error, "cannot read the schedule /nowhere"));
  const started other = example("training --sim 4 --steps 1 --schedule " + file);
  CHECK(other.status != 0);
  CHECK(has(other.error, "folded.txt is for 2 ranks, and this job has 4"));
}

TEST_CASE("--sim is refused in a rank that parley run started, because --sim runs all ranks in one process") {
  const parley::tests::scratch_folder here;
  const started s = parley::tests::start_in(here, "env PARLEY_RANK=1 " PARLEY_EXAMPLES "/training --sim 4 --steps 1");
  CHECK(s.status == 2);
  CHECK(has(s.error, "--sim runs all ranks in one process"));
}

TEST_CASE("links take time unless --links free is given, and --links refuses an unknown word") {
  const started usual = example("training --sim 4 --steps 1 --width 64");
  CHECK(usual.status == 0);
  CHECK_FALSE(has(usual.error, ": 33.000000 ms of virtual time"));
  const started wrong = example("training --sim 4 --links cheap");
  CHECK(wrong.status == 2);
  CHECK(has(wrong.error, "--links"));
  CHECK(has(wrong.error, "cheap"));
}

namespace {
/// Without shared wires: shards that share the wires of their ranks would take longer than these small products.
started overlapped_gemm(int ranks) {
  return example("overlapped_gemm --sim " + std::to_string(ranks) + " --sharing none");
}
}  // namespace

TEST_CASE("in overlapped_gemm, the product of the shards hides their gather") {
  for (const int ranks : {2, 4, 16}) {
    CAPTURE(ranks);
    const started s = overlapped_gemm(ranks);
    REQUIRE(s.status == 0);
    int seen = 0;
    for (const std::string& line : lines_of(s.out)) {
      const std::size_t at = line.find(": all-gather + GEMM takes ");
      if (at == std::string::npos) continue;
      const std::size_t times = line.find(": ", at + 2);
      REQUIRE(times != std::string::npos);
      double whole = 0;
      double gather = 0;
      double product = 0;
      REQUIRE(std::sscanf(line.c_str() + times, ": %lf us; alone the gather takes %lf us, the product %lf us", &whole,
                          &gather, &product) == 3);
      CHECK(gather > 0.5);
      CHECK(product > gather);
      CHECK(whole <= product + gather / 5);
      ++seen;
    }
    CHECK(seen == ranks);
  }
}

TEST_CASE(
    "in overlapped_gemm, the product of the blocks hides their scatter, and all ranks tune both to the same result") {
  for (const int ranks : {2, 4, 16}) {
    CAPTURE(ranks);
    const started s = overlapped_gemm(ranks);
    REQUIRE(s.status == 0);
    std::set<std::string> agreed;
    int seen = 0;
    for (const std::string& line : lines_of(s.out)) {
      const std::size_t at = line.find(": GEMM + reduce-scatter takes ");
      if (at == std::string::npos) continue;
      char kernel[16] = "";
      char leave[16] = "";
      int runs = 0;
      double whole = 0;
      double product = 0;
      double scatter = 0;
      REQUIRE(std::sscanf(line.c_str() + at,
                          ": GEMM + reduce-scatter takes %15[a-z], blocks leave %15[a-z_], after %d runs: %lf us; "
                          "alone the product takes %lf us, the scatter %lf us",
                          kernel, leave, &runs, &whole, &product, &scatter) == 6);
      agreed.insert(std::string(kernel) + " " + leave);
      // Three ways to scatter have six trials each, one per run. The trials of the two kernels are spread over the ranks and need no
      // further runs. Then come the run that counts and two calls after it.
      CHECK(runs == 3 * 6 + 1 + 2);
      CHECK(scatter > 0.3);
      CHECK(product > scatter);
      CHECK(whole <= product + scatter / 5);
      ++seen;
    }
    CHECK(seen == ranks);
    CHECK(agreed.size() == 1);
    CHECK_FALSE(has(*agreed.begin(), "at_the_end"));
  }
}

TEST_CASE("--sim without a value is refused with an error that asks for a number of ranks") {
  for (const char* words : {"training --sim", "training --sim --steps 1"}) {
    const started wrong = example(words);
    CHECK(wrong.status == 2);
    CHECK_MESSAGE(has(wrong.error, "--sim needs a number of ranks after it"), wrong.error);
  }
}

TEST_CASE("an example that is given a word it does not accept names that word, and ends with status 2") {
  struct wrong_words {
    const char* words;
    const char* named;
  };
  for (const wrong_words& w : {wrong_words{"send_recv many --sim 2", "many"},
                               wrong_words{"send_recv 60 70 --sim 2", "70"},
                               wrong_words{"send_recv 0 --sim 2", "0"},
                               wrong_words{"own_config --rounds --sim 2", "--rounds"},
                               wrong_words{"thin_layers 4 --sim 2", "4"},
                               wrong_words{"ring_exchange --rounds --sim 2", "--rounds"},
                               wrong_words{"ring_exchange --elements 1e3x --sim 2", "--elements"},
                               wrong_words{"ring_attention --rows 0 --sim 2", "--rows"},
                               wrong_words{"jacobi -nx --sim 2", "-nx"},
                               wrong_words{"jacobi -nx wide --sim 2", "wide"},
                               wrong_words{"jacobi -nxx 3 --sim 2", "-nxx"},
                               wrong_words{"pipeline --microbatches x --sim 2", "--microbatches"},
                               wrong_words{"training --steps 2 --step 3 --sim 2", "--step"},
                               wrong_words{"gradients --elements --sim 2", "--elements"},
                               wrong_words{"mixed_cluster --steps x --sim 2", "--steps"},
                               wrong_words{"other_library --calls 3.5 --sim 2", "--calls"},
                               wrong_words{"contextual -x --sim 2", "-x"},
                               wrong_words{"overlapped_gemm fast --sim 2", "fast"},
                               wrong_words{"restarting --sim 2", "--sim"},
                               wrong_words{"send_recv --seed 3", "--seed"},
                               wrong_words{"send_recv --weather", "--weather"}}) {
    const started s = example(w.words);
    CAPTURE(w.words);
    INFO(s.error);
    CHECK(s.status == 2);
    CHECK(has(s.error, w.named));
    CHECK_FALSE(has(s.error, "virtual ranks, seed"));
  }
  const started help = example("jacobi --help");
  CHECK(help.status == 0);
  CHECK(has(help.out, "--nccheck"));
}

TEST_CASE("checkers watch a program on virtual ranks, and a violation ends it with status 1 and the invariant's name") {
  const started well = example("send_recv 60 --sim 16");
  CHECK(well.status == 0);
  CHECK(has(well.error, "16 virtual ranks, seed 1: "));
  CHECK(has(well.error, "checkers: no violation"));
  CHECK(has(well.out, "activations 0->1 4MiB: "));
  struct broken {
    const char* words;
    const char* named;
  };
  for (const broken& b : {broken{"send_recv 60 --sim 4 --mutant stamp-ignored", "S2: "},
                          broken{"send_recv 60 --sim 4 --mutant other-stamp", "S1: "},
                          broken{"send_recv 60 --sim 4 --mutant other-stamp", "S3: "},
                          broken{"mixed_cluster --sim 4 --steps 40 --mutant old-decision", "agreement: "}}) {
    CAPTURE(b.words);
    const started s = example(b.words);
    INFO(s.error);
    CHECK(s.status == 1);
    CHECK(has(s.error, "checkers: violated"));
    CHECK(has(s.error, b.named));
  }
  const started unknown = example("send_recv --sim 2 --mutant nobody");
  CHECK(unknown.status == 2);
  CHECK(has(unknown.error, "nobody"));
}

TEST_CASE(
    "jacobi -csv prints the columns of NVIDIA's example: type, nx, ny, niter, nccheck, ranks, 1, together, alone") {
  const csv_line four = jacobi("--sim 4 -nx 64 -ny 32 -niter 50 -nccheck 10 -csv");
  REQUIRE(four.fields.size() == 9);
  const std::vector<std::string> said(four.fields.begin(), four.fields.begin() + 7);
  CHECK(said == std::vector<std::string>{"parley", "64", "32", "50", "10", "4", "1"});
  // 64 x 32 cells take 1,024 ns, 50 times.
  CHECK(four.alone_s() == doctest::Approx(51.2e-6).epsilon(0.02));
  CHECK(four.together_s() > 0);
  const csv_line one = jacobi("--sim 1 -nx 512 -ny 512 -niter 20 -nccheck 10 -csv");
  REQUIRE(one.fields.size() == 9);
  CHECK(one.fields[5] == "1");
  CHECK(one.together_s() == one.alone_s());
  const csv_line sixteen = jacobi("--sim 16 -nx 512 -ny 512 -niter 20 -nccheck 10 -csv");
  CHECK(sixteen.alone_s() == one.alone_s());
  CHECK(sixteen.together_s() < one.alone_s() / 8);
}

TEST_CASE("in a cluster of two kinds every rank ends up with the kernel that is the fastest for its kind") {
  for (const char* const words :
       {"mixed_cluster --check --sim 16 --steps 60", "mixed_cluster --check --sim 6 --steps 60 --kinds A100,H100",
        "mixed_cluster --check --sim 4 --steps 60 --kinds A100,A100,A100,H100",
        "mixed_cluster --check --sim 16 --steps 60 --kernels graph,library,h100_optimized"}) {
    CAPTURE(words);
    const started s = example(words);
    INFO(s.error);
    CHECK(s.status == 0);
    CHECK(has(s.out, "h100_optimized on rank"));
  }
}
