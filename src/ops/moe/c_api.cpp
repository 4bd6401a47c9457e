#include "xstage/xstage_moe.h"

#include "fabric/c_error.hpp"
#include "xstage/moe.hpp"

using namespace xstage;
using namespace xstage::fabric;

// The definition of src/fabric/c_api.cpp, word for word: handles are opaque to callers only.
struct xstage_fabric {
    Fabric fabric;
};

struct xstage_moe {
    std::unique_ptr<moe::MegaMoe> layer;
};

namespace {

[[noreturn]] void bad(const std::string& what) {
    throw Error(ErrorKind::kBadInput, what);
}

moe::Problem problem_of(const xstage_moe_options& o, int ranks) {
    if (o.type != XSTAGE_MOE_BF16 && o.type != XSTAGE_MOE_FP8)
        bad("there is no type " + std::to_string(o.type));
    moe::Problem p;
    p.ranks = ranks;
    p.max_tokens = o.max_tokens;
    p.hidden = o.hidden;
    p.intermediate = o.intermediate;
    p.experts = o.experts;
    p.top_k = o.top_k;
    p.type = o.type == XSTAGE_MOE_FP8 ? moe::Type::kFp8 : moe::Type::kBf16;
    p.clamp = o.clamp;
    p.shared = o.shared_expert != 0;
    return p;
}

moe::Options options_of(const xstage_moe_options& o, const moe::Problem& problem) {
    moe::Options options;
    options.order = o.order == nullptr ? moe::choose_order(problem) : moe::parse_order(o.order);
    options.ring_blocks = o.ring_blocks;
    options.workspace_limit = o.workspace_limit;
    options.store = o.bulk_stores != 0 ? moe::StorePath::kBulk : moe::StorePath::kSt16;
    options.blocks = o.blocks;
    options.agree_on_calls = o.agree_on_calls != 0;
    return options;
}

moe::MegaMoe& existing(const xstage_moe* moe) {
    if (moe == nullptr) bad("moe must not be NULL");
    return *moe->layer;
}

}  // namespace

int xstage_moe_workspace_bytes(const xstage_moe_options* given, int ranks, std::uint64_t* bytes) {
    return guarded([&] {
        if (bytes == nullptr) bad("bytes must not be NULL");
        const xstage_moe_options o = fabric::sized(given);
        if (ranks < 1) bad("there is at least one rank");
        const moe::Problem problem = problem_of(o, ranks);
        *bytes = moe::workspace_bytes(problem, options_of(o, problem));
    });
}

int xstage_moe_create(xstage_fabric* fabric, const xstage_moe_options* given,
                      const xstage_moe_weights* weights, std::size_t count, xstage_moe** moe) {
    return guarded([&] {
        if (fabric == nullptr || weights == nullptr || moe == nullptr)
            bad("fabric, weights and moe must not be NULL");
        const xstage_moe_options o = fabric::sized(given);
        const moe::Problem problem = problem_of(o, fabric->fabric.world());
        std::vector<moe::Weights> all;
        for (std::size_t i = 0; i < count; ++i)
            all.push_back({weights[i].w1, weights[i].w2, weights[i].s1, weights[i].s2});
        auto made = std::make_unique<xstage_moe>();
        made->layer =
            std::make_unique<moe::MegaMoe>(fabric->fabric, problem, all, options_of(o, problem));
        *moe = made.release();
    });
}

void xstage_moe_destroy(xstage_moe* moe) {
    delete moe;
}

int xstage_moe_set_order(xstage_moe* moe, const char* order) {
    return guarded([&] {
        if (order == nullptr) bad("order must not be NULL");
        existing(moe).set_order(moe::parse_order(order));
    });
}

int xstage_moe_input_memory(const xstage_moe* moe, int rank, xstage_moe_input* input) {
    return guarded([&] {
        if (input == nullptr) bad("input must not be NULL");
        const moe::MegaMoe& layer = existing(moe);
        if (rank < 0 || rank >= layer.problem().ranks)
            bad("there is no rank " + std::to_string(rank));
        const moe::InputMemory memory = layer.input_memory(rank);
        input->x = memory.x;
        input->x_scale = memory.x_scale;
        input->experts = memory.experts;
        input->weights = memory.weights;
    });
}

int xstage_moe_run(xstage_moe* moe, const xstage_moe_input* inputs, std::size_t count,
                   void* const* streams, std::size_t stream_count) {
    return guarded([&] {
        moe::MegaMoe& layer = existing(moe);
        if (inputs == nullptr) bad("inputs must not be NULL");
        if (stream_count != 0 && streams == nullptr) bad("streams must not be NULL");
        std::vector<moe::Input> all;
        for (std::size_t i = 0; i < count; ++i) {
            const xstage_moe_input& in = inputs[i];
            all.push_back(
                {in.tokens, in.x, in.x_scale, in.experts, in.weights, in.tokens_at, in.y});
        }
        layer.run(all, stream_count == 0 ? Streams()
                                         : Streams(std::span<void* const>(streams, stream_count)));
    });
}
