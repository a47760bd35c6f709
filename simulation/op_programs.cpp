#include <parley/simulation/op_programs.hpp>

#include <parley/ops/contextual.hpp>
#include <parley/ops/halo.hpp>
#include <parley/ops/hierarchical.hpp>
#include <parley/ops/p2p.hpp>
#include <parley/ops/ring_attention.hpp>
#include <parley/ops/schedule.hpp>
#include <parley/ops/training_pipeline.hpp>
#include <parley/ops/tunable_op.hpp>
#include <parley/runtime/dataflow.hpp>
#include <parley/simulation/config_text.hpp>
#include <parley/simulation/job.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace parley::simulation {

using runtime::errc;
using runtime::task;

namespace {

std::vector<ops::config_ptr> configs_of(const op_spec& op, kernel_times& times) {
  std::vector<ops::config_ptr> all;
  for (const std::string& text : op.configs) all.push_back(config_from(text, times));
  return all;
}

// Where a rank is among the members, which are in a ring.
struct ring {
  ring(const std::vector<rank_id>& m, rank_id self) : members(m) {
    place = static_cast<std::size_t>(std::find(members.begin(), members.end(), self) - members.begin());
  }
  rank_id next() const { return members[(place + 1) % members.size()]; }
  rank_id previous() const { return members[(place + members.size() - 1) % members.size()]; }
  std::vector<rank_id> members;
  std::size_t place;
};

class batch_program final : public op_program {
 public:
  batch_program(ops::rank& self, const op_spec& op, kernel_times& times)
      : ring_(op.members, self.id()), registered_(op.registered) {
    ops::point_to_point p;
    p.name = op.name;
    p.configs = configs_of(op, times);
    p.ranks = p.coupled = op.members;
    p.timeout_ns = op.timeout_ns;
    pairs_ = self.declare(p);
    const std::uint64_t largest = *std::max_element(op.sizes.begin(), op.sizes.end());
    for (auto* const buffers : {&out_, &in_}) {
      for (std::uint32_t tag = 0; tag < tags; ++tag) buffers->emplace_back(largest);
    }
  }
  task<> call(program_call c) override {
    now_ = std::move(c);
    for (std::uint32_t tag = 0; tag < tags; ++tag) {
      fill(sent(tag), now_.stream(ring_.members[ring_.place]), number(tag));
      std::fill(in_[tag].begin(), in_[tag].end(), std::byte{});
    }
    return runtime::with_dataflow(exchange, this);
  }
  bool right() const override {
    for (std::uint32_t tag = 0; tag < tags; ++tag) {
      const rank_id from = tag % 2 == 0 ? ring_.previous() : ring_.next();
      const std::span<const std::byte> came = std::span(in_[tag]).first(now_.bytes);
      if (recognise(came, now_.stream(from), number(tag) + 1) != static_cast<std::int64_t>(number(tag))) return false;
    }
    return true;
  }
  bool rejoin() override { return pairs_.rejoin(); }

 private:
  static constexpr std::uint32_t tags = 4;
  std::uint64_t number(std::uint32_t tag) const { return now_.number * tags + tag; }
  std::span<std::byte> sent(std::uint32_t tag) { return std::span(out_[tag]).first(now_.bytes); }
  static task<> exchange(runtime::dataflow& flow, batch_program* self) {
    std::vector<ops::p2p_operation> batch;
    std::vector<actors::registered_memory> handles;
    for (std::uint32_t tag = 0; tag < tags; ++tag) {
      const bool onwards = tag % 2 == 0;
      const rank_id to = onwards ? self->ring_.next() : self->ring_.previous();
      const rank_id from = onwards ? self->ring_.previous() : self->ring_.next();
      const std::span<std::byte> into = std::span(self->in_[tag]).first(self->now_.bytes);
      if (self->registered_) {
        handles.push_back(self->pairs_.registered(self->out_[tag]));
        handles.push_back(self->pairs_.registered(self->in_[tag]));
      }
      batch.push_back(ops::p2p::isend(self->sent(tag), {.to = to, .tag = tag}));
      batch.push_back(ops::p2p::irecv(into, {.from = from, .tag = tag}));
    }
    auto moving = self->pairs_.start(flow, batch);
    co_await moving;
  }
  ring ring_;
  ops::p2p pairs_;
  program_call now_;
  std::vector<std::vector<std::byte>> out_, in_;
  bool registered_;
};

class halo_program final : public op_program {
 public:
  halo_program(ops::rank& self, const op_spec& op, kernel_times& times)
      : ring_(op.members, self.id()), cells_(std::max<std::size_t>(op.sizes.front() / sizeof(std::uint32_t) / 2, 2)),
        fields_(2, std::vector<std::uint32_t>(cells_ + 2 * rim(), nothing)) {
    ops::halo_exchange h;
    h.name = op.name;
    h.ranks = {static_cast<rank_id>(op.members.size())};
    h.periodic = {true};
    h.width = {rim()};
    h.configs = configs_of(op, times);
    h.by_piece_from = 1;
    h.timeout_ns = op.timeout_ns;
    halo_ = self.declare(h);
  }
  task<> call(program_call c) override {
    now_ = std::move(c);
    if (plan_.empty())
      plan_.push_back(halo_.plan({ops::grid_field(fields_[0], {cells_}), ops::grid_field(fields_[1], {cells_})}));
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      std::fill(fields_[f].begin(), fields_[f].end(), nothing);
      for (std::size_t i = 0; i < cells_; ++i) fields_[f][rim() + i] = cell(ring_.members[ring_.place], f, i);
    }
    return runtime::with_dataflow(exchange, this);
  }
  bool right() const override {
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      const auto& field = fields_[f];
      for (std::size_t i = 0; i < rim(); ++i) {
        if (field[i] != cell(ring_.previous(), f, cells_ - rim() + i)) return false;
        if (field[rim() + cells_ + i] != cell(ring_.next(), f, i)) return false;
      }
      for (std::size_t i = 0; i < cells_; ++i) {
        if (field[rim() + i] != cell(ring_.members[ring_.place], f, i)) return false;
      }
    }
    return true;
  }
  bool rejoin() override { return halo_.rejoin(); }
  void rest() override { plan_.clear(); }

 private:
  static constexpr std::uint32_t nothing = 0xffffffff;
  std::size_t rim() const { return cells_ / 2; }
  std::uint32_t cell(rank_id r, std::size_t field, std::size_t i) const {
    return static_cast<std::uint32_t>(runtime::mix(now_.stream(r) + now_.number * 0x10001 + field * 0x1000003 + i) >>
                                      33U);
  }
  static task<> exchange(runtime::dataflow& flow, halo_program* self) {
    auto moving = self->plan_.front().start(flow);
    co_await moving;
  }
  ring ring_;
  std::size_t cells_;
  std::vector<std::vector<std::uint32_t>> fields_;  // their rims may go by the piece
  ops::halo halo_;
  std::vector<ops::halo_plan> plan_;  // one, which has registered its buffers
  program_call now_;
};

class attention_program final : public op_program {
 public:
  attention_program(ops::rank& self, const op_spec& op, kernel_times& times) : ring_(op.members, self.id()) {
    ops::ring_attention a;
    a.name = op.name;
    a.ranks = op.members;
    a.configs = configs_of(op, times);
    a.timeout_ns = op.timeout_ns;
    attention_ = self.declare(a);
    shape_.rows = 8;
    shape_.dimensions = std::max<std::uint64_t>(op.sizes.front() / (shape_.rows * sizeof(float)), 2);
    shape_.block_ns = 5'000;
    for (auto* const t : {&q_, &k_, &v_, &out_}) t->resize(shape_.elements());
  }
  task<> call(program_call c) override {
    now_ = std::move(c);
    const rank_id self = ring_.members[ring_.place];
    for (std::uint64_t i = 0; i < shape_.elements(); ++i) {
      q_[i] = number(self, 0, i);
      k_[i] = number(self, 1, i);
      v_[i] = number(self, 2, i);
    }
    std::fill(out_.begin(), out_.end(), -77.0F);
    return attention_.forward<float>(shape_, q_, k_, v_, out_);
  }
  bool right() const override {
    const std::uint64_t d = shape_.dimensions;
    for (std::uint64_t row = 0; row < shape_.rows; ++row) {
      std::vector<double> sum(d);
      double total = 0;
      for (const rank_id from : ring_.members) {
        for (std::uint64_t j = 0; j < shape_.rows; ++j) {
          double score = 0;
          for (std::uint64_t i = 0; i < d; ++i) score += double{q_[row * d + i]} * double{number(from, 1, j * d + i)};
          const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
          total += weight;
          for (std::uint64_t i = 0; i < d; ++i) sum[i] += weight * double{number(from, 2, j * d + i)};
        }
      }
      for (std::uint64_t i = 0; i < d; ++i) {
        if (!(std::abs(double{out_[row * d + i]} - sum[i] / total) < 1e-5)) return false;
      }
    }
    return true;
  }
  bool rejoin() override { return attention_.rejoin(); }

 private:
  float number(rank_id r, std::uint64_t what, std::uint64_t i) const {
    const std::uint64_t drawn = runtime::mix(now_.stream(r) + now_.number * 0x30003 + what * 0x10001 + i) >> 56U;
    return (static_cast<float>(drawn) - 128) / 256;
  }
  ring ring_;
  ops::attention attention_;
  ops::attention_shape shape_;
  program_call now_;
  std::vector<float> q_, k_, v_, out_;
};

class training_program final : public op_program, private ops::pipeline_stages {
 public:
  training_program(ops::rank& self, const op_spec& op, kernel_times& times)
      : times_(times), self_(self), ranks_(static_cast<std::uint32_t>(op.members.size())), bytes_(op.sizes.front()) {
    ops::training_pipeline t;
    t.name = op.name;
    t.schedule = ops::one_forward_one_backward(ranks_, 2 * ranks_);
    t.ranks = op.members;
    t.configs = configs_of(op, times);
    t.timeout_ns = op.timeout_ns;
    training_ = self.declare(t);
  }
  task<> call(program_call c) override {
    now_ = std::move(c);
    wrong_ = computed_ = 0;
    return run(training_, this);
  }
  bool right() const override { return wrong_ == 0 && computed_ == 4 * ranks_; }
  bool rejoin() override { return training_.rejoin(); }

 private:
  static task<> run(ops::training t, training_program* self) {
    auto report = co_await t.run(*self);
    static_cast<void>(report);
  }
  std::uint64_t activation_bytes(std::uint32_t) const override { return bytes_; }
  time_ns modelled_ns(const ops::pipeline_action&) const override { return times_.draw(5'000, self_.where().now()); }
  // What stage `stage` gives forward, or, behind the last one and back, backward: each adds one.
  std::byte due(std::uint32_t microbatch, std::uint64_t stages_passed, std::size_t i) const {
    return static_cast<std::byte>(now_.number * 31 + microbatch * 7 + stages_passed + i);
  }
  void check(std::span<const std::byte> came, std::uint32_t microbatch, std::uint64_t stages_passed) {
    for (std::size_t i = 0; i < came.size(); ++i) wrong_ += came[i] == due(microbatch, stages_passed, i) ? 0 : 1;
  }
  void give(std::span<std::byte> out, std::uint32_t microbatch, std::uint64_t stages_passed) const {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = due(microbatch, stages_passed, i);
  }
  void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in,
               std::span<std::byte> out) override {
    ++computed_;
    check(in, microbatch, stage);
    give(out, microbatch, stage + 1);
  }
  void backward(std::uint32_t stage, std::uint32_t microbatch, const ops::pipeline_memory& m) override {
    ++computed_;
    const std::uint64_t passed = 2 * std::uint64_t{ranks_} - stage;
    check(m.in, microbatch, stage);
    check(m.gradient_out, microbatch, passed - 1);
    give(m.gradient_in, microbatch, passed);
  }
  kernel_times& times_;
  ops::rank& self_;
  std::uint32_t ranks_;
  std::uint64_t bytes_;
  ops::training training_;
  program_call now_;
  std::size_t wrong_ = 0;
  std::size_t computed_ = 0;
};

class hierarchy_program final : public op_program {
 public:
  hierarchy_program(ops::rank& self, const op_spec& op, kernel_times& times) : members_(op.members), self_(self.id()) {
    ops::hierarchical h;
    h.name = op.name;
    h.leads = [](rank_id r) { return r % 2 == 0; };
    h.inside.clear();
    for (const std::string& text : op.configs) h.inside.push_back(group_config_from(text, times));
    h.depth = op.depth;
    h.timeout_ns = op.timeout_ns;
    all_ = self.declare(h);
  }
  task<> call(program_call c) override {
    now_ = std::move(c);
    data_.resize(std::max<std::size_t>(now_.bytes / sizeof(std::uint32_t), 1));
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = word(self_, i);
    return all_.all_reduce(std::span(data_));
  }
  bool right() const override {
    for (std::size_t i = 0; i < data_.size(); ++i) {
      std::uint32_t sum = 0;
      for (const rank_id r : members_) sum += word(r, i);
      if (data_[i] != sum) return false;
    }
    return true;
  }
  bool rejoin() override { return all_.rejoin(); }

 private:
  std::uint32_t word(rank_id r, std::size_t i) const {
    return static_cast<std::uint32_t>(runtime::mix(now_.stream(r) + now_.number * 0x10001 + i));
  }
  std::vector<rank_id> members_;
  rank_id self_;
  ops::hierarchy all_;
  program_call now_;
  std::vector<std::uint32_t> data_;
};

class contextual_program final : public op_program {
 public:
  using kernel = ops::tunable_op<task<>(int)>;
  contextual_program(ops::rank& self, const op_spec& op, kernel_times& times)
      : layer_(
            self,
            {.name = op.name, .members = op.members, .iterations = 2, .log_folder = "", .timeout_ns = op.timeout_ns}) {
    for (const char* const which : {"-first", "-second"}) {
      kernel::options o;
      o.name = op.name + which;
      for (const std::string& text : op.configs) {
        const words w(text);
        const implementation i{{times, static_cast<time_ns>(w.number(2, 0)), 0},
                               w.text(0) == "failing" && w.number(3, 0) == self.id(),
                               w.number(4, 0),
                               this};
        o.implementations.push_back({w.text(1), [i, ran = std::uint64_t{0}](int) mutable { return run(i, ran++); }});
      }
      kernels_.push_back(std::make_unique<kernel>(self.kernels(), std::move(o)));
    }
  }
  task<> call(program_call) override {
    ran_ = 0;
    return layer_.run([this] { return both(this); });
  }
  bool right() const override { return ran_ != 0; }
  bool rejoin() override { return layer_.rejoin(); }

 private:
  struct implementation {
    timing takes;
    bool fails;
    std::uint64_t after;
    contextual_program* of;
  };
  static task<> run(implementation i, std::uint64_t before) {
    if (i.fails && before >= i.after) runtime::raise({errc::config_failed, "a simulated fault of a kernel"});
    co_await i.takes.pass(0);
    ++i.of->ran_;
  }
  static task<> both(contextual_program* self) {
    for (const auto& k : self->kernels_) co_await (*k)(8);
  }
  ops::contextual layer_;
  std::vector<std::unique_ptr<kernel>> kernels_;
  std::uint64_t ran_ = 0;
};

}  // namespace

bool is_of(std::string_view part, std::string_view op) noexcept {
  return part.starts_with(op) && (part.size() == op.size() || part[op.size()] == '/');
}

bool is_program(op_spec::kind k) noexcept { return k >= op_spec::kind::batch; }

bool goes_on_after_failures(op_spec::kind k) noexcept {
  return k == op_spec::kind::batch || k == op_spec::kind::hierarchy || k == op_spec::kind::contextual;
}

bool is_beside(const op_spec& op, std::uint64_t invocations) noexcept {
  constexpr std::uint64_t few = 3;
  return is_program(op.what) && invocations <= few;
}

std::shared_ptr<op_program> make_program(ops::rank& self, const op_spec& op, kernel_times& times) {
  switch (op.what) {
    case op_spec::kind::batch: return std::make_shared<batch_program>(self, op, times);
    case op_spec::kind::halo: return std::make_shared<halo_program>(self, op, times);
    case op_spec::kind::attention: return std::make_shared<attention_program>(self, op, times);
    case op_spec::kind::training: return std::make_shared<training_program>(self, op, times);
    case op_spec::kind::hierarchy: return std::make_shared<hierarchy_program>(self, op, times);
    case op_spec::kind::contextual: return std::make_shared<contextual_program>(self, op, times);
    default: runtime::raise({errc::bad_argument, "op " + op.name + " is not made of others"});
  }
}

}  // namespace parley::simulation
