#include <gtest/gtest.h>

#include <vector>

#include "stamp_kernels.hpp"
#include "xstage/stamps.hpp"

namespace xstage {
namespace {

constexpr int kCtas = 8, kBursts = 4;
constexpr unsigned kBytes = 16384, kPause = 20'000;

struct Recorded {
    std::vector<Stamp> slots;
    std::uint32_t dropped = 0;
};

Recorded record(std::uint32_t producers, std::uint32_t room) {
    Recorded out;
    StampBuffer buffer{nullptr, nullptr, producers, room};
    char* target = nullptr;
    const std::size_t slots = std::size_t{producers} * room;
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&buffer.stamps), slots * sizeof(Stamp)),
              cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&buffer.dropped), sizeof(std::uint32_t)),
              cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&target), std::size_t{kCtas} * kBursts * kBytes),
              cudaSuccess);
    cudaMemset(buffer.stamps, 0, slots * sizeof(Stamp));
    cudaMemset(buffer.dropped, 0, sizeof(std::uint32_t));
    EXPECT_EQ(test::launch_stamped_stores(buffer, target, kBytes, kBursts, kPause, kCtas),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    out.slots.resize(slots);
    cudaMemcpy(out.slots.data(), buffer.stamps, slots * sizeof(Stamp), cudaMemcpyDeviceToHost);
    cudaMemcpy(&out.dropped, buffer.dropped, sizeof out.dropped, cudaMemcpyDeviceToHost);
    cudaFree(target);
    cudaFree(buffer.dropped);
    cudaFree(buffer.stamps);
    return out;
}

bool no_gpu() {
    int count = 0;
    return cudaGetDeviceCount(&count) != cudaSuccess || count == 0;
}

TEST(GpuStamps, EveryBurstOfEveryProducerIsRecordedInOrder) {
    if (no_gpu()) GTEST_SKIP() << "no GPU on this machine";
    const Recorded recorded = record(kCtas, kBursts);
    EXPECT_EQ(recorded.dropped, 0u);
    const auto bursts = read_stamps(recorded.slots);
    ASSERT_EQ(bursts.size(), std::size_t{kCtas} * kBursts);
    for (int producer = 0; producer < kCtas; ++producer) {
        double last_end = -1;
        int seen = 0;
        for (const UserBurst& burst : bursts) {
            if (burst.producer != producer) continue;
            ++seen;
            EXPECT_EQ(burst.destination, producer + 5);
            EXPECT_EQ(burst.bytes.value(), kBytes);
            EXPECT_GT(burst.issue.value(), 0);
            EXPECT_GT(burst.start.value(), last_end) << "the pause lies between two bursts";
            last_end = burst.start.value() + burst.issue.value() / 4;
        }
        EXPECT_EQ(seen, kBursts);
    }
}

TEST(GpuStamps, AFullBufferDropsAndCounts) {
    if (no_gpu()) GTEST_SKIP() << "no GPU on this machine";
    const Recorded recorded = record(kCtas - 1, kBursts - 1);
    EXPECT_EQ(read_stamps(recorded.slots).size(), std::size_t{kCtas - 1} * (kBursts - 1));
    // One burst too many for each of seven producers, and the eighth has no row.
    EXPECT_EQ(recorded.dropped, static_cast<std::uint32_t>(kCtas - 1 + kBursts));
}

}  // namespace
}  // namespace xstage
