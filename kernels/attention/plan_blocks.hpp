#pragma once

#include <memory>

#include "instance.hpp"
#include "params.hpp"

namespace xstage::attention {

/// The instance for a block mask and the tiles of each CTA.
struct BlockChoice {
    const Instance* instance = nullptr;
    plan::SparseSchedule schedule;
};
BlockChoice choose_blocks(const AttentionArguments& a, int sms);
/// Throws Error (kBadInput) for a mask that does not fit the arguments.
void check_mask(const AttentionArguments& a);
/// Whether the mask keeps every block.
bool keeps_everything(const AttentionArguments& a);

/// Bits and tiles in device memory.
class BlockTable {
  public:
    BlockTable(const sparse::BlockMask& mask, const plan::SparseSchedule& schedule);
    ~BlockTable();
    BlockTable(const BlockTable&) = delete;
    BlockTable& operator=(const BlockTable&) = delete;

    /// Sets the pointers and sizes of `p` that a masked launch needs besides.
    void fill(BlockParams& p, const AttentionArguments& a) const;

  private:
    void* memory_ = nullptr;
    std::size_t begin_offset_ = 0, bits_offset_ = 0;
};

}  // namespace xstage::attention
