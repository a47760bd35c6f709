#include <parley/cli/spec.hpp>

#include <parley/cli/payload/expression.hpp>
#include <parley/transfer.hpp>
#include <parley/transports/files/file_storage.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <initializer_list>

namespace parley::cli {

namespace {

namespace json = boost::json;

/// An error's text without the code's name in front, which says nothing about a file.
std::string sentence(const runtime::error& e) {
  std::string text = e.what();
  const std::string code = std::string(runtime::name(e.code())) + ": ";
  return text.starts_with(code) ? text.substr(code.size()) : text;
}

std::string listed(std::initializer_list<std::string_view> words) {
  std::string text;
  for (const std::string_view w : words) text += (text.empty() ? "" : ", ") + std::string(w);
  return text;
}

/// One value of the file; its errors name its place in the file.
class place {
 public:
  explicit place(const json_text& file) : place(file, file.value(), "") {}

  [[noreturn]] void fail(const std::string& what, std::size_t further = 0) const {
    throw file_.error(file_.value_at(pointer_) + further, what);
  }
  void expect_object(std::string_view what, std::initializer_list<std::string_view> known) const {
    if (!value_.is_object()) fail(std::string(what) + " must be an object: {…}");
    for (const auto& member : value_.get_object()) {
      if (std::find(known.begin(), known.end(), std::string_view(member.key())) == known.end())
        throw file_.error(file_.key_at(pointer_ + "/" + std::string(member.key())),
                          "unknown key " + in_quotes(member.key()) + "; known here are " + listed(known));
    }
  }
  std::optional<place> find(std::string_view key) const {
    const json::value* v = value_.get_object().if_contains(key);
    if (v == nullptr) return std::nullopt;
    return place(file_, *v, pointer_ + "/" + std::string(key));
  }
  place at(std::string_view key, std::string_view what) const {
    if (const auto found = find(key)) return *found;
    fail("the key " + in_quotes(key) + " is missing: " + std::string(what));
  }
  std::string text(std::string_view what) const {
    if (!value_.is_string()) fail(std::string(what) + " must be a text in quotes");
    return std::string(value_.get_string());
  }
  bool is_text() const { return value_.is_string(); }
  bool is_list() const { return value_.is_array(); }
  std::uint64_t number(std::string_view what, std::uint64_t least, std::uint64_t most) const {
    const std::string range = std::to_string(least) + " to " + std::to_string(most);
    if (!value_.is_int64() && !value_.is_uint64()) fail(std::string(what) + " must be a whole number, " + range);
    json::error_code ec;
    const auto n = value_.to_number<std::uint64_t>(ec);
    if (ec || n < least || n > most) fail(std::string(what) + " must be " + range);
    return n;
  }
  std::vector<place> list(std::string_view what) const {
    if (!value_.is_array()) fail(std::string(what) + " must be a list: […]");
    std::vector<place> all;
    for (std::size_t i = 0; i < value_.get_array().size(); ++i)
      all.push_back(place(file_, value_.get_array()[i], pointer_ + "/" + std::to_string(i)));
    return all;
  }
  /// True if the value's characters stand in the file as they are, so that a position inside the value is one in the file.
  bool literal(std::string_view shown) const {
    return file_.text().substr(file_.value_at(pointer_) + 1).starts_with(shown);
  }

 private:
  place(const json_text& file, const json::value& v, std::string pointer)
      : file_(file), value_(v), pointer_(std::move(pointer)) {}
  const json_text& file_;
  const json::value& value_;
  std::string pointer_;
};

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

std::vector<rank_id> ranks_of_role(const place& at, rank_id world) {
  std::vector<rank_id> ranks;
  if (at.is_list()) {
    for (const place& item : at.list("a role")) {
      const rank_id r = rank_of(item, world);
      if (std::count(ranks.begin(), ranks.end(), r) != 0) item.fail("rank " + std::to_string(r) + " stands here twice");
      ranks.push_back(r);
    }
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

/// Mixes all entries, each spread evenly over the whole, because an engine meets sizes in such an order.
std::vector<std::uint64_t> interleaved(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& runs) {
  std::uint64_t total = 0;
  for (const auto& [bytes, count] : runs) total += count;
  std::vector<std::uint64_t> sizes;
  std::vector<std::uint64_t> given(runs.size(), 0);
  while (sizes.size() < total) {
    // Takes the entry that is furthest behind its share so far.
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

std::string too_many(std::uint64_t most, std::string_view of_what) {
  return "these are more than " + std::to_string(most) + " " + std::string(of_what);
}

std::vector<std::uint64_t> sizes_of(const place& op, std::string_view key, std::optional<std::uint64_t> microbatches) {
  const place at = op.at(key, R"(what is sent, for example [{"bytes": "16MiB", "count": 100}])");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
  std::uint64_t total = 0;
  for (const place& item : at.list(std::string(key))) {
    item.expect_object("an entry", {"bytes", "count"});
    const std::uint64_t bytes = byte_size(item.at("bytes", R"(how large each one is, for example "16MiB")"));
    if (runs.size() == most_entries) item.fail(too_many(most_entries, "entries"));
    const auto count = item.at("count", "how many there are").number("a count", 1, most_invocations);
    runs.emplace_back(bytes, count);
    total += count;
  }
  if (runs.empty()) at.fail(R"(nothing is sent; list at least one {"bytes", "count"})");
  if (total > most_invocations) at.fail(too_many(most_invocations, "invocations"));
  const std::vector<std::uint64_t> all = interleaved(runs);
  std::vector<std::uint64_t> wanted;
  for (std::uint64_t i = 0; i < microbatches.value_or(all.size()); ++i) wanted.push_back(all[i % all.size()]);
  return wanted;
}

std::vector<ops::config_ptr> configs_of(const place& op) {
  const place at = op.at(
      "configs", R"x(the ways to do it, the default first, for example ["direct", "chunked(chunk_bytes=1MiB)"])x");
  std::vector<ops::config_ptr> configs;
  for (const place& item : at.list("configs")) {
    auto config = ops::named_config(item.text("a config"));
    if (!config) item.fail(sentence(config.reason()));
    for (const ops::config_ptr& other : configs) {
      if (other->id() == (*config)->id()) item.fail("config " + other->id() + " stands in the list twice");
    }
    configs.push_back(std::move(*config));
    if (configs.size() > tuning::limits::configs) item.fail(too_many(tuning::limits::configs, "configs"));
  }
  if (configs.empty()) at.fail(R"(the catalogue is empty; list at least the default, for example "direct")");
  if (configs.front()->what_it_needs() != ops::needs::nothing)
    at.list("configs").front().fail("config " + configs.front()->id() +
                                    " cannot be the default, which has to run before the ranks know each other's "
                                    R"(memory or pieces; put "direct" or a chunked one first)");
  return configs;
}

void read_stages(const place& at, op_spec& op, rank_id world) {
  if (const auto stages = at.find("stages")) {
    for (const place& item : stages->list("stages")) {
      const rank_id r = rank_of(item, world);
      if (std::count(op.stages.begin(), op.stages.end(), r) != 0)
        item.fail("rank " + std::to_string(r) + " has a stage already; a stage cannot send to itself");
      op.stages.push_back(r);
    }
    if (op.stages.size() < 2) stages->fail("a pipeline needs at least two stages");
  } else {
    for (rank_id r = 0; r < world; ++r) op.stages.push_back(r);
    if (world < 2) at.fail(R"(a pipeline needs at least two ranks; give "ranks" or -n at least 2)");
  }
  for (std::size_t i = 1; i < op.stages.size(); ++i) op.edges.emplace_back(op.stages[i - 1], op.stages[i]);
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
    for (const place& item : edges->list("edges")) {
      const std::vector<place> ends = item.list("an edge");
      if (ends.size() != 2) item.fail("an edge has two ends: [from, to]");
      const std::pair edge{rank_of(ends[0], world), rank_of(ends[1], world)};
      if (edge.first == edge.second)
        item.fail("rank " + std::to_string(edge.first) + " would send to itself; an edge needs two ranks");
      if (std::count(pairs.edges.begin(), pairs.edges.end(), edge) != 0) item.fail("this edge is listed twice");
      pairs.edges.push_back(edge);
    }
    if (pairs.edges.empty()) edges->fail("there is no edge; list at least one [from, to]");
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

op_spec read_op(const place& at, rank_id world, const spec_overrides& overrides) {
  if (!at.find("op")) at.fail(R"(the key "op" is missing: "pipeline" or "transfer")");
  const place kind = at.at("op", "");
  const std::string word = kind.text("op");
  op_spec op;
  if (word == "pipeline") {
    at.expect_object("a pipeline", {"op", "name", "stages", "dtype", "configs", "microbatches"});
  } else if (word == "transfer") {
    op.kind = op_kind::transfer;
    at.expect_object("a transfer", {"op", "name", "roles", "edges", "dtype", "configs", "messages"});
  } else {
    kind.fail("unknown op " + in_quotes(word) + "; known are pipeline and transfer");
  }
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
  op.configs = configs_of(at);
  if (op.kind == op_kind::pipeline) {
    read_stages(at, op, world);
  } else {
    read_pairs(at, op, world);
  }
  op.sizes = sizes_of(at, op.kind == op_kind::pipeline ? "microbatches" : "messages", overrides.microbatches);
  return op;
}

}  // namespace

spec parse_spec(std::string_view text, const std::string& file_name, const spec_overrides& overrides) {
  const json_text file(file_name, std::string(text));
  const place root(file);
  root.expect_object("a spec", {"name", "about", "ranks", "ops"});
  spec job;
  job.name = root.at("name", "what this job is called").text("name");
  if (const auto about = root.find("about")) static_cast<void>(about->text("about"));
  if (const auto ranks = root.find("ranks")) job.ranks = static_cast<rank_id>(ranks->number("ranks", 1, most_ranks));
  if (overrides.ranks) job.ranks = *overrides.ranks;
  if (job.ranks == 0) root.fail(R"(the key "ranks" is missing: how many processes to start; -n can say it, too)");
  const place ops = root.at("ops", "what the ranks do together");
  for (const place& item : ops.list("ops")) {
    item.expect_object("an op",
                       {"op", "name", "stages", "roles", "edges", "dtype", "configs", "microbatches", "messages"});
    if (job.ops.size() == most_ops) item.fail(too_many(most_ops, "ops"));
    op_spec op = read_op(item, job.ranks, overrides);
    for (const op_spec& other : job.ops) {
      if (other.name == op.name)
        item.at("name", "").fail("there is another op called " + in_quotes(op.name) + "; names must differ");
    }
    job.ops.push_back(std::move(op));
  }
  if (job.ops.empty()) ops.fail("there is no op; describe at least one");
  return job;
}

spec read_spec(const std::string& path, const spec_overrides& overrides) {
  transports::file_storage disk;
  const auto text = disk.read(path);
  if (!text)
    throw text_error(sentence(text.reason()) +
                     "; give the path of a JSON spec, for example examples/specs/send-recv.json");
  return parse_spec(*text, path, overrides);
}

}  // namespace parley::cli
