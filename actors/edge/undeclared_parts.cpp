#include <parley/actors/edge/undeclared_parts.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace parley::actors {

bool undeclared_parts::keep(const stamp& s, runtime::arrival&& message, std::uint64_t room, poisons which) {
  if (has(s.flags, stamp_flags::poison)) let_go_of(s, which);
  if (bytes_held_by(message) > room - std::min(bytes_, room)) return false;
  bytes_ += bytes_held_by(message);
  parts_.push_back(std::move(message));
  return true;
}

void undeclared_parts::let_go_of(const stamp& poison, poisons which) {
  // Dropped parts are destroyed last, once `parts_` and `bytes_` are up to date.
  std::vector<runtime::arrival> let_go;
  std::vector<runtime::arrival> others;
  others.reserve(parts_.size());
  for (runtime::arrival& m : parts_) {
    const auto s = read_stamp(m.header());
    const bool is_other = !s || (which != poisons::all_parts && s->source != poison.source) ||
                          s->generation != poison.generation ||
                          (which == poisons::parts_of_its_stream && s->tag != poison.tag) ||
                          s->invocation != poison.invocation || has(s->flags | poison.flags, stamp_flags::rehearsal);
    (is_other ? others : let_go).push_back(std::move(m));
  }
  parts_ = std::move(others);
  for (const runtime::arrival& m : let_go) bytes_ -= bytes_held_by(m);
}

}  // namespace parley::actors
