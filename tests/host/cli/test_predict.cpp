#include <gmock/gmock.h>

#include "command.hpp"
#include "core/json.hpp"

namespace xstage {
namespace {

using testing::HasSubstr;

constexpr const char* kScenario =
    R"({"path": "st16", "producers": 132, "warps": 4, "clock_ghz": 1.98, "destinations": 1,
        "gap_from": "producer", "bursts": [{"bytes_per_producer": 32768, "gap_ns": 1000},
                                           {"bytes_per_producer": 32768, "gap_ns": 0}]})";

TEST(PredictCommand, AnswersTheContract) {
    const auto result = test::run_xstage({"predict"}, kScenario);
    ASSERT_EQ(result.code, 0) << result.err;
    const auto answer = core::parse_json(result.out, "out");
    ASSERT_EQ(answer.at("bursts").size(), 2u);
    for (const char* key :
         {"issue_ns", "issue_median_ns", "stall_ns", "drained_ns", "visible_ns", "queued_bytes"}) {
        EXPECT_TRUE(answer["bursts"][0].at(key).is_number()) << key;
    }
    for (const char* key : {"total_ns", "onset_bytes_per_producer", "recovery_ns"}) {
        EXPECT_TRUE(answer.at(key).is_number()) << key;
    }
    const double issue = answer["bursts"][0]["issue_ns"];
    EXPECT_LE(answer["interval"]["issue_ns"][0].get<double>(), issue);
    EXPECT_GE(answer["interval"]["issue_ns"][1].get<double>(), issue);
    EXPECT_EQ(answer.size(), 5u);
    // The slowest SM takes longer than the recorded median one (5.2 us), and no longer than the
    // link needs for all 4.3 MB.
    EXPECT_GT(issue, 5200);
    EXPECT_LT(issue, 132 * 32768 / 366.0);
    EXPECT_GT(answer["bursts"][0]["visible_ns"].get<double>(), issue);
}

TEST(PredictCommand, TheSameFromACsvFileAndAsCsv) {
    const test::TemporaryDirectory directory;
    const std::string bursts =
        directory.write("bursts.csv", "gap_ns,bytes_per_producer\n1000,32768\n0,32768\n");
    const auto csv = test::run_xstage(
        {"predict", "--bursts", bursts, "--producers", "132", "--clock-ghz", "1.98", "--csv"});
    ASSERT_EQ(csv.code, 0) << csv.err;
    EXPECT_THAT(
        csv.out,
        HasSubstr("issue_ns,issue_median_ns,stall_ns,drained_ns,visible_ns,queued_bytes\n"));
    const auto json = core::parse_json(test::run_xstage({"predict"}, kScenario).out, "out");
    const std::string first = csv.out.substr(csv.out.find('\n') + 1);
    EXPECT_DOUBLE_EQ(std::stod(first), json["bursts"][0]["issue_ns"].get<double>());
}

TEST(PredictCommand, BadScenariosSayWhere) {
    const auto message = [](const std::string& scenario) {
        const auto result = test::run_xstage({"predict"}, scenario);
        EXPECT_EQ(result.code, 2) << scenario;
        EXPECT_EQ(result.out, "");
        EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
        return result.err;
    };
    EXPECT_THAT(message(R"({"path": "st16", "producers": 132, "bursts": []})"),
                HasSubstr("/bursts"));
    EXPECT_THAT(
        message(R"({"path": "st16", "producers": 132, "bursts": [{"bytes_per_producer": -1}]})"),
        HasSubstr("/bursts/0/bytes_per_producer"));
    EXPECT_THAT(
        message(R"({"path": "st16", "producers": 9999, "bursts": [{"bytes_per_producer": 1}]})"),
        HasSubstr("producers"));
    EXPECT_THAT(
        message(R"({"path": "st16", "producers": 132, "bursts": [{"bytes_per_producer": NaN}]})"),
        HasSubstr("-:1:"));
    EXPECT_THAT(message("{"), HasSubstr("-:1:"));
    EXPECT_THAT(message(""), HasSubstr("-:1:"));
}

TEST(PredictCommand, BadFilesExitWithTwo) {
    const test::TemporaryDirectory directory;
    EXPECT_THAT(test::run_xstage({"predict", directory.file("")}).err, HasSubstr("is a directory"));
    EXPECT_EQ(test::run_xstage({"predict", directory.file("none")}).code, 2);
    EXPECT_EQ(
        test::run_xstage({"predict", "--bursts", directory.write("b.csv", "x,y\n1,2\n")}).code, 2);
    EXPECT_EQ(
        test::run_xstage({"predict", "--bursts", directory.write("e.csv", "bytes_per_producer\n")})
            .code,
        2);
    const auto profile =
        test::run_xstage({"predict", "-p", directory.write("p.json", "{}")}, kScenario);
    EXPECT_EQ(profile.code, 2);
    EXPECT_THAT(profile.err, HasSubstr("/kind"));
}

}  // namespace
}  // namespace xstage
