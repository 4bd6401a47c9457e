#pragma once

#include "model/producers.hpp"
#include "xstage/model.hpp"

namespace xstage::model {

/// The three-parameter model as a profile of the general one: equal producers that share one room.
Profile simple_profile(const Calibration& calibration, const Profile& like, std::size_t path,
                       const Load& load);

}  // namespace xstage::model
