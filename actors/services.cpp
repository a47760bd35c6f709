#include <parley/actors/services.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

void data_hub::bind(std::uint64_t op, data_sink& sink) {
  sinks_[op] = &sink;
  latest_ = nullptr;
  const auto waiting = early_.find(op);
  if (waiting == early_.end()) return;
  auto messages = std::move(waiting->second);
  early_.erase(waiting);
  early_count_ -= messages.size();
  for (const runtime::arrival& m : messages) early_bytes_ -= bytes_held_by(m);
  for (runtime::arrival& m : messages) on_arrival(std::move(m));
}

void data_hub::on_arrival(runtime::arrival&& message) noexcept {
  stamp s;
  if (!read_stamp(message.header(), s)) {
    ++counters_.malformed;
  } else if (latest_ != nullptr && latest_op_ == s.op) {
    latest_->on_data(s, std::move(message));
  } else {
    find_sink(s, std::move(message));
  }
}

void data_hub::find_sink(const stamp& s, runtime::arrival&& message) noexcept {
  const auto sink = sinks_.find(s.op);
  if (sink != sinks_.end()) {
    latest_op_ = s.op;
    latest_ = sink->second;
    latest_->on_data(s, std::move(message));
  } else {
    keep_early(s, std::move(message));
  }
}

namespace {
// Of an invocation that brings nothing nobody will want the parts: its sender gets its buffers back, be the op declared or not.
std::vector<runtime::arrival> take_poisoned(const stamp& poison, std::vector<runtime::arrival>& early) {
  const auto is_other = [&](const runtime::arrival& m) {
    const auto s = read_stamp(m.header());
    return !s || s->source != poison.source || s->generation != poison.generation || s->tag != poison.tag ||
           s->invocation != poison.invocation || has(s->flags | poison.flags, stamp_flags::rehearsal);
  };
  std::vector<runtime::arrival> taken;
  std::vector<runtime::arrival> kept;
  for (runtime::arrival& m : early) (is_other(m) ? kept : taken).push_back(std::move(m));
  early = std::move(kept);
  return taken;
}
}  // namespace

void data_hub::keep_early(const stamp& s, runtime::arrival&& message) noexcept {
  if (has(s.flags, stamp_flags::poison)) {
    if (const auto waiting = early_.find(s.op); waiting != early_.end()) {
      const auto dropped = take_poisoned(s, waiting->second);
      early_count_ -= dropped.size();
      for (const runtime::arrival& m : dropped) early_bytes_ -= bytes_held_by(m);
    }
  }
  if (early_count_ < early_limit && early_bytes_ < most_early_bytes) {
    ++counters_.early;
    ++early_count_;
    early_bytes_ += bytes_held_by(message);
    early_[s.op].push_back(std::move(message));
  } else {
    ++counters_.refused;
  }
}

}  // namespace parley::actors
