#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ulysses_suite.hpp"

namespace xstage::ulysses::suite {

/// 0 without a driver.
int gpu_count();

/// A plain attention kernel: a block per row, fp32, the same bits for a row whatever the strides,
/// the batch and the place of its output.
void naive_attention(const AttentionCall& call);

/// One GPU and one stream for all virtual ranks.
class GpuDevice final : public Device {
  public:
    GpuDevice();
    ~GpuDevice() override;
    fabric::Streams streams() const override;
    void* upload(int rank, const void* bytes, std::size_t size) override;
    void download(int rank, void* to, const void* from, std::size_t size) override;

    void* allocate(std::size_t size);
    void copy(void* to, const void* from, std::size_t size);  ///< in stream order
    void spoil(void* to, std::size_t size);                   ///< all bits set, in stream order
    void synchronize();
    /// Captures `work` and replays it; `between` runs before each replay.
    void replay(const std::function<void()>& work, int replays,
                const std::function<void(int)>& between);
    /// Adds the number of rows' words that differ to a counter on the device, in stream order.
    void count_differences(const View& view, std::int64_t rows, std::size_t row_bytes,
                           std::size_t element, const void* expected);
    std::uint64_t differences();
    /// Copies of 64 MiB on a stream of their own.
    void load(int copies);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// `whole` by a kernel on the GPU.
Whole whole_on_gpu(GpuDevice& device, Case& c, const AttentionKernel& kernel = naive_attention);

}  // namespace xstage::ulysses::suite
