#include <parley/transports/launch/environment.hpp>

#include <doctest/doctest.h>

#include <map>
#include <utility>
#include <vector>

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

/// Checks that the error names all of these.
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

TEST_CASE("all variables of parley run are read") {
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

TEST_CASE("an error about a hostile value contains no control characters, and is short") {
  const auto text = read(changed(parley_run, "PARLEY_RANK", "\x1b[2J\n" + std::string(5000, 'x'))).reason().what();
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find('\n') == std::string::npos);
  CHECK(text.size() < 500);
}

TEST_CASE("values that contradict one another are an error") {
  refused(changed(parley_run, "PARLEY_RANK", "4"), {"PARLEY_RANK=4", "PARLEY_WORLD=4"});
  refused(without(parley_run, "PARLEY_WORLD"), {"PARLEY_WORLD is not set", "PARLEY_RANK"});
  refused(without(parley_run, "PARLEY_RANK"), {"PARLEY_RANK is not set", "PARLEY_WORLD"});
  refused({{"PARLEY_RANK", "0"}, {"PARLEY_WORLD", "2"}},
          {"PARLEY_RENDEZVOUS is not set", "but not by their launcher", "parley run -n N", "unset both"});
  refused(changed(parley_run, "PARLEY_LOCAL_SIZE", "5"), {"PARLEY_LOCAL_SIZE=5", "PARLEY_WORLD=4"});
  refused(changed(parley_run, "PARLEY_LOCAL_SIZE", "2"), {"PARLEY_LOCAL_RANK=2"});
  refused(changed(parley_run, "PARLEY_RENDEZVOUS_FD", "6"), {"PARLEY_RENDEZVOUS_FD=6", "only rank 0"});
  refused(changed(parley_run, "PARLEY_KEY_FILE", "/key"), {"PARLEY_KEY_FILE=/key", "PARLEY_KEY_FD"});
}

TEST_CASE("the restart limit and the restart count are read, and refused where no rank can restart") {
  auto of_rank_2 = changed(parley_run, "PARLEY_MAX_RESTARTS", "3");
  CHECK(read(parley_run).value().max_restarts == 0);
  CHECK(read(of_rank_2).value().max_restarts == 3);
  CHECK(read(of_rank_2).value().restarts == 0);
  of_rank_2 = changed(of_rank_2, "PARLEY_RESTART_COUNT", "3");
  CHECK(read(of_rank_2).value().restarts == 3);
  refused(changed(of_rank_2, "PARLEY_RESTART_COUNT", "4"), {"PARLEY_RESTART_COUNT=4", "PARLEY_MAX_RESTARTS"});
  refused(changed(parley_run, "PARLEY_RESTART_COUNT", "1"), {"PARLEY_RESTART_COUNT=1", "PARLEY_MAX_RESTARTS"});
  refused(changed(of_rank_2, "PARLEY_MAX_RESTARTS", "1001"), {"PARLEY_MAX_RESTARTS=1001", "from 0 to 1000"});
  refused(changed(of_rank_2, "PARLEY_RANK", "0"), {"PARLEY_RESTART_COUNT=3", "rank 0 hosts the rendezvous"});
  variables torch{{"RANK", "0"},
                  {"WORLD_SIZE", "2"},
                  {"LOCAL_RANK", "0"},
                  {"LOCAL_WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "node0"},
                  {"MASTER_PORT", "29500"},
                  {"PARLEY_MAX_RESTARTS", "1"}};
  refused(torch, {"PARLEY_MAX_RESTARTS=1", "PARLEY_RENDEZVOUS must also be set"});
}

TEST_CASE("torchrun's variables are read, and the port after its store's port is used") {
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

TEST_CASE("ranks of torchrun on one host meet by a file of their run, restart and port") {
  const variables torch{{"RANK", "1"},
                        {"WORLD_SIZE", "2"},
                        {"LOCAL_RANK", "1"},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"MASTER_ADDR", "localhost"},
                        {"MASTER_PORT", "29500"},
                        {"TORCHELASTIC_RUN_ID", "none"},
                        {"XDG_RUNTIME_DIR", "/run/user/1000"}};
  const auto place = read(torch).value();
  CHECK(place.meeting == meeting_kind::file);
  CHECK(place.private_folders == std::vector<std::string>{"/run/user/1000"});
  CHECK(place.job != read(changed(torch, "MASTER_PORT", "29501")).value().job);
  CHECK(place.job != read(changed(torch, "TORCHELASTIC_RESTART_COUNT", "1")).value().job);
}

TEST_CASE("ranks of mpirun on one host meet by a file in the folder of their job") {
  const variables ompi{{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"PMIX_NAMESPACE", "prterun-1"},     {"PMIX_SERVER_TMPDIR", "/tmp/ompi.host.0/pid.1"},
                       {"XDG_RUNTIME_DIR", "/run/user/1"}};
  const auto place = read(ompi).value();
  CHECK(place.launcher == launcher_kind::open_mpi);
  CHECK(place.rank == 1);
  CHECK(place.meeting == meeting_kind::file);
  CHECK(place.private_folders == std::vector<std::string>{"/tmp/ompi.host.0/pid.1", "/run/user/1"});
  CHECK(place.job != read(changed(ompi, "PMIX_NAMESPACE", "prterun-2")).value().job);
  refused(changed(ompi, "OMPI_COMM_WORLD_SIZE", "3"),
          {"PARLEY_RENDEZVOUS is not set", "PARLEY_KEY_FILE", "Open MPI", "job_options::bootstrap"});
  refused(without(ompi, "OMPI_COMM_WORLD_SIZE"), {"OMPI_COMM_WORLD_SIZE is not set", "OMPI_COMM_WORLD_RANK"});
  refused(changed(ompi, "OMPI_COMM_WORLD_RANK", "2"), {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=2"});
  const auto told = read(changed(ompi, "PARLEY_RENDEZVOUS", "[fe80::1]:9")).value();
  CHECK(told.meeting == meeting_kind::address);
  CHECK(told.rendezvous_host == "fe80::1");
}

const variables slurm{{"SLURM_PROCID", "1"},  {"SLURM_NTASKS", "2"},  {"SLURM_LOCALID", "1"},
                      {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_NUM_NODES", "1"}};

TEST_CASE("PMI's variables are read, and a missing size or descriptor is refused") {
  const variables pmi{
      {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_FD", "6"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
  const auto place = read(pmi).value();
  CHECK(place.launcher == launcher_kind::pmi);
  CHECK(place.meeting == meeting_kind::pmi);
  CHECK(place.pmi_fd == 6);
  CHECK(place.local_size == 2U);
  CHECK(read(changed(changed(pmi, "PMI_SIZE", "1"), "MPI_LOCALNRANKS", "1")).value().meeting == meeting_kind::alone);
  const auto told = read(changed(changed(pmi, "PARLEY_RENDEZVOUS", "10.0.0.1:9"), "PARLEY_KEY_FILE", "/home/me/key"));
  CHECK(told.value().meeting == meeting_kind::address);
  CHECK(told.value().key_file == "/home/me/key");
  refused(without(pmi, "PMI_SIZE"), {"PMI_SIZE is not set", "PMI_RANK"});
  refused(changed(pmi, "PMI_FD", "x"), {"PMI_FD=x"});
  refused(without(pmi, "PMI_FD"), {"PARLEY_RENDEZVOUS is not set", "PMI"});
}

TEST_CASE("srun's variables are read on one host and on several, and a batch script without srun has no rank") {
  const auto step = read(slurm).value();
  CHECK(step.launcher == launcher_kind::slurm);
  CHECK(step.rank == 1);
  CHECK(step.world_size == 2);
  CHECK(step.meeting == meeting_kind::file);
  CHECK(step.job != read(changed(slurm, "SLURM_STEP_ID", "1")).value().job);
  CHECK(read(without(slurm, "SLURM_STEP_ID")).value().launcher == launcher_kind::none);

  auto several = changed(slurm, "SLURM_STEP_NUM_NODES", "2");
  refused(several, {"PARLEY_RENDEZVOUS is not set", "srun", "PARLEY_KEY_FILE"});
  const std::pair<const char*, const char*> lists[] = {{"gpu[03-07,12],login1", "gpu03"},
                                                       {"a", "a"},
                                                       {"node1,node2", "node1"},
                                                       {"r[1,2]n[04-05]x,b", "r1n04x"},
                                                       {"n[7]", "n7"}};
  for (const auto& [list, first] : lists) {
    several["SLURM_STEP_NODELIST"] = list;
    const auto place = read(several).value();
    CHECK(place.meeting == meeting_kind::address);
    CHECK(place.rendezvous_host == first);
    CHECK(place.rendezvous_port >= 20'000);
    CHECK(place.rendezvous_port < 32'000);
  }
  for (const char* list : {"", "gpu[", "gpu[]", ",a", "a]"})
    refused(changed(several, "SLURM_STEP_NODELIST", list), {"SLURM_STEP_NODELIST=", "PARLEY_RENDEZVOUS"});
}

TEST_CASE("two launchers that give a process the same rank give it one place") {
  auto set = slurm;
  set.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "6"}});
  const auto place = read(set).value();
  CHECK(place.launcher == launcher_kind::pmi);
  CHECK(place.local_size == 2U);  // PMI does not give the local size here
}

TEST_CASE("the innermost of nested launchers counts unless PARLEY_LAUNCHER names another") {
  // mpirun with four ranks inside one task of srun, or with srun's daemons around it.
  auto set = slurm;
  set["OMPI_COMM_WORLD_RANK"] = "3";
  set["OMPI_COMM_WORLD_SIZE"] = "4";
  set["OMPI_COMM_WORLD_LOCAL_RANK"] = "3";
  set["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4";
  set["PMIX_NAMESPACE"] = "1";
  CHECK(read(set).value().launcher == launcher_kind::open_mpi);
  CHECK(read(set).value().rank == 3);
  CHECK(read(changed(set, "PARLEY_LAUNCHER", "slurm")).value().rank == 1);
  CHECK(read(changed(set, "PARLEY_LAUNCHER", "none")).value().world_size == 1);
  refused(changed(set, "PARLEY_LAUNCHER", "lsf"), {"PARLEY_LAUNCHER=lsf", "openmpi"});
  refused(changed(set, "PARLEY_LAUNCHER", "torchrun"), {"RANK is not set", "PARLEY_LAUNCHER=torchrun"});
}

TEST_CASE("a launcher inside parley run counts, and the outer job's descriptors are not used") {
  // the descriptor that rank 0 would inherit if this were the outer rank 0
  auto set = changed(parley_run, "PARLEY_RENDEZVOUS_FD", "6");
  set["OMPI_COMM_WORLD_RANK"] = "1";
  set["OMPI_COMM_WORLD_SIZE"] = "3";
  set["OMPI_COMM_WORLD_LOCAL_SIZE"] = "3";
  set["PMIX_NAMESPACE"] = "1";
  const auto place = read(set).value();
  CHECK(place.launcher == launcher_kind::open_mpi);
  CHECK(place.rank == 1);
  CHECK(place.meeting == meeting_kind::file);
  CHECK(place.key_fd == -1);
  CHECK(place.listening_fd == -1);
  CHECK(place.report_fd == -1);
  // Variables that a person has set take precedence over a launcher's.
  CHECK(read(without(without(set, "PARLEY_KEY_FD"), "PARLEY_RENDEZVOUS_FD")).value().launcher ==
        launcher_kind::parley_run);
}

TEST_CASE("different ranks from two launchers with equal world sizes are an error that names both launchers") {
  auto set = slurm;
  set["OMPI_COMM_WORLD_RANK"] = "0";
  set["OMPI_COMM_WORLD_SIZE"] = "2";
  set["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  set["PMIX_NAMESPACE"] = "1";
  refused(set, {"OMPI_COMM_WORLD_RANK=0", "SLURM_PROCID=1", "Open MPI", "srun", "PARLEY_LAUNCHER to openmpi or slurm"});
  CHECK(read(changed(set, "PARLEY_LAUNCHER", "slurm")).value().rank == 1);
}

TEST_CASE("a numeric RANK without the rest of torchrun's variables is refused instead of giving a world of one") {
  refused({{"RANK", "3"}}, {"WORLD_SIZE is not set", "RANK=3", "PARLEY_LAUNCHER=none"});
  refused({{"RANK", "3"}, {"WORLD_SIZE", "4"}}, {"MASTER_ADDR"});
  refused({{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}}, {"RANK is not set"});
  CHECK(read({{"RANK", "general"}}).value().world_size == 1);
  CHECK(read({{"RANK", "3"}, {"PARLEY_LAUNCHER", "none"}}).value().world_size == 1);
}

TEST_CASE("incomplete variables of srun are refused instead of giving a world of one") {
  refused({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "2"}}, {"SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=2"});
}

TEST_CASE("parley run hides the rank variables of launchers around it") {
  const variables around{
      {"OMPI_COMM_WORLD_RANK", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"RANK", "general"}};
  const auto hidden = [&](const char* name) {
    return tells_place(name, [&](const char* asked) -> std::optional<std::string> {
      const auto found = around.find(asked);
      if (found == around.end()) return std::nullopt;
      return found->second;
    });
  };
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_ID", "PMI_FD"})
    CHECK(hidden(name));
  for (const char* name : {"RANK", "PATH", "PARLEY_RANK", "SLURM_JOB_ID"}) CHECK_FALSE(hidden(name));
}

TEST_CASE("ranks with a loopback rendezvous are on one host, unless their launcher's local size says otherwise") {
  placement p;
  p.world_size = 2;
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) {
    p.rendezvous_host = host;
    CHECK(on_one_host(p));
  }
  for (const char* host : {"192.0.2.2", "node17", "0.0.0.0", "2001:db8::1"}) {
    p.rendezvous_host = host;
    CHECK_FALSE(on_one_host(p));
  }
  p.local_size = 2;
  CHECK(on_one_host(p));
  p.local_size = 1;
  p.rendezvous_host = "127.0.0.1";
  CHECK_FALSE(on_one_host(p));
}
