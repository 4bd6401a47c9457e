#include <gmock/gmock.h>

#include "command.hpp"
#include "core/json.hpp"
#include "trace/measurement_json.hpp"

namespace xstage {
namespace {

constexpr const char* kStores =
    "mode,path,target,ctas,warps,n,bytes_per_cta_burst,bursts,gap_cyc,first_cyc,last_cyc,total_cyc,"
    "fence_cyc,ns,ghz,first_max,last_max,total_max,fence_max\n"
    "isolated,st16,remote,132,4,8,16384,1,0,543,543,834,5907,3008,1.98,574,574,865,7186\n";

TEST(ImportCommand, WritesAValidDocumentToStandardOutputAndLogsElsewhere) {
    const test::TemporaryDirectory directory;
    directory.write("stores.csv", kStores);
    const auto result = test::run_xstage({"import", directory.file("")});
    EXPECT_EQ(result.code, 0) << result.err;
    const auto document = core::parse_json(result.out, "out");
    EXPECT_EQ(trace::measurements_from_json(document, "out").bursts.size(), 1u);
    EXPECT_THAT(result.err, testing::HasSubstr("1 burst rows"));
}

TEST(ImportCommand, ABadCellLeavesNoDocumentBehind) {
    const test::TemporaryDirectory directory;
    directory.write("stores.csv", std::string(kStores) + "isolated,st16,remote,x\n");
    const auto result =
        test::run_xstage({"import", directory.file(""), "-o", directory.file("out.json")});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, testing::HasSubstr("stores.csv:3"));
    EXPECT_FALSE(std::filesystem::exists(directory.file("out.json")));
}

}  // namespace
}  // namespace xstage
