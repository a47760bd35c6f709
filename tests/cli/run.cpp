// What `parley run` does besides starting ranks: time limits, processors, output, hosts by ssh, and errors for misspelt options.
#include <parley/tests/cli/command_folder.hpp>
#include <parley/tests/support/deadline.hpp>

#include <parley/cli/hosts.hpp>
#include <parley/cli/json_text.hpp>
#include <parley/cli/suggestion.hpp>

#include <doctest/doctest.h>

#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

namespace {

namespace fs = std::filesystem;
namespace cli = parley::cli;
using folder = parley::tests::command_folder;
using parley::tests::has;

/// A stand-in for ssh that runs each host on this machine. The command has a session of its own, so that it survives when ssh is killed, as
/// it would on another machine.
void write_ssh(const folder& here) {
  here.write("ssh", "#!/bin/sh\necho \"$1\" >> asked\nshift\nexec setsid -w sh -c \"$*\"\n");
  fs::permissions(here.path / "ssh", fs::perms::owner_all);
}

std::string wrong_in_hosts(std::string_view text) {
  const folder here;
  here.write("hosts", text);
  try {
    static_cast<void>(cli::read_hosts((here.path / "hosts").string()));
  } catch (const cli::text_error& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a job that exceeds its time limit is ended and has its own exit status") {
  const folder here;
  const auto late = here.parley("run -n 2 --time-limit 0.2 -- sleep 60");
  CHECK(late.status == 124);
  has(late.error, "the job did not end within 200 ms; ranks 0, 1 are ended");
  CHECK(here.parley("run -n 2 --time-limit 600 -- true").status == 0);
  CHECK(here.parley("run -n 2 --time-limit 600 -- sh -c 'exit 5'").status == 5);
  for (const char* wrong : {"0", "-1", "soon", "1e10"})
    CHECK(here.parley(std::string("run -n 1 --time-limit ") + wrong + " -- true").status == 2);
}

TEST_CASE("if the output of ranks cannot be written, parley run says so and returns status 1") {
  const folder here;
  const auto into = [&](const std::string& where, const std::string& script) {
    const int status = std::system(("cd '" + here.path.string() + "' && ('" PARLEY_COMMAND "' run -n 2 -- sh -c '" +
                                    script + "' 2>told; echo $? >status) " + where)
                                       .c_str());
    CHECK(WEXITSTATUS(status) == 0);
    return here.read("status");
  };
  CHECK(into(">/dev/full", "echo hello >> seen; echo hello") == "1\n");
  has(here.read("told"), "output of ranks could not be written, and is lost: No space left on device");
  CHECK(here.read("seen") == "hello\nhello\n");
  CHECK(into(">/dev/full", "echo hello; exit 7") == "7\n");
  fs::create_directory(here.path / "kept");
  fs::create_symlink("/dev/full", here.path / "kept" / "rank-0.out");
  const auto folder_full = here.parley("run -n 2 --output kept -- sh -c 'echo hello; echo hello >> seen'");
  CHECK(folder_full.status == 1);
  has(folder_full.error, "rank-0.out could not be written: No space left on device; output of ranks is lost");
  CHECK(here.read("seen") == "hello\nhello\nhello\nhello\n");
  CHECK(here.read("kept/rank-1.out") == "hello\n");
}

TEST_CASE("with --output, the output of each rank is written to its own files and nothing is printed") {
  const folder here;
  const auto ran =
      here.parley("run -n 2 --output kept/logs -- sh -c 'echo I am $PARLEY_RANK; echo oh >&2; printf last'");
  CHECK(ran.status == 0);
  CHECK(ran.out.empty());
  CHECK(ran.error.empty());
  CHECK(here.read("kept/logs/rank-0.out") == "I am 0\nlast\n");
  CHECK(here.read("kept/logs/rank-1.out") == "I am 1\nlast\n");
  CHECK(here.read("kept/logs/rank-1.err") == "oh\n");
  here.write("kept/logs/rank-notes.txt", "mine");
  CHECK(here.parley("run -n 1 --output kept/logs -- echo next").status == 0);
  CHECK(here.read("kept/logs/rank-0.out") == "next\n");
  CHECK(here.read("kept/logs/rank-notes.txt") == "mine");
  CHECK_FALSE(std::filesystem::exists(here.path / "kept/logs/rank-1.out"));
  CHECK_FALSE(std::filesystem::exists(here.path / "kept/logs/rank-1.err"));
  here.write("file", "");
  const auto nowhere = here.parley("run -n 1 -o file/logs -- true");
  CHECK(nowhere.status == 2);
  has(nowhere.error, "file/logs");
  // Messages of the launcher itself go to its own standard error.
  has(here.parley("run -n 1 -o kept -- sh -c 'exit 3'").error, "rank 0 exited with status 3");
}

TEST_CASE("parley run binds ranks to equal shares of the processors, or says that there are too few processors") {
  const folder here;
  const auto one = here.parley("run -n 1 --bind --no-prefix -- nproc");
  CHECK(one.status == 0);
  CHECK(one.out == here.parley("run -n 1 --no-prefix -- nproc").out);
  const auto many = here.parley("run -n 256 --bind -- true");
  if (std::thread::hardware_concurrency() < 256) {
    CHECK(many.status == 2);
    has(many.error, "cannot give each of 256 ranks processors of its own");
  }
  if (std::thread::hardware_concurrency() < 2) return;
  const auto apart = here.parley("run -n 2 --bind -o own -- sh -c 'taskset -cp $$'");
  CHECK(apart.status == 0);
  const auto list = [&](const char* file) {
    const std::string text = here.read(file);
    return text.substr(text.rfind(' ') + 1);
  };
  CHECK(list("own/rank-0.out") != list("own/rank-1.out"));
  CHECK_FALSE(list("own/rank-1.out").empty());
}

TEST_CASE("parley run starts the ranks by ssh on the hosts of a file, with one key and their places in the job") {
  const folder here;
  write_ssh(here);
  here.write("hosts", "# two of them\nnode1 slots=2\nnode2:3   # and more\n");
  const std::string words = "run -n 4 --hostfile hosts --ssh ./ssh --rendezvous node1:4711 ";
  const auto ran =
      here.parley(words + "-- sh -c 'echo $PARLEY_RANK of $PARLEY_WORLD, $PARLEY_LOCAL_RANK of $PARLEY_LOCAL_SIZE, "
                          "at $PARLEY_RENDEZVOUS with \"$PARLEY_RESULTS\"'",
                  "PARLEY_RESULTS='it is \"mine\"'");
  CHECK(ran.status == 0);
  CHECK(ran.error.empty());
  for (const char* line :
       {"[rank 0] 0 of 4, 0 of 2", "[rank 1] 1 of 4, 1 of 2", "[rank 2] 2 of 4, 0 of 2", "[rank 3] 3 of 4, 1 of 2"})
    has(ran.out, std::string(line) + ", at node1:4711 with it is \"mine\"\n");
  has(here.read("asked"), "node1\n");
  has(here.read("asked"), "node2\n");
  const auto keys = here.parley(words + "-o keys -- sh -c 'od -An -tx1 /proc/self/fd/$PARLEY_KEY_FD'");
  CHECK(keys.status == 0);
  CHECK(here.read("keys/rank-0.out").size() > 64);
  CHECK(here.read("keys/rank-0.out") == here.read("keys/rank-3.out"));
}

TEST_CASE("the first failure on any host is the status of the job, and the ranks on the other hosts are ended") {
  const folder here;
  write_ssh(here);
  here.write("hosts", "a\nb\n");
  const auto ran = here.parley(
      "run -n 2 --hostfile hosts --ssh ./ssh -- sh -c '[ $PARLEY_RANK = 1 ] && exit 7; echo $$ > pid; exec sleep 60'");
  CHECK(ran.status == 7);
  has(ran.error, "rank 1 exited with status 7");
  has(ran.error, "host 1 exited with status 7");
  // The launcher on a host ends its ranks once its connection is gone, even if the ssh process was killed.
  const auto late = here.parley(
      "run -n 2 --hostfile hosts --ssh ./ssh --time-limit 0.5 -- sh -c 'echo $$ > late-$PARLEY_RANK; exec sleep 60'");
  CHECK(late.status == 124);
  for (const char* file : {"pid", "late-0", "late-1"}) {
    const std::string said = here.read(file);
    if (said.empty()) continue;  // it was ended before it wrote its pid
    const pid_t pid = std::stoi(said);
    for (const parley::tests::deadline limit; ::kill(pid, 0) == 0 && !limit.is_over();)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK_MESSAGE(::kill(pid, 0) != 0, file);
  }
}

TEST_CASE("parley run refuses ranks that do not fit on the hosts, and lines that name no host") {
  const folder here;
  here.write("hosts", "a slots=1\nb\n");
  const auto refused = [&](const std::string& words, std::string_view why) {
    const auto ran = here.parley("run " + words + " -- true");
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    has(ran.error, why);
  };
  refused("-n 3 --hostfile hosts", "3 ranks do not divide among 2 hosts");
  refused("-n 4 --hostfile hosts", "host a takes 1 ranks, and 2 would go there");
  refused("-n 2 --hostfile none", "none: it cannot be read");
  refused("-n 2 --hostfile hosts --restarts 1", "--restarts");
  refused("-n 2 --ssh ./ssh", "--hostfile");
  refused("-n 2 --rendezvous a:1", "--rendezvous is for a job on several hosts");
  has(wrong_in_hosts(""), "hosts:1:1: no host is listed");
  has(wrong_in_hosts("a\n\na\n"), "hosts:3:1: host a is listed twice");
  has(wrong_in_hosts("a slots=0\n"), "hosts:1:1: `0` is not a number of ranks");
  has(wrong_in_hosts("a:\n"), "hosts:1:1: `` is not a number of ranks");
  has(wrong_in_hosts("a max_slots=4\n"), "unknown word `max_slots=4`");
  has(wrong_in_hosts("a slots=1 b\n"), "unknown word `b`");
  has(wrong_in_hosts("-oProxyCommand=x\n"), "`-oProxyCommand=x` is not a host name");
  CHECK(cli::as_one_word("it's $HOME") == "'it'\\''s $HOME'");
}

TEST_CASE("parley suggests the existing word that is most like a misspelt one") {
  CHECK(cli::suggestion("tnue", {"run", "tune"}) == "; did you mean `tune`?");
  CHECK(cli::suggestion("frobnicate", {"run", "tune"}).empty());
  CHECK(cli::suggestion("", {"run"}).empty());
  CHECK(cli::distance("kitten", "sitting") == 3);
  CHECK(cli::distance("ab", "ba") == 1);
  const folder here;
  const auto says = [&](const std::string& words, std::string_view text) {
    const auto ran = here.parley(words);
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    has(ran.error, text);
  };
  says("rnu -n 2 true", "there is no command rnu; did you mean `run`?");
  says("run --hots 2 -- true", "`--hots` is not an option of `parley run`; did you mean `--hosts`?");
  says("run -n 2 --restrats 1 -- true", "did you mean `--restarts`?");
  says("tune x.json --microbaches 3",
       "`--microbaches` is not an option of `parley tune`; did you mean `--microbatches`?");
  says("results merge a.csv --outptu b.csv", "did you mean `--output`?");
  says("results list a.csv", "there is no command `parley results list`; did you mean `show`?");
  says("results chekc a.csv", "did you mean `check`?");
  says("results frobnicate a.csv", "the commands are show, check, merge, diff, explain and model");
  says("doctor --jsno", "did you mean `--json`?");
}
