// Makes one call that a simulation must not make: `asks WORD` must end in an abort that names the call, and `asks nothing` must succeed.
#include <sys/random.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <random>
#include <string>

extern "C" int RAND_bytes(unsigned char* room, int bytes);  // NOLINT(readability-identifier-naming): OpenSSL names it

int main(int, char** argv) {
  char room[8] = {};
  unsigned seed = 1;
  timespec at{};
  timeval then{};
  volatile long long sink = 0;
  const std::map<std::string, std::function<void()>> ways{
      {"nothing", [] {}},
      {"clock_gettime", [&] { sink = ::clock_gettime(CLOCK_MONOTONIC, &at); }},
      {"gettimeofday", [&] { sink = ::gettimeofday(&then, nullptr); }},
      {"timespec_get", [&] { sink = std::timespec_get(&at, TIME_UTC); }},
      {"time", [&] { sink = std::time(nullptr); }},
      {"clock", [&] { sink = std::clock(); }},
      {"getrandom", [&] { sink = ::getrandom(room, sizeof room, 0); }},
      {"getentropy", [&] { sink = ::getentropy(room, sizeof room); }},
      {"rand", [&] { sink = std::rand(); }},
      {"rand_r", [&] { sink = ::rand_r(&seed); }},
      {"random", [&] { sink = ::random(); }},
      {"drand48", [&] { sink = static_cast<long long>(::drand48()); }},
      {"RAND_bytes", [&] { sink = RAND_bytes(reinterpret_cast<unsigned char*>(room), sizeof room); }},
      {"steady_clock", [&] { sink = std::chrono::steady_clock::now().time_since_epoch().count(); }},
      {"system_clock", [&] { sink = std::chrono::system_clock::now().time_since_epoch().count(); }},
      {"random_device", [&] { sink = std::random_device()(); }},
  };
  ways.at(argv[1])();
  return static_cast<int>(sink * 0);
}
