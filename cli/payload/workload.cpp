#include <parley/cli/payload/workload.hpp>

#include <parley/cli/payload/payload.hpp>
#include <parley/news.hpp>
#include <parley/pipeline.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace parley::cli {

using runtime::task;

/// This rank's part of one op.
class workload::part {
 public:
  explicit part(workload& owner, const op_spec& op) : owner_(owner), op_(op) {}
  virtual ~part() = default;
  part(const part&) = delete;
  part& operator=(const part&) = delete;
  virtual task<> run() = 0;
  virtual std::uint64_t steps() const { return op_.sizes.size(); }

  outputs came_out;

 protected:
  std::unique_ptr<runtime::memory_space::block> buffer() const {
    runtime::memory_space* const there = engine().memory();
    return (there == nullptr ? runtime::host_memory() : *there)
        .make(*std::max_element(op_.sizes.begin(), op_.sizes.end()));
  }
  payload_engine& engine() const { return *owner_.options_.engine; }
  workload& owner_;
  const op_spec& op_;
};

class workload::pipeline_part final : public part, private ops::pipeline_work {
 public:
  pipeline_part(workload& owner, const op_spec& op, ops::pipeline pipe) : part(owner, op), pipe_(std::move(pipe)) {
    came_out.op = op.name;
    came_out.stages = pipe_.stages();
  }
  task<> run() override { co_await pipe_.run(op_.sizes, *this); }

 private:
  task<> work(std::uint64_t microbatch, std::span<std::byte> activation) override {
    const payload_step step{
        .number = microbatch, .makes = pipe_.first(), .factor = factor_of_stage(pipe_.stage()), .hashes = pipe_.last()};
    const std::uint64_t digest = co_await engine().run(step, activation);
    if (step.hashes) came_out.digests.push_back(digest);
  }
  void on_done(std::uint64_t) override { owner_.step(); }

  ops::pipeline pipe_;
};

class workload::sender_part final : public part {
 public:
  sender_part(workload& owner, const op_spec& op, ops::transfer t, rank_id to)
      : part(owner, op), transfer_(std::move(t)), to_(to) {}
  task<> run() override {
    const auto block = buffer();
    const auto memory = transfer_.registered(block->bytes());
    for (std::size_t i = 0; i < op_.sizes.size(); ++i) {
      const std::span<std::byte> message = block->bytes().first(op_.sizes[i]);
      const payload_step make{.number = i, .makes = true};
      co_await engine().run(make, message);
      co_await transfer_.send(message, {.to = to_});
      owner_.step();
    }
  }

 private:
  ops::transfer transfer_;
  rank_id to_;
};

class workload::receiver_part final : public part {
 public:
  receiver_part(workload& owner, const op_spec& op, ops::transfer t, rank_id from)
      : part(owner, op), transfer_(std::move(t)), from_(from) {
    came_out.op = op.name;
    came_out.sender = from;
  }
  // Two receives take turns, so that the next one is posted before its message is sent: a put into a buffer needs the credit by then.
  task<> run() override {
    runtime::scope& here = co_await runtime::this_scope;
    runtime::scope both(here);
    for (std::size_t first = 0; first < at_once; ++first) both.spawn(receive_in_turn(first));
    co_await both.join();
  }

 private:
  static constexpr std::size_t at_once = 2;
  task<> receive_in_turn(std::size_t first) {
    const auto block = buffer();
    const auto memory = transfer_.registered(block->bytes());
    for (std::size_t i = first; i < op_.sizes.size(); i += at_once) {
      const std::uint64_t got = co_await transfer_.receive(block->bytes(), {.from = from_});
      while (came_out.digests.size() < i) {  // digests are kept in order, and so are the later receives
        auto hashed = co_await hashed_.next(runtime::never);
        hashed.value();
      }
      const payload_step hash{.number = i, .hashes = true};
      const std::uint64_t seen = co_await engine().run(hash, block->bytes().first(got));
      came_out.digests.push_back(seen);
      hashed_.tell();
      owner_.step();
    }
  }

  ops::transfer transfer_;
  rank_id from_;
  runtime::news hashed_;
};

workload::workload(const spec& job, ops::rank& self, workload_options o) : options_(std::move(o)) {
  if (options_.engine == nullptr) options_.engine = std::make_shared<host_engine>();
  runtime::memory_space* const memory = options_.engine->memory();
  for (const op_spec& op : job.ops) {
    if (op.kind == op_kind::pipeline) {
      ops::pipeline_options declared{
          .name = op.name, .stages = op.stages, .configs = op.configs, .memory = memory, .dtype = op.dtype};
      const ops::pipeline pipe(self, std::move(declared));
      if (!pipe.idle()) parts_.push_back(std::make_unique<pipeline_part>(*this, op, pipe));
      continue;
    }
    ops::transfer_options declared{
        .name = op.name, .role = {}, .edges = op.edges, .configs = op.configs, .memory = memory, .dtype = op.dtype};
    const ops::transfer moved(self, declared);
    for (const auto& [from, to] : op.edges) {
      if (from == self.id()) parts_.push_back(std::make_unique<sender_part>(*this, op, moved, to));
      if (to == self.id()) parts_.push_back(std::make_unique<receiver_part>(*this, op, moved, from));
    }
  }
  for (const auto& p : parts_) all_ += p->steps();
}

workload::~workload() = default;

task<> workload::run() {
  runtime::scope& here = co_await runtime::this_scope;
  runtime::scope working(here);
  struct while_it_lives {
    runtime::scope*& at;
    ~while_it_lives() { at = nullptr; }
  } guard{working_};
  working_ = &working;
  for (const auto& p : parts_) working.spawn(p->run());
  co_await working.join();
}

void workload::stop() noexcept {
  if (working_ != nullptr) working_->cancel();
}

std::vector<outputs> workload::collected() const {
  std::vector<outputs> all;
  for (const auto& p : parts_) {
    if (!p->came_out.digests.empty()) all.push_back(p->came_out);
  }
  return all;
}

void workload::step() {
  ++done_;
  if (options_.on_step) options_.on_step();
}

}  // namespace parley::cli
