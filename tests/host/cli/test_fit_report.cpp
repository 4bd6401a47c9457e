#include <gmock/gmock.h>

#include "command.hpp"
#include "core/json.hpp"
#include "xstage/documents.hpp"
#include "xstage/model.hpp"

namespace xstage {
namespace {

using testing::HasSubstr;

const std::string kNode = XSTAGE_SOURCE_DIR "/data/nodes/h200x2/";

TEST(FitCommand, WritesAProfileThatReadsBackAndPrintsTheAnswers) {
    const test::TemporaryDirectory directory;
    const auto result = test::run_xstage(
        {"fit", kNode + "first-recording.json", "-o", directory.file("profile.json")});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("onset"));
    EXPECT_THAT(result.out, HasSubstr("recovery"));
    const ProfileDocument document = read_profile(directory.file("profile.json"));
    EXPECT_EQ(document.profile.rows > 500, true);
    EXPECT_EQ(document.recording.node, "h200x2");
    // The recorded knee of 132 SMs stands between 16 and 18 KB per SM.
    model::Scenario load;
    EXPECT_NEAR(onset(document.profile, load).value(), 17 * 1024, 2 * 1024);
    // What was read and written again is the same file.
    write_profile(directory.file("again.json"), document);
    EXPECT_EQ(test::slurp(directory.file("again.json")),
              test::slurp(directory.file("profile.json")));
}

TEST(FitCommand, RefusesALoopbackRecordingAndNonsense) {
    const test::TemporaryDirectory directory;
    Measurements measurements = read_measurements(kNode + "first-recording.json");
    measurements.provenance.loopback = true;
    write_measurements(directory.file("loop.json"), measurements);
    const auto loop = test::run_xstage({"fit", directory.file("loop.json")});
    EXPECT_EQ(loop.code, 2);
    EXPECT_THAT(loop.err, HasSubstr("/provenance/loopback"));

    const std::string text = test::slurp(kNode + "first-recording.json");
    const auto cut =
        test::run_xstage({"fit", directory.write("cut.json", text.substr(0, text.size() / 2)), "-o",
                          directory.file("profile.json")});
    EXPECT_EQ(cut.code, 2);
    EXPECT_THAT(cut.err, HasSubstr("cut.json:"));
    EXPECT_FALSE(std::filesystem::exists(directory.file("profile.json")));
    EXPECT_EQ(
        test::run_xstage({"fit", directory.write("zeros.json", std::string(1 << 20, '\0'))}).code,
        2);
}

TEST(FitCommand, ARateAboveTheLineIsAnAccountingError) {
    const test::TemporaryDirectory directory;
    Measurements measurements = read_measurements(kNode + "first-recording.json");
    for (BurstRow& row : measurements.bursts) {
        // 132 x 1 MB in 100 us would be 1.4 TB/s over a line of 450 GB/s.
        if (row.producers == 132 && row.bytes_per_producer >= Bytes{1 << 20}) {
            row.total = {std::nullopt, Cycles{198000}, std::nullopt, Cycles{198000}};
            row.elapsed = Nanoseconds{100000};
            row.fence = row.total;
            row.issue.front().cycles = row.total;
        }
    }
    write_measurements(directory.file("fast.json"), measurements);
    const auto result = test::run_xstage({"fit", directory.file("fast.json")});
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("line rate"));
}

TEST(ReportCommand, WritesOneFileThatAsksForNothingElse) {
    const test::TemporaryDirectory directory;
    const auto result = test::run_xstage(
        {"report", kNode + "first-recording.json", "-o", directory.file("r.html")});
    ASSERT_EQ(result.code, 0) << result.err;
    const std::string html = test::slurp(directory.file("r.html"));
    EXPECT_THAT(html, testing::Not(HasSubstr("<script")));
    EXPECT_THAT(html, testing::Not(HasSubstr("http")));
    EXPECT_THAT(html, testing::Not(HasSubstr("nan")));
    EXPECT_THAT(html, HasSubstr("onset"));
}

}  // namespace
}  // namespace xstage
