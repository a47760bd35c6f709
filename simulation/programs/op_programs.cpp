#include <parley/simulation/programs/op_programs.hpp>

#include <parley/config.hpp>
#include <parley/contextual.hpp>
#include <parley/dataflow.hpp>
#include <parley/group_config.hpp>
#include <parley/halo.hpp>
#include <parley/hierarchy.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/p2p.hpp>
#include <parley/ring_attention.hpp>
#include <parley/schedule.hpp>
#include <parley/simulation/programs/config_text.hpp>
#include <parley/simulation/programs/message_bytes.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

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

// The place of a rank in the ring of members.
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
    ops::p2p_options p;
    p.name = op.name;
    p.configs = configs_of(op, times);
    p.ranks = p.restart_group = op.members;
    p.timeout = std::chrono::nanoseconds(op.timeout_ns);
    pairs_ = ops::p2p(self, p);
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

// Blocks of a grid, or parts of a ring whose rims are lists of indices. Rim cells that no neighbour owns keep their old value.
class halo_program final : public op_program {
 public:
  halo_program(ops::rank& self, const op_spec& op, kernel_times& times)
      : ring_(op.members, self.id()), grid_(op.grid), corners_(op.corners), mesh_(op.mesh) {
    const std::uint64_t numbers = op.sizes.front() / sizeof(std::uint32_t) / fields;
    if (grid_.empty()) grid_ = {static_cast<rank_id>(op.members.size())};
    const std::size_t dimensions = grid_.size();
    if (dimensions == 1) {
      cells_ = {std::max<std::uint64_t>(numbers, 2)};
      width_ = {cells_[0] / 2};
    } else {
      const auto side = dimensions == 2 ? numbers : static_cast<std::uint64_t>(std::sqrt(numbers));
      cells_.assign(dimensions, std::max<std::uint64_t>(side, 2));
      width_.assign(dimensions, 1);
    }
    std::uint64_t rest = ring_.place;
    place_.resize(dimensions);
    for (std::size_t d = dimensions; d-- > 0; rest /= grid_[d]) place_[d] = rest % grid_[d];
    std::size_t whole = 1;
    for (std::size_t d = 0; d < dimensions; ++d) whole *= cells_[d] + 2 * width_[d];
    memory_.assign(fields, std::vector<std::uint32_t>(whole, nothing));
    ops::halo_options h;
    h.name = op.name;
    if (mesh_) {
      h.neighbours = {ring_.previous(), ring_.next()};
    } else {
      h.ranks = grid_;
      for (std::size_t d = 0; d < dimensions; ++d) h.periodic.push_back(wraps(d));
      h.width = width_;
      if (corners_) h.reach = ops::halo_reach::corners;
    }
    h.configs = configs_of(op, times);
    h.by_piece_from = 1;
    h.timeout = std::chrono::nanoseconds(op.timeout_ns);
    halo_ = ops::halo(self, h);
  }
  task<> call(program_call c) override {
    now_ = std::move(c);
    if (plan_.empty()) {
      std::vector<ops::halo_field> all;
      for (auto& field : memory_) all.push_back(mesh_ ? by_indices(field) : ops::grid_field(field, cells_));
      plan_.push_back(halo_.plan(all));
    }
    for (std::size_t f = 0; f < fields; ++f) {
      for (std::size_t i = 0; i < memory_[f].size(); ++i) memory_[f][i] = is_own(i) ? due(f, i) : nothing;
    }
    return runtime::with_dataflow(exchange, this);
  }
  bool right() const override {
    for (std::size_t f = 0; f < fields; ++f) {
      for (std::size_t i = 0; i < memory_[f].size(); ++i) {
        if (memory_[f][i] != due(f, i)) return false;
      }
    }
    return true;
  }
  bool rejoin() override { return halo_.rejoin(); }
  void rest() override { plan_.clear(); }

 private:
  static constexpr std::uint32_t nothing = 0xffffffff;
  static constexpr std::size_t fields = 2;
  std::uint32_t cell(rank_id r, std::size_t field, std::uint64_t i) const {
    return static_cast<std::uint32_t>(runtime::mix(now_.stream(r) + now_.number * 0x10001 + field * 0x1000003 + i) >>
                                      33U);
  }
  bool wraps(std::size_t d) const { return d % 2 == 0; }
  // The coordinate along dimension d, counted from the first cell of the rim. Divides `i`, for the dimension before.
  std::uint64_t next_coordinate(std::size_t d, std::uint64_t& i) const {
    const std::uint64_t with_rim = cells_[d] + 2 * width_[d];
    return std::exchange(i, i / with_rim) % with_rim;
  }
  bool is_inside(std::size_t d, std::uint64_t at) const { return at >= width_[d] && at < width_[d] + cells_[d]; }
  bool is_own(std::uint64_t i) const {
    bool own = true;
    for (std::size_t d = cells_.size(); d-- > 0;) own = is_inside(d, next_coordinate(d, i)) && own;
    return own;
  }
  // The value that an exchange must leave in the i-th number of a field.
  std::uint32_t due(std::size_t field, std::uint64_t i) const {
    rank_id owner = 0;
    std::uint64_t index = 0;
    rank_id blocks = 1;
    std::uint64_t cells = 1;
    int outside = 0;
    for (std::size_t d = cells_.size(); d-- > 0;) {
      const std::uint64_t at = next_coordinate(d, i);
      const std::uint64_t all = grid_[d] * cells_[d];
      const std::uint64_t across = place_[d] * cells_[d] + at + all - width_[d];
      if (!wraps(d) && (across < all || across >= 2 * all)) return nothing;
      outside += is_inside(d, at) ? 0 : 1;
      owner += static_cast<rank_id>(across % all / cells_[d]) * std::exchange(blocks, blocks * grid_[d]);
      index += across % all % cells_[d] * std::exchange(cells, cells * cells_[d]);
    }
    return outside > 1 && !corners_ ? nothing : cell(ring_.members[owner], field, index);
  }
  // A field whose rims are lists of indices in reverse order, so that no rim lies in one piece.
  ops::halo_field by_indices(std::vector<std::uint32_t>& field) const {
    const auto backwards = [this](std::uint64_t first) {
      std::vector<std::uint64_t> all;
      for (std::uint64_t i = width_[0]; i-- > 0;) all.push_back(first + i);
      return all;
    };
    return ops::index_field(field, {backwards(width_[0]), backwards(cells_[0])},
                            {backwards(0), backwards(width_[0] + cells_[0])});
  }
  static task<> exchange(runtime::dataflow& flow, halo_program* self) {
    auto moving = self->plan_.front().start(flow);
    co_await moving;
  }
  ring ring_;
  std::vector<rank_id> grid_;
  bool corners_;
  bool mesh_;
  std::vector<std::uint64_t> cells_, width_, place_;  // per dimension
  std::vector<std::vector<std::uint32_t>> memory_;    // one for each field; their rims may be sent piece by piece
  ops::halo halo_;
  std::vector<ops::halo_plan> plan_;  // none or one, which has registered its buffers
  program_call now_;
};

class attention_program final : public op_program {
 public:
  attention_program(ops::rank& self, const op_spec& op, kernel_times& times) : ring_(op.members, self.id()) {
    ops::ring_attention_options a;
    a.name = op.name;
    a.ranks = op.members;
    a.configs = configs_of(op, times);
    a.timeout = std::chrono::nanoseconds(op.timeout_ns);
    attention_ = ops::ring_attention(self, a);
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
  ops::ring_attention attention_;
  ops::attention_shape shape_;
  program_call now_;
  std::vector<float> q_, k_, v_, out_;
};

class training_program final : public op_program, private ops::pipeline_stages {
 public:
  training_program(ops::rank& self, const op_spec& op, kernel_times& times)
      : times_(times), self_(self), ranks_(static_cast<std::uint32_t>(op.members.size())), bytes_(op.sizes.front()) {
    ops::training_pipeline_options t;
    t.name = op.name;
    t.schedule = ops::one_forward_one_backward(ranks_, 2 * ranks_);
    t.ranks = op.members;
    t.configs = configs_of(op, times);
    t.timeout = std::chrono::nanoseconds(op.timeout_ns);
    training_ = ops::training_pipeline(self, t);
  }
  task<> call(program_call c) override {
    now_ = std::move(c);
    wrong_ = computed_ = 0;
    return run(training_, this);
  }
  bool right() const override { return wrong_ == 0 && computed_ == 4 * ranks_; }
  bool rejoin() override { return training_.rejoin(); }

 private:
  static task<> run(ops::training_pipeline t, training_program* self) {
    auto report = co_await t.run(*self);
    static_cast<void>(report);
  }
  std::uint64_t activation_bytes(std::uint32_t) const override { return bytes_; }
  time_ns modelled_ns(const ops::pipeline_action&) const override { return times_.draw(5'000, self_.where().now()); }
  // Byte i of a microbatch that has passed so many stages, forward and then backward: each stage adds one.
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
  ops::training_pipeline training_;
  program_call now_;
  std::size_t wrong_ = 0;
  std::size_t computed_ = 0;
};

class hierarchy_program final : public op_program {
 public:
  hierarchy_program(ops::rank& self, const op_spec& op, kernel_times& times)
      : members_(op.members), self_(self.id()), place_(ring(op.members, self.id()).place), does_(op.does) {
    ops::hierarchy_options h;
    h.name = op.name;
    h.leads = [](rank_id r) { return r % 2 == 0; };
    h.inside.clear();
    for (const std::string& text : op.configs) h.inside.push_back(group_config_from(text, times));
    h.depth = op.depth;
    h.timeout = std::chrono::nanoseconds(op.timeout_ns);
    all_ = ops::hierarchy(self, h);
  }
  task<> call(program_call c) override {
    now_ = std::move(c);
    data_.resize(std::max<std::size_t>(now_.bytes / sizeof(std::uint32_t), 1));
    share_ = std::max<std::size_t>(data_.size() / members_.size(), 1);
    if (does_ == "all_gather" || does_ == "reduce_scatter") data_.resize(share_ * members_.size());
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = word(self_, i);
    mine_.assign(data_.begin(), data_.begin() + static_cast<std::ptrdiff_t>(share_));
    if (does_ == "all_gather") return all_.all_gather(std::span<const std::uint32_t>(mine_), std::span(data_));
    if (does_ == "broadcast") return all_.broadcast(std::span(data_));
    if (does_ == "reduce_scatter") return all_.reduce_scatter(std::span(data_), std::span(mine_));
    return all_.all_reduce(std::span(data_));
  }
  bool right() const override {
    if (does_ == "all_gather")
      return holds(data_, [this](std::size_t i) { return word(members_[i / share_], i % share_); });
    if (does_ == "broadcast") return holds(data_, [this](std::size_t i) { return word(members_[0], i); });
    if (does_ == "reduce_scatter") return holds(mine_, [this](std::size_t i) { return sum(place_ * share_ + i); });
    return holds(data_, [this](std::size_t i) { return sum(i); });
  }
  bool rejoin() override { return all_.rejoin(); }

 private:
  std::uint32_t word(rank_id r, std::size_t i) const {
    return static_cast<std::uint32_t>(runtime::mix(now_.stream(r) + now_.number * 0x10001 + i));
  }
  std::uint32_t sum(std::size_t i) const {
    std::uint32_t all = 0;
    for (const rank_id r : members_) all += word(r, i);
    return all;
  }
  template <class Due>
  static bool holds(const std::vector<std::uint32_t>& numbers, Due due) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] != due(i)) return false;
    }
    return true;
  }
  std::vector<rank_id> members_;
  rank_id self_;
  std::size_t place_;
  std::string does_;
  ops::hierarchy all_;
  program_call now_;
  std::size_t share_ = 1;
  std::vector<std::uint32_t> data_, mine_;
};

class contextual_program final : public op_program {
 public:
  using kernel = ops::tunable_op<task<>(int)>;
  contextual_program(ops::rank& self, const op_spec& op, kernel_times& times)
      : layer_(self, {.name = op.name,
                      .ranks = op.members,
                      .iterations = 2,
                      .log_folder = "",
                      .timeout = std::chrono::nanoseconds(op.timeout_ns)}),
        whose_(op.name + ", on rank " + std::to_string(self.id())) {
    for (const char* const which : {"-first", "-second"}) {
      kernel::options o;
      o.name = op.name + which;
      for (const std::string& text : op.configs) {
        const kernel_spec k = kernel_from(text);
        const implementation i{{times, k.takes_ns, 0}, k.fails && k.fails_on == self.id(), k.after, this};
        o.implementations.push_back({k.name, [i, ran = std::uint64_t{0}](int) mutable { return run(i, ran++); }});
      }
      kernels_.push_back(std::make_unique<kernel>(self.kernels(), std::move(o)));
    }
  }
  task<> call(program_call c) override {
    ran_ = 0;
    number_ = c.number;
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
  // Once an op is settled, the program gets the error that its kernel throws, so this error names op, rank and invocation.
  [[noreturn]] void fail() const {
    runtime::raise(
        {errc::config_failed, whose_ + ", invocation " + std::to_string(number_) + ": a simulated fault of a kernel"});
  }
  static task<> run(implementation i, std::uint64_t before) {
    if (i.fails && before >= i.after) i.of->fail();
    co_await i.takes.pass(0);
    ++i.of->ran_;
  }
  static task<> both(contextual_program* self) {
    for (const auto& k : self->kernels_) co_await (*k)(8);
  }
  ops::contextual layer_;
  std::vector<std::unique_ptr<kernel>> kernels_;
  std::string whose_;
  std::uint64_t number_ = 0;
  std::uint64_t ran_ = 0;
};

}  // namespace

bool calls_again(op_spec::kind k, errc why) noexcept {
  const bool meet = k == op_spec::kind::batch || k == op_spec::kind::hierarchy || k == op_spec::kind::contextual;
  return meet && (why == errc::config_failed || why == errc::exception);
}

std::shared_ptr<op_program> make_program(ops::rank& self, const op_spec& op, kernel_times& times) {
  switch (op.what) {
    case op_spec::kind::batch: return std::make_shared<batch_program>(self, op, times);
    case op_spec::kind::halo: return std::make_shared<halo_program>(self, op, times);
    case op_spec::kind::attention: return std::make_shared<attention_program>(self, op, times);
    case op_spec::kind::training: return std::make_shared<training_program>(self, op, times);
    case op_spec::kind::hierarchy: return std::make_shared<hierarchy_program>(self, op, times);
    case op_spec::kind::contextual: return std::make_shared<contextual_program>(self, op, times);
    default: runtime::raise({errc::bad_argument, "op " + op.name + " is not composed of other ops"});
  }
}

}  // namespace parley::simulation
