#include "ops.hpp"

#include "flow_calls.hpp"
#include "in_place.hpp"

#include <parley/collective.hpp>
#include <parley/transfer.hpp>

#include <string>
#include <utility>
#include <vector>

namespace parley::python {

using runtime::errc;
using runtime::rank_id;
using runtime::task;

std::vector<ops::p2p_operation> operations_of(const p2p& by, const std::vector<const p2p_operation*>& batch,
                                              std::vector<keep>& keeps) {
  std::vector<ops::p2p_operation> all;
  for (const p2p_operation* const each : batch) {
    if (each == nullptr)
      runtime::raise({errc::bad_argument, "a batch is a list of `isend(…)` and `irecv(…)`; one entry is None"});
    by.memory.check(each->of, each->op.what == ops::p2p_operation::kind::send ? "data" : "into");
    all.push_back(each->op);
    keeps.push_back(each->of.owner);
  }
  return all;
}

std::string role_of(const role_function& f, rank_id r, const std::string& op) {
  const nb::object its = (*f)(r);
  std::string role;
  if (nb::try_cast(its, role)) return role;
  runtime::raise({errc::bad_argument, "op " + op + ": the role of rank " + std::to_string(r) + " is " +
                                          nb::cast<std::string>(nb::repr(its)) + "; a role function returns a text"});
}

namespace {

/// What the constructors of ops with configs have in common.
struct tuned {
  std::optional<nb::callable> can_run;
  std::optional<tuning::constraints> constraints;
  template <class Options>
  void put_into(Options& o, home& where) const {
    o.can_run = capabilities_of(where, can_run);
    if (constraints) o.constraints = *constraints;
  }
};

/// The program's function is asked once for each rank, here.
std::function<ops::role(rank_id)> roles_of(const role_function& f, rank_id world_size, const std::string& op) {
  if (!f) return {};
  std::vector<ops::role> all;
  for (rank_id r = 0; r < world_size; ++r) {
    const std::string its = role_of(f, r, op);
    bool known = false;
    for (const ops::role role :
         {ops::role::idle, ops::role::sender, ops::role::receiver, ops::role::leader, ops::role::worker}) {
      if (its != ops::name(role)) continue;
      all.push_back(role);
      known = true;
    }
    if (!known)
      runtime::raise({errc::bad_argument, "op " + op + ": rank " + std::to_string(r) + " has the role \"" + its +
                                              "\"; roles are sender, receiver, leader, worker and idle"});
  }
  return [all = std::move(all)](rank_id r) { return all.at(r); };
}

/// Functions of Python cannot read the memory of a GPU.
void check_own_configs(const std::string& op, std::span<const nb::object> all, const std::string& device) {
  if (device == "cpu") return;
  for (const nb::object& each : all) {
    if (nb::isinstance<nb::str>(each)) continue;
    const std::string its = nb::hasattr(each, "name") ? nb::cast<std::string>(nb::str(each.attr("name"))) : "";
    runtime::raise({errc::bad_argument, "op " + op + ": the functions of its own config " + its +
                                            " are of Python, for host memory; with device=\"" + device +
                                            "\" give it the name of a config of parley instead"});
  }
}

[[noreturn]] void refuse_stream() {
  runtime::raise({errc::bad_argument, "`stream` is for operations on a GPU, which are made with device=\"cuda\""});
}

nb::object count_of(std::uint64_t bytes) { return nb::int_(bytes); }

// ---- transfer

struct transfer {
  rank_ptr where;
  op_memory memory;
  ops::transfer op;
};

using pairs = std::vector<std::pair<rank_id, rank_id>>;

transfer make_transfer(const rank_ptr& where, const std::string& name, const role_function& role, const pairs& edges,
                       const config_list& configs, seconds timeout, const std::string& dtype, const tuned& by,
                       const std::string& device) {
  const hold held = where->check();
  check_own_configs(name, std::span(configs).first(configs.empty() ? 0 : 1), device);  // others are left out
  op_memory memory(*where, device, name);
  ops::transfer_options o{.name = name};
  o.memory = memory.space();
  o.role = roles_of(role, where->self->world_size(), name);
  o.edges = edges;
  o.configs = configs_of(*where, name, configs);
  by.put_into(o, *where);
  o.timeout = span_of(timeout, o.timeout);
  o.dtype = dtype;
  return {where, std::move(memory), ops::transfer(*where->self, o)};
}

template <class T>
task<> send_as(ops::transfer by, std::span<T> data, ops::send_options o) {
  co_await by.send(data, o);
}
template <class T>
task<std::uint64_t> receive_as(ops::transfer by, std::span<T> into, ops::receive_options o) {
  co_return co_await by.receive(into, o);
}

/// Before a call with the buffer, which comes after the work in `stream`, or after that of the buffer's producer.
void prepare(transfer& t, const buffer& b, const char* what, runtime::device_stream stream = nullptr) {
  t.memory.check(b, what);
  if (stream != nullptr && !t.memory.is_gpu()) refuse_stream();
  t.memory.after_producer(b, stream);
  t.memory.let_peers_in(b, [&t](std::span<std::byte> all) { return t.op.registered(all); });
}
/// The call was started with a stream. `expected`: the word of a receive.
void follow_stream(const transfer& t, call& c, const buffer& b, std::uint64_t expected = 0) {
  device_end end{.space = t.memory.space(), .sends = expected == 0, .is_over = std::make_shared<bool>(false)};
  if (expected != 0) {
    end.received.push_back(b.bytes);
    end.awaited.push_back(expected);
  }
  t.where->gpu->note({b.bytes, end.sends, false, t.where->stream_waits, end.is_over});
  c.set_device(std::move(end));
}

std::unique_ptr<call> isend(transfer& t, nb::handle data, rank_id to, std::uint32_t tag, seconds timeout,
                            nb::handle stream) {
  const buffer b = any_memory_of(data, access::reads, "data");
  const runtime::device_stream after = stream_of(stream);
  const hold held = t.where->check();
  prepare(t, b, "data", after);
  const ops::send_options o{.to = to, .tag = tag, .timeout = span_of(timeout, {})};
  auto made =
      with_type(b.of, [&]<class T>() { return begin(t.where, send_as<T>(t.op, elements_of<T>(b), o), {b.owner}); });
  if (after != nullptr) follow_stream(t, *made, b);
  return made;
}
std::unique_ptr<call> ireceive(transfer& t, nb::handle into, rank_id source, std::uint32_t tag, seconds timeout,
                               nb::handle stream) {
  const buffer b = any_memory_of(into, access::writes, "into");
  const runtime::device_stream after = stream_of(stream);
  const hold held = t.where->check();
  prepare(t, b, "into", after);
  ops::receive_options o{.from = source, .tag = tag, .timeout = span_of(timeout, {})};
  if (after != nullptr) o.expected = t.memory.space()->expect(b.bytes);
  const runtime::finally over([&] {
    if (o.expected != 0) t.memory.space()->came(o.expected, errc::none);
  });
  auto made = with_type(
      b.of, [&]<class T>() { return begin(t.where, receive_as<T>(t.op, elements_of<T>(b), o), &count_of, {b.owner}); });
  if (after != nullptr) follow_stream(t, *made, b, std::exchange(o.expected, 0));
  return made;
}
void send(transfer& t, nb::handle data, rank_id to, std::uint32_t tag, seconds timeout) {
  const buffer b = any_memory_of(data, access::reads, "data");
  const hold held = t.where->check();
  prepare(t, b, "data");
  const ops::send_options o{.to = to, .tag = tag, .timeout = span_of(timeout, {})};
  const auto made = [&] { return with_type(b.of, [&]<class T>() { return t.op.send(elements_of<T>(b), o); }); };
  wait_in_place(t.where, made, b.owner, b.bytes.size());
}
std::uint64_t receive(transfer& t, nb::handle into, rank_id source, std::uint32_t tag, seconds timeout) {
  const buffer b = any_memory_of(into, access::writes, "into");
  const hold held = t.where->check();
  prepare(t, b, "into");
  const ops::receive_options o{.from = source, .tag = tag, .timeout = span_of(timeout, {})};
  const auto made = [&] { return with_type(b.of, [&]<class T>() { return t.op.receive(elements_of<T>(b), o); }); };
  return wait_in_place(t.where, made, b.owner, b.bytes.size());
}
ops::decision decision_of(const transfer& t, std::uint64_t bytes, std::optional<rank_id> peer) {
  const hold held = t.where->check();
  return peer ? t.op.decision(bytes, *peer) : t.op.decision(bytes);
}

// ---- p2p

p2p make_p2p(const rank_ptr& where, const std::string& name, const std::vector<rank_id>& ranks, const pairs& edges,
             const config_list& configs, seconds timeout, const std::string& dtype, const tuned& by,
             const std::string& device) {
  const hold held = where->check();
  check_own_configs(name, std::span(configs).first(configs.empty() ? 0 : 1), device);  // others are left out
  op_memory memory(*where, device, name);
  ops::p2p_options o{.name = name};
  o.memory = memory.space();
  o.ranks = ranks;
  o.edges = edges;
  o.configs = configs_of(*where, name, configs);
  by.put_into(o, *where);
  o.timeout = span_of(timeout, o.timeout);
  o.dtype = dtype;
  return {where, std::move(memory), ops::p2p(*where->self, o)};
}

p2p_operation post(ops::p2p_operation::kind what, nb::handle object, rank_id peer, std::uint32_t tag, seconds timeout) {
  const bool sends = what == ops::p2p_operation::kind::send;
  const buffer b = any_memory_of(object, sends ? access::reads : access::writes, sends ? "data" : "into");
  ops::p2p_operation o{.what = what, .peer = peer, .bytes = b.bytes, .tag = tag, .timeout = span_of(timeout, {})};
  o.type = message_type(b.of);
  return {std::move(o), b};
}

std::unique_ptr<call> exchange_in_stream(p2p& p, const std::vector<ops::p2p_operation>& batch, std::vector<keep> keeps,
                                         const ops::batch_options& o) {
  for (const ops::p2p_operation& each : batch) p.memory.until_sent(each);
  rank_gpu& gpu = *p.where->gpu;
  const auto flow = gpu.flow_of_streams(*p.where);
  device_end end{.space = p.memory.space(), .is_over = std::make_shared<bool>(false)};
  auto made = follow(p.where, flow, p.op.start(*flow, batch, o), std::move(keeps));
  for (const ops::p2p_operation& each : batch) {
    const bool sends = each.what == ops::p2p_operation::kind::send;
    gpu.note({each.bytes, sends, true, p.where->stream_waits, end.is_over});
    if (!sends) end.received.push_back(each.bytes);
    end.sends |= sends;
  }
  made->set_device(std::move(end));
  return made;
}

std::unique_ptr<call> exchange(p2p& p, const std::vector<const p2p_operation*>& batch, seconds timeout,
                               nb::handle stream) {
  const runtime::device_stream after = stream_of(stream);
  if (after != nullptr && !p.memory.is_gpu()) refuse_stream();
  const hold held = p.where->check();
  std::vector<keep> keeps;
  std::vector<ops::p2p_operation> all = operations_of(p, batch, keeps);
  for (const p2p_operation* const each : batch) {
    if (after == nullptr) p.memory.after_producer(each->of, nullptr);
    p.memory.let_peers_in(each->of, [&p](std::span<std::byte> memory) { return p.op.registered(memory); });
  }
  ops::batch_options o{.timeout = span_of(timeout, runtime::no_timeout), .stream = after, .ahead = after != nullptr};
  if (after != nullptr) return exchange_in_stream(p, all, std::move(keeps), o);
  return begin(p.where, p.op.exchange_all(std::move(all), o), std::move(keeps));
}
nb::object exchange_and_wait(p2p& p, const std::vector<const p2p_operation*>& batch, seconds timeout) {
  return exchange(p, batch, timeout, nb::none())->wait();
}

// ---- collective

struct collective {
  rank_ptr where;
  op_memory memory;
  ops::collective op;
};

/// The exception of the leader's own work comes out, and not the error that stands for it.
struct nothing_of {
  std::shared_ptr<script> of;
  nb::object operator()() const { return nb::none(); }
  void failed(const runtime::error& e) const { script_result{of}.failed(e); }
};

collective make_collective(const rank_ptr& where, const std::string& name, const role_function& role,
                           const std::vector<std::vector<rank_id>>& groups, const std::string& kind,
                           const config_list& configs, std::uint64_t depth, seconds timeout, const tuned& by,
                           const std::string& device) {
  const hold held = where->check();
  check_own_configs(name, configs, device);
  op_memory memory(*where, device, name);
  ops::collective_options o{.name = name};
  o.memory = memory.space();
  o.role = roles_of(role, where->self->world_size(), name);
  o.groups = groups;
  bool known = false;
  for (const auto each :
       {ops::collective_kind::all_reduce, ops::collective_kind::broadcast, ops::collective_kind::gather}) {
    if (kind != ops::name(each)) continue;
    o.kind = each;
    known = true;
  }
  if (!known)
    runtime::raise(
        {errc::bad_argument, "op " + name + ": kind is one of all_reduce, broadcast and gather, and not " + kind});
  o.configs = group_configs_of(*where, name, configs);
  by.put_into(o, *where);
  o.depth = depth;
  o.timeout = span_of(timeout, o.timeout);
  return {where, std::move(memory), ops::collective(*where->self, o)};
}

/// The buffer of a call that begins now, with a `hold`.
buffer part_of(const collective& c, nb::handle object, access how, const char* what) {
  buffer b = any_memory_of(object, how, what);
  c.memory.check(b, what);
  c.memory.after_producer(b, nullptr);
  return b;
}

std::unique_ptr<call> iall_reduce(collective& c, nb::object data, const std::string& by, seconds timeout,
                                  const std::optional<nb::callable>& between) {
  const hold held = c.where->check();
  if (between && c.memory.is_gpu())
    runtime::raise({errc::bad_argument, "`between` is for host memory, and this operation was made with "
                                        "device=\"cuda\"; use one operation for the workers and one for the leaders"});
  const buffer b = part_of(c, data, access::writes, "data");
  const ops::collective_call_options o{.timeout = span_of(timeout, {})};
  const auto s = std::make_shared<script>();
  const kept_object function = kept(between ? nb::object(*between) : nb::none()), passed = kept(data);
  return with_numbers(b.of, by, [&]<class T, class Combine>() {
    if (!between) return begin(c.where, c.op.all_reduce<Combine>(elements_of<T>(b), o), {b.owner});
    const auto does = [function, passed, s](std::span<T>) { return run_with(function, passed, s); };
    return begin(c.where, c.op.all_reduce<Combine>(elements_of<T>(b), does, o), nothing_of{s}, {b.owner});
  });
}
std::unique_ptr<call> ibroadcast(collective& c, nb::handle data, seconds timeout) {
  const hold held = c.where->check();
  const buffer b = part_of(c, data, c.op.leads() ? access::reads : access::writes, "data");
  const ops::collective_call_options o{.timeout = span_of(timeout, {})};
  return with_type(b.of, [&]<class T>() { return begin(c.where, c.op.broadcast(elements_of<T>(b), o), {b.owner}); });
}
std::unique_ptr<call> igather(collective& c, nb::handle mine, nb::handle all, seconds timeout) {
  const hold held = c.where->check();
  const buffer b = part_of(c, mine, access::reads, "mine");
  buffer into;
  if (!all.is_none()) into = part_of(c, all, access::writes, "all");
  if (!all.is_none() && into.of != b.of)
    runtime::raise({errc::bad_argument, "`mine` and `all` have different types of elements"});
  const ops::collective_call_options o{.timeout = span_of(timeout, {})};
  return with_type(b.of, [&]<class T>() {
    return begin(c.where, c.op.gather(elements_of<T>(b), elements_of<T>(into), o), {b.owner, into.owner});
  });
}

}  // namespace

void add_ops(nb::module_& m) {
  const auto none = nb::none();
  const std::vector<std::string> direct{"direct"}, star{"star"};
  nb::class_<transfer>(m, "Transfer",
                       "Send and receive between pairs of ranks (parley/transfer.hpp). All ranks declare it.")
      .def(
          "__init__",
          [](transfer* t, const rank_ptr& rank, const std::string& name, const role_function& role, const pairs& edges,
             const config_list& configs, seconds timeout, const std::string& dtype,
             const std::optional<nb::callable>& can_run, const std::optional<tuning::constraints>& constraints,
             const std::string& device) {
            new (t) transfer(
                make_transfer(rank, name, role, edges, configs, timeout, dtype, {can_run, constraints}, device));
          },
          nb::arg("rank"), nb::arg("name"), nb::arg("role") = none, nb::arg("edges") = pairs(),
          nb::arg("configs") = direct, nb::arg("timeout") = none, nb::arg("dtype") = "", nb::arg("can_run") = none,
          nb::arg("constraints") = none, nb::arg("device") = "cpu",
          nb::sig("def __init__(self, rank: Rank, name: str, role: collections.abc.Callable[[int], str] | None = None, "
                  "edges: collections.abc.Sequence[tuple[int, int]] = (), configs: "
                  "collections.abc.Sequence[parley.configs.Transferring] = ('direct',), timeout: float | None = None, "
                  "dtype: str = '', can_run: collections.abc.Callable[[int], collections.abc.Sequence[bool]] | None = "
                  "None, constraints: Constraints | None = None, device: str = 'cpu') -> None"),
          "`role(rank)` is sender, receiver or idle; the k-th sender is paired with the k-th receiver, unless `edges` "
          "lists pairs. `configs`: names and own configs (parley.configs), the default first. `timeout`: seconds of "
          "one "
          "call. `can_run(rank)`: one bool for each config, of this rank; otherwise each config's `available` says it. "
          "`device`: where all buffers lie, `cpu` or `cuda`, the GPU of the rank.")
      .def("isend", &isend, nb::arg("data"), nb::arg("to"), nb::arg("tag") = 0, nb::arg("timeout") = none,
           nb::arg("stream") = none,
           "Starts a send. The memory of `data` must not change until it has ended. On a GPU it is sent after the work "
           "that `stream` has now; without one, after the work of the current stream of its owner.")
      .def("ireceive", &ireceive, nb::arg("into"), nb::arg("source"), nb::arg("tag") = 0, nb::arg("timeout") = none,
           nb::arg("stream") = none,
           "Starts a receive into the memory of `into`, after the work that `stream` has now. The result is the number "
           "of bytes.")
      .def("send", &send, nb::arg("data"), nb::arg("to"), nb::arg("tag") = 0, nb::arg("timeout") = none)
      .def("receive", &receive, nb::arg("into"), nb::arg("source"), nb::arg("tag") = 0, nb::arg("timeout") = none)
      .def(
          "tune",
          [](transfer& t, std::vector<std::uint64_t> sizes) { return begin(t.where, t.op.tune(std::move(sizes))); },
          nb::arg("sizes"), "A tuning phase on both ends, with these sizes in bytes.")
      .def("decision", &decision_of, nb::arg("bytes"), nb::arg("peer") = none)
      .def(
          "retune",
          [](const transfer& t, std::optional<std::uint64_t> bytes, const std::string& why) {
            const hold held = t.where->check();
            t.op.retune(bytes, why);
          },
          nb::arg("bytes") = none, nb::arg("why") = "")
      .def_prop_ro("idle", [](const transfer& t) { return t.op.idle(); })
      .def_prop_ro("copied_bytes", [](const transfer& t) {
        const hold held = t.where->check();
        return t.op.copied_bytes();
      });

  using kind = ops::p2p_operation::kind;
  nb::class_<p2p_operation>(m, "P2POperation", "A send or receive of a batch, before it is started.");
  nb::class_<p2p>(m, "P2P", "Batches of sends and receives between any ranks (parley/p2p.hpp). All ranks declare it.")
      .def(
          "__init__",
          [](p2p* p, const rank_ptr& rank, const std::string& name, const std::vector<rank_id>& ranks,
             const pairs& edges, const config_list& configs, seconds timeout, const std::string& dtype,
             const std::optional<nb::callable>& can_run, const std::optional<tuning::constraints>& constraints,
             const std::string& device) {
            new (p) p2p(make_p2p(rank, name, ranks, edges, configs, timeout, dtype, {can_run, constraints}, device));
          },
          nb::arg("rank"), nb::arg("name"), nb::arg("ranks") = std::vector<rank_id>(), nb::arg("edges") = pairs(),
          nb::arg("configs") = direct, nb::arg("timeout") = none, nb::arg("dtype") = "", nb::arg("can_run") = none,
          nb::arg("constraints") = none, nb::arg("device") = "cpu",
          nb::sig("def __init__(self, rank: Rank, name: str, ranks: collections.abc.Sequence[int] = (), edges: "
                  "collections.abc.Sequence[tuple[int, int]] = (), configs: "
                  "collections.abc.Sequence[parley.configs.Transferring] = ('direct',), timeout: float | None = None, "
                  "dtype: str = '', can_run: collections.abc.Callable[[int], collections.abc.Sequence[bool]] | None = "
                  "None, constraints: Constraints | None = None, device: str = 'cpu') -> None"),
          "`ranks`: those that take part; empty: all. `edges`: the (sender, receiver) pairs that exist; empty: all. "
          "The "
          "rest is as with Transfer.")
      .def_static(
          "isend",
          [](nb::handle data, rank_id to, std::uint32_t tag, seconds timeout) {
            return post(kind::send, data, to, tag, timeout);
          },
          nb::arg("data"), nb::arg("to"), nb::arg("tag") = 0, nb::arg("timeout") = none)
      .def_static(
          "irecv",
          [](nb::handle into, rank_id source, std::uint32_t tag, seconds timeout) {
            return post(kind::receive, into, source, tag, timeout);
          },
          nb::arg("into"), nb::arg("source"), nb::arg("tag") = 0, nb::arg("timeout") = none)
      .def("start", &exchange, nb::arg("batch"), nb::arg("timeout") = none, nb::arg("stream") = none,
           "Starts a batch; it ends when all of its operations have ended. With `stream` the batch runs after the work "
           "that the stream has now, and batches that share memory run in their order; `Work.wait_stream` makes the "
           "stream wait for it.")
      .def("exchange", &exchange_and_wait, nb::arg("batch"), nb::arg("timeout") = none,
           nb::sig("def exchange(self, batch: collections.abc.Sequence[P2POperation], timeout: float | None = None) -> "
                   "None"))
      .def(
          "decision",
          [](const p2p& p, std::uint64_t bytes, rank_id peer) {
            const hold held = p.where->check();
            return p.op.decision(bytes, peer);
          },
          nb::arg("bytes"), nb::arg("peer"))
      .def_prop_ro("copied_bytes", [](const p2p& p) {
        const hold held = p.where->check();
        return p.op.copied_bytes();
      });

  nb::class_<collective>(m, "Collective",
                         "All-reduce, broadcast or gather of a leader and its workers (parley/collective.hpp).")
      .def(
          "__init__",
          [](collective* c, const rank_ptr& rank, const std::string& name, const role_function& role,
             const std::vector<std::vector<rank_id>>& groups, const std::string& what, const config_list& configs,
             std::uint64_t depth, seconds timeout, const std::optional<nb::callable>& can_run,
             const std::optional<tuning::constraints>& constraints, const std::string& device) {
            new (c) collective(make_collective(rank, name, role, groups, what, configs, depth, timeout,
                                               {can_run, constraints}, device));
          },
          nb::arg("rank"), nb::arg("name"), nb::arg("role") = none,
          nb::arg("groups") = std::vector<std::vector<rank_id>>(), nb::arg("kind") = "all_reduce",
          nb::arg("configs") = star, nb::arg("depth") = 1, nb::arg("timeout") = none, nb::arg("can_run") = none,
          nb::arg("constraints") = none, nb::arg("device") = "cpu",
          nb::sig(
              "def __init__(self, rank: Rank, name: str, role: collections.abc.Callable[[int], str] | None = None, "
              "groups: collections.abc.Sequence[collections.abc.Sequence[int]] = (), kind: str = 'all_reduce', "
              "configs: collections.abc.Sequence[parley.configs.Grouping] = ('star',), depth: int = 1, timeout: "
              "float | None = None, can_run: collections.abc.Callable[[int], collections.abc.Sequence[bool]] | None "
              "= None, constraints: Constraints | None = None, device: str = 'cpu') -> None"),
          "`role(rank)` is leader, worker or idle; without roles the first rank of each of `groups` leads, and without "
          "groups all ranks are one. `kind`: all_reduce, broadcast or gather. `configs`: names and own group configs "
          "(parley.configs), the default first. `depth`: calls that a rank may have in flight. The rest is as with "
          "Transfer.")
      .def("iall_reduce", &iall_reduce, nb::arg("data"), nb::arg("by") = "sum", nb::arg("timeout") = none,
           nb::arg("between") = none,
           nb::sig("def iall_reduce(self, data: object, by: str = 'sum', timeout: float | None = None, between: "
                   "collections.abc.Callable[[typing.Any], object] | None = None) -> Work"))
      .def("all_reduce", waits(&iall_reduce), nb::arg("data"), nb::arg("by") = "sum", nb::arg("timeout") = none,
           nb::arg("between") = none,
           nb::sig("def all_reduce(self, data: object, by: str = 'sum', timeout: float | None = None, between: "
                   "collections.abc.Callable[[typing.Any], object] | None = None) -> None"),
           "Combines the arrays of all ranks in place, in the order of the ranks: the same bits everywhere. `between`, "
           "on "
           "the leader alone: a function that runs on the combined `data` before the workers receive it, often a "
           "coroutine function that combines `data` among the leaders.")
      .def("ibroadcast", &ibroadcast, nb::arg("data"), nb::arg("timeout") = none)
      .def("broadcast", waits(&ibroadcast),
           nb::sig(R"(def broadcast(self, data: object, timeout: float | None = None) -> None)"), nb::arg("data"),
           nb::arg("timeout") = none)
      .def("igather", &igather, nb::arg("mine"), nb::arg("all") = none, nb::arg("timeout") = none)
      .def("gather", waits(&igather),
           nb::sig(R"(def gather(self, mine: object, all: object = None, timeout: float | None = None) -> None)"),
           nb::arg("mine"), nb::arg("all") = none, nb::arg("timeout") = none)
      .def(
          "decision",
          [](const collective& c, std::uint64_t bytes) {
            const hold held = c.where->check();
            return c.op.decision(bytes);
          },
          nb::arg("bytes"))
      .def_prop_ro("leads",
                   [](const collective& c) {
                     const hold held = c.where->check();
                     return c.op.leads();
                   })
      .def_prop_ro("size",
                   [](const collective& c) {
                     const hold held = c.where->check();
                     return c.op.size();
                   })
      .def_prop_ro("idle", [](const collective& c) {
        const hold held = c.where->check();
        return c.op.idle();
      });
}

}  // namespace parley::python
