#include "model/identify.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace xstage::model {
namespace {

constexpr int kSaturating = 16;  // SMs whose egress is more than the link

bool is_network(const Parameter& p) {
    return p.path == kShared;
}

}  // namespace

std::string missing_rows(const Parameter& parameter, const Measurements& measurements,
                         const std::vector<Case>& cases, const std::string& no_groups) {
    std::set<int> producers;
    bool second = false, odd_chunk = false, several = false, both_stats = false;
    for (const Case& c : cases) {
        producers.insert(c.load.producers);
        second = second || c.bursts > 1;
        several = several || c.load.producers > 1;
        both_stats = both_stats || c.observed[kFirst] != c.observed[kFirstSlowest];
        const double exponent = std::log2(c.bytes.value() / c.load.warps);
        odd_chunk = odd_chunk || std::abs(exponent - std::round(exponent)) > 1e-9;
    }
    const std::string& name = parameter.name;
    if (measurements.provenance.loopback && is_network(parameter)) {
        return "loopback: the stores never crossed a link";
    }
    if (name == "group_room") {
        if (!no_groups.empty()) return no_groups;
        if (producers.size() < 2) return "only one SM count was recorded";
    }
    if (is_network(parameter) && name != "egress" && !several) {
        return "only one SM stored: the link was never shared";
    }
    if (name.ends_with(".link_cost")) {
        int most = 0;
        for (const Case& c : cases) {
            if (c.path == parameter.path) most = std::max(most, c.load.producers);
        }
        if (most < kSaturating) return "too few SMs stored by this path to fill the link";
    }
    const bool cold = name.ends_with(".cold");
    if ((name == "spread" || cold) && !second) return "no rows with a second burst";
    if ((name == "stride_cost" || name == "stride_half") && !odd_chunk) {
        return "every chunk of a warp was a power of two";
    }
    if ((name == "favour" || name == "disfavour" || name == "turn" || name == "lasting") &&
        !both_stats) {
        return "median and slowest do not differ in these rows";
    }
    return {};
}

void neutralise(const std::string& name, Profile& profile) {
    Network& n = profile.network;
    if (name == "group_room") n.group_room = Bytes{1e12};
    if (name == "turn") n.turn = Bytes{0};
    if (name == "spread") n.spread = 0;
    if (name == "stride_cost") n.stride_cost = 0;
    for (StorePath& path : profile.paths) {
        if (name == path.name + ".cold") path.cold = Cycles{0};
    }
}

}  // namespace xstage::model
