#include <parley/actors/kept_parts.hpp>

#include <algorithm>
#include <iterator>

namespace parley::actors {

bool kept_parts::keep(const stamp& s, runtime::arrival&& message, room r, poisons which) {
  if (has(s.flags, stamp_flags::poison)) let_go_of(s, which);
  if (parts_.size() >= r.parts || bytes_ >= r.bytes) return false;
  bytes_ += bytes_held_by(message);
  parts_.push_back(std::move(message));
  return true;
}

void kept_parts::let_go_of(const stamp& poison, poisons which) {
  const auto is_other = [&](const runtime::arrival& m) {
    const auto s = read_stamp(m.header());
    return !s || (which != poisons::all_parts && s->source != poison.source) || s->generation != poison.generation ||
           (which == poisons::parts_of_its_stream && s->tag != poison.tag) || s->invocation != poison.invocation ||
           has(s->flags | poison.flags, stamp_flags::rehearsal);
  };
  const auto first = std::stable_partition(parts_.begin(), parts_.end(), is_other);
  const std::vector<runtime::arrival> let_go(std::make_move_iterator(first), std::make_move_iterator(parts_.end()));
  parts_.erase(first, parts_.end());
  for (const runtime::arrival& m : let_go) bytes_ -= bytes_held_by(m);
}

}  // namespace parley::actors
