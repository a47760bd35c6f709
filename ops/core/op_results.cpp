#include <parley/ops/core/op_results.hpp>

#include <parley/number_text.hpp>
#include <parley/tuning/key.hpp>
#include <parley/tuning/results/warm_start.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

namespace parley::ops {

namespace {

constexpr std::size_t most_entries = 4 * tuning::size_bucket::count;
constexpr std::size_t longest_solution = 1024;

std::string with_machines(std::string name, std::uint64_t machines) {
  return machines == 0 ? name : fmt::format("{}@{:016x}", name, machines);
}

std::optional<std::uint64_t> machines_in(std::string_view digits) {
  return runtime::read_hexadecimal<std::uint64_t>(digits, {1, std::numeric_limits<std::uint64_t>::max()});
}

}  // namespace

std::string entry_name(const actors::op_declaration& op) {
  constexpr std::size_t shown = 16;
  const auto& all = op.participants;
  if (all.size() > shown)  // the id tells apart groups with the same first rank, last rank and size
    return fmt::format("{}/{}>..>{} of {} {:08x}", op.name, all.front().rank, all.back().rank, all.size(),
                       op.id() >> 32U);
  std::string name = op.name;
  for (const auto& p : all) name += (&p == &all.front() ? "/" : ">") + std::to_string(p.rank);
  return name;
}

op_memory recall_op(const tuning::results_file& file, const actors::op_declaration& op,
                    const std::vector<std::string>& ids) {
  op_memory memory;
  const std::string name = entry_name(op);
  const auto known = [&](const std::string& solution) {
    return solution == tuning::pinned_default ||
           std::find(ids.begin(), ids.end(), tuning::id_in_file(solution)) != ids.end();
  };
  const tuning::result_entry* of_other_type = nullptr;
  const auto take = [&](const tuning::result_entry& r, std::uint64_t machines) {
    const auto key = tuning::parse_key(op.name, r.parameters);
    if (!key || memory.entries.size() == most_entries) return;
    if (key->dtype != op.dtype) {
      of_other_type = &r;
      return;
    }
    if (!known(r.solution))
      memory.warnings.push_back(fmt::format("results for {},{}: {} has no config {} here, so it is tuned again", r.op,
                                            r.parameters, op.name, r.solution.substr(0, longest_solution)));
    if (r.solution.size() <= longest_solution)
      memory.entries.push_back({r.parameters, r.solution, r.time_ms, machines, 0, r.thin});
  };
  for (const auto* r : file.find_all(name + ",")) take(*r, 0);
  for (const auto* r : file.find_all(name + "@")) {
    if (const auto machines = machines_in(std::string_view(r->op).substr(name.size() + 1))) take(*r, *machines);
  }
  if (memory.entries.empty() && memory.warnings.empty() && of_other_type != nullptr)
    memory.warnings.push_back(fmt::format("results for {},{} are not used: {} is declared with {}, so it is tuned "
                                          "again; if it is the same op, declare it with the dtype of the file",
                                          of_other_type->op, of_other_type->parameters, op.name,
                                          op.dtype.empty() ? "no dtype" : "the dtype " + op.dtype));
  return memory;
}

std::optional<tuning::result_entry> entry_of(const actors::op_declaration& op, const std::string* id,
                                             const actors::decision_record& d) {
  using actors::decision_source;
  const bool is_result =
      d.source == decision_source::trials || d.source == decision_source::results || d.source == decision_source::pin;
  if (!is_result || id == nullptr) return std::nullopt;
  const auto timed =
      std::find_if(d.evidence.begin(), d.evidence.end(), [&](const auto& v) { return v.digest == d.digest; });
  return tuning::result_entry{
      with_machines(entry_name(op), d.machines), d.key,
      d.source == decision_source::pin ? std::string(tuning::pinned_default) : tuning::name_in_file(*id, d.mixture),
      timed == d.evidence.end() ? 0 : timed->time_ns / 1e6, d.confidence == tuning::confidence::thin};
}

}  // namespace parley::ops
