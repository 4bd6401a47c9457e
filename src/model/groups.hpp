#pragma once

#include <string>

#include "xstage/measurement.hpp"
#include "xstage/topology.hpp"

namespace xstage::model {

/// The clusters and groups of SMs that share the link, from issue times by SM id with all SMs
/// storing without pause (the SMs of a small group end early) and, where recorded, from which SMs
/// share a cluster. Without clusters, with the reason, where the rows do not show them.
Topology find_topology(const Measurements& measurements, int sms, std::string& reason);

}  // namespace xstage::model
