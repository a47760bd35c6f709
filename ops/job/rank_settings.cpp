#include <parley/ops/job/rank_settings.hpp>

namespace parley::ops {

rank_settings::rank_settings() = default;
rank_settings::rank_settings(const rank_settings&) = default;
rank_settings::rank_settings(rank_settings&&) noexcept = default;
rank_settings& rank_settings::operator=(const rank_settings&) = default;
rank_settings& rank_settings::operator=(rank_settings&&) noexcept = default;
rank_settings::~rank_settings() = default;

}  // namespace parley::ops
