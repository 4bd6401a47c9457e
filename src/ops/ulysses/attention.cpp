#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "fabric/group.hpp"
#include "ops/ulysses/impl.hpp"
#include "xstage/error.hpp"
#include "xstage/ulysses/cudnn.hpp"

namespace xstage::ulysses {
namespace {

[[noreturn]] void bad(const std::string& message) {
    throw Error(ErrorKind::kBadInput, message);
}

std::string call_of(const Problem& p, const Options& o) {
    return fmt::format(
        "ulysses(B={}, H={}, Hkv={}, D={}, rows_q=[{}], rows_kv=[{}], text={}/{} {}, {}, lse={}, "
        "lengths={}, "
        "pitch={}, layout={}, attend={}, buffers={}, masked={})",
        p.batch, p.heads_q, p.kv_heads(), p.head_dim, fmt::join(p.rows_q, ", "),
        fmt::join(p.rows_kv, ", "), p.text_q, p.text_kv,
        p.text_place == TextPlace::kFront ? "front" : "rear", fabric::name_of(p.dtype), p.with_lse,
        p.with_lengths, p.out_pitch, name_of(o.plan.layout), o.attend, o.buffers, o.masked);
}

/// Blocks of a mask are rows in natural order, which not every layout keeps.
void check_masked(const Problem& p, const Options& o) {
    if (p.text_q > 0 || p.text_kv > 0 || p.with_lengths)
        bad("a block mask goes neither with text rows beside the image nor with key lengths");
    if (!o.plug.takes_mask)
        bad(
            fmt::format("the attention kernel '{}' takes no block mask: use xstage's own, or the "
                        "reference on the host",
                        o.plug.name));
    const Layout layout = o.plan.layout;
    if (layout != Layout::kAuto && layout != Layout::kPeers && layout != Layout::kScatter)
        bad(fmt::format("the layout '{}' does not keep the rows in order, as a block mask needs",
                        name_of(layout)));
}

Plan plan_for(const fabric::Fabric& fabric, const Problem& problem, const Options& options) {
    if (problem.world() != fabric.world())
        bad(fmt::format("rows_q names {} ranks, the group has {}", problem.world(),
                        fabric.world()));
    PlanOptions plan = options.plan;
    plan.page_bytes = fabric.page_bytes();
    plan.own_q = options.attend;
    plan.tile_rows = options.plug.tile_rows;
    plan.peers = options.plug.stores_to_peers;
    // A packed output is sent on by a kernel of ours, which needs no axis.
    if (!options.plug.stores_to_out) plan.layout = Layout::kScatter;
    if (options.masked) {
        check_masked(problem, options);
        if (plan.layout == Layout::kAuto)
            plan.layout = plan.peers ? Layout::kPeers : Layout::kScatter;
    }
    const std::vector<std::string>& ids = fabric.device_ids();
    if (fabric.backend() != fabric::Backend::kHost &&
        std::all_of(ids.begin(), ids.end(), [&](const std::string& id) { return id == ids[0]; }))
        plan.node = NodeFacts::one_gpu();
    return make_plan(problem, plan);
}

}  // namespace

UlyssesAttention::Impl::Impl(fabric::Fabric& group, const Problem& problem, const Options& o)
    : fabric(group), options(o) {
    fabric.check();
    if (!options.plug.run) {
        options.plug.takes_mask = fabric.backend() == fabric::Backend::kHost;
        // Set here what only the kernel decides; the rest of the plug stays as the caller wants it.
        options.plug.name = fabric.backend() == fabric::Backend::kHost ? "reference" : "cudnn";
    }
    const fabric::Outcome planned = fabric::attempt([&] {
        if (!options.plug.run)
            options.plug.run =
                fabric.backend() == fabric::Backend::kHost ? reference_attention : cudnn_plug().run;
        if (fabric.impl().several_nodes() && (problem.text_q > 0 || problem.with_lse))
            throw Error(ErrorKind::kUnsupported,
                        "results of text rows and log-sum-exps do not travel between nodes");
        plan = plan_for(fabric, problem, options);
        if (options.buffers < 1) bad("at least one buffer is needed");
        mover = fabric.backend() == fabric::Backend::kHost ? make_host_mover()
                                                           : make_cuda_mover(fabric);
    });
    // Ranks that mean different problems must find out here, all of them, not in a hanging call.
    fabric.impl().agree(call_of(problem, options), planned);
    arena = std::make_unique<Arena>(fabric, plan, options);
}

UlyssesAttention::UlyssesAttention(fabric::Fabric& fabric, const Problem& problem,
                                   const Options& options)
    : impl_(std::make_unique<Impl>(fabric, problem, options)) {}
UlyssesAttention::~UlyssesAttention() = default;

const Plan& UlyssesAttention::plan() const {
    return impl_->plan;
}
std::size_t UlyssesAttention::memory_bytes() const {
    return impl_->arena->bytes();
}

void UlyssesAttention::use_buffer(int buffer) {
    if (buffer < 0 || buffer >= impl_->options.buffers)
        bad(fmt::format("buffer {} of {}", buffer, impl_->options.buffers));
    impl_->next_buffer = buffer;
}

void UlyssesAttention::set_deferred(bool deferred) {
    impl_->deferred = deferred;
}

View UlyssesAttention::out_memory(int buffer, int rank) const {
    return impl_->out_view(buffer, rank);
}

View UlyssesAttention::query_memory(int rank) const {
    if (impl_->arena->exchange() == nullptr) bad("query memory comes with Options::attend");
    return impl_->arena->gathered_q(0, rank);
}

View UlyssesAttention::Impl::out_view(int buffer, int rank) const {
    const auto e = static_cast<std::int64_t>(fabric::bytes_of(plan.problem.dtype));
    View view;
    view.data = plan.problem.rows_q[static_cast<std::size_t>(rank)] == 0
                    ? nullptr
                    : arena->out(0).receive(buffer, rank);
    view.row_stride = static_cast<std::int64_t>(plan.out_row_bytes()) / e;
    view.head_stride = plan.problem.head_dim;
    view.batch_stride = static_cast<std::int64_t>(plan.receive_batch_bytes(rank)) / e;
    if (plan.tensors > 1 && view.data != nullptr) {
        // A tensor per sample: one view of them all exists only where the addresses allow it.
        const auto place = [&](int t) {
            return static_cast<std::byte*>(arena->out(t).receive(buffer, rank));
        };
        view.batch_stride = (place(1) - place(0)) / e;
        for (int t = 1; t < plan.tensors; ++t)
            if (place(t) - place(0) != t * (place(1) - place(0))) view.data = nullptr;
    }
    return view;
}

View UlyssesAttention::Impl::sample_view(int buffer, int rank, int sample) const {
    View view = out_view(buffer, rank);
    if (plan.problem.rows_q[static_cast<std::size_t>(rank)] == 0) return view;
    view.data = plan.tensors > 1
                    ? arena->out(sample).receive(buffer, rank)
                    : static_cast<std::byte*>(view.data) + plan.receive_offset(sample, 0, rank);
    return view;
}

void UlyssesAttention::Impl::check_inputs(std::size_t inputs) const {
    if (inputs != fabric.local_ranks().size())
        bad(fmt::format("{} inputs for {} ranks of this process", inputs,
                        fabric.local_ranks().size()));
    if (pending) bad("a deferred call has not been finished");
}

std::vector<Result> UlyssesAttention::attend_and_scatter(const std::vector<GatheredInput>& inputs,
                                                         const fabric::Streams& streams) {
    Impl& m = *impl_;
    m.check_inputs(inputs.size());
    std::vector<Impl::Ready> ready;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const GatheredInput& in = inputs[i];
        const int rank = m.fabric.local_ranks()[i];
        if (!in.q || !in.k || !in.v) bad(fmt::format("rank {}: Q, K and V are needed", rank));
        if (m.plan.problem.with_lengths != (in.kv_lengths != nullptr))
            bad(fmt::format("rank {}: the plan says with_lengths = {}", rank,
                            m.plan.problem.with_lengths));
        ready.push_back({in.q, in.k, in.v, in.kv_lengths, in.scale, in.to});
    }
    const int buffer = m.turn();
    // Not before the exchange's begin in `attend`: the peers' readers of the last call may still
    // run.
    m.begin_out(buffer, streams);
    for (std::size_t i = 0; i < ready.size(); ++i)
        m.bring_q_in_order(ready[i], static_cast<int>(i), streams);
    return m.run(ready, buffer, streams);
}

std::vector<Result> UlyssesAttention::attend(const std::vector<ShardedInput>& inputs,
                                             const fabric::Streams& streams) {
    Impl& m = *impl_;
    m.check_inputs(inputs.size());
    fabric::StitchedTensor* exchange = m.arena->exchange();
    if (exchange == nullptr)
        bad("this object was built for attend_and_scatter alone (Options::attend)");
    for (std::size_t i = 0; i < inputs.size(); ++i)
        m.check_sharded(inputs[i], m.fabric.local_ranks()[i]);
    const int buffer = m.turn();
    exchange->begin(buffer, streams);
    for (std::size_t i = 0; i < inputs.size(); ++i)
        m.gather_heads(inputs[i], static_cast<int>(i), buffer, streams);
    // The results' buffers are asked for while the peers' heads are on their way.
    for (int t = 1; t < m.arena->tensors(); ++t) m.arena->out(t).begin(buffer, streams);
    exchange->hand_over(buffer, m.arena->out(0), buffer, streams);
    std::vector<Impl::Ready> ready;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const int rank = m.fabric.local_ranks()[i];
        ready.push_back({m.arena->gathered_q(buffer, rank), m.arena->gathered_k(buffer, rank),
                         m.arena->gathered_v(buffer, rank), inputs[i].kv_lengths, inputs[i].scale,
                         inputs[i].to});
    }
    return m.run(ready, buffer, streams);
}

std::vector<Result> UlyssesAttention::finish(const fabric::Streams& streams) {
    if (!impl_->pending) bad("no deferred call is waiting");
    return impl_->take_results(streams);
}

}  // namespace xstage::ulysses
