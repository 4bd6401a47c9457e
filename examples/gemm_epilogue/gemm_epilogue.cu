// Runs the stamped GEMM with its output tiles owned alternately by this GPU and its peer (or, with
// one GPU, by two buffers of its own), checks the result, and writes the stamps as a measurement
// document:
//
//     gemm_epilogue stamps.json && xstage report stamps.json

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "gemm.cuh"
#include "xstage/error.hpp"
#include "xstage/stamps.hpp"

namespace {

using namespace gemm_epilogue;

constexpr int kM = 4096, kN = 4096, kK = 1024;

#define CHECK(expression)                                                             \
    do {                                                                              \
        if (const cudaError_t error = (expression); error != cudaSuccess) {           \
            std::fprintf(stderr, "%s: %s\n", #expression, cudaGetErrorString(error)); \
            std::exit(4);                                                             \
        }                                                                             \
    } while (false)

/// Small values from a fixed sequence; exactly representable in bf16.
std::vector<__nv_bfloat16> operand(std::size_t count, unsigned seed) {
    std::vector<__nv_bfloat16> values(count);
    for (auto& value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = __float2bfloat16(static_cast<float>(static_cast<int>(seed >> 24) - 128) / 128.0f);
    }
    return values;
}

template <class T>
T* on_device(int device, std::size_t count, const T* from) {
    T* memory = nullptr;
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc(reinterpret_cast<void**>(&memory), count * sizeof(T)));
    CHECK(from != nullptr ? cudaMemcpy(memory, from, count * sizeof(T), cudaMemcpyHostToDevice)
                          : cudaMemset(memory, 0, count * sizeof(T)));
    return memory;
}

/// Largest relative error over a sample of outputs of every owner, against sums in double.
double worst_error(const std::vector<__nv_bfloat16>& a, const std::vector<__nv_bfloat16>& b,
                   const std::vector<std::vector<__nv_bfloat16>>& c) {
    double worst = 0;
    for (int row = 0; row < kM; row += 61) {
        for (int column = 0; column < kN; column += 67) {
            double want = 0, size = 0;
            for (int k = 0; k < kK; ++k) {
                const double product =
                    double{__bfloat162float(a[std::size_t{1} * row * kK + k])} *
                    double{__bfloat162float(b[std::size_t{1} * column * kK + k])};
                want += product;
                size += std::abs(product);
            }
            const int tile = row / kTile * (kN / kTile) + column / kTile;
            const double got =
                __bfloat162float(c[tile % c.size()][std::size_t{1} * row * kN + column]);
            worst = std::max(worst, std::abs(got - want) / std::sqrt(size + 1));
        }
    }
    return worst;
}

}  // namespace

int main(int argc, char** argv) {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        std::fprintf(stderr, "gemm_epilogue: no GPU on this machine\n");
        return 3;
    }
    const int peer = gpus > 1 ? 1 : 0;
    if (peer != 0) {
        int can = 0;
        CHECK(cudaDeviceCanAccessPeer(&can, 0, peer));
        if (can == 0) {
            std::fprintf(stderr, "gemm_epilogue: GPU 0 has no access to GPU %d\n", peer);
            return 3;
        }
        CHECK(cudaSetDevice(0));
        CHECK(cudaDeviceEnablePeerAccess(peer, 0));
    }
    const auto a = operand(std::size_t{kM} * kK, 1), b = operand(std::size_t{kN} * kK, 2);
    Params params{};
    params.a = on_device(0, a.size(), a.data());
    params.b = on_device(0, b.size(), b.data());
    params.owners = 2;
    params.c[0] = on_device<__nv_bfloat16>(0, std::size_t{kM} * kN, nullptr);
    params.c[1] = on_device<__nv_bfloat16>(peer, std::size_t{kM} * kN, nullptr);
    params.m = kM;
    params.n = kN;
    params.k = kK;

    cudaDeviceProp properties{};
    CHECK(cudaGetDeviceProperties(&properties, 0));
    const int ctas = properties.multiProcessorCount;
    const int tiles = kM / kTile * (kN / kTile);
    params.stamps.producers = static_cast<unsigned>(ctas);
    params.stamps.bursts_per_producer = static_cast<unsigned>((tiles + ctas - 1) / ctas);
    const std::size_t slots =
        std::size_t{params.stamps.producers} * params.stamps.bursts_per_producer;
    params.stamps.stamps = on_device<xstage::Stamp>(0, slots, nullptr);
    params.stamps.dropped = on_device<std::uint32_t>(0, 1, nullptr);

    CHECK(cudaSetDevice(0));
    CHECK(cudaFuncSetAttribute(gemm<xstage::device::Stamper>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    for (int launch = 0; launch < 2; ++launch) {  // the second finds clocks and caches warm
        CHECK(cudaMemset(params.stamps.stamps, 0, slots * sizeof(xstage::Stamp)));
        gemm<xstage::device::Stamper><<<ctas, kThreads, kSharedBytes>>>(params);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
    }

    std::vector<std::vector<__nv_bfloat16>> c(2, std::vector<__nv_bfloat16>(std::size_t{kM} * kN));
    for (std::size_t owner = 0; owner < 2; ++owner) {
        CHECK(cudaMemcpy(c[owner].data(), params.c[owner], c[owner].size() * 2,
                         cudaMemcpyDeviceToHost));
    }
    const double error = worst_error(a, b, c);
    std::vector<xstage::Stamp> stamps(slots);
    std::uint32_t dropped = 0;
    CHECK(cudaMemcpy(stamps.data(), params.stamps.stamps, slots * sizeof(xstage::Stamp),
                     cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(&dropped, params.stamps.dropped, sizeof dropped, cudaMemcpyDeviceToHost));

    xstage::Provenance provenance;
    provenance.node = "gemm_epilogue";
    provenance.gpus = {{properties.name, "", properties.multiProcessorCount, {}}};
    provenance.loopback = peer == 0;
    provenance.argv.assign(argv, argv + argc);
    try {
        xstage::write_stamp_document(argc > 1 ? argv[1] : "stamps.json", stamps, dropped,
                                     provenance);
    } catch (const xstage::Error& failure) {
        std::fprintf(stderr, "gemm_epilogue: %s\n", failure.what());
        return failure.exit_code();
    }
    std::printf(
        "%d tiles of 32 KiB, every second one to %s; worst error %.2e of the sum's size; %u "
        "stamps dropped\n",
        tiles, peer != 0 ? "the peer" : "a second buffer of this GPU (no link)", error, dropped);
    return error < 0.02 && dropped == 0 ? 0 : 1;
}
