// The commands as a user calls them: output, exit codes, messages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "command.hpp"
#include "core/json.hpp"
#include "temporary_directory.hpp"

namespace xstage::sim {
namespace {

using testing::HasSubstr;
using xstage::test::run_xstage;

const std::string kExamples = XSTAGE_SOURCE_DIR "/examples/";

std::string scenario_text(const std::string& rest) {
    return R"({"schema_version": 1, "kind": "xstage.sim_scenario", "node": ")" XSTAGE_SOURCE_DIR
           R"(/data/nodes/h200x2/sim-node.json", "path": "st16", )" +
           rest + "}";
}

TEST(Scenario, ExamplesRun) {
    for (const char* name : {"ulysses.json", "moe.json", "trace.json", "two_nodes.json"}) {
        const auto result = run_xstage({"simulate", kExamples + name, "--json"});
        ASSERT_EQ(result.code, 0) << result.err;
        const core::Json json = core::parse_json(result.out, name);
        EXPECT_EQ(json["kind"], "xstage.sim_result");
        EXPECT_GT(json["total_ns"].get<double>(), 0);
        const auto& rank = json["ranks"][0];
        EXPECT_NEAR(rank["bytes_issued"].get<double>(), rank["bytes_drained"].get<double>(), 1);
        EXPECT_FALSE(rank["sms"]["stall_ns"].empty());
    }
}

struct Bad {
    const char* text;
    const char* message;
};

TEST(Scenario, BadOnesExitWithTwoAndTheJsonPath) {
    const Bad cases[] = {
        {R"("gpus": 0, "trace": {"uniform": {"producers": 1, "bytes": [1]}})",
         "/gpus: expected integer, >= 1"},
        {R"("gpus": 2)", "/: expected exactly one of ulysses, moe, trace"},
        {R"("gpus": 2, "trace": {})", "/trace: expected one of uniform, bursts, recording"},
        {R"("gpus": 2, "trace": {"bursts": [{"rank": 0, "producer": 0, "destination": 5, "bytes": 8}]})",
         "/trace/bursts/0/destination: expected a GPU below 2, found 5"},
        {R"("gpus": 2, "trace": {"bursts": [{"rank": 0, "producer": 0, "destination": 1, "bytes": -8}]})",
         "/trace/bursts/0/bytes"},
        {R"("gpus": 4, "ulysses": {"sequence": 1024, "heads": 6})",
         "/ulysses/heads: expected a multiple of the 4"},
        {R"("gpus": 2, "ulysses": {"sequence": 1024, "heads": 6, "order": "best"})",
         "/ulysses/order"},
        {R"("gpus": 2, "moe": {"hidden": 512, "intermediate": 256, "experts": 7, "top_k": 2, "tokens": 8})",
         "/moe/experts: expected a multiple of the 2 GPUs, found 7"},
        {R"("gpus": 2, "moe": {"hidden": 512, "intermediate": 256, "experts": 8, "top_k": 2, "tokens": 8, "copying_sms": 132})",
         "/moe/copying_sms: expected fewer than the 132 SMs, found 132"},
        {R"("gpus": 2, "moe": {"hidden": 512, "intermediate": 256, "experts": 8, "top_k": 9, "tokens": 8})",
         "/moe/top_k: expected at most the 8 experts, found 9"}};
    for (const Bad& bad : cases) {
        for (const char* command : {"simulate", "advise"}) {
            const auto result = run_xstage({command, "-"}, scenario_text(bad.text));
            EXPECT_EQ(result.code, 2) << bad.text;
            EXPECT_THAT(result.err, HasSubstr(bad.message)) << bad.text;
            EXPECT_EQ(result.out, "");
        }
    }
    EXPECT_EQ(run_xstage({"simulate", "/nonexistent.json"}).code, 2);
    EXPECT_THAT(
        run_xstage({"simulate", kExamples + "moe.json", "--node", kExamples + "moe.json"}).err,
        HasSubstr("/kind: expected \"xstage.sim_node\""));
}

TEST(Report, DrawsTwoOrdersAboveEachOther) {
    const auto result =
        run_xstage({"report", XSTAGE_SOURCE_DIR "/data/nodes/h200x2/first-recording.json", "-o",
                    "-", "--orders", kExamples + "moe.json"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("Two orders: wave(all) and "));
    for (const char* order : {"wave(all)", "ratio"}) {
        EXPECT_THAT(result.out, HasSubstr(std::string(order) + ", GPU 0 SM 5: compute"));
        EXPECT_THAT(result.out, HasSubstr(std::string(order) + ", GPU 0 link: drain"));
    }
}

TEST(Scenario, NodesThatDoNotFitTogether) {
    const xstage::test::TemporaryDirectory directory;
    const std::string text =
        scenario_text(R"("gpus": 2, "trace": {"uniform": {"producers": 1, "bytes": [1]}})");
    const std::string head = R"({"schema_version": 1, "kind": "xstage.sim_node", "name": "n", )";
    const Bad cases[] = {
        {R"("sms": 4, "paths": {}})", "/link_gbps: expected it, or a /profile"},
        {R"("profile": "none.json"})", "none.json"},
        {R"("sms": 4, "link_gbps": 9, "groups": [2, 2], "halves": [1], "paths": {"st16": {}}})",
         "/halves: expected 2 groups in all"},
        {R"("sms": 4, "link_gbps": 9, "paths": {"bulk": {}}})",
         "/paths: expected the store path 'st16'"}};
    for (const Bad& bad : cases) {
        const std::string node = directory.write("node.json", head + bad.text);
        const auto result = run_xstage({"simulate", "-", "--node", node}, text);
        EXPECT_EQ(result.code, 2) << bad.text;
        EXPECT_THAT(result.err, HasSubstr(bad.message)) << bad.text;
    }
}

TEST(Scenario, ExtrapolationIsSaid) {
    const std::string text = scenario_text(
        R"("gpus": 8, "trace": {"uniform": {"producers": 4, "bytes": [4096, 4096], "gap_ns": [100]}})");
    EXPECT_THAT(run_xstage({"simulate", "-"}, text).out,
                HasSubstr("extrapolated: the node was measured with 2 GPUs, 8 are simulated"));
}

// A shape whose Linear-2 alone is bound by the stores: interleaving must win, and say why.
TEST(Advise, NamesTheBurstThatExceedsTheRoom) {
    const auto result = run_xstage({"advise", kExamples + "moe.json", "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    const core::Json json = core::parse_json(result.out, "advice");
    EXPECT_EQ(json["baseline"], "wave(all)");
    EXPECT_NE(json["choice"], "wave(all)");
    EXPECT_GT(json["gain"].get<double>(), 1.02);
    EXPECT_LE(json["interval"][0].get<double>(), json["gain"].get<double>());
    EXPECT_GE(json["interval"][1].get<double>(), json["gain"].get<double>());
    EXPECT_THAT(json["reason"].get<std::string>(), HasSubstr("Linear-2 bursts of"));
    int simulated = 0;
    for (const auto& row : json["orders"]) {
        if (row["simulated_ns"].is_null()) {
            EXPECT_NE(row["reason"], "");
        } else {
            ++simulated;
        }
    }
    EXPECT_GE(simulated, 3);
    EXPECT_LE(simulated, 4);
}

}  // namespace
}  // namespace xstage::sim
