#include "xstage/moe.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "ops/moe/impl.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

[[noreturn]] void bad(const std::string& message) {
    throw Error(ErrorKind::kBadInput, message);
}

std::string call_of(const Problem& p, const Layout& at) {
    return fmt::format("moe(T<={}, h={}, i={}, E={}{}, k={}, {}, clamp={}, ring={})", p.max_tokens,
                       p.hidden, p.intermediate, p.experts, p.shared ? "+1" : "", p.top_k,
                       p.type == Type::kFp8 ? "fp8" : "bf16", p.clamp, at.ring_blocks);
}

void check_aligned(int rank, const char* what, const void* data) {
    if (data == nullptr) bad(fmt::format("rank {}: {} is needed", rank, what));
    if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
        bad(fmt::format("rank {}: {} must be aligned to 16 bytes", rank, what));
}

void check_weights(const Problem& p, int rank, const Weights& w) {
    check_aligned(rank, "w1", w.w1);
    check_aligned(rank, "w2", w.w2);
    if (p.type != Type::kFp8) return;
    check_aligned(rank, "s1", w.s1);
    check_aligned(rank, "s2", w.s2);
}

void check_input(const Problem& p, int rank, const Input& in) {
    if (in.tokens < 0 || in.tokens > p.max_tokens)
        bad(fmt::format("rank {}: {} tokens, the layer is built for at most {}", rank, in.tokens,
                        p.max_tokens));
    if (in.tokens == 0 && in.tokens_at == nullptr) return;
    check_aligned(rank, "x", in.x);
    if (p.type == Type::kFp8) check_aligned(rank, "x_scale", in.x_scale);
    check_aligned(rank, "experts", in.experts);
    check_aligned(rank, "weights", in.weights);
    check_aligned(rank, "y", in.y);
}

}  // namespace

MegaMoe::MegaMoe(fabric::Fabric& fabric, const Problem& problem, std::span<const Weights> weights,
                 const Options& options)
    : impl_(new Impl{fabric, problem, options, {weights.begin(), weights.end()}, {}, {}, {}}) {
    Impl& m = *impl_;
    fabric.check();
    const fabric::Outcome planned = fabric::attempt([&] {
        if (problem.ranks != fabric.world())
            bad(fmt::format("the problem names {} ranks, the group has {}", problem.ranks,
                            fabric.world()));
        if (fabric.impl().several_nodes())
            throw Error(ErrorKind::kUnsupported, "MegaMoe works within one node");
        m.layout = make_layout(problem, options);
        if (weights.size() != fabric.local_ranks().size())
            bad(fmt::format("{} sets of weights for {} ranks of this process", weights.size(),
                            fabric.local_ranks().size()));
        for (std::size_t i = 0; i < weights.size(); ++i)
            check_weights(problem, fabric.local_ranks()[i], weights[i]);
    });
    // Ranks that mean different layers must find out here, all of them, not in a hanging call.
    fabric.impl().agree(call_of(problem, m.layout), planned);
    m.workspace =
        std::make_unique<fabric::SymmetricBuffer>(fabric, static_cast<std::size_t>(m.layout.bytes));
    const EngineArgs args{fabric, m.problem, m.layout, m.options, *m.workspace, m.weights};
    const fabric::Outcome made = fabric::attempt([&] {
        m.engine = fabric.backend() == fabric::Backend::kHost ? make_host_engine(args)
                                                              : make_cuda_engine(args);
    });
    fabric.impl().agree("moe engine", made);
}
MegaMoe::~MegaMoe() = default;

const Problem& MegaMoe::problem() const {
    return impl_->problem;
}
const Layout& MegaMoe::layout() const {
    return impl_->layout;
}
std::size_t MegaMoe::memory_bytes() const {
    return impl_->workspace->bytes();
}

InputMemory MegaMoe::input_memory(int rank) const {
    const Layout& at = impl_->layout;
    auto* const base = static_cast<std::byte*>(impl_->workspace->at(rank));
    return {
        base + at.x,
        impl_->problem.type == Type::kFp8 ? reinterpret_cast<float*>(base + at.x_scale) : nullptr,
        reinterpret_cast<std::int32_t*>(base + at.experts),
        reinterpret_cast<float*>(base + at.weights)};
}

void MegaMoe::set_order(const plan::MoeOrder& order) {
    check_order(impl_->problem, impl_->layout, order);
    impl_->options.order = order;
}
void MegaMoe::set_store_path(StorePath path) {
    impl_->options.store = path;
}
int MegaMoe::stamp_producers() const {
    return impl_->engine->stamp_producers();
}
void MegaMoe::set_stamps(std::span<const StampBuffer> buffers) {
    const std::size_t ranks = impl_->fabric.local_ranks().size();
    if (!buffers.empty() && buffers.size() != ranks)
        bad(fmt::format("{} stamp buffers for {} ranks of this process", buffers.size(), ranks));
    for (const StampBuffer& b : buffers)
        if (b.stamps == nullptr || b.dropped == nullptr ||
            b.producers < static_cast<std::uint32_t>(stamp_producers()))
            bad(fmt::format("a stamp buffer needs memory for {} producers", stamp_producers()));
    impl_->engine->set_stamps(buffers);
}

void MegaMoe::run(std::span<const Input> inputs, const fabric::Streams& streams) {
    Impl& m = *impl_;
    const auto checked = fabric::attempt([&] {
        m.fabric.check();
        if (inputs.size() != m.fabric.local_ranks().size())
            bad(fmt::format("{} inputs for {} ranks of this process", inputs.size(),
                            m.fabric.local_ranks().size()));
        for (std::size_t i = 0; i < inputs.size(); ++i)
            check_input(m.problem, m.fabric.local_ranks()[i], inputs[i]);
    });
    if (m.options.agree_on_calls) {
        m.fabric.impl().agree("moe call", checked);
    } else if (!checked.ok) {
        throw Error(checked.kind, checked.reason);
    }
    m.engine->run(inputs, m.options.order, m.options.store, streams);
}

}  // namespace xstage::moe
