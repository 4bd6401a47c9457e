#include "sim/engine.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <thread>

#include "sim/gpu.hpp"

namespace xstage::sim {
namespace {

/// Calls body(0) .. body(count-1), spread over threads; rethrows the first exception by index.
template <class Body>
void parallel(int count, int threads, const Body& body) {
    if (threads <= 1 || count <= 1) {
        for (int i = 0; i < count; ++i) body(i);
        return;
    }
    std::atomic<int> next{0};
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(count));
    const auto work = [&] {
        for (int i = next++; i < count; i = next++) {
            try {
                body(i);
            } catch (...) {
                failures[static_cast<std::size_t>(i)] = std::current_exception();
            }
        }
    };
    std::vector<std::thread> pool;
    for (int t = 1; t < std::min(threads, count); ++t) pool.emplace_back(work);
    work();
    for (std::thread& thread : pool) thread.join();
    for (const auto& failure : failures) {
        if (failure) std::rethrow_exception(failure);
    }
}

struct Gpus {
    std::vector<std::unique_ptr<Program>> programs;
    std::vector<std::unique_ptr<GpuEngine>> engines;
};

Gpus start(const Cluster& cluster, const ProgramFactory& factory, const GpuEngine::Options& options,
           int threads) {
    Gpus gpus;
    gpus.programs.resize(static_cast<std::size_t>(cluster.gpus));
    gpus.engines.resize(static_cast<std::size_t>(cluster.gpus));
    parallel(cluster.gpus, threads, [&](int rank) {
        const auto i = static_cast<std::size_t>(rank);
        gpus.programs[i] = factory(rank);
        gpus.engines[i] =
            std::make_unique<GpuEngine>(cluster.node, rank, *gpus.programs[i], options);
    });
    return gpus;
}

/// True if some GPU was sent more, up to some time, than it could take in up to then and the fabric
/// could hold.
bool overrun(const Cluster& cluster, const Gpus& gpus, double slice_ns) {
    int slices = 0;
    for (const auto& engine : gpus.engines) slices = std::max(slices, engine->arrivals().slices());
    for (int d = 0; d < cluster.gpus; ++d) {
        double backlog = 0;
        for (int s = 0; s < slices; ++s) {
            for (const auto& engine : gpus.engines) backlog += engine->arrivals().at(s, d);
            backlog = std::max(0.0, backlog - cluster.node.ingress_rate * slice_ns);
            if (backlog > cluster.node.ingress_buffer) return true;
        }
    }
    return false;
}

/// What a link of rate `capacity` gives to each of these demands, max-min fair.
std::vector<double> max_min(const std::vector<double>& demands, double capacity) {
    std::vector<std::size_t> order(demands.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return demands[a] < demands[b]; });
    std::vector<double> grant(demands.size());
    std::size_t left = demands.size();
    for (const std::size_t i : order) {
        grant[i] = std::min(demands[i], capacity / static_cast<double>(left--));
        capacity -= grant[i];
    }
    return grant;
}

/// One slice at a time, with the demands at its start deciding the limits within it.
void run_throttled(const Cluster& cluster, const Gpus& gpus, double slice_ns, int threads) {
    const auto count = static_cast<std::size_t>(cluster.gpus);
    std::vector<std::vector<double>> demand(count, std::vector<double>(count));
    std::vector<std::vector<double>> limit(count, std::vector<double>(count));
    bool alive = true;
    for (double end = slice_ns; alive; end += slice_ns) {
        for (std::size_t s = 0; s < count; ++s) {
            gpus.engines[s]->demand(demand[s]);
            std::fill(limit[s].begin(), limit[s].end(), kUnlimited);
        }
        for (std::size_t d = 0; d < count; ++d) {
            std::vector<double> wanted(count);
            for (std::size_t s = 0; s < count; ++s) wanted[s] = demand[s][d];
            const double sum = std::accumulate(wanted.begin(), wanted.end(), 0.0);
            if (sum <= cluster.node.ingress_rate) continue;
            const auto grant = max_min(wanted, cluster.node.ingress_rate);
            for (std::size_t s = 0; s < count; ++s) {
                if (wanted[s] > 0)
                    limit[s][d] = gpus.engines[s]->fair_rate() * grant[s] / wanted[s];
            }
        }
        parallel(cluster.gpus, threads, [&](int rank) {
            const auto i = static_cast<std::size_t>(rank);
            gpus.engines[i]->throttle(limit[i]);
            gpus.engines[i]->run(end);
        });
        alive = std::any_of(gpus.engines.begin(), gpus.engines.end(),
                            [](const auto& engine) { return !engine->done(); });
    }
}

}  // namespace

Result run(const Cluster& cluster, const ProgramFactory& programs, const RunOptions& options) {
    const Node& node = cluster.node;
    int threads = options.threads;
    if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());

    GpuEngine::Options engine_options;
    engine_options.record = options.record;
    engine_options.gpus = cluster.gpus;
    const bool can_overrun = node.link_rate * (cluster.gpus - 1) > node.ingress_rate * (1 + 1e-9);
    if (can_overrun) engine_options.slice_ns = options.slice_ns;

    Result result;
    Gpus gpus = start(cluster, programs, engine_options, threads);
    parallel(cluster.gpus, threads,
             [&](int rank) { gpus.engines[static_cast<std::size_t>(rank)]->run(kUnlimited); });
    if (can_overrun && overrun(cluster, gpus, options.slice_ns)) {
        result.incast = true;
        gpus = start(cluster, programs, engine_options, threads);
        run_throttled(cluster, gpus, options.slice_ns, threads);
    }
    std::vector<double> arrived(gpus.engines.size());
    result.ranks.resize(gpus.engines.size());
    for (std::size_t s = 0; s < gpus.engines.size(); ++s) {
        const auto& routes = gpus.programs[s]->routes();
        for (std::size_t r = 0; r < routes.size(); ++r) {
            for (const auto& [gpu, share] : routes[r]) {
                arrived[static_cast<std::size_t>(gpu)] += gpus.engines[s]->route_bytes()[r] * share;
            }
        }
    }
    for (std::size_t s = 0; s < gpus.engines.size(); ++s) {
        const auto& engine = gpus.engines[s];
        result.events += engine->events();
        result.ranks[s] = engine->take_result();
        result.ranks[s].bytes_arrived = arrived[s];
        result.total_ns = std::max(result.total_ns, result.ranks[s].end_ns);
        const auto spans = engine->take_spans();
        result.spans.insert(result.spans.end(), spans.begin(), spans.end());
    }
    return result;
}

}  // namespace xstage::sim
