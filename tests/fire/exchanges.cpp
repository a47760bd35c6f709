#include <parley/tests/fire/exchanges.hpp>

#include <parley/tests/fire/ranks.hpp>
#include <parley/tests/support/cases/op_cases.hpp>

#include <algorithm>
#include <cstdlib>
#include <exception>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::op_cases;

namespace fire {
namespace {

/// Calls until a call fails, or PARLEY_TEST_CALLS times if it is set.
class caller {
 public:
  caller(rank& self, op_case& op) : self_(self), op_(op) {
    own_steps() = [this](const std::string& step) { return reached(step); };
  }
  caller(const caller&) = delete;
  caller& operator=(const caller&) = delete;
  ~caller() { own_steps() = nullptr; }

  task<> run() {
    const rank_id me = self_.id();
    std::exception_ptr thrown;
    try {
      for (; calls_ != most_; ++calls_) {
        before_ = self_.flight().total();
        co_await op_.call(me);
        if (!op_.right(me)) say("a call brought something wrong");
        // Settling keeps a stage from running far ahead of the stages after it: those have good calls behind them when a fault strikes.
        if (calls_ % most_ahead == 0) co_await self_.settle({});
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    if (!op_.at[me].clean() || !op_.of_op[me].clean()) say("memory beside was written");
    if (thrown) std::rethrow_exception(thrown);
    say("fine on rank " + std::to_string(me));
  }

 private:
  static int most_calls() {
    const char* const told = std::getenv("PARLEY_TEST_CALLS");
    return told == nullptr ? -1 : std::atoi(told);
  }
  static constexpr int most_ahead = 4;
  bool reached(const std::string& step) const {
    constexpr int well = 20;
    if (calls_ < well || (step != "begun" && step != "midst")) return false;
    const flight_recorder& flight = self_.flight();
    constexpr unsigned rehearsal = 4;
    const auto came = [](const flight_record& r) {
      return r.what == flight_event::received && (r.flags & rehearsal) == 0;
    };
    const bool some_came = flight.find_latest(came, flight.total() - before_) != nullptr;
    return (some_came || op_.shows_part(self_.id())) == (step == "midst");
  }

  rank& self_;
  op_case& op_;
  const int most_ = most_calls();
  int calls_ = 0;
  std::uint64_t before_ = 0;  // total of flight records when the call began
};

template <class Op>
void call_on(job& here) {
  rank& self = here.self();
  Op op(self);
  op.declare(self.id());
  caller program(self, op);
  run(here.loop(), program.run());
}

}  // namespace

void batches(job& here) { call_on<parley::tests::op_cases::batches>(here); }
void one_group(job& here) { call_on<parley::tests::op_cases::one_group>(here); }
void stages(job& here) { call_on<parley::tests::op_cases::stages>(here); }
void rims(job& here) { call_on<parley::tests::op_cases::rims>(here); }
void attention(job& here) { call_on<turning>(here); }
void two_levels(job& here) { call_on<parley::tests::op_cases::two_levels>(here); }
void training(job& here) { call_on<passes>(here); }

}  // namespace fire
