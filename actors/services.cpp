#include <parley/actors/services.hpp>

#include <utility>

namespace parley::actors {

void data_hub::bind(std::uint64_t op, data_sink& sink) {
  sinks_[op] = &sink;
  const auto waiting = early_.find(op);
  if (waiting == early_.end()) return;
  auto messages = std::move(waiting->second);
  early_.erase(waiting);
  early_count_ -= messages.size();
  for (runtime::arrival& m : messages) on_arrival(std::move(m));
}

void data_hub::on_arrival(runtime::arrival&& message) noexcept {
  const auto s = read_stamp(message.header());
  if (!s) {
    ++counters_.malformed;
    return;
  }
  const auto sink = sinks_.find(s->op);
  if (sink != sinks_.end()) {
    sink->second->on_data(*s, std::move(message));
  } else if (early_count_ < early_limit) {
    ++counters_.early;
    ++early_count_;
    early_[s->op].push_back(std::move(message));
  } else {
    ++counters_.refused;
  }
}

}  // namespace parley::actors
