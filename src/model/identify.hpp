#pragma once

#include <string>
#include <vector>

#include "model/cases.hpp"
#include "model/parameters.hpp"
#include "xstage/measurement.hpp"

namespace xstage::model {

/// Why the rows cannot give this parameter, as far as the kinds of rows tell; empty: they may.
std::string missing_rows(const Parameter& parameter, const Measurements& measurements,
                         const std::vector<Case>& cases, const std::string& no_groups);

/// Takes out of the model what has no rows: no groups' imbalance, no penalty, no spread.
void neutralise(const std::string& parameter, Profile& profile);

}  // namespace xstage::model
