#include <parley/cli/job_summary.hpp>

#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/group/rooted_group.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/cli/payload/outputs.hpp>
#include <parley/collective.hpp>
#include <parley/tuning/key.hpp>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

namespace parley::cli {

namespace json = boost::json;
using actors::stamp_flags;
using runtime::flight_event;
using runtime::flight_record;

namespace {

constexpr std::size_t most_examples = 5;

std::uint64_t number(const json::value& v) { return v.to_number<std::uint64_t>(); }

bool is(const flight_record& r, stamp_flags flag) { return (r.flags & static_cast<unsigned>(flag)) != 0; }
bool of_sender(const flight_record& r) { return r.what == flight_event::sent || r.what == flight_event::send_failed; }

// `0->1` for an edge; a group names all of its ranks.
std::string ranks_text(const std::vector<rank_id>& ranks) {
  std::string text;
  for (const rank_id r : ranks) text += (text.empty() ? "" : "->") + std::to_string(r);
  return text;
}

std::string key_of(const op_spec& op, std::uint64_t bytes) {
  return tuning::parameters_text({.op = {}, .size = tuning::size_bucket::of(bytes), .dtype = op.dtype});
}

std::string config_text(const op_spec& op, std::uint64_t digest) {
  for (const ops::config_ptr& c : op.configs) {
    if (c->digest() == digest) return c->id();
  }
  for (const ops::group_config_ptr& c : op.group_configs) {
    if (c->digest() == digest) return c->id();
  }
  return "config " + std::to_string(digest);
}

std::uint64_t default_of(const op_spec& op) {
  return op.configs.empty() ? op.group_configs.front()->digest() : op.configs.front()->digest();
}

/// An edge, or a group of a collective. Each makes its own agreement.
struct known_part {
  const op_spec* op = nullptr;
  std::vector<rank_id> ranks;  ///< the sender, or leader, first
};

using known_parts = std::map<std::uint64_t, known_part>;

known_parts parts_in(const spec& job) {
  known_parts all;
  for (const op_spec& op : job.ops) {
    for (const auto& [from, to] : op.edges)
      all[actors::declare_edge(op.name, from, to, op.dtype).id()] = {&op, {from, to}};
    if (op.groups.empty()) continue;
    ops::collective_options declared;
    declared.name = op.name;
    declared.groups = op.groups;
    const auto groups = ops::form_groups(declared, job.ranks);
    if (!groups) continue;
    for (const auto& participants : *groups) {
      const auto of_group = actors::declare_group(op.name, participants, op.depth, op.dtype);
      std::vector<rank_id> ranks{of_group.leader};
      for (const auto& p : participants) {
        if (p.rank != of_group.leader) ranks.push_back(p.rank);
      }
      all[of_group.id()] = {&op, std::move(ranks)};
    }
  }
  return all;
}

const op_spec* op_named(const spec& job, std::string_view name) {
  const auto found = std::find_if(job.ops.begin(), job.ops.end(), [&](const op_spec& op) { return op.name == name; });
  return found == job.ops.end() ? nullptr : &*found;
}

/// One invocation, as all of its ranks recorded it.
struct seen_invocation {
  const flight_record* sender = nullptr;  ///< or the leader's record
  const flight_record* other =
      nullptr;  ///< of a receiver or worker; preferably the record of one that ran another config than the sender
  std::vector<rank_id> others;  ///< the receiver, or the workers
  bool twice = false;           ///< a rank recorded it twice
  bool differ = false;          ///< two workers ran different configs

  void add(rank_id by, const flight_record& r) {
    if (of_sender(r)) {
      twice = twice || sender != nullptr;
      sender = &r;
      return;
    }
    twice = twice || std::find(others.begin(), others.end(), by) != others.end();
    others.push_back(by);
    differ = differ || (other != nullptr && other->digest != r.digest);
    if (other == nullptr || (sender != nullptr && r.digest != sender->digest)) other = &r;
  }
  bool is_mismatch() const {
    return twice || differ || (sender != nullptr && other != nullptr && sender->digest != other->digest);
  }
};

std::string describe(const known_parts& known, const seen_invocation& e) {
  const flight_record& r = *(e.sender != nullptr ? e.sender : e.other);
  const auto where = known.find(r.op);
  if (where == known.end()) return "an op that the spec does not have";
  const op_spec& op = *where->second.op;
  std::string text =
      op.name + " " + ranks_text(where->second.ranks) + ", invocation " + std::to_string(r.invocation) + ": ";
  if (e.twice) return text + "one end ran it twice";
  if (e.sender == nullptr) return text + "two workers ran different configs";
  const bool is_group = !op.groups.empty();
  return text + (is_group ? "the leader ran " : "the sender ran ") + config_text(op, e.sender->digest) +
         (is_group ? ", a worker " : ", the receiver ") + config_text(op, e.other->digest);
}

std::string_view message_name(std::uint64_t type) {
  static constexpr std::array<std::pair<std::uint16_t, std::string_view>, 9> names{
      {{actors::ack::message_type, "ack"},
       {actors::offer::message_type, "offer"},
       {actors::merged::message_type, "merged"},
       {actors::op_reject::message_type, "op_reject"},
       {actors::warm::message_type, "warm"},
       {actors::warmed::message_type, "warmed"},
       {actors::report::message_type, "report"},
       {actors::decide::message_type, "decide"},
       {actors::matched::message_type, "matched"}}};
  const auto found = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == type; });
  return found == names.end() ? "other" : found->second;
}

/// Compares the hashes of received outputs with those that this process computes.
class reference {
 public:
  std::optional<std::string> difference(const op_spec& op, rank_id from, const json::array& digests) {
    for (std::size_t i = 0; i < std::min<std::size_t>(digests.size(), op.sizes.size()); ++i) {
      if (number(digests[i]) == expected(op, from, i)) continue;
      if (op.kind == op_kind::halo) return "exchange " + std::to_string(i) + " has brought wrong ghosts";
      return "microbatch " + std::to_string(i) + " (" + tuning::byte_size_text(op.sizes[i]) +
             ") came out different from a single process's";
    }
    return std::nullopt;
  }

 private:
  std::uint64_t expected(const op_spec& op, rank_id from, std::uint64_t i) {
    const auto [at, is_new] = known_.try_emplace({payload_number(op, from, i), i, &op}, 0);
    if (is_new) at->second = expected_digest(op, from, i);
    return at->second;
  }
  std::map<std::tuple<std::uint64_t, std::uint64_t, const op_spec*>, std::uint64_t> known_;
};

struct output_check {
  bool match() const { return differ == 0 && seen == expected; }
  std::uint64_t expected = 0;  ///< microbatches and messages
  std::uint64_t seen = 0;
  std::uint64_t differ = 0;  ///< ends that received at least one wrong output
  json::array differences;
};

output_check check_outputs(const spec& job, const rank_reports& reports) {
  output_check check;
  reference single;
  for (const op_spec& op : job.ops) check.expected += outputs_of(op);
  for (const auto& report : reports) {
    if (!report) continue;
    for (const json::value& o : report->at("outputs").as_array()) {
      const op_spec* op = op_named(job, o.at("op").as_string());
      if (op == nullptr) continue;
      check.seen += o.at("digests").as_array().size();
      const auto why = single.difference(*op, static_cast<rank_id>(number(o.at("from"))), o.at("digests").as_array());
      if (!why) continue;
      ++check.differ;
      check.differences.push_back(json::value(op->name + ": " + *why));
    }
  }
  if (check.seen != check.expected)
    check.differences.push_back(json::value(std::to_string(check.expected - std::min(check.seen, check.expected)) +
                                            " of " + std::to_string(check.expected) + " outputs never came"));
  return check;
}

void add_mail(json::object& document, const rank_reports& reports) {
  std::map<std::string, std::uint64_t> by_type;
  std::uint64_t sent = 0;
  std::uint64_t credits = 0;
  std::uint64_t outsiders = 0;
  std::uint64_t repeated = 0;
  for (const auto& report : reports) {
    if (!report) continue;
    const json::object& mail = report->at("mail").as_object();
    sent += number(mail.at("sent"));
    credits += number(mail.at("credits"));
    outsiders += number(mail.at("to_outsiders"));
    repeated += number(mail.at("repeated"));
    for (const auto& t : mail.at("sent_by_type").as_object())
      by_type[std::string(message_name(std::stoull(std::string(t.key()))))] += number(t.value());
  }
  json::object types;
  for (const auto& [type, count] : by_type) types[type] = count;
  const std::uint64_t flow = by_type["matched"];
  document["control_messages"] = sent - flow;
  document["sent_by_type"] = std::move(types);
  document["flow_messages"] = flow;
  document["credit_frames"] = credits;
  document["repeated_messages"] = repeated;
  document["control_messages_to_outsiders"] = outsiders;
}

json::array stream_json(const std::vector<stream_run>& runs) {
  json::array list;
  for (const stream_run& r : runs) list.push_back(json::object{{"what", r.what}, {"count", r.count}});
  return list;
}

bool is_of(const json::object& agreement, const known_part& part) {
  if (part.op->name != agreement.at("op").as_string()) return false;
  const json::array& ranks = agreement.at("participants").as_array();
  return ranks.size() == part.ranks.size() &&
         std::all_of(ranks.begin(), ranks.end(),
                     [&](const json::value& r) {
                       return std::find(part.ranks.begin(), part.ranks.end(), r.to_number<rank_id>()) !=
                              part.ranks.end();
                     }) &&
         number(agreement.at("sender")) == part.ranks.front();
}

json::array agreements_in(const spec& job, const rank_reports& reports, const std::vector<flight_records>& flights) {
  const known_parts known = parts_in(job);
  json::array all;
  for (rank_id r = 0; r < reports.size(); ++r) {
    if (!reports[r]) continue;
    for (json::value a : reports[r]->at("agreements").as_array()) {
      json::object& agreement = a.as_object();
      const auto part =
          std::find_if(known.begin(), known.end(), [&](const auto& p) { return is_of(agreement, p.second); });
      if (part == known.end()) continue;
      const json::value& until = agreement.at("invocations_until_agreement");
      agreement["trials_in_stream"] =
          stream_json(stream_of(*part->second.op, part->first, std::string(agreement.at("key").as_string()), flights[r],
                                until.is_null() ? std::nullopt : std::optional(number(until))));
      all.push_back(std::move(a));
    }
  }
  return all;
}

}  // namespace

joined_flights join_flights(const spec& job, std::span<const flight_records> of_ranks) {
  // Rehearsals have their own invocation numbers, separate from those of the user's calls.
  using identity = std::tuple<std::uint64_t, std::uint64_t, bool, std::uint32_t, std::uint64_t>;
  std::map<identity, seen_invocation> all;
  joined_flights joined;
  for (rank_id rank = 0; rank < of_ranks.size(); ++rank) {
    for (const flight_record& r : of_ranks[rank]) {
      all[{r.op, r.generation, is(r, stamp_flags::rehearsal), r.tag, r.invocation}].add(rank, r);
      if (of_sender(r)) ++(is(r, stamp_flags::rehearsal) ? joined.rehearsals : joined.invocations);
    }
  }
  const known_parts known = parts_in(job);
  for (const auto& [id, e] : all) {
    const auto part = known.find(std::get<0>(id));
    const std::size_t others = part == known.end() ? 1 : part->second.ranks.size() - 1;
    if (e.is_mismatch()) {
      ++joined.mismatches;
      if (joined.examples.size() < most_examples) joined.examples.push_back(describe(known, e));
    } else if (e.sender == nullptr || e.others.size() != others) {
      ++joined.unpaired;
    }
  }
  return joined;
}

std::vector<stream_run> stream_of(const op_spec& op, std::uint64_t id, const std::string& key,
                                  const flight_records& of_rank, std::optional<std::uint64_t> until_agreement) {
  std::vector<const flight_record*> mine;
  for (const flight_record& r : of_rank) {
    if (r.op == id && of_sender(r) && !is(r, stamp_flags::rehearsal) && key_of(op, r.bytes) == key) mine.push_back(&r);
  }
  std::sort(mine.begin(), mine.end(), [](const flight_record* a, const flight_record* b) {
    return std::tuple(a->began_ns, a->tag, a->invocation) < std::tuple(b->began_ns, b->tag, b->invocation);
  });
  std::vector<stream_run> runs;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const bool agreed = until_agreement && i >= *until_agreement;
    std::string what = is(*mine[i], stamp_flags::timed) ? "trials" : agreed ? config_text(op, mine[i]->digest) : "c0";
    if (what == "c0" && mine[i]->digest != default_of(op)) what = config_text(op, mine[i]->digest);
    if (runs.empty() || runs.back().what != what) runs.push_back({what, 0});
    ++runs.back().count;
  }
  return runs;
}

std::string to_string(const std::vector<stream_run>& runs) {
  constexpr std::size_t most = 8;
  constexpr std::size_t in_front = 4;
  std::string text;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs.size() > most && i == in_front) {
      const std::size_t skipped = runs.size() - most + 1;
      text += ", (" + std::to_string(skipped) + " more turns)";
      i += skipped;
    }
    text += (text.empty() ? "" : ", ") + runs[i].what + " x" + std::to_string(runs[i].count);
  }
  return text;
}

flight_records records_in(const json::object& report) {
  flight_records all;
  for (const json::value& v : report.at("records").as_array()) {
    const json::array& a = v.as_array();
    flight_record r;
    r.op = number(a.at(0));
    r.generation = number(a.at(1));
    r.invocation = number(a.at(2));
    r.digest = number(a.at(3));
    r.bytes = number(a.at(4));
    r.began_ns = a.at(5).to_number<std::int64_t>();
    r.ended_ns = a.at(6).to_number<std::int64_t>();
    r.tag = static_cast<std::uint32_t>(number(a.at(7)));
    r.what = static_cast<flight_event>(number(a.at(8)));
    r.flags = static_cast<std::uint8_t>(number(a.at(9)));
    all.push_back(r);
  }
  return all;
}

json::object summarize(const spec& job, const rank_reports& reports) {
  std::vector<flight_records> flights;
  std::uint64_t copied = 0;
  std::int64_t wall_ns = 0;
  for (const auto& report : reports) {
    flights.push_back(report ? records_in(*report) : flight_records{});
    if (!report) continue;
    copied += number(report->at("copied_bytes"));
    wall_ns = std::max(wall_ns, report->at("wall_ns").to_number<std::int64_t>());
  }
  const joined_flights joined = join_flights(job, flights);
  json::array examples;
  for (const std::string& e : joined.examples) examples.push_back(json::value(e));

  json::object document;
  document["name"] = job.name;
  document["ranks"] = job.ranks;
  document["agreements"] = agreements_in(job, reports, flights);
  document["invocations"] = joined.invocations;
  document["rehearsals"] = joined.rehearsals;
  document["mismatches"] = joined.mismatches;
  document["mismatch_examples"] = std::move(examples);
  document["unpaired"] = joined.unpaired;
  add_mail(document, reports);
  document["barriers"] = 0;  // the library has none to call
  document["copied_bytes"] = copied;
  document["wall_ns"] = wall_ns;
  output_check outputs = check_outputs(job, reports);
  document["outputs_match"] = outputs.match();
  document["outputs_expected"] = outputs.expected;
  document["outputs_compared"] = outputs.seen;
  document["outputs_differ"] = outputs.differ != 0;
  document["output_differences"] = std::move(outputs.differences);
  return document;
}

std::string trace_lines(const spec& job, const rank_reports& reports) {
  const known_parts known = parts_in(job);
  std::vector<std::pair<rank_id, flight_record>> all;
  for (rank_id r = 0; r < reports.size(); ++r) {
    if (!reports[r]) continue;
    for (const flight_record& f : records_in(*reports[r])) all.emplace_back(r, f);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.second.began_ns, a.first, a.second.op, a.second.invocation) <
           std::tuple(b.second.began_ns, b.first, b.second.op, b.second.invocation);
  });
  static constexpr std::array<std::string_view, 4> events{"sent", "received", "send_failed", "receive_failed"};
  std::string lines;
  for (const auto& [rank, f] : all) {
    const auto part = known.find(f.op);
    if (part == known.end()) continue;
    const op_spec& op = *part->second.op;
    json::object line{{"rank", rank},
                      {"op", op.name},
                      {"sender", part->second.ranks.front()},
                      {"receiver", part->second.ranks.back()},
                      {"generation", f.generation},
                      {"tag", f.tag},
                      {"invocation", f.invocation},
                      {"what", events.at(static_cast<std::size_t>(f.what))},
                      {"config", config_text(op, f.digest)},
                      {"bytes", f.bytes},
                      {"key", key_of(op, f.bytes)},
                      {"trial", is(f, stamp_flags::timed)},
                      {"rehearsal", is(f, stamp_flags::rehearsal)},
                      {"began_ns", f.began_ns},
                      {"ended_ns", f.ended_ns}};
    lines += json::serialize(line) + "\n";
  }
  return lines;
}

}  // namespace parley::cli
