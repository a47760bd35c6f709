#include <parley/transports/environment.hpp>

#include <doctest/doctest.h>

#include <map>

using namespace parley::transports;
using parley::runtime::errc;
using parley::runtime::result;

namespace {

using variables = std::map<std::string, std::string>;

result<placement> read(const variables& set) {
  return from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = set.find(name);
    if (found == set.end()) return std::nullopt;
    return found->second;
  });
}

/// The error must name all of these.
void refused(const variables& set, std::initializer_list<const char*> named) {
  const auto place = read(set);
  REQUIRE_FALSE(place);
  CHECK(place.code() == errc::malformed);
  const std::string text = place.reason().what();
  for (const char* part : named) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  }
}

const variables parley_run{{"PARLEY_RANK", "2"},
                           {"PARLEY_WORLD", "4"},
                           {"PARLEY_LOCAL_RANK", "2"},
                           {"PARLEY_LOCAL_SIZE", "4"},
                           {"PARLEY_RENDEZVOUS", "127.0.0.1:4711"},
                           {"PARLEY_JOB", "00000000deadbeef"},
                           {"PARLEY_KEY_FD", "5"},
                           {"PARLEY_REPORT_FD", "7"}};

variables changed(variables set, const std::string& name, const std::string& value) {
  set[name] = value;
  return set;
}

variables without(variables set, const std::string& name) {
  set.erase(name);
  return set;
}

}  // namespace

TEST_CASE("without a launcher the world has one rank") {
  const auto place = read({{"PATH", "/bin"}, {"RANK", "general"}}).value();
  CHECK(place.launcher == launcher_kind::none);
  CHECK(place.rank == 0);
  CHECK(place.world_size == 1);
}

TEST_CASE("the variables of parley run are all read") {
  const auto place = read(parley_run).value();
  CHECK(place.launcher == launcher_kind::parley_run);
  CHECK(place.rank == 2);
  CHECK(place.world_size == 4);
  CHECK(place.local_rank == 2U);
  CHECK(place.local_size == 4U);
  CHECK(place.rendezvous_host == "127.0.0.1");
  CHECK(place.rendezvous_port == 4711);
  CHECK(place.job == 0xdeadbeefU);
  CHECK(place.key_fd == 5);
  CHECK(place.report_fd == 7);
  CHECK(place.listening_fd == -1);
  const auto host = read(changed(changed(changed(parley_run, "PARLEY_RANK", "0"), "PARLEY_LOCAL_RANK", "0"),
                                 "PARLEY_RENDEZVOUS_FD", "6"))
                        .value();
  CHECK(host.listening_fd == 6);
}

TEST_CASE("a malformed value is an error with the variable, its value and what it must be") {
  refused(changed(parley_run, "PARLEY_RANK", "two"), {"PARLEY_RANK=two", "whole number"});
  refused(changed(parley_run, "PARLEY_RANK", "-1"), {"PARLEY_RANK=-1"});
  refused(changed(parley_run, "PARLEY_RANK", " 1"), {"PARLEY_RANK= 1"});
  refused(changed(parley_run, "PARLEY_RANK", ""), {"PARLEY_RANK="});
  refused(changed(parley_run, "PARLEY_RANK", "99999999999999999999999"), {"PARLEY_RANK=9999"});
  refused(changed(parley_run, "PARLEY_WORLD", "0"), {"PARLEY_WORLD=0", "from 1"});
  refused(changed(parley_run, "PARLEY_WORLD", "1000000"), {"PARLEY_WORLD=1000000", "65536"});
  refused(changed(parley_run, "PARLEY_JOB", "xyz"), {"PARLEY_JOB=xyz", "hexadecimal"});
  refused(changed(parley_run, "PARLEY_JOB", "11112222333344445"), {"PARLEY_JOB="});
  refused(changed(parley_run, "PARLEY_KEY_FD", "1"), {"PARLEY_KEY_FD=1", "from 3"});
  for (const char* address : {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "::1:80", "[]:80"}) {
    refused(changed(parley_run, "PARLEY_RENDEZVOUS", address), {"PARLEY_RENDEZVOUS=", "host:port"});
  }
}

TEST_CASE("values that contradict one another are an error") {
  refused(changed(parley_run, "PARLEY_RANK", "4"), {"PARLEY_RANK=4", "PARLEY_WORLD=4"});
  refused(without(parley_run, "PARLEY_WORLD"), {"PARLEY_WORLD is not set", "PARLEY_RANK"});
  refused(without(parley_run, "PARLEY_RANK"), {"PARLEY_RANK is not set", "PARLEY_WORLD"});
  refused(changed(parley_run, "PARLEY_LOCAL_SIZE", "5"), {"PARLEY_LOCAL_SIZE=5", "PARLEY_WORLD=4"});
  refused(changed(parley_run, "PARLEY_LOCAL_SIZE", "2"), {"PARLEY_LOCAL_RANK=2"});
  refused(changed(parley_run, "PARLEY_RENDEZVOUS_FD", "6"), {"PARLEY_RENDEZVOUS_FD=6", "only rank 0"});
  refused(changed(parley_run, "PARLEY_KEY_FILE", "/key"), {"PARLEY_KEY_FILE=/key", "PARLEY_KEY_FD"});
}

TEST_CASE("torchrun is read, and the port after its own store's is used") {
  const variables torch{{"RANK", "3"},
                        {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"MASTER_ADDR", "node0"},
                        {"MASTER_PORT", "29500"},
                        {"TORCHELASTIC_RUN_ID", "a"}};
  const auto place = read(torch).value();
  CHECK(place.launcher == launcher_kind::torchrun);
  CHECK(place.rank == 3);
  CHECK(place.world_size == 8);
  CHECK(place.rendezvous_host == "node0");
  CHECK(place.rendezvous_port == 29501);
  CHECK(place.job != 0);
  CHECK(place.job != read(changed(torch, "TORCHELASTIC_RUN_ID", "b")).value().job);
  refused(without(torch, "MASTER_PORT"), {"MASTER_PORT is not set"});
  refused(without(torch, "WORLD_SIZE"), {"WORLD_SIZE is not set"});
}

TEST_CASE("ranks of mpirun on one host meet at a port of their job") {
  const variables ompi{{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"PMIX_NAMESPACE", "prterun-1"}};
  const auto place = read(ompi).value();
  CHECK(place.launcher == launcher_kind::open_mpi);
  CHECK(place.rank == 1);
  CHECK(place.rendezvous_host == "127.0.0.1");
  CHECK(place.rendezvous_port >= 20'000);
  CHECK(place.rendezvous_port < 32'768);
  CHECK(place.job != read(changed(ompi, "PMIX_NAMESPACE", "prterun-2")).value().job);
  refused(changed(ompi, "OMPI_COMM_WORLD_SIZE", "3"), {"PARLEY_RENDEZVOUS is not set", "PARLEY_KEY_FILE", "Open MPI"});
  CHECK(read(changed(ompi, "PARLEY_RENDEZVOUS", "[fe80::1]:9")).value().rendezvous_host == "fe80::1");
}

TEST_CASE("PMI and srun are read, and a batch script without srun is no rank") {
  const auto pmi = read({{"PMI_RANK", "0"},
                         {"PMI_SIZE", "2"},
                         {"PARLEY_RENDEZVOUS", "10.0.0.1:9"},
                         {"PARLEY_KEY_FILE", "/home/me/key"}})
                       .value();
  CHECK(pmi.launcher == launcher_kind::pmi);
  CHECK(pmi.key_file == "/home/me/key");
  const variables slurm{{"SLURM_PROCID", "1"},  {"SLURM_NTASKS", "2"},  {"SLURM_LOCALID", "1"},
                        {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_NUM_NODES", "1"}};
  const auto step = read(slurm).value();
  CHECK(step.launcher == launcher_kind::slurm);
  CHECK(step.rank == 1);
  CHECK(step.world_size == 2);
  CHECK(step.rendezvous_port != 0);
  CHECK(read(without(slurm, "SLURM_STEP_ID")).value().launcher == launcher_kind::none);
}

TEST_CASE("the innermost launcher wins") {
  auto set = parley_run;
  set["SLURM_PROCID"] = "0";
  set["SLURM_STEP_ID"] = "0";
  set["SLURM_NTASKS"] = "1";
  CHECK(read(set).value().launcher == launcher_kind::parley_run);
}
