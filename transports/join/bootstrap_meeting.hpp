#pragma once
/// How the ranks of a job meet through a bootstrap of the program's own. Internal.
#include <parley/bootstrap.hpp>
#include <parley/transports/join/rendezvous.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace parley::transports {

/// The two exchanges of a bootstrap.
class bootstrap_meeting {
 public:
  /// The first one: who runs where.
  explicit bootstrap_meeting(bootstrap through);

  bool one_host() const noexcept { return one_host_; }
  std::uint64_t job() const noexcept { return job_; }
  /// The second one: how each rank is reached.
  joined join(member me);

 private:
  std::vector<bootstrap::bytes> exchange(std::span<const std::byte> mine) const;

  bootstrap through_;
  bool one_host_ = true;
  std::uint64_t job_ = 0;
  std::array<std::byte, 32> secret_{};
};

}  // namespace parley::transports
