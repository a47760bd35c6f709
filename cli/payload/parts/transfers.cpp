// Pipelines and transfers, whose payloads may lie on a device.
#include <parley/cli/payload/parts/part.hpp>
#include <parley/cli/payload/payload.hpp>
#include <parley/news.hpp>
#include <parley/pipeline.hpp>
#include <parley/scope.hpp>
#include <parley/transfer.hpp>

#include <span>

namespace parley::cli {

using runtime::task;

namespace {

class pipeline_part final : public part, private ops::pipeline_work {
 public:
  pipeline_part(const part_terms& t, ops::pipeline pipe) : part(t.op, t.engine, t.on_step), pipe_(std::move(pipe)) {
    if (pipe_.last()) output_from(0);
  }
  task<> run() override { co_await pipe_.run(op_.sizes, *this); }

 private:
  task<> work(std::uint64_t microbatch, std::span<std::byte> activation) override {
    const payload_step step{
        .number = microbatch, .makes = pipe_.first(), .factor = factor_of_stage(pipe_.stage()), .hashes = pipe_.last()};
    const std::uint64_t digest = co_await engine_.run(step, activation);
    if (step.hashes) came_out_.front().digests.push_back(digest);
  }
  void on_done(std::uint64_t) override { step_(); }

  ops::pipeline pipe_;
};

class sender_part final : public part {
 public:
  sender_part(const part_terms& t, ops::transfer moved, rank_id to)
      : part(t.op, t.engine, t.on_step), transfer_(std::move(moved)), to_(to) {}
  task<> run() override {
    const auto block = buffer();
    const auto memory = transfer_.registered(block->bytes());
    for (std::size_t i = 0; i < op_.sizes.size(); ++i) {
      const std::span<std::byte> message = block->bytes().first(op_.sizes[i]);
      co_await make(i, message);
      co_await transfer_.send(message, {.to = to_});
      step_();
    }
  }

 private:
  ops::transfer transfer_;
  rank_id to_;
};

class receiver_part final : public part {
 public:
  receiver_part(const part_terms& t, ops::transfer moved, rank_id from)
      : part(t.op, t.engine, t.on_step), transfer_(std::move(moved)), from_(from) {
    output_from(from);
  }
  // Two receives take turns, so that the next one is posted before its message is sent: a config that writes into the buffer needs its
  // credit by then.
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
    std::vector<std::uint64_t>& digests = came_out_.front().digests;
    for (std::size_t i = first; i < op_.sizes.size(); i += at_once) {
      const std::uint64_t got = co_await transfer_.receive(block->bytes(), {.from = from_});
      while (digests.size() < i) {  // hashes in order, so that the later receives are also in order
        auto hashed = co_await hashed_.next(runtime::never);
        hashed.value();
      }
      const std::uint64_t seen = co_await digest(i, block->bytes().first(got));
      digests.push_back(seen);
      hashed_.tell();
      step_();
    }
  }

  ops::transfer transfer_;
  rank_id from_;
  runtime::news hashed_;
};

}  // namespace

part_list pipeline_parts(const part_terms& t) {
  ops::pipeline_options declared{.name = t.op.name,
                                 .stages = t.op.stages,
                                 .configs = t.op.configs,
                                 .memory = t.engine.memory(),
                                 .dtype = t.op.dtype};
  part_list parts;
  const ops::pipeline pipe(t.self, std::move(declared));
  if (!pipe.idle()) parts.push_back(std::make_unique<pipeline_part>(t, pipe));
  return parts;
}

part_list transfer_parts(const part_terms& t) {
  const ops::transfer moved(t.self, {.name = t.op.name,
                                     .role = {},
                                     .edges = t.op.edges,
                                     .configs = t.op.configs,
                                     .memory = t.engine.memory(),
                                     .dtype = t.op.dtype});
  part_list parts;
  for (const auto& [from, to] : t.op.edges) {
    if (from == t.self.id()) parts.push_back(std::make_unique<sender_part>(t, moved, to));
    if (to == t.self.id()) parts.push_back(std::make_unique<receiver_part>(t, moved, from));
  }
  return parts;
}

}  // namespace parley::cli
