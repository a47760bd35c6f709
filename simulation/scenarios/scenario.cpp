#include <parley/simulation/scenarios/scenario.hpp>

#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/halo.hpp>
#include <parley/hierarchy.hpp>
#include <parley/simulation/programs/collectives.hpp>
#include <parley/simulation/programs/config_text.hpp>
#include <parley/symmetric.hpp>

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <type_traits>
#include <utility>

namespace parley::simulation {

namespace json = boost::json;
using runtime::errc;

// `drift_options` is of another namespace, so this must be declared before it is used.
template <class A>
void fields(A& a, tuning::drift_options& d);

namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  runtime::raise({errc::malformed, "scenario" + (where.empty() ? "" : ", field `" + where + "`") + ": " + what});
}

// Fault points: the largest values that a tape draws.
constexpr std::uint64_t narrow_window = 8;
constexpr std::uint64_t narrow_window_bytes = 65'536;
constexpr std::uint64_t narrow_control_window = 8;
constexpr std::uint64_t narrow_margin = 3;
constexpr std::uint64_t most_hurry = 300;
// The starved task is an actor of one of a few ops, or of one of the first calls.
constexpr std::uint64_t most_starved = 40;

// The range of a number. With numbers outside it, other numbers overflow, memory runs out, or a job takes too long.
struct range {
  std::int64_t least = 0;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  bool or_never = false;
};
constexpr range a_rank_count{1, 100'000};
constexpr range a_size{1, std::int64_t{1} << 30U};
constexpr range a_call_count{0, 1'000'000};
constexpr range a_number{1, 1'000'000};
constexpr range an_amount_at_once{1, 10'000};
constexpr range a_job_count{1, 1'000};
constexpr range a_depth{0, 256};
constexpr range a_mishap_count{0, 1'000};
constexpr range of_a_thousand{0, 1'000};
constexpr range any_thousandths{0, 100'000};
constexpr range per_byte{0, 1'000'000};
constexpr range an_invocation{0, std::int64_t{1} << 62U};
constexpr range a_while{0, 100'000'000'000};
constexpr range some_while{1, 100'000'000'000};
constexpr range a_while_or_never{0, 100'000'000'000, true};
// The message that is lost last is repeated after up to a second. Calls are not calm before that.
constexpr range a_calm{2'000'000'000, 100'000'000'000};
constexpr range a_drawn_delay{0, 100'000'001'000};
constexpr range a_mishap_ns{1'000, 100'000'000'000};
constexpr time_ns least_of_streams_ns = 10'000'000'000;

template <class T>
void check(const std::string& where, T value, range allowed) {
  if constexpr (std::is_same_v<T, time_ns>) {
    if (allowed.or_never && value == runtime::never) return;
  }
  const auto told = [&](const char* bound, std::int64_t limit) {
    refuse(where, std::string(bound) + std::to_string(limit) + " is possible, not " + std::to_string(value));
  };
  if constexpr (std::is_floating_point_v<T>) {
    if (!(value >= static_cast<T>(allowed.least))) told("at least ", allowed.least);
    if (value > static_cast<T>(allowed.most)) told("at most ", allowed.most);
  } else {
    if (std::cmp_less(value, allowed.least)) told("at least ", allowed.least);
    if (std::cmp_greater(value, allowed.most)) told("at most ", allowed.most);
  }
}
template <class T>
void check(const std::string& where, const std::vector<T>& values, range allowed) {
  for (const T& value : values) check(where, value, allowed);
}
template <class T>
void check(const std::string& where, const std::optional<T>& value, range allowed) {
  if (value) check(where, *value, allowed);
}

template <class E>
std::string_view name_of(E e);
template <>
std::string_view name_of(op_spec::kind k) {
  constexpr std::string_view names[] = {"pair", "pipeline",  "group",    "symmetric", "batch",
                                        "halo", "attention", "training", "hierarchy", "contextual"};
  return names[static_cast<std::size_t>(k)];
}
template <>
std::string_view name_of(mishap::kind k) {
  return name(k);
}
template <>
std::string_view name_of(ordering o) {
  return name(o);
}
template <>
std::string_view name_of(link_model::fences f) {
  constexpr std::string_view names[] = {"work", "do_nothing", "fail"};
  return names[static_cast<std::size_t>(f)];
}

template <>
std::string_view name_of(link_model::memory m) {
  constexpr std::string_view names[] = {"none", "exposed"};
  return names[static_cast<std::size_t>(m)];
}
template <>
std::string_view name_of(runtime::late_writes w) {
  constexpr std::string_view names[] = {"fail", "may_land"};
  return names[static_cast<std::size_t>(w)];
}

template <class T>
struct last_of {
  static constexpr T value = T::last;
};
template <>
struct last_of<ordering> {
  static constexpr ordering value = ordering::starving;
};
template <>
struct last_of<link_model::memory> {
  static constexpr link_model::memory value = link_model::memory::exposed;
};
template <>
struct last_of<runtime::late_writes> {
  static constexpr runtime::late_writes value = runtime::late_writes::may_land;
};
template <>
struct last_of<link_model::fences> {
  static constexpr link_model::fences value = link_model::fences::fail;
};

struct reader {
  void take(const std::string& where, const json::value& v, bool& to) {
    if (!v.is_bool()) refuse(where, "true or false is expected");
    to = v.as_bool();
  }
  void take(const std::string& where, const json::value& v, double& to) {
    if (!v.is_number()) refuse(where, "a number is expected");
    to = v.to_number<double>();
  }
  template <class T>
    requires std::is_integral_v<T>
  void take(const std::string& where, const json::value& v, T& to) {
    boost::system::error_code failed;
    to = v.to_number<T>(failed);
    if (!failed) return;
    refuse(where, "a whole number from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
                      std::to_string(std::numeric_limits<T>::max()) + " is expected, not " + json::serialize(v));
  }
  void take(const std::string& where, const json::value& v, std::string& to) {
    if (!v.is_string()) refuse(where, "a text is expected");
    to = std::string(v.as_string());
  }
  template <class E>
    requires std::is_enum_v<E>
  void take(const std::string& where, const json::value& v, E& to) {
    std::string text;
    take(where, v, text);
    for (std::size_t i = 0; i <= static_cast<std::size_t>(last_of<E>::value); ++i) {
      if (name_of(static_cast<E>(i)) != text) continue;
      to = static_cast<E>(i);
      return;
    }
    std::string names;
    for (std::size_t i = 0; i <= static_cast<std::size_t>(last_of<E>::value); ++i)
      names += (i == 0 ? "" : ", ") + std::string(name_of(static_cast<E>(i)));
    refuse(where, "`" + text + "` is not one of the possible names: " + names);
  }
  template <class T>
  void take(const std::string& where, const json::value& v, std::vector<T>& to) {
    if (!v.is_array()) refuse(where, "a list is expected");
    to.clear();
    for (const json::value& item : v.as_array()) {
      const std::string which = where + "[" + std::to_string(to.size()) + "]";
      take(which, item, to.emplace_back());
    }
  }
  template <class T>
  void take(const std::string& where, const json::value& v, std::optional<T>& to) {
    take(where, v, to.emplace());
  }
  template <class T>
    requires requires(T& t, reader& r) { fields(r, t); }
  void take(const std::string& where, const json::value& v, T& to) {
    if (!v.is_object()) refuse(where, "an object is expected");
    reader inner;
    inner.object = &v.as_object();
    inner.prefix = where.empty() ? "" : where + ".";
    fields(inner, to);
    for (const auto& [key, unused] : *inner.object) {
      if (std::find(inner.known.begin(), inner.known.end(), std::string(key)) != inner.known.end()) continue;
      std::string names;
      for (const std::string& k : inner.known) names += (names.empty() ? "" : ", ") + k;
      refuse(inner.prefix + std::string(key), "there is no such field; known here are " + names);
    }
    if constexpr (std::is_same_v<T, mishap>) expect_told(inner, to);
  }
  template <class T>
  void operator()(const char* field, T& to) {
    known.emplace_back(field);
    if (const json::value* const v = object->if_contains(field)) take(prefix + field, *v, to);
  }
  template <class T>
  void operator()(const char* field, T& to, range allowed) {
    (*this)(field, to);
    check(prefix + field, to, allowed);
  }
  bool told(const char* field) const { return object->contains(field); }
  const json::object* object = nullptr;
  std::string prefix;
  std::vector<std::string> known;

 private:
  // Refuses a mishap without these fields, because their defaults mean rank 0, the beginning of the job, and no time at all.
  static void expect_told(const reader& its, const mishap& m) {
    using enum mishap::kind;
    const std::string what = "a " + std::string(name(m.what));
    const bool of_a_way = m.what == clog || m.what == cut;
    if (!its.told("what")) refuse(its.prefix + "what", "it is missing: name the fault, such as pause or crash");
    if (!its.told("rank")) refuse(its.prefix + "rank", what + " needs the rank with the fault");
    if ((of_a_way || m.what == suspect) && (!its.told("to") || m.to == m.rank))
      refuse(its.prefix + "to", what + " needs a rank other than its `rank` here");
    if (of_a_way && m.after != 0)
      refuse(its.prefix + "after", what + " affects messages and begins at a time: give it `at_ns` instead");
    if (m.after != 0 && m.at_ns != 0)
      refuse(its.prefix + "after", "it is given together with `at_ns`: keep only the one that starts this fault");
    if (!its.told("at_ns") && m.after == 0)
      refuse(its.prefix + "at_ns", what + " needs it, or `after`, which counts messages");
    const bool lasts = of_a_way || m.what == pause || m.what == slow || m.what == restart;
    if (lasts && (!its.told("for_ns") || (m.what != restart && m.for_ns == 0)))
      refuse(its.prefix + "for_ns", what + " needs it: how long it lasts, more than 0");
  }
};

struct writer {
  template <class T>
  static json::value put(const T& from) {
    if constexpr (std::is_enum_v<T>) {
      return json::value(std::string(name_of(from)));
    } else if constexpr (requires(T& t, writer& w) { fields(w, t); }) {
      writer inner;
      fields(inner, const_cast<T&>(from));
      return inner.object;
    } else {
      return json::value_from(from);
    }
  }
  template <class T>
  static json::value put(const std::vector<T>& from) {
    json::array all;
    for (const T& item : from) all.push_back(put(item));
    return all;
  }
  template <class T>
  void operator()(const char* field, const T& from) {
    object[field] = put(from);
  }
  template <class T>
  void operator()(const char* field, const std::optional<T>& from) {
    if (from) object[field] = put(*from);
  }
  template <class T>
  void operator()(const char* field, const T& from, range) {
    (*this)(field, from);
  }
  json::object object;
};

}  // namespace

// Each struct lists its fields once, for reading and writing.
template <class A>
void fields(A& a, op_spec& o) {
  a("kind", o.what);
  a("name", o.name);
  a("members", o.members);
  a("sizes", o.sizes, a_size);
  a("configs", o.configs);
  a("calls", o.calls, a_call_count);
  a("calm", o.calm, a_call_count);
  a("in_flight", o.in_flight, an_amount_at_once);
  a("streams", o.streams, an_amount_at_once);
  a("depth", o.depth, a_depth);
  a("does", o.does);
  a("grid", o.grid);
  a("corners", o.corners);
  a("mesh", o.mesh);
  a("rehearse", o.rehearse);
  a("between_calls", o.between_calls);
  a("compare", o.compare);
  a("registered", o.registered);
  a("everybody", o.everybody);
  a("small_receives", o.small_receives, of_a_thousand);
  a("retunes", o.retunes, of_a_thousand);
  a("leaves", o.leaves, of_a_thousand);
  a("timeout_ns", o.timeout_ns, some_while);
  a("pause_ns", o.pause_ns, a_while);
}
template <class A>
void fields(A& a, link_model& l) {
  a("latency_ns", l.latency_ns, a_while);
  a("ns_per_byte", l.ns_per_byte, per_byte);
  a("per_message_ns", l.per_message_ns, a_while);
  a("eager_bytes", l.eager_bytes);
  a("shared_wire", l.shared_wire);
  a("shared_egress", l.shared_egress);
  a("shared_ingress", l.shared_ingress);
  a("one_sided", l.one_sided);
  a("late_writes", l.late);
  a("takes_back", l.takes_back);
  a("fence", l.fence);
  a("fence_fails_from_ns", l.fence_fails_from_ns, a_while_or_never);
  a("one_sided_ns_per_byte", l.one_sided_ns_per_byte, per_byte);
  a("landing_ns", l.landing_ns, a_while_or_never);
}
template <class A>
void fields(A& a, kernel_model& k) {
  a("noise", k.noise_per_thousand, any_thousandths);
  a("drift_per_second", k.drift_per_second, any_thousandths);
  a("stragglers", k.straggler_per_thousand, of_a_thousand);
}
template <class A>
void fields(A& a, fault_limits& f) {
  a("lose", f.lose, of_a_thousand);
  a("double_control", f.double_control, of_a_thousand);
  a("delay_control", f.delay_control, of_a_thousand);
  a("delay_data", f.delay_data, of_a_thousand);
  a("double_data", f.double_data, of_a_thousand);
  a("disk_fails", f.disk_fails, of_a_thousand);
  a("disk_room", f.disk_room);
  a("disk_locks", f.disk_locks, of_a_thousand);
  a("disk_tears", f.disk_tears, of_a_thousand);
  a("noise", f.noise, any_thousandths);
  a("drift", f.drift, any_thousandths);
  a("stragglers", f.stragglers, of_a_thousand);
  a("early_timeouts", f.early_timeouts, of_a_thousand);
  a("clogs", f.clogs, a_mishap_count);
  a("cuts", f.cuts, a_mishap_count);
  a("pauses", f.pauses, a_mishap_count);
  a("slow", f.slow, a_mishap_count);
  a("crashes", f.crashes, a_mishap_count);
  a("restarts", f.restarts, a_mishap_count);
  a("suspicions", f.suspicions, a_mishap_count);
  a("longest_delay_ns", f.longest_delay_ns, a_while);
  a("longest_mishap_ns", f.longest_mishap_ns, a_mishap_ns);
  a("orders", f.orders);
  a("inside", f.inside);
  a("skew", f.skew);
  a("points", f.points);
}
template <class A>
void fields(A& a, mishap& m) {
  a("what", m.what);
  a("rank", m.rank);
  a("to", m.to);
  a("at_ns", m.at_ns, a_while);
  a("for_ns", m.for_ns, a_while);
  a("after", m.after);
}
template <class A>
void fields(A& a, tape& t) {
  a("lose", t.lose, of_a_thousand);
  a("double_control", t.double_control, of_a_thousand);
  a("delay_control", t.delay_control, of_a_thousand);
  a("delay_data", t.delay_data, of_a_thousand);
  a("double_data", t.double_data, of_a_thousand);
  a("longest_delay_ns", t.longest_delay_ns, a_drawn_delay);
  a("disk_fails", t.disk_fails, of_a_thousand);
  a("disk_room", t.disk_room);
  a("disk_locks", t.disk_locks, of_a_thousand);
  a("disk_tears", t.disk_tears, of_a_thousand);
  a("noise", t.noise, any_thousandths);
  a("drift", t.drift, any_thousandths);
  a("stragglers", t.stragglers, of_a_thousand);
  a("window", t.window, a_call_count);
  a("window_bytes", t.window_bytes);
  a("control_window", t.control_window, a_call_count);
  a("promise_margin", t.promise_margin, a_call_count);
  a("hurry", t.hurry, of_a_thousand);
  a("early_timeouts", t.early_timeouts, of_a_thousand);
  a("order", t.order);
  a("starved", t.starved);
  a("inside", t.inside);
  a("starved_task", t.starved_task, a_call_count);
  a("skewed", t.skewed);
  a("mishaps", t.mishaps);
}
template <class A>
void fields(A& a, tuning::drift_options& d) {
  a("on", d.on);
  a("every", d.every, a_number);
  a("pause_ns", d.pause_ns, a_while);
  a("samples", d.samples, a_number);
  a("threshold", d.threshold);
  a("sustained", d.sustained, a_number);
  a("search_pause_ns", d.search_pause_ns, a_while);
}
template <class A>
void fields(A& a, scenario& s) {
  a("name", s.name);
  a("ranks", s.ranks, a_rank_count);
  a("ops", s.ops);
  a("link", s.link);
  a("kernel", s.kernel);
  a("faults", s.faults);
  a("faulty_ns", s.faulty_ns, a_while);
  a("calm_after_ns", s.calm_after_ns, a_calm);
  a("detection_ns", s.detection_ns, some_while);
  a("window", s.window, a_number);
  a("window_bytes", s.window_bytes, range{1});
  a("control_window", s.control_window, a_number);
  a("budget", s.budget, range{});
  a("watch", s.watch);
  a("first_invocation", s.first_invocation, an_invocation);
  a("jobs", s.jobs, a_job_count);
  a("cut_short", s.cut_short);
  a("results", s.results);
  a("validators", s.validators);
  a("other_version", s.other_version);
  a("must_decide", s.must_decide);
  a("tape", s.saved);
}

namespace {

[[noreturn]] void refuse_line(std::string_view text, std::size_t at, const std::string& what) {
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  runtime::raise({errc::malformed, "scenario, line " + std::to_string(line) + ": " + what});
}

// Boost.JSON silently uses the last of two fields with the same name, so this refuses such fields. Boost.JSON must have accepted the text.
void refuse_double_fields(std::string_view text) {
  std::vector<std::set<std::string>> open;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '{' || text[at] == '[') open.emplace_back();
    if (text[at] == '}' || text[at] == ']') open.pop_back();
    if (text[at] != '"') continue;
    const std::size_t first = at;
    while (text[++at] != '"') at += text[at] == '\\' ? 1 : 0;
    const std::size_t next = text.find_first_not_of(" \t\r\n", at + 1);
    if (next == std::string_view::npos || text[next] != ':') continue;
    const std::string field(json::parse(text.substr(first, at + 1 - first)).as_string());
    if (!open.back().insert(field).second) refuse_line(text, first, "field `" + field + "` is listed twice");
  }
}

json::value parsed(std::string_view text) {
  json::stream_parser parser;
  boost::system::error_code failed;
  const std::size_t read = parser.write_some(text.data(), text.size(), failed);
  if (!failed && read == text.size()) parser.finish(failed);
  if (failed || read != text.size())
    refuse_line(text, read, "this is not JSON: " + (failed ? failed.message() : "there is more text after its end"));
  refuse_double_fields(text);
  return parser.release();
}

void check_rank(rank_id r, const scenario& s, const std::string& where) {
  if (r >= s.ranks)
    refuse(where,
           "rank " + std::to_string(r) + " is outside the world of " + std::to_string(s.ranks) + ", see `ranks`");
}

void check_members(const op_spec& o, const scenario& s, const std::string& where) {
  for (const rank_id r : o.members) check_rank(r, s, where);
  const std::size_t least = 2;
  const bool by_number = o.what == op_spec::kind::halo || o.what == op_spec::kind::hierarchy;
  if (o.members.empty())
    refuse(where, "op `" + o.name + "` needs members: " +
                      (by_number ? "0, 1, 2, … of as many ranks as take part"
                                 : "its ranks, the sender, stage 0 or leader first"));
  if (o.members.size() < least || (o.what == op_spec::kind::pair && o.members.size() != least))
    refuse(where, "op `" + o.name + "` needs at least two ranks; a pair has exactly two");
  std::vector<rank_id> sorted = o.members;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse(where, "rank " + std::to_string(*twice) + " is listed twice");
  for (std::size_t i = 0; by_number && i < o.members.size(); ++i) {
    if (o.members[i] != i) refuse(where, "members of op `" + o.name + "` must be 0, 1, 2, …");
  }
  if (o.what == op_spec::kind::hierarchy && o.members.size() != s.ranks)
    refuse(where, "op `" + o.name + "` must have all ranks as members");
}

void check_halo(const op_spec& o, const std::string& where) {
  const bool is_halo = o.what == op_spec::kind::halo;
  if (!is_halo && (!o.grid.empty() || o.corners || o.mesh))
    refuse(where + "kind", "only a halo has grid, corners and mesh");
  check(where + "grid", o.grid, {1, static_cast<std::int64_t>(o.members.size())});
  const std::size_t blocks = std::accumulate(o.grid.begin(), o.grid.end(), std::size_t{1}, std::multiplies<>());
  if (o.grid.size() > 3 || (!o.grid.empty() && blocks != o.members.size()))
    refuse(where + "grid", "a grid must have 1 to 3 dimensions, and as many blocks as the op has members");
  const std::size_t least = 3;
  if (o.mesh && (!o.grid.empty() || o.corners || o.members.size() < least))
    refuse(where + "mesh", "a mesh must be a ring of at least three ranks, without a grid or corners");
}

bool is_member(const op_spec& o, std::uint64_t r) {
  return std::any_of(o.members.begin(), o.members.end(), [r](rank_id m) { return m == r; });
}

// Checks that a member of the op has the role or the rank in which a config misbehaves.
void check_misdeed(const op_spec& o, const words& w) {
  constexpr std::size_t of_whom = 3;
  if (w.all.size() <= of_whom || is_sound(w.text(0))) return;
  if (o.what == op_spec::kind::symmetric || o.what == op_spec::kind::contextual) {
    if (!is_member(o, w.number(of_whom))) w.refuse("it would fail on a rank that is not a member of the op");
  } else if (constexpr std::string_view worker = "worker"; w.all[of_whom].starts_with(worker)) {
    const std::uint64_t place = *words(w.all[of_whom].substr(worker.size())).number_if(0);
    const auto before_leader = [&](rank_id r) { return r < o.members.front(); };
    const auto leads = static_cast<std::uint64_t>(std::count_if(o.members.begin(), o.members.end(), before_leader));
    if (w.all[of_whom] != std::string(worker) + std::to_string(place) || place >= o.members.size())
      w.refuse("the op has no such place");
    if (o.what == op_spec::kind::group && place == leads) w.refuse("that is the leader's place");
    if (o.what == op_spec::kind::hierarchy && place != 1) w.refuse("its groups have a leader and worker1 only");
  }
}

// Checks a config by reading it as the ranks will read it.
void check_config(const op_spec& o, const scenario& s, std::string_view whole) {
  using enum op_spec::kind;
  kernel_times none({}, dice(0, purpose::kernel));
  config_text here{whole};
  if (o.what == pair || o.what == group || o.what == symmetric) {
    const words w(whole);
    here = text_for(whole, static_cast<rank_id>(w.number_if(1).value_or(0)));  // as the rank that it names
    if (here.text != whole && w.number(1) >= s.ranks) w.refuse("there is no such rank");
  }
  switch (o.what) {
    case symmetric: collective_from(here.text, none, here.abi); break;
    case group:
    case hierarchy: group_config_from(here.text, none, here.abi); break;
    case contextual: kernel_from(here.text); break;
    default: config_from(here.text, none, here.abi);
  }
  check_misdeed(o, words(here.text));
}

void check_configs(const op_spec& o, const scenario& s, const std::string& where) {
  if (o.configs.empty()) refuse(where, "op `" + o.name + "` needs one");
  for (std::size_t i = 0; i < o.configs.size(); ++i) {
    try {
      check_config(o, s, o.configs[i]);
    } catch (const runtime::failure& f) {
      refuse(where + "[" + std::to_string(i) + "]",
             f.reason().text() + " (op `" + o.name + "`, kind `" + std::string(name_of(o.what)) + "`)");
    }
    const std::string kind = words(o.configs[i]).text(0);
    if (i == 0 && (kind == "failing" || kind == "hanging" || kind == "corrupting" || kind == "abi" || kind == "on"))
      refuse(where + "[0]", "`" + o.configs[i] + "` cannot be the default, because the default must work on all ranks");
    if (std::count(o.configs.begin(), o.configs.end(), o.configs[i]) > 1)
      refuse(where, "`" + o.configs[i] + "` is listed twice");
  }
}

void check(const op_spec& o, const scenario& s, const std::string& where) {
  check_members(o, s, where + "members");
  check_halo(o, where);
  if (o.sizes.empty()) refuse(where + "sizes", "op `" + o.name + "` needs one");
  if (o.name.empty()) refuse(where + "name", "an op needs one");
  // The payloads of these kinds begin with 8 bytes that identify their message.
  const bool says =
      o.what == op_spec::kind::pair || o.what == op_spec::kind::pipeline || o.what == op_spec::kind::batch;
  if (says) check(where + "sizes", o.sizes, {8});
  if (o.calls + o.calm == 0) refuse(where + "calls", "at least 1 is needed, here or in `calm`");
  if (o.does != "broadcast") check(where + "depth", o.depth, {1});
  if (o.streams != 1 && o.what != op_spec::kind::pair) refuse(where + "streams", "only a pair has several streams");
  const bool hurried = s.faults.early_timeouts != 0 || (s.saved && s.saved->early_timeouts != 0);
  if (o.streams != 1 && (hurried || o.timeout_ns < least_of_streams_ns))
    refuse(where + "streams",
           "with several streams no call may time out early: the op needs a `timeout_ns` of at least " +
               std::to_string(least_of_streams_ns) + " and no `early_timeouts`");
  // Both ends must know which messages of which streams are sent at once, also when calls are added.
  const auto divides = [&](std::uint64_t calls) { return calls % o.in_flight == 0; };
  if (o.streams != 1 && !(divides(o.calls) && divides(o.calm) && divides(more_at_once)))
    refuse(where + "in_flight",
           "with several streams it must divide `calls`, `calm` and " + std::to_string(more_at_once));
  const bool levels = o.what == op_spec::kind::hierarchy;
  const std::vector<std::string> collectives =
      levels ? std::vector<std::string>{"all_reduce", "broadcast", "all_gather", "reduce_scatter"}
             : std::vector<std::string>{"all_reduce", "broadcast", "gather"};
  if (std::find(collectives.begin(), collectives.end(), o.does) == collectives.end()) {
    std::string names;
    for (const std::string& name : collectives) names += (names.empty() ? "" : ", ") + name;
    refuse(where + "does", "`" + o.does + "` is not one of the possible names: " + names);
  }
  check_configs(o, s, where + "configs");
  if (std::count_if(s.ops.begin(), s.ops.end(), [&](const op_spec& other) { return other.name == o.name; }) > 1)
    refuse(where + "name", "there are two ops `" + o.name + "`");
}

void check(const tape& t, const scenario& s) {
  check_rank(t.starved, s, "tape.starved");
  for (std::size_t i = 0; i < t.mishaps.size(); ++i) {
    const std::string where = "tape.mishaps[" + std::to_string(i) + "].";
    check_rank(t.mishaps[i].rank, s, where + "rank");
    check_rank(t.mishaps[i].to, s, where + "to");
  }
}

// True if the mishap may delay a call of the op without ending it.
bool holds_up(const mishap& m, const op_spec& o, time_ns detection_ns) {
  using enum mishap::kind;
  const bool of_a_way = m.what == clog || m.what == cut;
  if (!is_member(o, m.rank) || (of_a_way && !is_member(o, m.to)) || m.is_death(detection_ns)) return false;
  return of_a_way || m.what == pause || m.what == restart;
}

struct delay {
  time_ns most_ns = 0;
  std::string where;  // the field that causes the longest delay
};

// The longest delay of a call: all mishaps together or, if that is less, the time from the beginning of the first to the end of the last.
delay longest_delay(const tape& t, const op_spec& o, time_ns detection_ns) {
  delay all;
  time_ns longest = 0;
  time_ns first = runtime::never;
  time_ns last = 0;
  for (std::size_t i = 0; i < t.mishaps.size(); ++i) {
    const mishap& m = t.mishaps[i];
    if (!holds_up(m, o, detection_ns)) continue;
    all.most_ns += m.for_ns;
    first = std::min(first, m.at_ns);
    last = m.after != 0 ? runtime::never : std::max(last, m.at_ns + m.for_ns);
    if (m.for_ns >= longest) all.where = "tape.mishaps[" + std::to_string(i) + "].for_ns";
    longest = std::max(longest, m.for_ns);
  }
  if (all.most_ns != 0) all.most_ns = std::min(all.most_ns, last - first);
  return all;
}

delay longest_delay(const scenario& s) {
  const fault_limits& f = s.faults;
  const auto most = static_cast<time_ns>(f.clogs + f.cuts + f.pauses + f.restarts);
  if (most == 0) return {};
  return {std::min(most * f.longest_mishap_ns, s.faulty_ns + f.longest_mishap_ns), "faults.longest_mishap_ns"};
}

// Checkers accept a fault as the reason of a timeout only if timeouts are short.
void check_timeouts(const scenario& s) {
  for (std::size_t i = 0; i < s.ops.size(); ++i) {
    const op_spec& o = s.ops[i];
    const delay d = s.saved ? longest_delay(*s.saved, o, s.detection_ns) : longest_delay(s);
    if (o.timeout_ns < short_timeout_ns || d.most_ns == 0 || d.most_ns + s.detection_ns < o.timeout_ns) continue;
    refuse(d.where, "clogs, cuts, pauses and restarts may delay a call of op `" + o.name + "` for " +
                        std::to_string(d.most_ns) + " ns plus `detection_ns`, but the call waits only " +
                        std::to_string(o.timeout_ns) + " ns: make the faults shorter, or `ops[" + std::to_string(i) +
                        "].timeout_ns` longer; or set it below " + std::to_string(short_timeout_ns) +
                        ", so that calls may time out after any fault");
  }
}

void check_ranks_of_jobs(const scenario& s) {
  if (s.validators.size() > s.jobs) refuse("validators", "there are more entries than jobs");
  for (std::size_t job = 0; job < s.validators.size(); ++job) {
    if (s.validators[job].size() > s.ranks)
      refuse("validators[" + std::to_string(job) + "]", "there are more entries than ranks");
  }
  for (std::size_t i = 0; i < s.other_version.size(); ++i)
    check_rank(s.other_version[i], s, "other_version[" + std::to_string(i) + "]");
}

}  // namespace

scenario read_scenario(std::string_view text) {
  scenario s;
  reader().take("", parsed(text), s);
  if (s.ops.empty()) refuse("ops", "a scenario needs one");
  if (!(s.watch.threshold > 0)) refuse("watch.threshold", "more than 0 is needed");
  check_ranks_of_jobs(s);
  for (std::size_t i = 0; i < s.ops.size(); ++i) check(s.ops[i], s, "ops[" + std::to_string(i) + "].");
  if (s.saved) check(*s.saved, s);
  check_timeouts(s);
  return s;
}

std::string write_scenario(const scenario& s) {
  // Writes each field of the top level on its own line, so that people can find it.
  std::string text = "{\n";
  const json::value whole = writer::put(s);
  for (const auto& [key, value] : whole.as_object()) {
    if (text.size() > 2) text += ",\n";
    text += "  \"" + std::string(key) + "\": " + json::serialize(value);
  }
  return text + "\n}\n";
}

bool is_beside(const op_spec& op, std::uint64_t invocations) noexcept {
  // With corners, two ranks may be neighbours in several directions.
  const std::uint64_t few = op.corners ? 12 : 3;
  return is_program(op.what) && invocations <= few;
}

kernel_model kernels_of(const scenario& s, const tape& t) noexcept {
  kernel_model k = s.kernel;
  k.noise_per_thousand = std::max(k.noise_per_thousand, t.noise);
  k.drift_per_second = std::max(k.drift_per_second, t.drift);
  k.straggler_per_thousand = std::max(k.straggler_per_thousand, t.stragglers);
  k.drift_until_ns = std::min(k.drift_until_ns, s.faulty_ns);
  return k;
}

namespace {

// Faults of kernels and fault points inside parley draw from their own random numbers, so that they do not change the faults of messages
// and ranks.
void draw_inner_faults(const scenario& s, std::uint64_t seed, tape& t) {
  dice luck(seed, purpose::swarm, 2);
  const auto up_to = [&](std::uint64_t most) {
    const bool on = luck.chance(500);
    const std::uint64_t much = luck.below(most + 1);
    return on ? much : 0;
  };
  t.noise = up_to(s.faults.noise);
  t.drift = up_to(s.faults.drift);
  t.stragglers = up_to(s.faults.stragglers);
  t.early_timeouts = up_to(s.faults.early_timeouts);
  t.disk_room = up_to(s.faults.disk_room);
  t.disk_locks = up_to(s.faults.disk_locks);
  t.disk_tears = up_to(s.faults.disk_tears);
  t.starved_task = 1 + luck.below(most_starved);
  if (!s.faults.points) return;
  t.window = up_to(std::min<std::uint64_t>(s.window, narrow_window));
  t.window_bytes = up_to(std::min<std::uint64_t>(s.window_bytes, narrow_window_bytes));
  t.control_window = up_to(std::min<std::uint64_t>(s.control_window, narrow_control_window));
  if (luck.chance(300)) t.promise_margin = luck.below(narrow_margin + 1);
  t.hurry = up_to(most_hurry);
}

}  // namespace

tape draw(const scenario& s, std::uint64_t seed) {
  if (s.saved) return *s.saved;
  const fault_limits& f = s.faults;
  tape t;
  dice kinds(seed, purpose::swarm, 0);
  // Each kind of fault occurs in half of the seeds, because all kinds together would hide the effect of each.
  const auto rate = [&](std::uint64_t most) {
    const bool on = kinds.chance(500);
    const std::uint64_t much = kinds.below(most + 1);
    return on ? much : 0;
  };
  t.lose = rate(f.lose);
  t.double_control = rate(f.double_control);
  t.delay_control = rate(f.delay_control);
  t.delay_data = rate(f.delay_data);
  t.double_data = rate(f.double_data);
  t.disk_fails = rate(f.disk_fails);
  t.longest_delay_ns = 1'000 + static_cast<time_ns>(kinds.below(static_cast<std::uint64_t>(f.longest_delay_ns) + 1));
  if (f.orders) {
    t.order = static_cast<ordering>(kinds.below(4));
    t.starved = static_cast<rank_id>(kinds.below(s.ranks));
    t.inside = f.inside && kinds.chance(500);
  }
  t.skewed = f.skew && kinds.chance(500);
  draw_inner_faults(s, seed, t);
  using kind = mishap::kind;
  const std::pair<kind, std::uint64_t> all[] = {
      {kind::clog, f.clogs},    {kind::cut, f.cuts},         {kind::pause, f.pauses},      {kind::slow, f.slow},
      {kind::crash, f.crashes}, {kind::restart, f.restarts}, {kind::suspect, f.suspicions}};
  for (const auto& [what, most] : all) {
    dice luck(seed, purpose::fault, static_cast<std::uint64_t>(what));
    const std::uint64_t n = luck.chance(500) ? luck.below(most + 1) : 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      mishap m;
      m.what = what;
      m.rank = static_cast<rank_id>(luck.below(s.ranks));
      m.to = static_cast<rank_id>((m.rank + 1 + luck.below(s.ranks - 1)) % s.ranks);
      m.at_ns = luck.between(0, s.faulty_ns);
      m.for_ns = luck.between(1'000, f.longest_mishap_ns);
      t.mishaps.push_back(m);
    }
  }
  return t;
}

}  // namespace parley::simulation
