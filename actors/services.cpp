#include <parley/actors/services.hpp>

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

void data_hub::keep_early(const stamp& s, runtime::arrival&& message) noexcept {
  if (early_count_ < early_limit) {
    ++counters_.early;
    ++early_count_;
    early_[s.op].push_back(std::move(message));
  } else {
    ++counters_.refused;
  }
}

}  // namespace parley::actors
