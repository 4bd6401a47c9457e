#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "fabric/nvshmem.hpp"

namespace xstage::fabric {
namespace {

TEST(NvshmemVersions, EqualOnesPass) {
    check_versions({3, 4, 5}, {3, 4, 5}, {3, 4, 5});
}

TEST(NvshmemVersions, AMismatchIsRefusedWithBothNumbers) {
    using test::error_of;
    EXPECT_EQ(error_of(ErrorKind::kEnvironment,
                       [] {
                           check_versions({3, 4, 5}, {3, 4, 5}, {3, 3, 20});
                       }),
              "NVSHMEM's host library is 3.4.5 but its device library is 3.3.20");
    EXPECT_EQ(error_of(ErrorKind::kEnvironment,
                       [] {
                           check_versions({3, 4, 5}, {3, 4, 6}, {3, 4, 6});
                       }),
              "NVSHMEM's host library is 3.4.6 but its header at build time is 3.4.5");
    EXPECT_EQ(error_of(ErrorKind::kEnvironment,
                       [] {
                           check_versions({3, 4, 5}, {2, 4, 5}, {3, 4, 5});
                       }),
              "NVSHMEM's host library is 2.4.5 but its device library is 3.4.5");
}

}  // namespace
}  // namespace xstage::fabric
