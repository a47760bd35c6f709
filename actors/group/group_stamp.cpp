#include <parley/actors/group/group_stamp.hpp>

#include <utility>

namespace parley::actors {

using runtime::errc;

namespace {

constexpr std::uint64_t came_mask = (std::uint64_t{1} << call_type_tag_bits) - 1;
constexpr std::uint64_t expected_mask = (std::uint64_t{1} << call_type_bits) - 1;

// A `bad_argument` has no types to report, so their bits hold the culprit's size plus 1; 0 stands for no size.
group_fault put_size_in_types(group_fault what) noexcept {
  const bool fits = what.came_bytes < came_mask << call_type_bits;
  const std::uint64_t size = fits ? what.came_bytes + 1 : 0;
  what.came = static_cast<call_type>(size >> call_type_bits);
  what.expected = static_cast<call_type>(size & expected_mask);
  return what;
}
group_fault take_size_from_types(group_fault what) noexcept {
  const auto high = static_cast<std::uint64_t>(std::exchange(what.came, call_type::any));
  const auto low = static_cast<std::uint64_t>(std::exchange(what.expected, call_type::any));
  const std::uint64_t size = high << call_type_bits | low;
  what.came_bytes = size == 0 ? group_fault::no_size : size - 1;
  return what;
}

}  // namespace

group_fault poison_of(const stamp& s) noexcept {
  const group_fault what{.why = runtime::errc_of(s.total_bytes & 0xffU, errc::send_failed),
                         .culprit = static_cast<rank_id>(s.total_bytes >> 8U),
                         .came = static_cast<call_type>(s.total_bytes >> 40U & came_mask),
                         .expected = type_of(s)};
  return what.why == errc::bad_argument ? take_size_from_types(what) : what;
}

void write_poison(const group_fault& fault, stamp& s) noexcept {
  const group_fault what = fault.why == errc::bad_argument ? put_size_in_types(fault) : fault;
  s.flags = s.flags | stamp_flags::poison;
  s.total_bytes = static_cast<std::uint64_t>(what.why) | std::uint64_t{what.culprit} << 8U |
                  (static_cast<std::uint64_t>(what.came) & came_mask) << 40U;
  put_type(what.expected, s);
}

}  // namespace parley::actors
