#include <parley/cli/spec/op_readers.hpp>

#include <parley/cli/payload/expression.hpp>
#include <parley/collective.hpp>
#include <parley/transfer.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace parley::cli {

namespace {

constexpr std::uint64_t lane_bytes = sizeof(std::uint16_t);  // payloads consist of lanes (payload.hpp)

std::uint64_t byte_size(const place& at) {
  if (!at.is_text()) return at.number("a size", 0, largest_payload);
  const auto size = tuning::parse_byte_size(at.text("a size"));
  if (!size) at.fail(size.reason().text);
  if (size.value() > largest_payload) at.fail("a size must be at most 4GiB");
  return size.value();
}

rank_id rank_of(const place& at, rank_id world) {
  if (world == 1) at.fail(R"(an op needs two ranks, and this world has one; give "ranks" or -n at least 2)");
  const auto r = at.number("a rank", 0, runtime::rank_id(-1));
  if (r >= world)
    at.fail("rank " + std::to_string(r) + " is outside the world of " + std::to_string(world) + "; ranks are 0 to " +
            std::to_string(world - 1) + R"(, more are started by "ranks" or -n)");
  return static_cast<rank_id>(r);
}

// A list of ranks, each once.
std::vector<rank_id> ranks_in(const place& at, std::string_view what, rank_id world) {
  std::vector<rank_id> ranks;
  for (const place& item : at.list(what)) {
    const rank_id r = rank_of(item, world);
    if (std::count(ranks.begin(), ranks.end(), r) != 0) item.fail("rank " + std::to_string(r) + " is listed twice");
    ranks.push_back(r);
  }
  return ranks;
}

std::vector<rank_id> all_ranks(rank_id world) {
  std::vector<rank_id> all(world);
  std::iota(all.begin(), all.end(), rank_id{0});
  return all;
}

std::vector<rank_id> ranks_of_role(const place& at, rank_id world) {
  std::vector<rank_id> ranks;
  if (at.is_list()) {
    ranks = ranks_in(at, "a role", world);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  if (!at.is_text()) at.fail(R"(a role is a list of ranks such as [0, 2], or an expression such as "rank % 2 == 0")");
  const std::string written = at.text("a role");
  try {
    const expression holds(written);
    for (rank_id r = 0; r < world; ++r) {
      if (holds.evaluate({.rank = r, .world = world}) != 0) ranks.push_back(r);
    }
  } catch (const expression_error& e) {
    at.fail("role expression: " + std::string(e.what()), at.literal(written) ? 1 + e.at() : 0);
  }
  return ranks;
}

/// Mixes all runs, each spread evenly over the whole: the order in which an engine would call with these sizes.
std::vector<std::uint64_t> interleaved(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& runs) {
  std::uint64_t total = 0;
  for (const auto& [bytes, count] : runs) total += count;
  std::vector<std::uint64_t> sizes;
  std::vector<std::uint64_t> given(runs.size(), 0);
  while (sizes.size() < total) {
    // The run that is furthest behind its share of the sizes so far, the next one included.
    std::size_t next = 0;
    double most_behind = -1;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const double behind =
          static_cast<double>(runs[i].second) * static_cast<double>(sizes.size() + 1) / static_cast<double>(total) -
          static_cast<double>(given[i]);
      if (given[i] < runs[i].second && behind > most_behind) {
        next = i;
        most_behind = behind;
      }
    }
    ++given[next];
    sizes.push_back(runs[next].first);
  }
  return sizes;
}

// One size, or all powers of two of a range such as "8KiB..1MiB", with both ends.
std::vector<std::uint64_t> byte_sizes(const place& at) {
  const std::string text = at.is_text() ? at.text("a size") : std::string();
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return {byte_size(at)};
  const auto first = tuning::parse_byte_size(std::string_view(text).substr(0, dots));
  const auto last = tuning::parse_byte_size(std::string_view(text).substr(dots + 2));
  if (!first || !last || first.value() == 0 || last.value() < first.value() || last.value() > largest_payload)
    at.fail(R"(a range of sizes goes from a smaller one to a larger one of at most 4GiB, such as "8KiB..1MiB")");
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = first.value(); bytes < last.value(); bytes *= 2) sizes.push_back(bytes);
  sizes.push_back(last.value());
  return sizes;
}

std::vector<std::uint64_t> sizes_of(const place& op, std::string_view key, std::optional<std::uint64_t> microbatches,
                                    std::uint64_t multiple_of = 1) {
  const place at = op.at(key, R"(what is sent, for example [{"bytes": "16MiB", "count": 100}])");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
  std::uint64_t total = 0;
  for (const place& item : at.list(std::string(key))) {
    item.expect_object("an entry", {"bytes", "count"});
    const place size = item.at("bytes", R"(how large each one is, for example "16MiB" or "8KiB..16MiB")");
    const std::vector<std::uint64_t> sizes = byte_sizes(size);
    const auto count = item.at("count", "how many there are of each size").number("a count", 1, most_invocations);
    for (const std::uint64_t bytes : sizes) {
      if (bytes % multiple_of != 0)
        size.fail("sums are of numbers of " + std::to_string(multiple_of) + " bytes; give a multiple of that");
      if (runs.size() == most_entries) item.fail(too_many(most_entries, "entries"));
      runs.emplace_back(bytes, count);
      total += count;
    }
  }
  if (runs.empty()) at.fail(R"(nothing is sent; list at least one {"bytes", "count"})");
  if (total > most_invocations) at.fail(too_many(most_invocations, "invocations"));
  const std::vector<std::uint64_t> all = interleaved(runs);
  std::vector<std::uint64_t> wanted;
  for (std::uint64_t i = 0; i < microbatches.value_or(all.size()); ++i) wanted.push_back(all[i % all.size()]);
  return wanted;
}

template <class Config>
using reader_of_config = runtime::result<Config> (*)(std::string_view text);

// The catalogue of an op, for each type of config.
template <class Config>
std::vector<Config> catalogue(const place& at, reader_of_config<Config> named) {
  std::vector<Config> configs;
  for (const place& item : at.list("configs")) {
    auto config = named(item.text("a config"));
    if (!config) item.fail(sentence(config.reason()));
    for (const Config& other : configs) {
      if (other->id() == (*config)->id()) item.fail("config " + other->id() + " is listed twice");
    }
    configs.push_back(std::move(*config));
    if (configs.size() > tuning::limits::configs) item.fail(too_many(tuning::limits::configs, "configs"));
  }
  return configs;
}

std::vector<ops::config_ptr> configs_of(const place& op) {
  const place at = op.at(
      "configs", R"x(the ways to do it, the default first, for example ["direct", "chunked(chunk_bytes=1MiB)"])x");
  auto configs = catalogue<ops::config_ptr>(at, ops::named_config);
  if (configs.empty()) at.fail(R"(the catalogue is empty; list at least the default, for example "direct")");
  if (configs.front()->what_it_needs() != ops::needs::nothing)
    at.list("configs").front().fail(
        "config " + configs.front()->id() +
        " cannot be the default, because the default must run before the ranks know each other's "
        R"(memory or pieces; put "direct" or a chunked one first)");
  return configs;
}

std::vector<ops::group_config_ptr> group_configs_of(const place& op, ops::collective_kind what) {
  const place at = op.at("configs", R"x(the ways to do it, the default first, for example ["star", "chain"])x");
  auto configs = catalogue<ops::group_config_ptr>(at, ops::named_group_config);
  if (configs.empty()) at.fail(R"(the catalogue is empty; list at least the default, for example "star")");
  const std::vector<place> items = at.list("configs");
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (!configs[i]->does(what))
      items[i].fail("config " + configs[i]->id() + " cannot do " + std::string(ops::name(what)));
  }
  return configs;
}

// The rank of each stage, or of each part of a schedule; all ranks if the op names none.
std::vector<rank_id> stages_of(const place& op, rank_id world) {
  const auto named = op.find("stages");
  if (!named) {
    if (world < 2) op.fail(R"(a pipeline needs at least two ranks; give "ranks" or -n at least 2)");
    return all_ranks(world);
  }
  std::vector<rank_id> stages;
  for (const place& item : named->list("stages")) {
    const rank_id r = rank_of(item, world);
    if (std::count(stages.begin(), stages.end(), r) != 0)
      item.fail("rank " + std::to_string(r) + " has a stage already; list each rank once");
    stages.push_back(r);
  }
  if (stages.size() < 2) named->fail("a pipeline needs at least two stages");
  return stages;
}

std::vector<std::pair<rank_id, rank_id>> edges_in(const place& at, rank_id world) {
  std::vector<std::pair<rank_id, rank_id>> edges;
  for (const place& item : at.list("edges")) {
    const std::vector<place> ends = item.list("an edge");
    if (ends.size() != 2) item.fail("an edge has two ends: [from, to]");
    const std::pair edge{rank_of(ends[0], world), rank_of(ends[1], world)};
    if (edge.first == edge.second)
      item.fail("rank " + std::to_string(edge.first) + " would send to itself; an edge needs two ranks");
    if (std::count(edges.begin(), edges.end(), edge) != 0) item.fail("this edge is listed twice");
    edges.push_back(edge);
  }
  if (edges.empty()) at.fail("there is no edge; list at least one [from, to]");
  return edges;
}

void read_pairs(const place& at, op_spec& op, rank_id world) {
  const auto roles = at.find("roles");
  const auto edges = at.find("edges");
  if (roles.has_value() == edges.has_value())
    at.fail(R"(give either "roles": {"sender": …, "receiver": …} or "edges": [[from, to], …])");
  ops::transfer_options pairs{.name = op.name, .role = {}};
  std::vector<rank_id> senders;
  std::vector<rank_id> receivers;
  if (edges) {
    pairs.edges = edges_in(*edges, world);
  } else {
    roles->expect_object("roles", {"sender", "receiver"});
    const place sender = roles->at("sender", "the ranks that send, as a list or an expression");
    const place receiver = roles->at("receiver", "the ranks that receive, as a list or an expression");
    senders = ranks_of_role(sender, world);
    receivers = ranks_of_role(receiver, world);
    for (const rank_id r : receivers) {
      if (std::count(senders.begin(), senders.end(), r) != 0)
        receiver.fail("rank " + std::to_string(r) + " is a sender too; a rank has one role, so list edges instead");
    }
    pairs.role = [&](rank_id r) {
      return std::count(senders.begin(), senders.end(), r) != 0       ? ops::role::sender
             : std::count(receivers.begin(), receivers.end(), r) != 0 ? ops::role::receiver
                                                                      : ops::role::idle;
    };
  }
  const auto paired = ops::pair_up(pairs, world);
  if (!paired) (roles ? *roles : *edges).fail(sentence(paired.reason()));
  op.edges = *paired;
}

// Reads a batch of messages: a list of pairs, or a ring.
void read_batch(const place& at, op_spec& op, rank_id world) {
  const auto edges = at.find("edges");
  const auto ring = at.find("ring");
  if (edges.has_value() == ring.has_value())
    at.fail(R"(give either "edges": [[from, to], …] or "ring": [0, 1, …], in which each rank sends to the next)");
  if (edges) {
    op.edges = edges_in(*edges, world);
    return;
  }
  const std::vector<rank_id> ranks = ranks_in(*ring, "ring", world);
  if (ranks.size() < 2) ring->fail("a ring needs at least two ranks");
  for (std::size_t i = 0; i < ranks.size(); ++i) op.edges.emplace_back(ranks[i], ranks[(i + 1) % ranks.size()]);
}

std::vector<std::uint64_t> numbers_in(const place& at, std::string_view what, std::size_t count, std::uint64_t least,
                                      std::uint64_t most) {
  const std::vector<place> items = at.list(what);
  if (items.size() != count)
    at.fail(std::string(what) + " has one number for each dimension of \"grid\", of which there are " +
            std::to_string(count));
  std::vector<std::uint64_t> numbers;
  for (const place& item : items) numbers.push_back(item.number(what, least, most));
  return numbers;
}

void read_halo(const place& at, op_spec& op, rank_id world, std::optional<std::uint64_t> microbatches) {
  halo_shape& grid = op.grid;
  const place ranks = at.at("grid", "how many ranks lie along each dimension, for example [2, 2]");
  const std::size_t dimensions = ranks.list("grid").size();
  if (dimensions < 1 || dimensions > 3) ranks.fail("a grid has 1 to 3 dimensions");
  std::uint64_t blocks = 1;
  for (const std::uint64_t n : numbers_in(ranks, "grid", dimensions, 1, most_ranks)) {
    grid.ranks.push_back(static_cast<rank_id>(n));
    blocks *= n;
  }
  if (blocks < 2) ranks.fail("a halo needs at least two ranks");
  if (blocks > world)
    ranks.fail("this grid has " + std::to_string(blocks) + " blocks, and the world " + std::to_string(world) +
               R"( ranks; more are started by "ranks" or -n)");
  const place cells = at.at("cells", "how many cells each block has along each dimension, for example [64, 64]");
  grid.cells = numbers_in(cells, "cells", dimensions, 1, largest_payload);
  grid.width.assign(dimensions, 1);
  if (const auto width = at.find("width")) grid.width = numbers_in(*width, "width", dimensions, 1, largest_payload);
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (grid.width[d] > grid.cells[d]) cells.fail("a rim is wider than the block that it surrounds");
  }
  grid.periodic.assign(dimensions, false);
  if (const auto periodic = at.find("periodic")) {
    const std::vector<place> items = periodic->list("periodic");
    if (items.size() != dimensions) periodic->fail(R"("periodic" has true or false for each dimension of "grid")");
    for (std::size_t d = 0; d < dimensions; ++d) grid.periodic[d] = items[d].truth("periodic");
  }
  if (const auto corners = at.find("corners")) grid.corners = corners->truth("corners");
  if (const auto element = at.find("element_bytes")) {
    grid.element_bytes = element->number("element_bytes", 1, sizeof(std::uint64_t));
    if (grid.element_bytes != sizeof(std::uint32_t) && grid.element_bytes != sizeof(std::uint64_t))
      element->fail("elements have 4 or 8 bytes");
  }
  std::uint64_t bytes = grid.element_bytes;
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (bytes > largest_payload / (grid.cells[d] + 2 * grid.width[d])) cells.fail("a block has at most 4GiB");
    bytes *= grid.cells[d] + 2 * grid.width[d];
  }
  const auto count = at.at("exchanges", "how many exchanges there are").number("exchanges", 1, most_invocations);
  op.edges = grid.edges();
  op.sizes.assign(microbatches.value_or(count), 0);
}

void read_collective(const place& at, op_spec& op, rank_id world, std::optional<std::uint64_t> microbatches) {
  using ops::collective_kind;
  if (const auto kind = at.find("kind")) {
    const std::string word = kind->text("kind");
    const auto all = {collective_kind::all_reduce, collective_kind::broadcast, collective_kind::gather};
    const auto* const known =
        std::find_if(all.begin(), all.end(), [&](collective_kind k) { return ops::name(k) == word; });
    if (known == all.end())
      kind->fail("unknown kind " + in_quotes(word) + "; known are all_reduce, broadcast and gather");
    op.collects = *known;
  }
  if (const auto groups = at.find("groups")) {
    std::set<rank_id> seen;
    for (const place& item : groups->list("groups")) {
      op.groups.push_back(ranks_in(item, "a group", world));
      if (op.groups.back().size() < 2) item.fail("a group needs at least two ranks");
      for (const rank_id r : op.groups.back()) {
        if (!seen.insert(r).second) item.fail("rank " + std::to_string(r) + " is in two groups");
      }
    }
    if (op.groups.empty()) groups->fail("there is no group; list at least one [leader, worker, …]");
  } else {
    if (world < 2) at.fail(R"(a collective needs at least two ranks; give "ranks" or -n at least 2)");
    op.groups.push_back(all_ranks(world));
  }
  if (const auto depth = at.find("depth")) op.depth = depth->number("depth", 1, 64);
  op.group_configs = group_configs_of(at, op.collects);
  op.sizes = sizes_of(at, "calls", microbatches, op.collects == collective_kind::all_reduce ? lane_bytes : 1);
}

void read_training(const place& at, op_spec& op, rank_id world, std::optional<std::uint64_t> microbatches) {
  op.stages = stages_of(at, world);
  constexpr std::uint32_t most_chunks = 16;
  constexpr std::uint32_t most_microbatches = 1'024;
  const auto parts = static_cast<std::uint32_t>(op.stages.size());
  const place of_pass = at.at("microbatches", "how many microbatches a pass has, for example 8");
  const auto each = static_cast<std::uint32_t>(of_pass.number("microbatches", 1, most_microbatches));
  const auto chunks = at.find("chunks");
  const place how = at.at("schedule", R"("1f1b", "gpipe", or "interleaved" with "chunks")");
  const std::string word = how.text("schedule");
  if (chunks && word != "interleaved") chunks->fail(R"(only the schedule "interleaved" has chunks)");
  if (word == "1f1b") {
    op.schedule = ops::one_forward_one_backward(parts, each);
  } else if (word == "gpipe") {
    op.schedule = ops::gpipe(parts, each);
  } else if (word == "interleaved") {
    if (each % parts != 0)
      of_pass.fail("an interleaved schedule has a multiple of " + std::to_string(parts) +
                   " microbatches, as many as ranks");
    op.schedule = ops::interleaved(parts, each,
                                   chunks ? static_cast<std::uint32_t>(chunks->number("chunks", 1, most_chunks)) : 2);
  } else {
    how.fail("unknown schedule " + in_quotes(word) + "; known are 1f1b, gpipe and interleaved");
  }
  const std::uint64_t bytes = byte_size(at.at("bytes", R"(how large an activation is, for example "4MiB")"));
  const auto passes = at.at("passes", "how many passes there are").number("passes", 1, most_invocations / each);
  // The requested number of microbatches, rounded up to whole passes.
  const std::uint64_t wanted = microbatches ? (*microbatches + each - 1) / each : passes;
  op.sizes.assign(wanted * each, bytes);
  std::set<std::pair<rank_id, rank_id>> edges;
  for (std::uint32_t s = 0; s + 1 < op.schedule.stages; ++s) {
    const rank_id one = op.stages[op.schedule.rank_of(s)];
    const rank_id next = op.stages[op.schedule.rank_of(s + 1)];
    edges.insert({{one, next}, {next, one}});
  }
  op.edges.assign(edges.begin(), edges.end());
}

// The keys of each kind of op.
struct known_op {
  op_kind kind;
  std::initializer_list<std::string_view> keys;
};
const std::initializer_list<known_op> known_ops{
    {op_kind::pipeline, {"op", "name", "stages", "dtype", "configs", "microbatches"}},
    {op_kind::transfer, {"op", "name", "roles", "edges", "dtype", "configs", "messages"}},
    {op_kind::p2p, {"op", "name", "edges", "ring", "dtype", "configs", "messages"}},
    {op_kind::halo,
     {"op", "name", "grid", "cells", "width", "periodic", "corners", "element_bytes", "dtype", "configs", "exchanges"}},
    {op_kind::collective, {"op", "name", "kind", "groups", "depth", "dtype", "configs", "calls"}},
    {op_kind::training_pipeline,
     {"op", "name", "stages", "schedule", "chunks", "microbatches", "bytes", "passes", "dtype", "configs"}}};

std::string known_names() {
  std::string text;
  for (const known_op& k : known_ops) {
    const bool is_last = &k == known_ops.end() - 1;
    text += (text.empty() ? "" : is_last ? " and " : ", ") + std::string(name(k.kind));
  }
  return text;
}

const known_op& kind_of(const place& at) {
  if (!at.is_object()) at.fail("an op must be an object: {…}");
  const place kind = at.at("op", "what it is: " + known_names());
  const std::string word = kind.text("op");
  const auto* const known =
      std::find_if(known_ops.begin(), known_ops.end(), [&](const known_op& k) { return name(k.kind) == word; });
  if (known == known_ops.end()) kind.fail("unknown op " + in_quotes(word) + "; known are " + known_names());
  return *known;
}

}  // namespace

std::string too_many(std::uint64_t most, std::string_view of_what) {
  return "these are more than " + std::to_string(most) + " " + std::string(of_what);
}

op_spec read_op(const place& at, rank_id world, const spec_overrides& overrides) {
  const known_op& known = kind_of(at);
  at.expect_object("an op", known.keys);
  op_spec op;
  op.kind = known.kind;
  const place name = at.at("name", "a name for the op, which results files carry");
  op.name = name.text("name");
  if (const auto dtype = at.find("dtype")) {
    op.dtype = dtype->text("dtype");
    if (const auto ok = tuning::checked({.op = "op", .size = {}, .dtype = op.dtype}); !ok)
      dtype->fail(ok.reason().text);
  }
  if (op.name.empty() || op.name.find('/') != std::string::npos)
    name.fail("an op's name must not be empty nor have a /");
  if (const auto ok = tuning::checked({.op = op.name, .size = {}, .dtype = {}}); !ok) name.fail(ok.reason().text);
  if (op.kind != op_kind::collective) op.configs = configs_of(at);
  switch (op.kind) {
    case op_kind::pipeline:
      op.stages = stages_of(at, world);
      for (std::size_t i = 1; i < op.stages.size(); ++i) op.edges.emplace_back(op.stages[i - 1], op.stages[i]);
      op.sizes = sizes_of(at, "microbatches", overrides.microbatches);
      break;
    case op_kind::transfer:
      read_pairs(at, op, world);
      op.sizes = sizes_of(at, "messages", overrides.microbatches);
      break;
    case op_kind::p2p:
      read_batch(at, op, world);
      op.sizes = sizes_of(at, "messages", overrides.microbatches);
      break;
    case op_kind::halo: read_halo(at, op, world, overrides.microbatches); break;
    case op_kind::collective: read_collective(at, op, world, overrides.microbatches); break;
    case op_kind::training_pipeline: read_training(at, op, world, overrides.microbatches); break;
  }
  return op;
}

}  // namespace parley::cli
