#include <parley/actors/services.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

data_sink* data_hub::sink_of(std::uint64_t op) const noexcept {
  const auto is_it = [op](const auto& s) { return s.first == op; };
  if (const auto at = std::find_if(few_sinks_.begin(), few_sinks_.end(), is_it); at != few_sinks_.end())
    return at->second;
  const auto at = sinks_.find(op);
  return at == sinks_.end() ? nullptr : at->second;
}

void data_hub::unbind(std::uint64_t op) {
  std::erase_if(few_sinks_, [op](const auto& s) { return s.first == op; });
  sinks_.erase(op);
  latest_ = nullptr;
}

void data_hub::bind(std::uint64_t op, data_sink& sink) {
  unbind(op);
  if (sinks_.empty() && few_sinks_.size() < few) {
    few_sinks_.emplace_back(op, &sink);
  } else {
    sinks_.insert(few_sinks_.begin(), few_sinks_.end());
    few_sinks_.clear();
    sinks_[op] = &sink;
  }
  const auto waiting = early_.find(op);
  if (waiting == early_.end()) return;
  early_bytes_ -= waiting->second.bytes();
  auto messages = waiting->second.take();
  early_.erase(waiting);
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
  if (data_sink* const sink = sink_of(s.op)) {
    latest_op_ = s.op;
    latest_ = sink;
    latest_->on_data(s, std::move(message));
  } else {
    keep_early(s, std::move(message));
  }
}

void data_hub::keep_early(const stamp& s, runtime::arrival&& message) noexcept {
  if (has_lost(s.op, s.generation)) return refuse(s);
  const auto waiting = early_.try_emplace(s.op).first;
  undeclared_parts& mine = waiting->second;
  early_bytes_ -= mine.bytes();
  const std::uint64_t room = early_limit_ - std::min(early_bytes_, early_limit_);
  const bool kept = mine.keep(s, std::move(message), room, undeclared_parts::poisons::parts_of_its_stream);
  if (kept) {
    ++counters_.early;
    early_bytes_ += mine.bytes();
  } else {
    // An incomplete set of parts is useless. Drops all of them: their senders get their buffers back, and other ops get the room.
    std::vector<runtime::arrival> let_go;
    for (runtime::arrival& m : mine.take()) {
      const auto other = read_stamp(m.header());
      const bool of_another = other && other->generation != s.generation;
      if (!of_another || !mine.keep(*other, std::move(m), early_limit_, undeclared_parts::poisons::parts_of_its_stream))
        let_go.push_back(std::move(m));  // NOLINT(bugprone-use-after-move): `keep` moves it only when it keeps it
    }
    early_bytes_ += mine.bytes();
    if (mine.bytes() == 0) early_.erase(waiting);
    refuse(s);
  }
}

// The hub remembers refusals of at most `most_lost` ops. For other ops it still reports refusals to the senders. A rank that later declares
// such an op waits for the lost data, and its timeout names the sender.
void data_hub::refuse(const stamp& s) noexcept {
  ++counters_.refused;
  std::uint64_t before = 0;
  if (const auto known = lost_.find(s.op); known != lost_.end()) {
    if (known->second.generation != s.generation) known->second = {.generation = s.generation};
    before = known->second.refused++;
  } else if (lost_.size() < most_lost) {
    lost_.emplace(s.op, loss{.generation = s.generation, .refused = 1});
  }
  if (before % tell_refused_every == 0 && tell_refused_) tell_refused_(s);
}

}  // namespace parley::actors
