#include "plan_blocks.hpp"

#include <cuda_runtime.h>

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "choice.hpp"
#include "sparse/mask_shape.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage::attention {

namespace {

void check_cuda(cudaError_t status, const char* what) {
    if (status != cudaSuccess) {
        throw Error(ErrorKind::kEnvironment,
                    fmt::format("{}: {}", what, cudaGetErrorString(status)));
    }
}

}  // namespace

void check_mask(const AttentionArguments& a) {
    const auto refuse = [](const std::string& what) {
        throw Error(ErrorKind::kBadInput, "attention: " + what);
    };
    if (a.causal || a.key_lengths != nullptr) {
        refuse("a block mask goes neither with causal nor with key_lengths");
    }
    if (a.order != plan::TileOrder::kHeadMajor) {
        refuse("a block mask brings its own order of the tiles");
    }
    sparse::require_fit(*a.mask, {a.batches, a.heads, a.kv_heads, a.q_rows, a.kv_rows});
}

BlockChoice choose_blocks(const AttentionArguments& a, int sms) {
    BlockChoice best;
    best.instance =
        &choose({a.type, a.head_dim, MaskKind::kBlocks, a.q_rows, a.kv_rows, a.heads * a.batches},
                sms, a.instance);
    best.schedule = plan::sparse_schedule(*a.mask, a.batches, a.heads, a.kv_heads, sms);
    return best;
}

bool keeps_everything(const AttentionArguments& a) {
    const sparse::BlockMask& mask = *a.mask;
    return mask == sparse::BlockMask(mask.batches(), mask.heads(), a.q_rows, a.kv_rows, true);
}

BlockTable::BlockTable(const sparse::BlockMask& mask, const plan::SparseSchedule& schedule) {
    const std::size_t tile_bytes = schedule.tiles.size() * sizeof(plan::SparseTile);
    const std::size_t begin_bytes = schedule.begin.size() * sizeof(std::int32_t);
    const std::size_t bit_bytes = mask.bits().size() * sizeof(std::uint32_t);
    begin_offset_ = tile_bytes;
    bits_offset_ = tile_bytes + begin_bytes;
    std::vector<unsigned char> all(bits_offset_ + bit_bytes);
    std::memcpy(all.data(), schedule.tiles.data(), tile_bytes);
    std::memcpy(all.data() + begin_offset_, schedule.begin.data(), begin_bytes);
    std::memcpy(all.data() + bits_offset_, mask.bits().data(), bit_bytes);
    check_cuda(cudaMalloc(&memory_, all.size()), "memory for the block mask");
    const cudaError_t copied = cudaMemcpy(memory_, all.data(), all.size(), cudaMemcpyHostToDevice);
    if (copied != cudaSuccess) cudaFree(memory_);
    check_cuda(copied, "copy of the block mask");
}

BlockTable::~BlockTable() {
    cudaFree(memory_);
}

void BlockTable::fill(BlockParams& p, const AttentionArguments& a) const {
    const sparse::BlockMask& mask = *a.mask;
    const auto* base = static_cast<const unsigned char*>(memory_);
    p.tiles = reinterpret_cast<const plan::SparseTile*>(base);
    p.tile_begin = reinterpret_cast<const std::int32_t*>(base + begin_offset_);
    p.bits = reinterpret_cast<const std::uint32_t*>(base + bits_offset_);
    p.words = static_cast<std::int32_t>(mask.words());
    p.q_blocks = static_cast<std::int32_t>(mask.q_blocks());
    p.mask_heads = static_cast<std::int32_t>(mask.heads());
    p.heads_per_mask_head = static_cast<std::int32_t>(a.heads / mask.heads());
    p.mask_batch_step = mask.batches() == 1 ? 0 : 1;
}

}  // namespace xstage::attention
