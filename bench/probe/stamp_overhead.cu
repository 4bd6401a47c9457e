// What the stamps cost: the GEMM of examples/gemm_epilogue with and without them, the two
// interleaved so that clock and power drift meet both alike. All tiles stay local: no stall may
// hide the cost.
//
//     bench_stamp_overhead [RESULT.json [COMMIT]]      exit 1 where stamps cost 2% or more of tiles
//     >= 5 us

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/file.hpp"
#include "core/json.hpp"
#include "gemm.cuh"
#include "probe/statistics.hpp"

namespace {

using namespace gemm_epilogue;

#define CHECK(expression)                                                                          \
    do {                                                                                           \
        if (const cudaError_t error = (expression); error != cudaSuccess) {                        \
            std::fprintf(stderr, "%s: %s\n", #expression, cudaGetErrorString(error));              \
            std::exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? 3 : 4); \
        }                                                                                          \
    } while (false)

template <class T>
T* zeros(std::size_t count) {
    T* memory = nullptr;
    CHECK(cudaMalloc(reinterpret_cast<void**>(&memory), count * sizeof(T)));
    CHECK(cudaMemset(memory, 0, count * sizeof(T)));
    return memory;
}

template <class Recorder>
double run_ns(const Params& params, int ctas, cudaEvent_t begin, cudaEvent_t end) {
    CHECK(cudaEventRecord(begin));
    gemm<Recorder><<<ctas, kThreads, kSharedBytes>>>(params);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    return 1e6 * static_cast<double>(ms);
}

}  // namespace

int main(int argc, char** argv) {
    cudaDeviceProp properties{};
    CHECK(cudaGetDeviceProperties(&properties, 0));
    const int ctas = properties.multiProcessorCount;
    CHECK(cudaFuncSetAttribute(gemm<xstage::device::Stamper>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    CHECK(cudaFuncSetAttribute(gemm<NoStamps>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kSharedBytes));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));

    xstage::core::Json rows = xstage::core::Json::array();
    bool within = true;
    for (const int k : {128, 256, 512, 1024, 2048}) {
        constexpr int kM = 4096, kN = 4096;
        Params params{};
        params.a = zeros<__nv_bfloat16>(std::size_t{kM} * k);
        params.b = zeros<__nv_bfloat16>(std::size_t{kN} * k);
        params.c[0] = zeros<__nv_bfloat16>(std::size_t{kM} * kN);
        params.owners = 1;
        params.m = kM;
        params.n = kN;
        params.k = k;
        const int tiles = kM / kTile * (kN / kTile);
        const int per_cta = (tiles + ctas - 1) / ctas;
        params.stamps = {zeros<xstage::Stamp>(std::size_t{1} * ctas * per_cta),
                         zeros<std::uint32_t>(1), static_cast<unsigned>(ctas),
                         static_cast<unsigned>(per_cta)};
        std::vector<double> plain, stamped, ratio;
        for (int repeat = 0; repeat < 210; ++repeat) {
            // Alternating order: the second of two launches is not always the same one.
            double without = 0, with = 0;
            if (repeat % 2 == 0) without = run_ns<NoStamps>(params, ctas, begin, end);
            with = run_ns<xstage::device::Stamper>(params, ctas, begin, end);
            if (repeat % 2 != 0) without = run_ns<NoStamps>(params, ctas, begin, end);
            if (repeat < 10) continue;
            plain.push_back(without);
            stamped.push_back(with);
            ratio.push_back(with / without);
        }
        const double tile_us = xstage::probe::median(plain) / per_cta / 1000;
        const double overhead = xstage::probe::median(ratio) - 1;
        within = within && (tile_us < 5 || overhead < 0.02);
        std::printf("K %5d: tile %6.2f us, stamps cost %+.2f%% (p5 %+.2f%%, p95 %+.2f%%)\n", k,
                    tile_us, 100 * overhead, 100 * (xstage::probe::percentile(ratio, 5) - 1),
                    100 * (xstage::probe::percentile(ratio, 95) - 1));
        rows.push_back({{"k", k},
                        {"tile_us", tile_us},
                        {"plain_ns", xstage::probe::median(plain)},
                        {"stamped_ns", xstage::probe::median(stamped)},
                        {"overhead", overhead},
                        {"samples", ratio.size()}});
        for (const void* memory :
             {static_cast<const void*>(params.a), static_cast<const void*>(params.b),
              static_cast<const void*>(params.c[0]), static_cast<const void*>(params.stamps.stamps),
              static_cast<const void*>(params.stamps.dropped)}) {
            CHECK(cudaFree(const_cast<void*>(memory)));
        }
    }
    if (argc > 1) {
        xstage::core::Json argv_json = xstage::core::Json::array();
        for (int i = 0; i < argc; ++i) argv_json.push_back(argv[i]);
        int driver = 0, clock_khz = 0;
        CHECK(cudaDriverGetVersion(&driver));
        CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0));
        xstage::core::write_file_atomic(
            argv[1], xstage::core::dump_json({{"bench", "stamp_overhead"},
                                              {"git_commit", argc > 2 ? argv[2] : ""},
                                              {"gpu", properties.name},
                                              {"max_clock_ghz", clock_khz / 1e6},
                                              {"driver_cuda_version", driver},
                                              {"argv", argv_json},
                                              {"rows", rows}}));
    }
    return within ? 0 : 1;
}
