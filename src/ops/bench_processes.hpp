#pragma once

#include <functional>
#include <string>
#include <vector>

#include "xstage/fabric.hpp"

namespace xstage::bench {

/// Runs `body(rank)` in `count` children and returns what each gave back. Children even for one
/// rank: the caller stays free of CUDA and may fork again. When a child fails, throws Error of the
/// kind and with the words of the first one that did.
std::vector<std::string> in_processes(int count, const std::function<std::string(int)>& body);

/// Of the group in which a benchmark's ranks meet; virtual ranks are all on the first GPU.
fabric::FabricOptions group_options(fabric::Backend backend, int world, int rank,
                                    const std::string& name);

}  // namespace xstage::bench
