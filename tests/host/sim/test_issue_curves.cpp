// The recorded issue curves: when instruction i of warp 0 had been issued, all 132 SMs storing.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "host/sim/nodes.hpp"
#include "sim/bursts.hpp"
#include "sim/engine.hpp"
#include "xstage/documents.hpp"

namespace xstage::sim {
namespace {

constexpr double kClock = 1.98;  // the recording kept no clock; its rates fit this one

std::vector<IssueCurve> remote_curves() {
    const Measurements all =
        read_measurements(XSTAGE_SOURCE_DIR "/data/nodes/h200x2/first-recording.json");
    std::vector<IssueCurve> curves;
    for (const IssueCurve& curve : all.curves) {
        if (curve.target == Target::kRemote) curves.push_back(curve);
    }
    return curves;
}

Node node_for(int warps) {
    Node node = test::h200_node(false);
    // One warp issues 512 bytes in 40 cycles, an SM takes 50 bytes a cycle at most; the first
    // instruction is out after 200.
    node.issue_base_ns = 0;
    node.issue_rate = std::min(50.0, warps * 512 / 40.0) * kClock;
    return node;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

TEST(IssueCurves, OfOneWarpPerSm) {
    int seen = 0;
    for (const IssueCurve& curve : remote_curves()) {
        const int last = curve.points.back().first;
        if (curve.warps != 1 || last > 1000) continue;
        ++seen;
        const Node node = node_for(1);
        const Cluster cluster{node, 2, 0};
        const std::vector<double> instructions(static_cast<std::size_t>(last) + 1, 512.0);
        RunOptions options;
        options.record = true;
        const Result result = run(
            cluster, trace_programs(cluster, uniform_trace(2, 132, instructions, {}, false, true)),
            options);
        std::vector<std::vector<double>> issued(instructions.size());
        for (const Span& span : result.spans) {
            issued[static_cast<std::size_t>(span.id)].push_back(span.issued_ns * kClock);
        }
        std::vector<double> errors;
        for (const auto& [i, cycles] : curve.points) {
            const double predicted = 175 + median(issued[static_cast<std::size_t>(i)]);
            errors.push_back(std::abs(predicted - cycles.value()) / cycles.value());
        }
        RecordProperty("median_error", std::to_string(median(errors)));
        // 7.4%: the curve's SM drains as fast as the mean one, the median SM of the model shares
        // its group with five others and is slower. docs/simulator.md has the figure.
        EXPECT_LT(median(errors), 0.08);
    }
    EXPECT_EQ(seen, 1);
}

// With more warps warp 0 is served behind the others of its SM, which the simulator does not tell
// apart: the end of the curve, where all warps are done, is what must come out.
TEST(IssueCurves, EndsOfAll) {
    for (const IssueCurve& curve : remote_curves()) {
        const int last = curve.points.back().first;
        const double bytes = (last + 1) * 512.0 * curve.warps;
        const Cluster cluster{node_for(curve.warps), 2, 0};
        const Result result =
            run(cluster, trace_programs(cluster, uniform_trace(2, 132, {bytes}, {}, false, true)));
        const double predicted = result.ranks[0].issued_ns * kClock;
        EXPECT_NEAR(predicted, curve.points.back().second.value(), 0.09 * predicted)
            << curve.warps << " warps, " << last << " instructions";
    }
}

}  // namespace
}  // namespace xstage::sim
