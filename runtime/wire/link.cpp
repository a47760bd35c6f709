// The defaults, for a link without one-sided transfers that cannot move device memory.
#include <parley/runtime/wire/link.hpp>

namespace parley::runtime {

result<> link::one_sided() const { return error{errc::unavailable, "this link has no one-sided transfers"}; }
result<> link::one_sided_devices() const { return one_sided(); }
result<exposed_memory> link::expose(std::span<std::byte>) { return one_sided().reason(); }
late_writes link::withdraw(const exposed_memory&) { return late_writes::fail; }
errc link::put(rank_id, const remote_place&, std::span<const std::byte>, completion*) { return errc::unavailable; }
errc link::get(rank_id, const remote_place&, std::span<std::byte>, completion*) { return errc::unavailable; }
errc link::fence(rank_id, completion*) { return errc::unavailable; }
errc link::announce(rank_id, channel, std::span<const std::byte>, completion*) { return errc::unavailable; }

result<> link::moves_devices() const {
  return error{errc::unavailable, "this link's transport moves only host memory"};
}
errc link::send_device(rank_id, channel, std::span<const std::byte>, std::span<const std::byte>, completion*) {
  return errc::unavailable;
}
errc link::fetch_device(arrival&&, std::span<std::byte>, completion*) { return errc::unavailable; }

result<> link::joint() const {
  return error{errc::unavailable, "this link has no transfers in which both devices take part"};
}
errc link::joint_get(rank_id, const remote_place&, std::span<std::byte>, completion*) { return errc::unavailable; }

}  // namespace parley::runtime
