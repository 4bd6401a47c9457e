#include "trace/measurement_json.hpp"

#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "xstage/documents.hpp"

namespace xstage::trace {
namespace {

using test::bad_input;
using testing::HasSubstr;

const std::string kRecorded = XSTAGE_SOURCE_DIR "/data/nodes/h200x2/first-recording.json";

BurstRow sample_row() {
    BurstRow row;
    row.mode = BurstMode::kGap2;
    row.path = "bulk";
    row.producers = 66;
    row.warps = 4;
    row.bytes_per_producer = Bytes{32768};
    row.bursts = 2;
    row.gap = Cycles{8000};
    row.gap_from = GapFrom::kAll;
    row.addresses = Addresses::kRewritten;
    row.beside = "mma";
    row.clock = GigaHertz{1.755};
    row.samples = 31;
    row.marked = true;
    row.issue = {{0, {Cycles{1}, Cycles{2}, Cycles{3}, Cycles{4}}},
                 {1, {std::nullopt, Cycles{5}, std::nullopt, Cycles{6}}}};
    row.total = {std::nullopt, Cycles{7}, std::nullopt, Cycles{8}};
    row.elapsed = Nanoseconds{99};
    return row;
}

Measurements sample() {
    Measurements out;
    out.provenance.node = "n";
    out.provenance.gpus = {{"G", "GPU-1", 132, GigaHertz{1.98}}, {"G", "GPU-2", 132, std::nullopt}};
    out.provenance.line_rate = BytesPerNanosecond{450};
    out.provenance.argv = {"xstage", "probe"};
    out.bursts = {sample_row()};
    out.visible = {{"st16", 132, 4, Bytes{2048}, Fence::kAllThreads, Addresses::kFresh, Cycles{1},
                    Cycles{2}, Cycles{3}, Nanoseconds{4}, 0}};
    out.per_sm = {{"even", "st16", 8, Bytes{1024}, {Cycles{5}, std::nullopt}}};
    out.curves = {{"st16", Target::kLocal, 132, 4, Bytes{512}, {{0, Cycles{10}}, {3, Cycles{20}}}}};
    out.rates = {{"copy_engine", "write", Bytes{1e9}, BytesPerNanosecond{395},
                  "payload over events", std::nullopt}};
    out.litmus = {{"st16", "none", "loaded", false, 10'000'000, 12}};
    out.user_bursts = {{3, 1, Bytes{32768}, Nanoseconds{100}, Cycles{500}, GigaHertz{1.9}}};
    return out;
}

TEST(MeasurementJson, ComesBackAsItWas) {
    const core::Json document = to_json(sample());
    const Measurements back = measurements_from_json(document, "m.json");
    EXPECT_EQ(to_json(back), document);
    // A few values by hand, so that a key left out on both sides would be seen.
    const BurstRow& row = back.bursts.at(0);
    EXPECT_EQ(row.mode, BurstMode::kGap2);
    EXPECT_EQ(row.gap_from, GapFrom::kAll);
    EXPECT_EQ(row.addresses, Addresses::kRewritten);
    EXPECT_TRUE(row.marked);
    EXPECT_EQ(row.issue.at(0).cycles.p95, Cycles{3});
    EXPECT_EQ(row.issue.at(1).cycles.max, Cycles{6});
    EXPECT_FALSE(row.fence.has_value());
    EXPECT_EQ(back.visible.at(0).fence, Fence::kAllThreads);
    EXPECT_EQ(back.per_sm.at(0).issue.at(1), std::nullopt);
    EXPECT_EQ(back.curves.at(0).points.at(1), (std::pair<int, Cycles>(3, Cycles{20})));
    EXPECT_EQ(back.litmus.at(0).trials, 10'000'000);
    EXPECT_EQ(back.user_bursts.at(0).clock, GigaHertz{1.9});
}

TEST(MeasurementJson, TheRecordedNodeIsValid) {
    const Measurements recorded = read_measurements(kRecorded);
    EXPECT_EQ(recorded.bursts.size(), 976u);
    EXPECT_EQ(recorded.visible.size(), 24u);
    EXPECT_EQ(recorded.per_sm.size(), 4u);
    EXPECT_EQ(recorded.provenance.gpus.size(), 2u);
    EXPECT_GE(recorded.provenance.warnings.size(), 5u);
}

TEST(MeasurementJson, RefusesWhatTheSchemaCannotSay) {
    const auto message = [](auto&& change) {
        core::Json document = to_json(sample());
        change(document);
        return bad_input([&] { measurements_from_json(document, "m.json"); });
    };
    EXPECT_THAT(message([](auto& d) { d["bursts"].push_back(d["bursts"][0]); }),
                HasSubstr("m.json: /bursts/1: expected each configuration once"));
    EXPECT_THAT(message([](auto& d) { d["bursts"][0]["producers"] = 133; }),
                HasSubstr("/bursts/0/producers: expected at most the GPU's 132 SMs"));
    EXPECT_THAT(message([](auto& d) { d["bursts"][0]["issue_cycles"][1]["burst"] = 0; }),
                HasSubstr("/bursts/0/issue_cycles/1/burst"));
    EXPECT_THAT(message([](auto& d) { d["bursts"][0]["issue_cycles"][0]["max"] = 1; }),
                HasSubstr("/bursts/0/issue_cycles/0/max"));
    EXPECT_THAT(message([](auto& d) {
                    d["curves"][0]["instructions"] = {3, 0};
                }),
                HasSubstr("/curves/0/instructions/1: expected strictly rising"));
    EXPECT_THAT(message([](auto& d) { d["curves"][0]["cycles"] = {3}; }),
                HasSubstr("/curves/0/cycles"));
}

// Every row is refused when any of its keys carries the wrong type: no field is read unchecked.
TEST(MeasurementJson, WrongTypesAreRefusedEverywhere) {
    const core::Json good = to_json(sample());
    for (const char* section :
         {"bursts", "visible", "per_sm", "curves", "rates", "litmus", "user_bursts"}) {
        for (const auto& [key, value] : good[section][0].items()) {
            core::Json document = good;
            document[section][0][key] = core::Json::object({{"un", "expected"}});
            const std::string message =
                bad_input([&] { measurements_from_json(document, "m.json"); });
            EXPECT_THAT(message, HasSubstr("m.json: /" + std::string(section) + "/0"));
        }
    }
}

}  // namespace
}  // namespace xstage::trace
