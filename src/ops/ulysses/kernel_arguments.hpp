#pragma once

#include "xstage/attention.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::ulysses {

/// A call as xstage's own kernel takes it. Throws Error (kUnsupported) for a dtype or LSE that the
/// kernel does not write.
AttentionArguments kernel_arguments(const AttentionCall& call);
AttentionView kernel_view(const View& view);

}  // namespace xstage::ulysses
