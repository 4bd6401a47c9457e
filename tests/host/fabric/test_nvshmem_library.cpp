// What the build made of the wheel, on any machine: the host library opens and has every function
// that is asked of it, and the device code was linked with NVSHMEM's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "fabric/nvshmem_library.hpp"
#include "groups.hpp"

namespace xstage::fabric {
namespace {

TEST(NvshmemLibrary, OpensAndIsOfTheHeadersRelease) {
    const auto errors = testing::run_processes(1, [](int) {
        ::setenv("XSTAGE_NVSHMEM_ROOT", XSTAGE_NVSHMEM_WHEEL, 1);
        const NvshmemVersion headers{NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION,
                                     NVSHMEM_VENDOR_PATCH_VERSION};
        check_versions(headers, nvshmem_library().version(), headers);
    });
    EXPECT_EQ(errors[0], "");
}

TEST(NvshmemLibrary, WhereItIsNotTheErrorSaysWhatToDo) {
    const auto errors = testing::run_processes(1, [](int) {
        ::setenv("XSTAGE_NVSHMEM_ROOT", "/nonexistent", 1);
        nvshmem_library();
    });
    EXPECT_THAT(errors[0], ::testing::HasSubstr("name its root in XSTAGE_NVSHMEM_ROOT"));
}

TEST(NvshmemDeviceCode, HasTheKernelsAndNvshmemsState) {
    std::ifstream file(XSTAGE_NVSHMEM_FATBIN, std::ios::binary);
    const std::string code((std::istreambuf_iterator<char>(file)), {});
    for (const char* symbol :
         {"xstage_begin", "xstage_publish", "xstage_acquire", "xstage_exchange", "xstage_hand_over",
          "xstage_barrier", "xstage_self_test", "xstage_send", "xstage_receive", "xstage_put",
          "nvshmemi_device_state_d", "nvshmemi_device_lib_version_d"})
        EXPECT_NE(code.find(std::string(symbol) + '\0'), std::string::npos) << symbol;
}

}  // namespace
}  // namespace xstage::fabric
