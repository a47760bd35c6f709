#include <parley/simulation/world/run_record.hpp>

namespace parley::simulation {

bool lost_to_nothing(const run_record& r, rank_id where, const runtime::error& why, time_ns by_ns) {
  const runtime::root_cause* const first = why.began_with();
  const bool is_gone = first != nullptr && first->what.starts_with(" is gone");
  return is_gone && r.play->link.fence != link_model::fences::fail &&
         !r.faults->has_lost(where, by_ns, r.play->detection_ns) &&
         !r.faults->has_lost(first->rank, by_ns, r.play->detection_ns);
}

}  // namespace parley::simulation
