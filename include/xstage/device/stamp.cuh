#pragma once

// Bring your own kernel: record when each burst of stores began and ended its issue, in a buffer of
// the kernel's owner. Three lines in the kernel:
//
//     auto stamper = xstage::device::Stamper(buffer, blockIdx.x);     // one per producer
//     auto mark = stamper.begin();
//     ... the stores of one tile ...
//     stamper.end(mark, bytes, destination);
//
// begin and end are called by ONE thread of the producer, after whatever barrier makes it speak for
// all storing threads. A full buffer drops stamps and counts them; it never overruns. The host
// reads the buffer with xstage::read_stamps (include/xstage/stamps.hpp).

#include <cstdint>
#include <xstage/device/ptx.cuh>
#include <xstage/stamp_layout.hpp>

namespace xstage::device {

class Stamper {
  public:
    struct Mark {
        std::uint64_t cycles;
        std::uint64_t ns;
    };

    /// `burst`: how many the producer has stamped before, where no Stamper lives that long.
    __device__ __forceinline__ Stamper(StampBuffer buffer, std::uint32_t producer,
                                       std::uint32_t burst = 0)
        : buffer_(buffer), producer_(producer), burst_(burst) {}

    __device__ __forceinline__ Mark begin() const { return {clock_cycles(), global_ns()}; }

    /// `bytes`: payload of the burst. `destination`: rank or any number of the caller's.
    __device__ __forceinline__ void end(const Mark& mark, std::uint32_t bytes,
                                        std::uint32_t destination) {
        const std::uint64_t cycles = clock_cycles();
        const std::uint64_t ns = global_ns();
        const std::uint32_t index = burst_++;
        if (index >= buffer_.bursts_per_producer || producer_ >= buffer_.producers) {
            atomicAdd(buffer_.dropped, 1u);
            return;
        }
        Stamp* slot = buffer_.stamps + std::size_t{producer_} * buffer_.bursts_per_producer + index;
        // Three 16-byte stores to local memory: about 20 cycles of issue, no wait.
        auto* words = reinterpret_cast<ulonglong2*>(slot);
        words[0] = make_ulonglong2(mark.cycles, cycles);
        words[1] = make_ulonglong2(mark.ns, ns);
        words[2] = make_ulonglong2(std::uint64_t{producer_} | std::uint64_t{sm_id()} << 32,
                                   std::uint64_t{bytes} | std::uint64_t{destination} << 32);
    }

  private:
    StampBuffer buffer_;
    std::uint32_t producer_;
    std::uint32_t burst_;
};

}  // namespace xstage::device
