#pragma once
/// Plans of halo exchanges, for flows.
#include "ranks.hpp"

#include <parley/halo.hpp>

#include <memory>
#include <vector>

namespace parley::python {

struct halo_plan {
  rank_ptr where;
  std::shared_ptr<ops::halo_plan> plan;
  std::vector<keep> keeps;  // the fields
};

}  // namespace parley::python
