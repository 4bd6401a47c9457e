#pragma once

#include <string>
#include <vector>

#include "xstage/measurement.hpp"
#include "xstage/profile.hpp"

namespace xstage::model {

/// The groups below the link, from issue times by SM id; `reason` says why there are none.
/// With every SM storing, the SMs of small groups get more of the link and end early.
Groups find_groups(const std::vector<SmRow>& rows, int sms, std::string& reason);

}  // namespace xstage::model
