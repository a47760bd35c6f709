#include <parley/runtime/invariant.hpp>

#include <parley/error.hpp>

#include <cstdio>
#include <exception>
#include <utility>

namespace parley::runtime {

namespace {
// Each thread has its own counts and its own watch, so that no locks are needed.
thread_local breach_counts counts;
thread_local breach_watch* watching = nullptr;
}  // namespace

const breach_counts& breaches() noexcept { return counts; }

std::string breach::sentence() const {
  char place[64];
  std::snprintf(place, sizeof place, "op %016llx, on rank %u", static_cast<unsigned long long>(where.op), where.rank);
  std::string s = "invariant " + std::string(name) + " broken, " + place;
  if (culprit) s += ", by rank " + std::to_string(*culprit);
  return s + ": " + std::string(text);
}

breach_watch::breach_watch(std::function<void(const breach&)> tell)
    : tell_(std::move(tell)), outer_(std::exchange(watching, this)) {}

breach_watch::~breach_watch() { watching = outer_; }

void report(const breach& b) noexcept {
  ++(b.culprit ? counts.peers : counts.own);
  if (watching != nullptr) {
    watching->tell_(b);
  } else if (!b.culprit) {
    std::fprintf(stderr, "parley: %s; this is a fault of parley, please report it\n", b.sentence().c_str());
  }
}

void broken(const breach& b) {
  report(b);
  raise({errc::invariant_broken, b.sentence() + "; this is a fault of parley, please report it"});
}

bool holds(bool condition, const breach& b) noexcept {
  if (!condition) report(b);
  return condition;
}

void blame(breach b, rank_id culprit) noexcept {
  b.culprit = culprit;
  report(b);
}

}  // namespace parley::runtime
