#pragma once

#include <map>
#include <vector>

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
FluidModel fluid_model(const Network& network, const Topology& topology, const StorePath& path,
                       const Load& load);

/// The fluid models of one profile. What depends on the SM count alone (which groups store, how
/// luck weighs in them) is worked out once for each.
class FluidModels {
  public:
    FluidModels(const Network& network, const Topology& topology)
        : network_(network), topology_(topology) {}
    /// Valid until the next call. One burst alone is free of what only later ones depend on.
    const FluidModel& of(const StorePath& path, const Load& load, int bursts);

  private:
    struct Shared {
        FluidModel model;
        std::vector<double> room;  // network's part of each class's room
    };
    const Network& network_;
    const Topology& topology_;
    std::map<int, Shared> by_producers_;
};

/// One burst of the scenario in the fluid model's numbers. `index` 0 is a kernel's first burst.
FluidBurst fluid_burst(const Network& network, const StorePath& path, const Load& load, Bytes bytes,
                       Cycles gap, bool first);

}  // namespace xstage::model
