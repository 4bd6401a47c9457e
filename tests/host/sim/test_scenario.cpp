#include "sim/scenario.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "expect_error.hpp"
#include "sim/advise.hpp"
#include "sim/engine.hpp"
#include "sim/timeline.hpp"

namespace xstage::sim {
namespace {

using testing::HasSubstr;

const std::string kExamples = XSTAGE_SOURCE_DIR "/examples/";

TEST(Trace, ChromeTraceIsWellNestedAndHoldsEveryBurst) {
    for (const char* name : {"ulysses.json", "moe.json", "trace.json"}) {
        const Scenario scenario = read_scenario(kExamples + name);
        RunOptions options;
        options.record = true;
        const Result result = run(scenario.cluster, scenario.programs(), options);
        const trace::ChromeTrace chrome = chrome_trace(result);
        EXPECT_TRUE(chrome.well_nested()) << name;
        const core::Json json = core::parse_json(chrome.json(), name);
        std::size_t issues = 0, counters = 0, stored = 0;
        for (const auto& event : json["traceEvents"]) {
            issues += event["name"] == "issue";
            counters += event["ph"] == "C";
        }
        for (const Span& span : result.spans) stored += span.issued_ns > span.issue_ns;
        EXPECT_EQ(issues, stored);
        EXPECT_GT(counters, 0u);
    }
}

TEST(Trace, SlicesThatCrossAreSeen) {
    trace::ChromeTrace crossing;
    crossing.slice(0, 0, "a", 0, 100);
    crossing.slice(0, 0, "b", 50, 150);
    EXPECT_FALSE(crossing.well_nested());
    trace::ChromeTrace apart;
    apart.slice(0, 0, "a", 0, 100);
    apart.slice(0, 1, "b", 50, 150);
    apart.slice(0, 0, "c", 20, 80);
    EXPECT_TRUE(apart.well_nested());
}

TEST(Timeline, RowsOfATrackFollowEachOther) {
    const Scenario scenario = read_scenario(kExamples + "moe.json");
    RunOptions options;
    options.record = true;
    const Result result = run(scenario.cluster, scenario.programs(), options);
    const auto rows = timeline(result, 1, 4, 2);
    ASSERT_FALSE(rows.empty());
    std::map<std::string, double> end;
    bool link = false;
    for (const TimelineRow& row : rows) {
        EXPECT_EQ(row.rank, 1);
        EXPECT_TRUE(row.producer == -1 || row.producer == 4 || row.producer == 5);
        link |= row.producer == -1;
        if (row.kind == Activity::kStall) continue;
        EXPECT_GE(row.start_ns, end[row.track] - 1e-6);
        end[row.track] = row.end_ns;
    }
    EXPECT_TRUE(link);
    const std::string svg = compare_svg("orders", "wave", rows, "wave again", rows);
    EXPECT_THAT(svg, HasSubstr("wave again, GPU 1 SM 5: "));
}

std::vector<std::string> names_of(const std::vector<Option>& options) {
    std::vector<std::string> names;
    for (const Option& option : options) names.push_back(option.candidate.name);
    return names;
}

TEST(Advise, KnowsOrdersLeadsRatiosAndSplitsOfAMoe) {
    const std::vector<Option> options = options_of(read_scenario(kExamples + "moe.json"));
    EXPECT_THAT(
        names_of(options),
        testing::ElementsAre("wave(all)", "wave(1)", "wave(2)", "wave(4)", "wave(8)", "wave(16)",
                             "alternate", "ratio", "lead(45)", "lead(90)", "lead(180)",
                             "4 SMs copy", "8 SMs copy", "16 SMs copy", "32 SMs copy"));
    for (std::size_t i = 0; i < options.size(); ++i)
        EXPECT_EQ(options[i].candidate.tag, static_cast<int>(i));
    // What 16 SMs carry meanwhile hides behind Linear-1 and 2 of the others; one wave stalls.
    const Option& split = options[13];
    const Node& node = split.scenario.cluster.node;
    const auto form = [&](const Option& option) {
        return plan::estimate(option.candidate.phases,
                              plan::limits_for(option.candidate, limits_of(node)));
    };
    EXPECT_EQ(split.scenario.moe->copying_sms, 16);
    EXPECT_EQ(form(split).stall_ns, 0);
    EXPECT_GT(form(options[0]).stall_ns, 0);
    const double simulated = run(split.scenario.cluster, split.scenario.programs()).total_ns;
    EXPECT_NEAR(form(split).total_ns, simulated, 0.1 * simulated);
}

TEST(Advise, KnowsRotationPagesAndSplitsOfUlysses) {
    Scenario scenario = read_scenario(kExamples + "ulysses.json");
    EXPECT_THAT(names_of(options_of(scenario)),
                testing::ElementsAre("interleaved", "head-major", "rotated", "remote first",
                                     "4 SMs copy", "8 SMs copy", "16 SMs copy", "32 SMs copy"));
    scenario.ulysses->layout = Layout::kBatched;
    scenario.ulysses->first = FirstChunk::kOwn;
    const auto names = names_of(options_of(scenario));
    EXPECT_EQ(names.front(), "batched, own chunk first");
    EXPECT_THAT(names, testing::IsSupersetOf({"pages in turn, own chunk first",
                                              "padded, peer's chunk first", "16 SMs copy"}));
    scenario.ulysses->copying_sms = 12;
    EXPECT_EQ(names_of(options_of(scenario)).front(), "12 SMs copy");
}

TEST(Advise, ARecordedTraceHasOneOrder) {
    EXPECT_THAT(
        xstage::test::bad_input([] { options_of(read_scenario(kExamples + "trace.json")); }),
        HasSubstr("one order only"));
}

}  // namespace
}  // namespace xstage::sim
