#pragma once

#include <functional>
#include <string>
#include <vector>

namespace xstage::bench {

/// Runs `body(rank)` in `count` children and returns what each gave back. Children even for one
/// rank: the caller stays free of CUDA and may fork again. When a child fails, throws Error of the
/// kind and with the words of the first one that did.
std::vector<std::string> in_processes(int count, const std::function<std::string(int)>& body);

}  // namespace xstage::bench
