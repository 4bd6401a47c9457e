#include <xstage/device/stamp.cuh>
#include <xstage/device/sync.cuh>

#include "stamp_kernels.hpp"

namespace xstage::test {
namespace {

using namespace xstage::device;

__global__ void stamped_stores(StampBuffer buffer, char* to, unsigned bytes, int bursts,
                               unsigned pause_cycles) {
    Stamper stamper(buffer, blockIdx.x);
    for (int burst = 0; burst < bursts; ++burst) {
        Stamper::Mark mark{};
        if (threadIdx.x == 0) mark = stamper.begin();
        char* mine = to + (std::size_t{blockIdx.x} * bursts + burst) * bytes;
        for (unsigned b = threadIdx.x * 16; b < bytes; b += blockDim.x * 16) {
            st_weak_v4(mine + b, make_uint4(b, b, b, b));
        }
        __syncthreads();
        if (threadIdx.x == 0) stamper.end(mark, bytes, blockIdx.x + 5);
        spin_until_cycles(clock_cycles() + pause_cycles);
    }
}

}  // namespace

cudaError_t launch_stamped_stores(StampBuffer buffer, char* to, unsigned bytes, int bursts,
                                  unsigned pause_cycles, int ctas) {
    stamped_stores<<<ctas, 256>>>(buffer, to, bytes, bursts, pause_cycles);
    return cudaGetLastError();
}

}  // namespace xstage::test
