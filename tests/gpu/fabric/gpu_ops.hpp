#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fabric_suite.hpp"

namespace xstage::fabric::suite {

/// Visible CUDA devices; 0 without a driver.
int device_count();

/// GPUs of this machine, without a call into CUDA, after which a process cannot fork.
inline int devices_by_file() {
    int count = 0;
    while (std::filesystem::exists("/dev/nvidia" + std::to_string(count))) ++count;
    return count;
}

/// Touches memory with kernels, each on its rank's device and stream. Every other store goes by
/// bulk copies where the rows allow, so that both kinds of access meet the signals.
class GpuOps final : public Ops {
  public:
    /// `devices`: the CUDA device of each of the fabric's local ranks.
    GpuOps(const Fabric& fabric, const std::vector<int>& devices);
    ~GpuOps() override;

    Streams streams() const override;
    void store(int rank, void* to, std::size_t stride, std::int64_t rows, std::size_t words,
               std::uint64_t seed, std::int64_t first_row) override;
    std::uint64_t differing(int rank, const void* from, std::size_t stride, std::int64_t rows,
                            std::size_t words, std::uint64_t seed, std::int64_t first_row) override;
    std::uint64_t not_poison(int rank, const void* from, std::size_t words) override;
    void delay(int rank, std::uint32_t microseconds) override;

    // For captured graphs: the call's number is counted on the device, mismatches are added up
    // there.
    void counted_store(int rank, void* to, std::size_t stride, std::int64_t rows, std::size_t words,
                       std::uint64_t salt, std::int64_t first_row);
    void counted_verify(int rank, const void* from, std::size_t stride, std::int64_t rows,
                        std::size_t words, std::uint64_t salt);
    void count_call();
    /// Waits, then says how many words have differed so far, over all local ranks.
    std::uint64_t counted_differences();

    /// Runs `work` as a captured graph `replays` times; `between` runs eagerly after each.
    void replay(const std::function<void()>& work, int replays,
                const std::function<void(int)>& between);

    /// Copies of 64 MiB on each device, beside whatever the rank's stream does.
    void load(int copies);

  private:
    struct Device;
    Device& device_of(int rank) const;
    std::vector<std::unique_ptr<Device>> devices_;
    std::vector<std::pair<int, Device*>> ranks_;
    unsigned stores_ = 0;
};

/// Odd captured sequences replayed a thousand times with eager calls between.
void graph_replays(Fabric& fabric, GpuOps& ops, int replays);

}  // namespace xstage::fabric::suite
