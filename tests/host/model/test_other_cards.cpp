#include <gtest/gtest.h>

#include "model/evaluate.hpp"
#include "xstage/documents.hpp"
#include "xstage/model.hpp"

namespace {

using namespace xstage;
using namespace xstage::model;

Measurements recording(const char* name) {
    Measurements m = read_measurements(XSTAGE_SOURCE_DIR "/data/nodes/h200x2/" + std::string(name));
    std::erase_if(m.bursts, [](const BurstRow& r) { return r.path != "st16" && r.path != "bulk"; });
    return m;
}

// A profile of one pair of cards predicts another pair, of which it has seen nothing: 8 to 132 SMs,
// 1 to 8 warps, both paths. All is within the bars for held-out rows but the slowest SM's second
// bursts: the two cards have other groups in other clusters (12 and 24 SMs in light ones).
TEST(OtherCards, ArePredictedUnseen) {
    FitOptions options;
    options.held_out = false, options.resamples = 10;
    const Profile profile = fit(recording("probe.json"), options);
    std::vector<std::string> names;
    for (const StorePath& path : profile.paths) names.push_back(path.name);
    const auto cases = make_cases(recording("probe-other-cards.json"), profile.clock, names);
    ASSERT_EQ(names.size(), profile.paths.size());
    int seen = 0;
    for (const ErrorLine& line : summarise(profile, errors_on(profile, cases), {})) {
        if (!line.path.empty() || line.producers != 0) continue;
        const bool sequence = line.what == "period" || line.what == "mean issue";
        EXPECT_LE(line.median, 0.035) << line.what << " " << line.statistic;
        const bool tail = line.statistic == "slowest" && line.what == "second";
        const double bar = sequence ? 0.10 : tail ? 0.175 : 0.15;
        EXPECT_LE(line.p90, bar) << line.what << " " << line.statistic;
        ++seen;
    }
    EXPECT_EQ(seen, 8);
}

}  // namespace
