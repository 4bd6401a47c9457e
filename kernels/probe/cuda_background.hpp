#pragma once

#include "cuda_memory.hpp"
#include "cuda_node.hpp"

namespace xstage::probe {

/// Stores of the peer in the other direction, from construction until stop().
class CudaNode::Background {
  public:
    Background(int device, const DeviceArray<char>& window, const Stream& stream,
               const Stream& control, device::WaitReport* report)
        : device_(device), control_(control), stop_(device, 1), stored_(device, 1) {
        const OnDevice on(device);
        constexpr int kCtas = 66;  // more than enough to fill the link, half of the SMs left alone
        XSTAGE_CUDA_CHECK(launch_background(window.get(), window.size(), stop_.get(), kWaitBudgetNs,
                                            kCtas, stored_.get(), report, stream.get()));
    }
    ~Background() {
        try {
            stop();
        } catch (const Error&) {
            // The kernel's own deadline ends it.
        }
    }
    void stop() {
        if (stopped_) return;
        stopped_ = true;
        const OnDevice on(device_);
        XSTAGE_CUDA_CHECK(
            cudaMemsetAsync(stop_.get(), 0xff, sizeof(std::uint32_t), control_.get()));
        XSTAGE_CUDA_CHECK(cudaStreamSynchronize(control_.get()));
        // stop_ and stored_ are freed with this object, and freeing waits for the kernel.
    }

  private:
    int device_;
    const Stream& control_;
    DeviceArray<std::uint32_t> stop_;
    DeviceArray<unsigned long long> stored_;
    bool stopped_ = false;
};

}  // namespace xstage::probe
