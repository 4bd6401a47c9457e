#pragma once

#include <optional>
#include <string>
#include <vector>

#include "xstage/sparse/fast.hpp"
#include "xstage/sparse/mask.hpp"
#include "xstage/sparse/west.hpp"

namespace xstage::sparse {

/// What is known of a model's attention. On disk a safetensors file (docs/sparse.md has the names):
/// threshold maps by layer, sampled rows by layer and step, and budgets once they are tuned.
struct MaskFile {
    std::int64_t prompts = 0;  ///< that were calibrated with
    std::vector<ThresholdMap> layers;
    std::int64_t steps = 0;
    std::vector<RowSamples> samples;  ///< [layer * steps + step]; of the first prompt
    std::optional<Budgets> budgets;
};

/// Throws Error (kBadInput) with the path and what is wrong.
MaskFile read_mask_file(const std::string& path);
/// Replaces `path` in one step.
void write_mask_file(const std::string& path, const MaskFile& file);

/// Calibrates with one file of queries and keys a prompt: tensors layers.L.steps.T.q and .k of
/// shape [rows, heads, head_dim], F32, F16 or BF16; as many keys' heads as queries', or a divisor.
/// Every layer and step from 0 on must be there, the same in all files. Thresholds are the lowest
/// over prompts and steps. scale 0: 1/sqrt(head_dim).
MaskFile calibrate(const std::vector<std::string>& paths, const TokenLayout& layout,
                   double scale = 0);

/// A mask alone, for a launch: tensor "mask", U32 [batches, heads, query blocks, words].
void write_block_mask(const std::string& path, const BlockMask& mask);
BlockMask read_block_mask(const std::string& path);

/// One head's map as a picture: dark blocks are kept first. With a top-p the kept blocks are blue.
std::string map_svg(const ThresholdMap& map, std::int64_t head, std::optional<float> top_p,
                    const std::string& title);

}  // namespace xstage::sparse
