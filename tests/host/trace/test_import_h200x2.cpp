#include "trace/import_h200x2.hpp"

#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "temporary_directory.hpp"

namespace xstage::trace {
namespace {

using test::bad_input;
using testing::HasSubstr;

constexpr const char* kHeader =
    "mode,path,target,ctas,warps,n,bytes_per_cta_burst,bursts,gap_cyc,first_cyc,last_cyc,total_cyc,"
    "fence_cyc,ns,ghz,first_max,last_max,total_max,fence_max\n";

Measurements import_stores(const std::string& rows) {
    const test::TemporaryDirectory directory;
    directory.write("stores.csv", kHeader + rows);
    return import_h200x2(directory.file(""));
}

TEST(ImportH200x2, KeepsBothClocksAndBothStatistics) {
    const auto rows =
        import_stores(
            "gap2,bulk4k,remote,132,4,8,32768,2,8000,10,20,30,40,50,1.97,11,21,31,41\n"
            "bidir,st16,remote,33,4,8,16384,1,0,558,558,834,5907,3008,0,574,574,865,7186\n")
            .bursts;
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].mode, BurstMode::kGap2);
    EXPECT_EQ(rows[0].path, "bulk");
    EXPECT_EQ(rows[0].clock, GigaHertz{1.97});
    ASSERT_EQ(rows[0].issue.size(), 2u);
    EXPECT_EQ(rows[0].issue[1].burst, 1);
    EXPECT_EQ(rows[0].issue[1].cycles.p50, Cycles{20});
    EXPECT_EQ(rows[0].issue[1].cycles.max, Cycles{21});
    EXPECT_EQ(rows[0].total.max, Cycles{31});
    EXPECT_EQ(rows[0].fence->p50, Cycles{40});
    EXPECT_EQ(rows[0].elapsed, Nanoseconds{50});

    // A clock of 0 says that the sample was too short to tell; both directions are a property.
    EXPECT_EQ(rows[1].mode, BurstMode::kIsolated);
    EXPECT_TRUE(rows[1].both_directions);
    EXPECT_FALSE(rows[1].clock.has_value());
    EXPECT_EQ(rows[1].issue.size(), 1u);
}

TEST(ImportH200x2, SmsThatDidNotStoreAreAbsent) {
    const test::TemporaryDirectory directory;
    directory.write("stores.csv", kHeader);
    std::string header = "case", even = "even", block = "block99";
    for (int sm = 0; sm < 132; ++sm) {
        header += ",sm" + std::to_string(sm);
        even += "," + std::to_string(sm + 1);
        block += "," + std::to_string(sm + 1);
    }
    directory.write("per_sm.csv", header + "\n" + even + "\n" + block + "\n");
    const auto rows = import_h200x2(directory.file("")).per_sm;
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].issue[2], Cycles{3});
    EXPECT_FALSE(rows[0].issue[3].has_value());
    EXPECT_FALSE(rows[1].issue[98].has_value());
    EXPECT_EQ(rows[1].issue[99], Cycles{100});
    EXPECT_EQ(rows[0].bytes_per_producer, Bytes{1 << 20});  // 8 warps x 256 x 512 bytes
}

TEST(ImportH200x2, SaysLineAndColumnOfBadCells) {
    const auto message = [](const std::string& row) {
        return bad_input([&] { import_stores(row); });
    };
    EXPECT_THAT(message("gap3,st16,remote,1,1,1,512,1,0,1,1,1,1,1,1,1,1,1,1\n"),
                HasSubstr("stores.csv:2: column 'mode': expected isolated"));
    EXPECT_THAT(message("gap2,st16,remote,0,1,1,512,1,0,1,1,1,1,1,1,1,1,1,1\n"),
                HasSubstr("'ctas'"));
    EXPECT_THAT(message("gap2,st16,remote,1,1,1,-512,1,0,1,1,1,1,1,1,1,1,1,1\n"),
                HasSubstr("'bytes_per_cta_burst'"));
    EXPECT_THAT(message("gap2,st16,moon,1,1,1,512,1,0,1,1,1,1,1,1,1,1,1,1\n"),
                HasSubstr("'target'"));
    EXPECT_THAT(bad_input([] { import_h200x2("/nonexistent"); }),
                HasSubstr("/nonexistent/stores.csv"));
}

}  // namespace
}  // namespace xstage::trace
