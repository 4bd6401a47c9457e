#include "choice.hpp"

#include <fmt/format.h>

#include "xstage/error.hpp"

namespace xstage::attention {

const std::vector<Instance>& all_instances() {
    static const std::vector<Instance> all = [] {
        std::vector<Instance> list;
        for (auto part : {instances_dense_bf16(), instances_dense_fp16(), instances_causal()}) {
            list.insert(list.end(), part.begin(), part.end());
        }
        return list;
    }();
    return all;
}

double predicted_cost(const Instance& instance, const AttentionTypeAndShape& shape, int sms) {
    const auto divide_up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t unit = std::int64_t{instance.rows} * instance.cluster;
    const std::int64_t units = divide_up(shape.q_rows, unit) * shape.sequences;
    const std::int64_t waves = divide_up(units, std::max(1, sms / instance.cluster));
    const std::int64_t blocks = divide_up(shape.kv_rows, instance.keys);
    return static_cast<double>(waves * instance.rows * (blocks + 1) * instance.keys);
}

const Instance& choose(const AttentionTypeAndShape& shape, int sms, const std::string& name) {
    const Instance* best = nullptr;
    double least = 0;
    for (const Instance& i : all_instances()) {
        if (i.type != shape.type || i.head_dim != shape.head_dim || i.mask != shape.mask) continue;
        if (!name.empty()) {
            if (name == i.name) return i;
            continue;
        }
        const double cost = predicted_cost(i, shape, sms);
        if (best == nullptr || cost < least) {
            best = &i;
            least = cost;
        }
    }
    if (best == nullptr) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("attention: no compiled instance '{}' for this type, head_dim {} "
                                "and mask",
                                name, shape.head_dim));
    }
    return *best;
}

}  // namespace xstage::attention
