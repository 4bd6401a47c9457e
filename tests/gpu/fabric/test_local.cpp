// The suite over virtual ranks in one process: all on one GPU, and spread over the GPUs there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_ops.hpp"

namespace xstage::fabric {
namespace {

using suite::GpuOps;
using ::testing::HasSubstr;

FabricOptions local_options(int world, const std::vector<int>& devices) {
    FabricOptions options;
    options.backend = Backend::kLocal;
    options.world = world;
    options.devices = devices;
    options.wait_timeout = std::chrono::seconds(10);
    return options;
}

class LocalFabric : public ::testing::TestWithParam<int> {
  protected:
    void SetUp() override {
        if (suite::device_count() == 0) GTEST_SKIP() << "no CUDA device";
        devices_.assign(GetParam(), 0);
    }
    void everywhere(const std::function<void(Fabric&, GpuOps&)>& body) {
        Fabric fabric(local_options(GetParam(), devices_));
        GpuOps ops(fabric, devices_);
        body(fabric, ops);
    }
    std::vector<int> devices_;
};

TEST_P(LocalFabric, SymmetricBuffer) {
    everywhere(suite::symmetric_buffer);
}
TEST_P(LocalFabric, StitchedTensor) {
    everywhere(suite::stitched_tensor);
}
TEST_P(LocalFabric, AbandonedCalls) {
    everywhere(suite::abandoned_calls);
}
TEST_P(LocalFabric, LocalAlias) {
    everywhere(suite::local_alias);
}
TEST_P(LocalFabric, Barriers) {
    everywhere(
        [](Fabric& f, GpuOps& ops) { suite::barriers(f, ops, GetParam() == 2 ? 5000 : 200); });
}
TEST_P(LocalFabric, GraphReplaysMixedWithEagerCalls) {
    everywhere(
        [](Fabric& f, GpuOps& ops) { suite::graph_replays(f, ops, GetParam() == 2 ? 1000 : 100); });
}
INSTANTIATE_TEST_SUITE_P(Ranks, LocalFabric, ::testing::Values(1, 2, 4, 8));

TEST(LocalFabricSpread, OverTwoGpus) {
    if (suite::device_count() < 2) GTEST_SKIP() << "needs two CUDA devices";
    for (const std::vector<int>& devices : {std::vector<int>{0, 1}, {1, 0}, {0, 1, 1, 0}}) {
        Fabric fabric(local_options(static_cast<int>(devices.size()), devices));
        GpuOps ops(fabric, devices);
        EXPECT_NE(fabric.device_ids()[0], fabric.device_ids()[1]);
        suite::symmetric_buffer(fabric, ops);
        suite::stitched_tensor(fabric, ops);
        suite::barriers(fabric, ops, 50);
    }
}

TEST(LocalFabricSetUp, SaysWhatIsMissing) {
    if (suite::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    try {
        Fabric fabric(local_options(1, {1000}));
        FAIL() << "there is no such device";
    } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
        EXPECT_THAT(e.what(), HasSubstr("no CUDA device 1000"));
    }
}

TEST(LocalFabricSetUp, BuffersComeAndGoWithoutALeak) {
    if (suite::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    Fabric fabric(local_options(2, {0, 0}));
    // 40 rounds of 4 GiB on each of two ranks would not fit any card if they stayed.
    for (int i = 0; i < 40; ++i) SymmetricBuffer buffer(fabric, std::size_t{4} << 30);
}

}  // namespace
}  // namespace xstage::fabric
