#pragma once
/// Lets the ranks of a job meet through the program's own bootstrap (parley/bootstrap.hpp). Internal.
#include <parley/bootstrap.hpp>
#include <parley/transports/join/rendezvous.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace parley::transports {

/// Runs the two exchanges of a bootstrap. Throws `failure` if the program's all_gather returns something else than the ranks gave.
class bootstrap_meeting {
 public:
  /// Runs the first exchange: which rank runs on which host.
  explicit bootstrap_meeting(bootstrap through);

  bool one_host() const noexcept { return one_host_; }
  std::uint64_t job() const noexcept { return job_; }
  /// Runs the second exchange: how each rank is reached.
  joined join(member me);

 private:
  std::vector<bootstrap::bytes> exchange(std::span<const std::byte> mine) const;

  bootstrap through_;
  bool one_host_ = true;
  std::uint64_t job_ = 0;
  std::array<std::byte, 32> secret_{};
};

}  // namespace parley::transports
