// The first all-to-all: the whole of it with its signals, its kernel alone, and plain copies of as
// many bytes.

#include "ops/ulysses/bench_run.hpp"
#include "ops/ulysses/impl.hpp"
#include "ulysses/send.cuh"

namespace xstage::ulysses {

/// Views into one fused projection. `flux`: Q and K with a norm per head and Flux's rotation.
std::vector<ShardedInput> RankBench::sharded(const Problem& p, bool flux) {
    std::vector<ShardedInput> inputs;
    for (int r : group_->local_ranks()) {
        const std::int64_t rows = p.rows_q[static_cast<std::size_t>(r)];
        const std::int64_t width = std::int64_t{p.heads_q} * p.head_dim;
        ShardedInput in;
        View view{
            buffer(static_cast<std::size_t>(rows * width * 3) * 2, static_cast<unsigned>(50 + r))
                .get(),
            rows * 3 * width, 3 * width, p.head_dim};
        for (Projection* projection : {&in.q, &in.k, &in.v}) {
            projection->image = view;
            view.data = static_cast<std::byte*>(view.data) + width * 2;
        }
        if (flux) {
            const auto table = [&](unsigned seed) {
                return static_cast<const float*>(
                    buffer(static_cast<std::size_t>(rows * p.head_dim) * sizeof(float), seed)
                        .get());
            };
            const Rotary rotation = rotary::flux(table(70), table(71), p.head_dim);
            const void* weight = buffer(static_cast<std::size_t>(p.head_dim) * 2, 72).get();
            for (Projection* projection : {&in.q, &in.k}) {
                projection->rotary = rotation;
                projection->norm = {NormKind::kPerHead, NormRounding::kOnce, false, weight, 1e-6f};
            }
        }
        inputs.push_back(in);
    }
    return inputs;
}

void RankBench::add_exchanges(const Problem& p, ShapeTimes& result) {
    const fabric::Streams streams(stream_);
    const std::vector<ShardedInput> plain = sharded(p, false);
    const auto add_attend = [&](const std::string& name, const Options& options) {
        UlyssesAttention* a = &attention(p, options);
        result.plans[name] = describe(a->plan());
        add(name, [a, plain, streams] {
            a->use_buffer(0);
            a->attend(plain, streams);
        });
        return a;
    };
    Options options = options_for(Layout::kAuto, true);
    add_attend("attend", options);
    options.plug.run = [](const AttentionCall&) {};
    const auto kernel_of = [this, streams](UlyssesAttention* a,
                                           const std::vector<ShardedInput>& inputs) {
        return [a, inputs, streams] {
            for (std::size_t i = 0; i < inputs.size(); ++i)
                a->impl().gather_heads(inputs[i], static_cast<int>(i), 0, streams);
        };
    };
    UlyssesAttention* ours = add_attend("first all-to-all", options);
    add("exchange kernel", kernel_of(ours, plain));
    add("exchange kernel, flux", kernel_of(ours, sharded(p, true)));
    options.order = SendOrder::kPeerByPeer;
    UlyssesAttention* naive = add_attend("first all-to-all, naive order", options);
    add("exchange kernel, naive order", kernel_of(naive, plain));
}

void RankBench::add_copies(const Problem& p) {
    struct Copy {
        void* to;
        const void* from;
        std::size_t bytes;
    };
    std::vector<Copy> copies;
    for (int r : group_->local_ranks()) {
        const auto bytes = static_cast<std::size_t>(p.rows_q[static_cast<std::size_t>(r)] *
                                                    p.heads_q * p.head_dim * 3) *
                           2;
        copies.push_back({buffer(bytes, 80).get(), buffer(bytes, 81).get(), bytes});
    }
    add("copy kernel", [this, copies] {
        for (const Copy& c : copies)
            check_cuda(kernels::plain_copy(c.to, c.from, c.bytes, stream_), "a plain copy");
    });
    add("copy by the driver", [this, copies] {
        for (const Copy& c : copies)
            check_cuda(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDeviceToDevice, stream_),
                       "a copy by the driver");
    });
}

}  // namespace xstage::ulysses
