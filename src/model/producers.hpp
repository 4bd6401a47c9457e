#pragma once

#include "model/fluid.hpp"
#include "xstage/measurement.hpp"
#include "xstage/profile.hpp"

namespace xstage::model {

/// Who stores, and how fast the SM clock runs beside the link's.
struct Load {
    int producers = 1;
    int warps = 1;
    GigaHertz clock;
    GapFrom gap_from = GapFrom::kProducer;
};

/// The fluid model (SM cycles) of that many producers on a node.
FluidModel fluid_model(const Network& network, const Groups& groups, const StorePath& path,
                       const Load& load);

/// One burst of the scenario in the fluid model's numbers. `index` 0 is a kernel's first burst.
FluidBurst fluid_burst(const Network& network, const StorePath& path, const Load& load, Bytes bytes,
                       Cycles gap, bool first);

/// Issue time of the median warp: in a free burst it is done before the last warp of its SM.
double issue_median(const Network& network, const StorePath& path, const Load& load, Bytes bytes,
                    const FluidBurst& burst, const FluidModel& model, std::span<const float> times);

/// Quantile over producers of per-class values, between class midpoints.
double quantile(const FluidModel& model, std::span<const float> values, double fraction);
double quantile(const FluidModel& model, std::span<const double> values, double fraction);

}  // namespace xstage::model
