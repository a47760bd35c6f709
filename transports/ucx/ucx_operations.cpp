#include <parley/transports/ucx/ucx_operations.hpp>

#include <utility>

namespace parley::transports {

void ucx_operations::on_sent(void*, ucs_status_t outcome, void* of) {
  auto* ended = static_cast<ucx_operation*>(of);
  ended->outcome = outcome;
  if (ended->pool == nullptr) return;
  ended->pool->ended_.push_back(ended);
  ended->pool->news_ = true;
}

void ucx_operations::on_fetched(void* request, ucs_status_t outcome, std::size_t, void* of) {
  on_sent(request, outcome, of);
}

void ucx_operations::add_record() {
  spare_.reserve(records_.size() + 1);
  records_.emplace_back().pool = this;
  spare_.push_back(&records_.back());
}

bool ucx_operations::adopt(rank_id peer, std::uint32_t restarts) {
  bool any = false;
  pending_.for_each([&](ucx_operation& at) {
    if (at.to_come.rank != peer || at.to_come.restarts > restarts) return;
    const bool is_its = at.to_come.restarts == restarts;
    at.to_come = {};
    if (is_its) at.peer = peer;
    if (!is_its && at.is_unended()) stranded_.push_back(&at);
    any = any || is_its;
  });
  if (!stranded_.empty()) news_ = true;
  return any;
}

void ucx_operations::end_early(ucx_operation& left) noexcept {
  const errc outcome = left.cancelled ? errc::cancelled : errc::peer_failed;
  if (completion* const done = std::exchange(left.done, nullptr)) done->on_end(*done, outcome);
}

void ucx_operations::let_go(ucx_operation& sending) {
  sending.cancelled = true;
  stranded_.push_back(&sending);
  news_ = true;
}

void ucx_operations::end_stranded() noexcept {
  for (ucx_operation* const left : std::exchange(stranded_, {})) end_early(*left);
}

void ucx_operations::end_all(rank_id peer) {
  const auto next = [&] {
    return pending_.find_if(
        [&](const ucx_operation& at) { return at.peer == peer && (!at.is_unended() || at.done != nullptr); });
  };
  // A completion may start and end other operations, so each search starts from the beginning.
  for (ucx_operation* at = next(); at != nullptr; at = next()) {
    if (at->is_unended()) {
      // UCX ends most operations with a dead peer, but not every fetch.
      end_early(*at);
    } else {
      std::erase(ended_, at);  // it is there if UCX has ended it since `for_each_ended`
      end(*at, true);
    }
  }
}

void ucx_operations::close() noexcept {
  while (!pending_.empty()) {
    ucx_operation& left = pending_.pop_front();
    if (left.request != nullptr) ucp_request_free(left.request);
    left.request = nullptr;
    left.pool = nullptr;  // a callback from now on does nothing
    if (completion* const done = std::exchange(left.done, nullptr)) {
      done->on_end(*done, left.outcome == UCS_OK ? errc::none : errc::closed);
    }
  }
}

}  // namespace parley::transports
