#include <parley/ops/edges/self_edge.hpp>

#include <parley/ops/core/call_type.hpp>
#include <parley/runtime/finally.hpp>

#include <exception>

namespace parley::ops {

using runtime::errc;
using runtime::task;

// A send and a receive that have met. Both wait for the end of the copy; cancelling does not shorten that wait.
struct self_edge::copying {
  explicit copying(runtime::executor& ex) : scope(ex) {}
  bool fits() const noexcept { return from.size() <= into.size() && same_type(); }
  bool same_type() const noexcept { return sent == taken || sent == 0 || taken == 0; }
  std::span<std::byte> from;
  std::span<std::byte> into;
  std::uint16_t sent = 0;  // element type of the send
  std::uint16_t taken = 0;
  std::exception_ptr thrown;
  runtime::scope scope;
};

task<> self_edge::copy(runtime::memory_space& memory, std::shared_ptr<copying> c) {
  try {
    co_await memory.copy(c->into.first(c->from.size()), c->from);
  } catch (...) {
    c->thrown = std::current_exception();
  }
}

void self_edge::list_waiting(runtime::waiting_list& all) {
  const rank_id self = services_.net.rank();
  for (auto& [tag, both] : lines_) {
    const auto add = [&, of = tag](const side& s, bool sends) {
      runtime::waiting_call& w = all.calls.emplace_back();
      w.what = sends ? "send" : "receive";
      w.op = op_ + " " + std::to_string(self) + "->" + std::to_string(self);
      w.tag = of;
      w.peers = {self};
      w.bytes = s.bytes.size();
      w.since_ns = s.since_ns;
      w.batch = s.batch;
      w.lacks = sends ? "a receive" : "a message";
    };
    both.sends.for_each([&](const side& s) { add(s, true); });
    both.receives.for_each([&](const side& s) { add(s, false); });
  }
}

void self_edge::forget_if_idle(std::uint32_t tag) noexcept {
  const auto at = lines_.find(tag);
  if (at != lines_.end() && at->second.sends.empty() && at->second.receives.empty()) lines_.erase(at);
}

task<std::shared_ptr<self_edge::copying>> self_edge::meet(side& mine, way what, call_options o, const char* verb) {
  const runtime::result<> there = memory_.check(mine.bytes);
  if (!there) throw explained(there.code(), about(o.tag), verb, there.reason().text());
  mine.watcher = o.watcher;
  if (o.watcher != nullptr) o.watcher->on_begun();
  line& here = lines_[o.tag];
  auto& partners = what == way::sends ? here.receives : here.sends;
  if (!partners.empty()) {
    side& partner = partners.pop_front();
    forget_if_idle(o.tag);
    auto both = std::make_shared<copying>(services_.ex);
    const side& sender = what == way::sends ? mine : partner;
    const side& receiver = what == way::sends ? partner : mine;
    both->from = sender.bytes;
    both->into = receiver.bytes;
    both->sent = sender.type;
    both->taken = receiver.type;
    if (both->fits() && !both->from.empty()) {
      copied_bytes_ += both->from.size();
      both->scope.spawn(copy(memory_, both));
    }
    mine.met = both;
    partner.met = both;
    for (const side* each : {&mine, &partner}) {
      if (each->watcher != nullptr) each->watcher->on_met();
    }
    partner.changed.tell();
  } else {
    mine.since_ns = services_.clocks.local(services_.ex.now());
    mine.batch = o.trials.batch;
    (what == way::sends ? here.sends : here.receives).push_back(mine);
    const time_ns limit_ns = o.timeout_ns != 0 ? o.timeout_ns : timeout_ns_;
    auto woken = co_await mine.changed.next(services_.until(limit_ns));
    mine.unlink();
    forget_if_idle(o.tag);
    if (mine.met == nullptr) {
      runtime::error_facts facts = about(o.tag);
      facts.unmet = what == way::sends ? runtime::awaited::receive : runtime::awaited::message;
      (what == way::sends ? facts.whole_bytes : facts.own_bytes) = mine.bytes.size();
      throw explained(woken.code(), facts, verb, "its other side was not posted");
    }
  }
  co_await mine.met->scope.join();
  if (mine.met->thrown) {
    services_.call_failed(runtime::describe(mine.met->thrown));
    std::rethrow_exception(mine.met->thrown);
  }
  co_return mine.met;
}

runtime::error_facts self_edge::about(std::uint32_t tag) const {
  const rank_id self = services_.net.rank();
  return {.op = op_, .rank = self, .peer = self, .tag = tag};
}

runtime::failure self_edge::explained(errc code, const runtime::error_facts& about, const char* verb,
                                      const std::string& what) const {
  runtime::failure why(
      {code, about, std::string(verb) + " itself, tag " + std::to_string(about.tag.value()) + ": " + what});
  services_.call_failed(why.reason());
  return why;
}

task<> self_edge::send(std::span<const std::byte> data, call_options o) {
  side mine;
  mine.bytes = {const_cast<std::byte*>(data.data()), data.size()};  // a send's bytes are only read
  mine.type = o.type;
  auto met = co_await meet(mine, way::sends, o, "a send to");
  throw_misfit(*met, "a send to", o.tag);
}

void self_edge::throw_misfit(const copying& c, const char* verb, std::uint32_t tag) const {
  if (c.fits()) return;
  runtime::error_facts facts = about(tag);
  facts.whole_bytes = c.from.size();
  facts.own_bytes = c.into.size();
  if (!c.same_type())
    throw explained(errc::declaration_mismatch, facts, verb,
                    "the send has " + words_of_elements(c.sent) + ", but the receive expects " +
                        words_of_elements(c.taken) + "; nothing was written");
  throw explained(errc::buffer_too_small, facts, verb,
                  std::to_string(c.from.size()) + " bytes do not fit into " + std::to_string(c.into.size()) +
                      "; nothing was written");
}

task<std::uint64_t> self_edge::receive(std::span<std::byte> into, call_options o) {
  errc outcome = errc::cancelled;
  const runtime::finally over([&] { memory_.came(o.expected, outcome); });
  side mine;
  mine.bytes = into;
  mine.type = o.type;
  auto met = co_await meet(mine, way::receives, o, "a receive from");
  throw_misfit(*met, "a receive from", o.tag);
  outcome = errc::none;
  co_return met->from.size();
}

}  // namespace parley::ops
