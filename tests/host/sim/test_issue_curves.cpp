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
constexpr int kSms = 132;
constexpr double kInstruction = 512;

std::vector<IssueCurve> curves(Target target) {
    const Measurements all =
        read_measurements(XSTAGE_SOURCE_DIR "/data/nodes/h200x2/first-recording.json");
    std::vector<IssueCurve> out;
    for (const IssueCurve& curve : all.curves) {
        if (curve.target == target) out.push_back(curve);
    }
    return out;
}

/// The recording kept every 16th point of the later ones.
int instructions_per_warp(const IssueCurve& curve) {
    return curve.points.back().first < 512 ? 512 : 2048;
}

/// How many instructions an SM has issued when warp 0 has issued `i`. Only warp 0 takes stamps, and
/// a stamp is a store, too, which waits for a turn of its scheduler once stores wait for each other
/// (from `free` instructions per warp on). A scheduler of w warps with warp 0 among them then needs
/// w + 1 turns where the other three need w.
double issued_by_sm(double i, double free, int warps, int all) {
    constexpr int kSchedulers = 4;
    const int beside = std::max(0, warps / kSchedulers - 1);  // on warp 0's scheduler
    const int others = warps - 1 - beside;
    const double lead = (beside + 2.0) / (beside + 1.0);
    const double stalled = std::max(0.0, i - free), left = std::max(0.0, all - free);
    return warps * std::min(i, free) + stalled + beside * std::min(left, stalled) +
           others * std::min(left, stalled * lead);
}

/// Cycle at which the median SM has issued each round of its warps; round 0 is the start.
std::vector<double> median_rounds(const Node& node, int warps, int all) {
    const Cluster cluster{node, 2, 0};
    const std::vector<double> rounds(static_cast<std::size_t>(all), kInstruction * warps);
    RunOptions options;
    options.record = true;
    const Trace trace = uniform_trace(2, kSms, rounds, {}, false, true);
    const Result result = run(cluster, trace_programs(cluster, trace), options);
    std::vector<std::vector<double>> issued(rounds.size());
    for (const Span& span : result.spans)
        issued[static_cast<std::size_t>(span.id)].push_back(span.issued_ns * kClock);
    std::vector<double> out{0};
    for (auto& times : issued) {
        std::nth_element(times.begin(), times.begin() + kSms / 2, times.end());
        out.push_back(times[kSms / 2]);
    }
    return out;
}

double between(const std::vector<double>& values, double at) {
    const auto low = std::min(static_cast<std::size_t>(at), values.size() - 2);
    return values[low] + (at - static_cast<double>(low)) * (values[low + 1] - values[low]);
}

class IssueCurves : public testing::TestWithParam<std::size_t> {};

// The control with local stores tells what issuing costs, stamps included, before stores wait.
TEST_P(IssueCurves, MedianErrorIsWithinThreePercent) {
    const IssueCurve remote = curves(Target::kRemote).at(GetParam());
    const IssueCurve control = curves(Target::kLocal).at(GetParam());
    ASSERT_EQ(control.warps, remote.warps);
    const double first = control.points[0].second.value();
    const double each = (control.points[2].second.value() - first) / 2;
    Node node = test::h200_node(false);
    node.issue_base_ns = 0;
    node.issue_rate = remote.warps * kInstruction / each * kClock;
    const int all = instructions_per_warp(remote);
    const std::vector<double> rounds = median_rounds(node, remote.warps, all);
    double free = 0;
    while (rounds[static_cast<std::size_t>(free) + 1] < 1.01 * each * (free + 1)) ++free;

    std::vector<double> errors;
    for (const auto& [i, cycles] : remote.points) {
        const double sm = issued_by_sm(i + 1, free, remote.warps, all);
        const double predicted = first - each + between(rounds, sm / remote.warps);
        errors.push_back(std::abs(predicted / cycles.value() - 1));
    }
    std::sort(errors.begin(), errors.end());
    const double median = errors[errors.size() / 2];
    RecordProperty("median_error", std::to_string(median));
    RecordProperty("p90_error", std::to_string(errors[errors.size() * 9 / 10]));
    EXPECT_LT(median, 0.03) << remote.warps << " warps, " << all << " instructions";
}
INSTANTIATE_TEST_SUITE_P(Recorded, IssueCurves, testing::Range<std::size_t>(0, 5));

TEST(IssueCurvesRecorded, AreFive) {
    EXPECT_EQ(curves(Target::kRemote).size(), 5u);
    EXPECT_EQ(curves(Target::kLocal).size(), 5u);
}

}  // namespace
}  // namespace xstage::sim
