#pragma once

#include <cstdint>

namespace xstage::attention {

enum class MaskKind {
    kDense,
    kCausal,
    kBlocks,  ///< one bit per 128 x 128 block, tiles from a table
};

/// When math groups wait for each other before they start a product.
enum class Turns {
    kFirst,   ///< at the first key block of a tile: enough to set them apart
    kAlways,  ///< at every key block: one's softmax falls into the other's products
};

/// What is fixed when the kernel is compiled. One tile is 64 query rows per math warpgroup; keys
/// are taken `kKeys` at a time through a ring of `kSlots` slots that K and V blocks share.
template <class Element_, int kHeadDim_, MaskKind kMask_, int kMathGroups_, int kKeys_, int kSlots_,
          Turns kTurns_, bool kQueryInRegisters_, bool kIntegerMaximum_>
struct Config {
    using Element = Element_;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr MaskKind kMask = kMask_;
    static constexpr int kMathGroups = kMathGroups_;
    static constexpr int kKeys = kKeys_;
    static constexpr int kSlots = kSlots_;
    static constexpr Turns kTurns = kTurns_;
    /// Q is read from shared memory once a tile instead of once a key block: costs its registers.
    static constexpr bool kQueryInRegisters = kQueryInRegisters_;
    /// Fewer instructions a block for more code (row_maximum.cuh): no gain where blocks are few.
    static constexpr bool kIntegerMaximum = kIntegerMaximum_;

    static constexpr int kGroupRows = 64;
    static constexpr int kRows = kGroupRows * kMathGroups;
    static constexpr int kPanels = kHeadDim / 64;  // 128-byte rows, the widest swizzle
    static constexpr int kThreads = 128 * (kMathGroups + 1);
    // The CTA's registers at launch are shared out anew: 65536 / kThreads, rounded down to 8.
    static constexpr int kProducerRegisters = kMathGroups == 2 ? 40 : 32;
    static constexpr int kMathRegisters = kMathGroups == 2 ? 232 : 160;

    static constexpr int kGroupBytes = kGroupRows * kHeadDim * 2;
    static constexpr int kSlotBytes = kKeys * kHeadDim * 2;

    static_assert(kHeadDim % 64 == 0, "a row is whole 128-byte panels");
    static_assert(kKeys % 16 == 0 && kKeys <= 256, "P is taken 16 keys at a time; a box has 256");
    static_assert(kMathGroups == 2 || kMathGroups == 3, "register split is known for these");
    static_assert(kSlots >= 3, "K of the next block, K and V of this one");
};

/// Swizzled buffers start at multiples of 1024 bytes; the host asks for 1024 more than this.
template <class C>
struct alignas(1024) SharedStorage {
    unsigned char q[C::kMathGroups][C::kGroupBytes];
    unsigned char o[C::kMathGroups][C::kGroupBytes];
    unsigned char ring[C::kSlots][C::kSlotBytes];
    std::uint64_t q_full[C::kMathGroups], q_empty[C::kMathGroups];
    std::uint64_t slot_full[C::kSlots], slot_empty[C::kSlots];
    float never_written;  ///< see MathGroup::finish_output
};

}  // namespace xstage::attention
