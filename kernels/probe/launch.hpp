#pragma once

// Host entry points of the probe's kernels. All return the launch's error and never wait.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "params.hpp"

namespace xstage::probe {

struct StoreShape {
    bool known = false;
    bool bulk = false;       ///< one worker per CTA
    std::uint32_t span = 1;  ///< bytes of address range per byte stored
};

/// What path "st16", "bulk", ... is, with 0 nothing, 1 MMA, 2 memory traffic or 3 shared-memory
/// loads beside it.
StoreShape store_shape(const char* path, int beside);

/// Loads every store kernel on the current device and lets it take `exclusive_shared_bytes`, which
/// keep a second CTA off its SM.
cudaError_t prepare_store_kernels(int exclusive_shared_bytes);
cudaError_t launch_store(const char* path, int beside, const StoreParams& params,
                         const TensorMaps& maps, int ctas, int exclusive_shared_bytes,
                         cudaStream_t stream);

cudaError_t prepare_visible_kernels(int exclusive_shared_bytes);
/// Reader first, then sender: both are resident together, also on one GPU.
cudaError_t launch_visible_reader(const VisibleParams& params, int ctas, cudaStream_t stream);
cudaError_t launch_visible_sender(bool bulk, const VisibleParams& params,
                                  int exclusive_shared_bytes, cudaStream_t stream);

cudaError_t prepare_litmus_kernels();
int litmus_channels_per_cta();
cudaError_t launch_litmus_reader(int path, const LitmusParams& params, cudaStream_t stream);
/// Path 0 st16, 1 bulk, 2 red. Messages are flagged by the same kernel, or, for the next-kernel
/// fences, by launch_litmus_release, which must follow in the stream.
cudaError_t launch_litmus_sender(int path, const LitmusParams& params, cudaStream_t stream);
cudaError_t launch_litmus_release(const LitmusParams& params, bool programmatic,
                                  cudaStream_t stream);

cudaError_t prepare_plain_kernels();
/// Stores `bytes` of pattern `seed` (burst_word of the word's index) with 16-byte stores.
cudaError_t launch_fill(char* to, std::uint64_t bytes, std::uint32_t seed, int ctas, int threads,
                        int repeats, cudaStream_t stream);
/// Reads `bytes` with 16-byte loads; the sum goes to `sink` so that no load is dropped.
cudaError_t launch_read(const char* from, std::uint64_t bytes, int ctas, int threads, int repeats,
                        std::uint32_t* sink, cudaStream_t stream);
/// Counts words of the region that differ from the pattern, which starts anew every `piece` bytes.
cudaError_t launch_check(const char* at, std::uint64_t bytes, std::uint64_t piece,
                         std::uint32_t seed, unsigned long long* wrong, cudaStream_t stream);
/// Stores to `to` without pause until *stop is not 0, or the time is over.
cudaError_t launch_background(char* to, std::uint64_t bytes, const std::uint32_t* stop,
                              std::uint64_t budget_ns, int ctas, unsigned long long* stored,
                              device::WaitReport* report, cudaStream_t stream);
cudaError_t launch_spin(std::uint64_t ns, int ctas, cudaStream_t stream);
/// SM id of every CTA of a launch in clusters of `cluster`; CTAs of one cluster share a GPC.
cudaError_t launch_cluster_map(std::uint32_t* sm_of_cta, int ctas, int cluster,
                               cudaStream_t stream);

}  // namespace xstage::probe
