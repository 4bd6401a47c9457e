#include "xstage/moe/plan.hpp"

namespace xstage::moe {

plan::MoeOrder choose_order(const Problem&) {
    return {};
}

}  // namespace xstage::moe
