#pragma once

#include <vector>

#include "model/cases.hpp"
#include "xstage/profile.hpp"

namespace xstage::model {

/// Where a partial grid lands is not recorded; what its SMs do to one another is. Sets
/// `topology.order` to the order of placement that explains the cases best: one order for all SM
/// counts. Returns whether it has changed; without clusters or partial grids it stays empty.
bool find_placement(const std::vector<Case>& cases, Profile& profile);

}  // namespace xstage::model
