#pragma once

// The ways for a CTA to store one burst of `bytes` to a (peer's) address. A path says how wide the
// stores are and how they lie; the timing around it is the caller's. Every path but `St4Sector` and
// `Tensor` fills `bytes` contiguous bytes; word i of a burst holds burst_word(seed, i), so that a
// reader can check every byte whatever the path.

#include <cstdint>
#include <xstage/device/ptx.cuh>

namespace xstage::device {

constexpr std::uint32_t kBulkChunk = 4096;

/// The pattern repeats every 4 KiB, so that one block of shared memory is the source of all chunks.
__host__ __device__ constexpr std::uint32_t burst_word(std::uint32_t seed, std::uint32_t word) {
    return seed * 0x9E3779B1u + (word & 1023u);
}

struct BurstArgs {
    char* destination;
    std::uint32_t bytes;
    std::uint32_t warp;  ///< of this thread, of `warps` that store
    std::uint32_t warps;
    std::uint32_t lane;
    std::uint32_t seed;
    const char* source;    ///< kBulkChunk bytes of shared memory, for the bulk paths
    const void* map;       ///< tensor map over the destination window, for Tensor
    std::uint64_t offset;  ///< of `destination` in that window
};

/// 16 bytes a lane, 512 contiguous bytes an instruction, warps side by side.
struct St16 {
    static constexpr bool kBulk = false;
    static constexpr std::uint32_t kSpan = 1;  ///< bytes of address range per byte stored
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        const std::uint32_t units = (a.bytes + 511) / 512;
        std::uint32_t word = a.warp * 128 + a.lane * 4;
        char* to = a.destination + std::size_t{word} * 4;
#pragma unroll 4
        for (std::uint32_t u = a.warp; u < units; u += a.warps) {
            const std::uint32_t w = burst_word(a.seed, word);
            st_weak_v4(to, make_uint4(w, w + 1, w + 2, w + 3));
            word += a.warps * 128;
            to += a.warps * 512;
        }
    }
};

/// 4 bytes a lane, 128 contiguous bytes an instruction.
struct St4 {
    static constexpr bool kBulk = false;
    static constexpr std::uint32_t kSpan = 1;
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        const std::uint32_t units = (a.bytes + 127) / 128;
        std::uint32_t word = a.warp * 32 + a.lane;
        char* to = a.destination + std::size_t{word} * 4;
#pragma unroll 4
        for (std::uint32_t u = a.warp; u < units; u += a.warps) {
            st_weak_u32(to, burst_word(a.seed, word));
            word += a.warps * 32;
            to += a.warps * 128;
        }
    }
};

/// 4 bytes a lane into 32 different 32-byte sectors: what an uncoalesced epilogue does.
struct St4Sector {
    static constexpr bool kBulk = false;
    static constexpr std::uint32_t kSpan = 8;
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        const std::uint32_t units = (a.bytes + 127) / 128;
        std::uint32_t word = a.warp * 32 + a.lane;
        char* to = a.destination + std::size_t{word} * 32;
#pragma unroll 4
        for (std::uint32_t u = a.warp; u < units; u += a.warps) {
            st_weak_u32(to, burst_word(a.seed, word));
            word += a.warps * 32;
            to += std::size_t{a.warps} * 1024;
        }
    }
};

/// Remote reductions: the same addresses as St4 and St16, with additions in place of stores.
struct RedF32 {
    static constexpr bool kBulk = false;
    static constexpr std::uint32_t kSpan = 1;
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        const std::uint32_t units = (a.bytes + 127) / 128;
        auto* to = reinterpret_cast<float*>(a.destination) + a.warp * 32 + a.lane;
#pragma unroll 4
        for (std::uint32_t u = a.warp; u < units; u += a.warps) {
            red_relaxed_sys_add_f32(to, 1.0f);
            to += a.warps * 32;
        }
    }
};

struct RedF32x4 {
    static constexpr bool kBulk = false;
    static constexpr std::uint32_t kSpan = 1;
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        const std::uint32_t units = (a.bytes + 511) / 512;
        char* to = a.destination + std::size_t{a.warp * 32 + a.lane} * 16;
#pragma unroll 4
        for (std::uint32_t u = a.warp; u < units; u += a.warps) {
            red_relaxed_sys_add_f32x4(to, make_float4(1, 1, 1, 1));
            to += a.warps * 512;
        }
    }
};

struct RedBf16x2 {
    static constexpr bool kBulk = false;
    static constexpr std::uint32_t kSpan = 1;
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        const std::uint32_t units = (a.bytes + 127) / 128;
        char* to = a.destination + std::size_t{a.warp * 32 + a.lane} * 4;
#pragma unroll 4
        for (std::uint32_t u = a.warp; u < units; u += a.warps) {
            red_relaxed_sys_add_bf16x2(to, 0x3f803f80u);  // 1.0 twice
            to += a.warps * 128;
        }
    }
};

/// One thread of the CTA copies chunks of 4 KiB out of shared memory.
struct Bulk {
    static constexpr bool kBulk = true;
    static constexpr std::uint32_t kSpan = 1;
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        for (std::uint32_t done = 0; done < a.bytes; done += kBulkChunk) {
            bulk_store(a.destination + done, a.source, min(kBulkChunk, a.bytes - done));
        }
        bulk_commit();
    }
};

/// As Bulk, adding f32 words at the destination.
struct BulkRedF32 {
    static constexpr bool kBulk = true;
    static constexpr std::uint32_t kSpan = 1;
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        for (std::uint32_t done = 0; done < a.bytes; done += kBulkChunk) {
            bulk_reduce_add_f32(a.destination + done, a.source, min(kBulkChunk, a.bytes - done));
        }
        bulk_commit();
    }
};

/// Boxes of 32 rows x 128 bytes in a window whose rows are 4 KiB apart: an attention or GEMM
/// epilogue's tensor-map store. 32 boxes lie side by side, so a burst spans whole blocks of 128
/// KiB.
struct Tensor {
    static constexpr bool kBulk = true;
    static constexpr std::uint32_t kSpan = 1;
    static constexpr std::uint32_t kBlock = 131072;
    __device__ __forceinline__ static void burst(const BurstArgs& a) {
        const auto first_row = static_cast<std::int32_t>(a.offset / kBulkChunk);
        for (std::uint32_t box = 0; box * kBulkChunk < a.bytes; ++box) {
            bulk_tensor_store_2d(a.map, a.source, static_cast<std::int32_t>(box % 32 * 64),
                                 first_row + static_cast<std::int32_t>(box / 32 * 32));
        }
        bulk_commit();
    }
};

}  // namespace xstage::device
