// Halos of fields on a device, packed by kernels, in the order of a stream.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>

#include <parley/config.hpp>
#include <parley/halo.hpp>
#include <parley/ops/core/neighbours.hpp>

#include <string>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

constexpr std::uint64_t rows = 5;
constexpr std::uint64_t columns = 4;
constexpr std::uint64_t width = columns + 2;
constexpr std::uint64_t cells = (rows + 2) * width;

// Two fields of one rank, and a kernel that copies them at a time when their ghosts must have arrived.
struct device_fields {
  device_fields(fake_cuda& g) : gpu(g), stream(g.make_stream(0)) {}
  device_fields(const device_fields&) = delete;
  device_fields& operator=(const device_fields&) = delete;
  ~device_fields() { gpu.destroy(stream); }
  std::span<double> wide() const { return {reinterpret_cast<double*>(wide_.bytes().data()), cells}; }
  std::span<float> narrow() const { return {reinterpret_cast<float*>(narrow_.bytes().data()), cells}; }
  static double value(rank_id r, std::uint64_t cell, unsigned pass) {
    return r * 1'000.0 + static_cast<double>(cell) + pass * 10'000.0;
  }
  void write(rank_id r, unsigned pass) {
    gpu.launch(stream, 400, [this, r, pass] {
      for (std::uint64_t i = 0; i < cells; ++i) {
        seen_of(wide())[i] = value(r, i, pass);
        seen_of(narrow())[i] = static_cast<float>(value(r, i, pass) / 2);
      }
    });
  }
  void read() {
    gpu.launch(stream, 400, [this] {
      wide_read.assign(seen_of(wide()), seen_of(wide()) + cells);
      narrow_read.assign(seen_of(narrow()), seen_of(narrow()) + cells);
    });
  }
  template <class T>
  T* seen_of(std::span<T> field) {
    return reinterpret_cast<T*>(gpu.shadow(field.data()));
  }

  fake_cuda& gpu;
  transports::cuda_stream stream;
  std::vector<double> wide_read;
  std::vector<float> narrow_read;

 private:
  transports::cuda_memory wide_ = transports::cuda_memory::on_device(gpu, 0, cells * sizeof(double));
  transports::cuda_memory narrow_ = transports::cuda_memory::on_device(gpu, 0, cells * sizeof(float));
};

task<> exchange(dataflow& flow, halo_plan* plan, device_fields* f, rank_id r, unsigned pass, bool* ahead) {
  if (pass % 2 == 0) plan->open(flow, f->stream);
  f->write(r, pass);
  const flow_work moving = plan->start(flow, f->stream);
  f->read();
  *ahead = !moving.done();
  co_await moving;
}

using both_fields = std::vector<std::unique_ptr<device_fields>>;

/// Exchanges on both ranks. Returns the number of ranks whose host had to wait before everything was enqueued.
std::size_t exchange_on_both(two_ranks& w, std::vector<halo_plan>& plans, both_fields& f, unsigned pass) {
  bool ahead[2]{};
  runtime::scope both(w.loop);
  for (rank_id r = 0; r < 2; ++r) both.spawn(with_dataflow(exchange, &plans[r], f[r].get(), r, pass, &ahead[r]));
  run_until(w.loop, [&] { return both.running() == 0; });
  return (ahead[0] ? 0U : 1U) + (ahead[1] ? 0U : 1U);
}

TEST_CASE(
    "ghosts of device fields are packed, moved and unpacked in the order of a stream, and the host waits for nothing") {
  struct shape {
    std::vector<rank_id> ranks;
    bool packed;
    std::size_t fields;
  };
  for (const shape& s : {shape{{1, 2}, true, 1}, shape{{1, 2}, true, 2}, shape{{2, 1}, false, 1}}) {
    for (const config_ptr& way : {direct(), put()}) {
      CAPTURE(s.packed);
      CAPTURE(way->id());
      fake_cuda gpu;
      two_ranks w(gpu, {direct()});
      both_fields f;
      std::vector<halo_plan> plans;
      for (rank_id r = 0; r < 2; ++r) {
        f.push_back(std::make_unique<device_fields>(gpu));
        halo_options op{.name = "rims", .ranks = s.ranks, .configs = {direct()}, .memory = w.spaces[r].get()};
        if (way->id() != "direct") op.configs.push_back(way);
        std::span<double> wide = f[r]->wide();
        std::span<float> narrow = f[r]->narrow();
        std::vector<halo_field> fields{grid_field(wide, {rows, columns})};
        if (s.fields == 2) fields.push_back(grid_field(narrow, {rows, columns}));
        plans.push_back(halo(*w.ranks[r], op).plan(fields));
        CHECK((plans.back().packed_bytes() > 0) == s.packed);
      }
      std::size_t wrong = 0;
      std::size_t waited = 0;
      const auto flags = [&] { return w.wires[0]->planes().flags_set + w.wires[1]->planes().flags_set; };
      const deadline limit;
      for (unsigned pass = 1; !limit.is_over() && (pass < 20 || (flags() == 0 && way->id() == "put")); ++pass) {
        waited += exchange_on_both(w, plans, f, pass);
        for (rank_id r = 0; r < 2; ++r) {
          runtime::run(w.loop, reaches(*w.copies[r], f[r]->stream));
          for (std::uint64_t cell = 0; cell < cells; ++cell) {
            const std::uint64_t row = cell / width;
            const std::uint64_t column = cell % width;
            const bool inside_rows = row >= 1 && row <= rows;
            const bool inside_columns = column >= 1 && column <= columns;
            double expected = device_fields::value(r, cell, pass);
            if (s.packed && inside_rows && column == (r == 0 ? columns + 1 : 0))
              expected = device_fields::value(1 - r, row * width + (r == 0 ? 1 : columns), pass);
            if (!s.packed && inside_columns && row == (r == 0 ? rows + 1 : 0))
              expected = device_fields::value(1 - r, (r == 0 ? 1 : rows) * width + column, pass);
            wrong += f[r]->wide_read[cell] == expected ? 0 : 1;
            if (s.fields == 2) wrong += f[r]->narrow_read[cell] == static_cast<float>(expected / 2) ? 0 : 1;
          }
          f[r]->wide_read.clear();
        }
      }
      CHECK(wrong == 0);
      CHECK(waited == 0);
      CHECK((flags() > 0) == (way->id() == "put"));
    }
  }
}

TEST_CASE("ranks exchange the elements of a device mesh by index lists, without a wait on the host") {
  fake_cuda gpu;
  two_ranks w(gpu, {direct()});
  both_fields f;
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 2; ++r) {
    f.push_back(std::make_unique<device_fields>(gpu));
    std::span<double> wide = f[r]->wide();
    halo_options op{.name = "mesh", .neighbours = {1 - r}, .configs = {direct()}, .memory = w.spaces[r].get()};
    plans.push_back(halo(*w.ranks[r], op).plan({index_field(wide, {{7, 3, 20}}, {{0, 40, 11}})}));
  }
  CHECK(exchange_on_both(w, plans, f, 1) == 0);
  for (rank_id r = 0; r < 2; ++r) {
    runtime::run(w.loop, reaches(*w.copies[r], f[r]->stream));
    CHECK(f[r]->wide_read[0] == device_fields::value(1 - r, 7, 1));
    CHECK(f[r]->wide_read[40] == device_fields::value(1 - r, 3, 1));
    CHECK(f[r]->wide_read[11] == device_fields::value(1 - r, 20, 1));
  }
}

TEST_CASE("a halo on a device refuses a second exchange before the first has been awaited") {
  fake_cuda gpu;
  two_ranks w(gpu, {direct()});
  device_fields f(gpu);
  std::span<double> wide = f.wide();
  halo_plan plan = halo(*w.ranks[0], {.name = "rims", .ranks = {1, 2}, .memory = w.spaces[0].get()})
                       .plan({grid_field(wide, {rows, columns})});
  dataflow flow(w.loop);
  const flow_work moving = plan.start(flow, f.stream);
  CHECK_THROWS_WITH(static_cast<void>(plan.start(flow, f.stream)),
                    doctest::Contains("its last exchange is still in flight; await it before"));
  flow.cancel();
}

TEST_CASE("a halo refuses fields on a device without a stream, and fields in host memory with one") {
  fake_cuda gpu;
  two_ranks w(gpu, {direct()});
  device_fields f(gpu);
  std::span<double> wide = f.wide();
  std::vector<double> here(cells);
  halo_plan there = halo(*w.ranks[0], {.name = "there", .ranks = {1, 2}, .memory = w.spaces[0].get()})
                        .plan({grid_field(wide, {rows, columns})});
  halo_plan host = halo(*w.ranks[0], {.name = "host", .ranks = {1, 2}}).plan({grid_field(here, {rows, columns})});
  dataflow flow(w.loop);
  CHECK_THROWS_WITH(static_cast<void>(there.start(flow)),
                    doctest::Contains("say in which stream kernels work on them"));
  CHECK_THROWS_WITH(static_cast<void>(host.start(flow, f.stream)),
                    doctest::Contains("a stream was given, but the op's memory"));
  host.open(flow);
  CHECK_THROWS_WITH(host.open(flow), doctest::Contains("it is open already"));
}

}  // namespace
