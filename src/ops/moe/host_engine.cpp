// The kernel's protocol with threads or processes for ranks: sort the routes, tell the owners, pull
// rows, compute, store results to the tokens' ranks, add up. One barrier before the pulling and one
// before the adding, as on the device.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/moe/impl.hpp"
#include "ops/moe/reference.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

class HostEngine final : public Engine {
  public:
    explicit HostEngine(const EngineArgs& args)
        : args_(args), rank_(args.fabric.local_ranks()[0]) {}

    void run(std::span<const Input> inputs, const plan::MoeOrder&, StorePath,
             const fabric::Streams& streams) override {
        const Input& in = inputs[0];
        const int tokens = in.tokens_at == nullptr
                               ? in.tokens
                               : std::clamp(*in.tokens_at, 0, args_.problem.max_tokens);
        bring(in);
        sort_routes(tokens);
        args_.fabric.barrier(streams);
        if (args_.problem.shared) run_held_expert(0, own_routes(tokens));
        for (int e = 0; e < args_.problem.local_experts(); ++e)
            run_held_expert(e + (args_.problem.shared ? 1 : 0), routes_to(e));
        args_.fabric.barrier(streams);
        add_up(tokens, static_cast<std::uint16_t*>(in.y));
    }

    void set_stamps(std::span<const StampBuffer> buffers) override {
        if (!buffers.empty())
            throw Error(ErrorKind::kUnsupported, "only the kernel stamps its stores");
    }

  private:
    /// A row of work: whose token it is, and where its result goes.
    struct Route {
        int rank;
        int token, slot;  ///< of `top_k` slots, and one for the shared expert
    };

    template <class T>
    T* at(int rank, std::int64_t offset) const {
        return reinterpret_cast<T*>(static_cast<std::byte*>(args_.workspace.at(rank)) + offset);
    }

    void bring(const Input& in) const {
        const Problem& p = args_.problem;
        const Layout& layout = args_.layout;
        const auto copy = [&](std::int64_t offset, const void* from, std::size_t bytes) {
            void* const to = at<std::byte>(rank_, offset);
            if (to != from && bytes != 0) std::memcpy(to, from, bytes);
        };
        const auto t = static_cast<std::size_t>(in.tokens);
        const auto h = static_cast<std::size_t>(p.hidden);
        const auto k = static_cast<std::size_t>(p.top_k);
        copy(layout.x, in.x, t * h * static_cast<std::size_t>(p.element_bytes()));
        if (p.type == Type::kFp8) copy(layout.x_scale, in.x_scale, t * (h / kScaleGroup) * 4);
        copy(layout.experts, in.experts, t * k * 4);
        copy(layout.weights, in.weights, t * k * 4);
    }

    void sort_routes(int tokens) const {
        const Problem& p = args_.problem;
        const auto* experts = at<std::int32_t>(rank_, args_.layout.experts);
        std::vector<std::int32_t> first(static_cast<std::size_t>(p.experts) + 1);
        const int routes = tokens * p.top_k;
        const auto routed = [&](int i) { return experts[i] >= 0 && experts[i] < p.experts; };
        for (int i = 0; i < routes; ++i)
            if (routed(i)) ++first[static_cast<std::size_t>(experts[i]) + 1];
        for (std::size_t e = 1; e < first.size(); ++e) first[e] += first[e - 1];
        const int width = p.local_experts() + 1;
        for (int owner = 0; owner < p.ranks; ++owner)
            std::copy_n(&first[static_cast<std::size_t>(owner * p.local_experts())], width,
                        at<std::int32_t>(owner, args_.layout.arrived) + rank_ * width);
        auto* sorted = at<std::int32_t>(rank_, args_.layout.sorted);
        for (int i = 0; i < routes; ++i)
            if (routed(i)) sorted[first[static_cast<std::size_t>(experts[i])]++] = i;
    }

    std::vector<Route> own_routes(int tokens) const {
        std::vector<Route> routes;
        for (int t = 0; t < tokens; ++t) routes.push_back({rank_, t, args_.problem.top_k});
        return routes;
    }

    std::vector<Route> routes_to(int expert) const {
        const Problem& p = args_.problem;
        const auto* arrived = at<std::int32_t>(rank_, args_.layout.arrived);
        std::vector<Route> routes;
        for (int r = 0; r < p.ranks; ++r) {
            const std::int32_t* from = arrived + r * (p.local_experts() + 1) + expert;
            for (std::int32_t i = from[0]; i < from[1]; ++i) {
                const std::int32_t route = at<std::int32_t>(r, args_.layout.sorted)[i];
                routes.push_back({r, route / p.top_k, route % p.top_k});
            }
        }
        return routes;
    }

    void run_held_expert(int expert, const std::vector<Route>& routes) const {
        const Problem& p = args_.problem;
        const Layout& layout = args_.layout;
        const auto width = static_cast<std::size_t>(p.hidden);
        std::vector<double> results(routes.size() * width);
        std::vector<ExpertRow> rows;
        for (std::size_t i = 0; i < routes.size(); ++i) {
            const auto [from, token, slot] = routes[i];
            const std::int64_t t = token;
            const float weight =
                slot == p.top_k ? 1.0F : at<float>(from, layout.weights)[t * p.top_k + slot];
            rows.push_back({at<std::byte>(from, layout.x) + t * p.hidden * p.element_bytes(),
                            at<float>(from, layout.x_scale) + t * (p.hidden / kScaleGroup), weight,
                            std::span(&results[i * width], width)});
        }
        run_expert(p, args_.weights[0], expert, Rounding::kKernel, rows);
        for (std::size_t i = 0; i < routes.size(); ++i) {
            auto* to = at<std::uint16_t>(routes[i].rank, layout.combine) +
                       (std::int64_t{routes[i].token} * p.slots() + routes[i].slot) * p.hidden;
            for (std::size_t n = 0; n < width; ++n)
                to[n] = to_bf16(static_cast<float>(results[i * width + n]));
        }
    }

    void add_up(int tokens, std::uint16_t* y) const {
        const Problem& p = args_.problem;
        const auto* experts = at<std::int32_t>(rank_, args_.layout.experts);
        const auto* slots = at<std::uint16_t>(rank_, args_.layout.combine);
        for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t n = 0; n < p.hidden; ++n) {
                float sum = 0;
                for (std::int64_t s = 0; s < p.slots(); ++s) {
                    const std::int32_t e = s == p.top_k ? 0 : experts[t * p.top_k + s];
                    if (e >= p.experts) sum = std::numeric_limits<float>::quiet_NaN();
                    if (e >= 0 && e < p.experts)
                        sum += from_bf16(slots[(t * p.slots() + s) * p.hidden + n]);
                }
                y[t * p.hidden + n] = to_bf16(sum);
            }
    }

    EngineArgs args_;
    int rank_;
};

}  // namespace

std::unique_ptr<Engine> make_host_engine(const EngineArgs& args) {
    return std::make_unique<HostEngine>(args);
}

}  // namespace xstage::moe
