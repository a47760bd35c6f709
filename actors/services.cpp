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
  early_count_ -= waiting->second.size();
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
  const auto waiting = early_.try_emplace(s.op).first;
  kept_parts& mine = waiting->second;
  early_count_ -= mine.size();
  early_bytes_ -= mine.bytes();
  const kept_parts::room room{early_limit - early_count_, most_early_bytes - std::min(early_bytes_, most_early_bytes)};
  const bool kept = mine.keep(s, std::move(message), room, kept_parts::poisons::parts_of_its_stream);
  ++(kept ? counters_.early : counters_.refused);
  early_count_ += mine.size();
  early_bytes_ += mine.bytes();
  if (mine.size() == 0) early_.erase(waiting);
}

}  // namespace parley::actors
