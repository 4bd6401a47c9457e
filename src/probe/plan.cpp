#include "probe/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "trace/enum_names.hpp"

namespace xstage::probe {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kKi = 1024;
constexpr double kLaunchNs = 6e6;

Sizes choose(const Sizes& given, const Sizes& otherwise) {
    return given.empty() ? otherwise : given;
}

/// Counts of SMs up to all of this GPU's: a few that stand alone, then shares of the whole.
Sizes sm_counts(int sms, std::initializer_list<int> alone, std::initializer_list<int> quarters) {
    std::set<std::int64_t> counts;
    for (const int n : alone) counts.insert(std::min(n, sms));
    for (const int quarter : quarters) counts.insert(std::max(1, sms * quarter / 4));
    return {counts.begin(), counts.end()};
}

class Planner {
  public:
    explicit Planner(const PlanOptions& options) : o_(options) {}

    std::vector<Step> steps;

    void isolated() {
        const Sizes bytes =
            choose(o_.axes.bytes,
                   o_.quick ? Sizes{4 * kKi, 16 * kKi, 24 * kKi, 32 * kKi, 64 * kKi, 256 * kKi}
                            : Sizes{1 * kKi,   2 * kKi,   4 * kKi,   6 * kKi,  8 * kKi,   12 * kKi,
                                    16 * kKi,  18 * kKi,  20 * kKi,  24 * kKi, 28 * kKi,  32 * kKi,
                                    40 * kKi,  48 * kKi,  64 * kKi,  96 * kKi, 128 * kKi, 192 * kKi,
                                    256 * kKi, 512 * kKi, 1024 * kKi});
        const Sizes sms =
            choose(o_.axes.sms, o_.quick ? sm_counts(o_.sms, {1, 16}, {2, 4})
                                         : sm_counts(o_.sms, {1, 2, 4, 8, 16}, {1, 2, 3, 4}));
        const Sizes warps = choose(o_.axes.warps, o_.quick ? Sizes{4} : Sizes{1, 4, 8});
        for (const auto* path : {"st16", "bulk"}) {
            for (const Target target : {Target::kRemote, Target::kLocal}) {
                for (const auto w : warps) {
                    // One thread issues bulk copies, whatever the warps; the control needs one
                    // width.
                    if (path == std::string("bulk") && w != warps[warps.size() / 2]) continue;
                    if (target == Target::kLocal && w != warps[warps.size() / 2]) continue;
                    for (const auto n : sms) {
                        for (const auto b : bytes) {
                            add("isolated", {.path = path,
                                             .target = target,
                                             .producers = int(n),
                                             .warps = int(w),
                                             .bytes = b});
                        }
                    }
                }
            }
        }
    }

    void gaps() {
        const Sizes bytes = choose(
            o_.axes.bytes, o_.quick ? Sizes{16 * kKi, 32 * kKi}
                                    : Sizes{8 * kKi, 16 * kKi, 32 * kKi, 64 * kKi, 128 * kKi});
        const Sizes gaps =
            choose(o_.axes.gaps, o_.quick ? Sizes{0, 8000, 16000, 32000}
                                          : Sizes{0, 1000, 2000, 4000, 8000, 12000, 16000, 24000,
                                                  32000, 48000, 64000, 96000});
        const Sizes sms = choose(
            o_.axes.sms, o_.quick ? sm_counts(o_.sms, {}, {4}) : sm_counts(o_.sms, {8}, {1, 2, 4}));
        const Sizes warps = choose(o_.axes.warps, {4});
        for (const auto* path : {"st16", "bulk"}) {
            if (o_.quick && path == std::string("bulk")) continue;
            for (const GapFrom from : {GapFrom::kProducer, GapFrom::kAll}) {
                for (const auto w : warps) {
                    for (const auto n : sms) {
                        for (const auto b : bytes) {
                            for (const auto g : gaps) {
                                gap_step(path, from, int(n), int(w), b, g);
                            }
                        }
                    }
                }
            }
        }
    }

    void other_paths() {
        const Sizes bytes =
            choose(o_.axes.bytes, {8 * kKi, 16 * kKi, 32 * kKi, 64 * kKi, 256 * kKi});
        const Sizes sms = choose(o_.axes.sms, sm_counts(o_.sms, {1, 16}, {2, 4}));
        for (const auto* path : {"st4", "st4_sector", "tensor", "red_f32", "red_f32x4",
                                 "red_bf16x2", "bulk_red_f32"}) {
            for (const auto n : sms) {
                for (const auto b : bytes) {
                    add("paths", {.path = path, .producers = int(n), .bytes = b});
                }
            }
        }
        // Not the rule but a row of their own: what rewriting unread lines looks like.
        for (const auto* path : {"st16", "bulk"}) {
            for (const auto b : bytes) {
                add("rewritten", {.path = path,
                                  .producers = o_.sms,
                                  .addresses = Addresses::kRewritten,
                                  .bytes = b});
            }
        }
        if (o_.peers > 1) {
            for (int d = 2; d <= std::min(o_.peers, 8); ++d) {
                for (const auto b : bytes) {
                    add("destinations",
                        {.path = "st16", .producers = o_.sms, .destinations = d, .bytes = b});
                }
            }
        }
    }

    void disturbed() {
        const Sizes bytes = choose(o_.axes.bytes, {16 * kKi, 32 * kKi, 64 * kKi, 256 * kKi});
        for (const auto* path : {"st16", "bulk"}) {
            for (const Beside beside : {Beside::kMma, Beside::kMemory, Beside::kShared}) {
                for (const Target target : {Target::kRemote, Target::kLocal}) {
                    for (const auto b : bytes) {
                        add("beside", {.path = path,
                                       .target = target,
                                       .producers = o_.sms,
                                       .beside = beside,
                                       .bytes = b});
                    }
                }
            }
            if (o_.loopback) continue;
            for (const auto n : sm_counts(o_.sms, {16}, {2, 4})) {
                for (const auto b : bytes) {
                    add("both directions",
                        {.path = path, .both_directions = true, .producers = int(n), .bytes = b});
                }
            }
            for (const auto b : {16 * kKi, 32 * kKi}) {
                add("both directions", {.mode = BurstMode::kPeriodic,
                                        .path = path,
                                        .both_directions = true,
                                        .producers = o_.sms,
                                        .bytes = b,
                                        .bursts = 32,
                                        .gap_cycles = 4000});
            }
        }
    }

    void visible() {
        const Sizes bytes =
            choose(o_.axes.bytes, o_.quick ? Sizes{8 * kKi, 32 * kKi, 128 * kKi}
                                           : Sizes{512, 2 * kKi, 8 * kKi, 16 * kKi, 32 * kKi,
                                                   64 * kKi, 128 * kKi, 256 * kKi});
        const Sizes sms = choose(o_.axes.sms, o_.quick ? sm_counts(o_.sms, {}, {4})
                                                       : sm_counts(o_.sms, {1, 16}, {2, 4}));
        visible_step("st16", o_.sms, 0, Fence::kOneThread, Addresses::kFresh);
        for (const auto* path : {"st16", "bulk"}) {
            for (const auto n : sms) {
                for (const auto b : bytes) {
                    visible_step(path, int(n), b, Fence::kOneThread, Addresses::kFresh);
                    if (o_.quick || n != o_.sms || path == std::string("bulk")) continue;
                    visible_step(path, int(n), b, Fence::kAllThreads, Addresses::kFresh);
                    visible_step(path, int(n), b, Fence::kOneThread, Addresses::kRewritten);
                }
            }
        }
    }

    void per_sm() {
        const auto n = static_cast<std::size_t>(o_.sms);
        sm_step("all", [](std::size_t) { return true; });
        if (o_.quick) return;
        sm_step("even", [](std::size_t id) { return id % 2 == 0; });
        sm_step("first_quarter", [n](std::size_t id) { return id < n / 4; });
        sm_step("last_quarter", [n](std::size_t id) { return id >= n - n / 4; });
        // Pairs with the same neighbour in and out tell whether two SMs share a path.
        sm_step("pair", [](std::size_t id) { return id < 2; });
        sm_step("alone", [](std::size_t id) { return id == 0; });
    }

    void rates() {
        const std::int64_t big = std::int64_t{4} << 30;
        rate_step("local_store_loop", "write", Target::kLocal, big / 2);
        rate_step("fill_kernel", "write", Target::kLocal, big);
        rate_step("store_loop", "write", Target::kRemote, big / 2);
        rate_step("copy_engine", "write", Target::kRemote, big);
        rate_step("store_kernel", "write", Target::kRemote, big);
        rate_step("remote_read", "read", Target::kRemote, big);
        if (o_.loopback) return;
        rate_step("copy_engine", "both", Target::kRemote, big / 4);
        rate_step("store_kernel", "both", Target::kRemote, big / 4);
    }

    void litmus() {
        for (const bool loaded : {true, false}) {
            for (const auto* path : {"st16", "bulk", "red"}) {
                for (int f = 0; f <= static_cast<int>(LitmusFence::kNextKernelEarly); ++f) {
                    const auto fence = static_cast<LitmusFence>(f);
                    const bool waits =
                        fence == LitmusFence::kWaitRead || fence == LitmusFence::kWaitAll;
                    if (waits && path != std::string("bulk")) continue;
                    const double ns = static_cast<double>(o_.litmus_trials) * (loaded ? 20 : 30);
                    steps.push_back({"litmus",
                                     LitmusConfig{.path = path,
                                                  .fence = fence,
                                                  .loaded = loaded,
                                                  .trials = o_.litmus_trials},
                                     ns});
                }
            }
        }
    }

  private:
    void add(const char* phase, const StoreConfig& config) {
        steps.push_back({phase, config, estimate_ns(config, o_.quick ? 6 : 16, 370)});
    }

    void gap_step(const char* path, GapFrom from, int sms, int warps, std::int64_t bytes,
                  std::int64_t gap) {
        StoreConfig config{.mode = BurstMode::kGap2,
                           .path = path,
                           .producers = sms,
                           .warps = warps,
                           .bytes = bytes,
                           .bursts = 2,
                           .gap_cycles = gap,
                           .gap_from = from};
        if (from == GapFrom::kAll) {
            // The barrier that finds the slowest producer takes about 2 us itself.
            const bool wanted = gap >= 4000 && sms == o_.sms && path == std::string("st16");
            if (wanted && !o_.quick) add("gap2", config);
            return;
        }
        add("gap2", config);
        const bool sparse = path == std::string("bulk") && sms != o_.sms;
        if (sparse || gap == 1000 || bytes > 64 * kKi) return;
        config.mode = BurstMode::kPeriodic;
        config.bursts = 32;
        add("periodic", config);
        if (sms == o_.sms && (gap == 0 || gap == 16000)) {
            config.target = Target::kLocal;
            add("periodic", config);
        }
    }

    void visible_step(const char* path, int sms, std::int64_t bytes, Fence fence,
                      Addresses addresses) {
        const VisibleConfig config{.path = path,
                                   .producers = sms,
                                   .warps = 4,
                                   .bytes = bytes,
                                   .fence = fence,
                                   .addresses = addresses};
        const double round = 25'000 + static_cast<double>(bytes * sms) / 370;
        steps.push_back({"visible", config, 400'000 + (o_.quick ? 6 : 16) * round});
    }

    template <class Stores>
    void sm_step(const char* name, Stores stores) {
        SmCase sm{name, {.path = "st16", .producers = 0, .warps = 8, .bytes = 1024 * kKi}};
        for (std::size_t id = 0; id < static_cast<std::size_t>(o_.sms); ++id) {
            sm.config.sm_mask.push_back(stores(id));
            sm.config.producers += stores(id);
        }
        const double ns = estimate_ns(sm.config, o_.quick ? 6 : 16, 370);
        steps.push_back({"per_sm", std::move(sm), ns});
    }

    void rate_step(const char* engine, const char* direction, Target target, std::int64_t bytes) {
        const double gbps = target == Target::kLocal ? 2000 : 370;
        steps.push_back(
            {"rates",
             RateConfig{.engine = engine, .direction = direction, .target = target, .bytes = bytes},
             3 * (static_cast<double>(bytes) / gbps + 1e6)});
    }

    const PlanOptions& o_;
};

}  // namespace

double estimate_ns(const StoreConfig& config, int samples, double rate) {
    const double bytes = static_cast<double>(config.bytes) * config.producers;
    const double burst = std::max(500.0, bytes / rate);
    const double gap = static_cast<double>(config.gap_cycles) / 1.98;
    // 12 us a round for warm-up, start line and fence; a launch has its set-up, check and copies.
    // copies.
    const double round = 12'000 + config.bursts * std::max(burst, gap);
    return kLaunchNs + (samples + 1) * round;
}

std::vector<Step> make_plan(const PlanOptions& options) {
    Planner planner(options);
    if (options.litmus) {
        planner.litmus();
        return std::move(planner.steps);
    }
    planner.isolated();
    planner.gaps();
    planner.visible();
    planner.per_sm();
    planner.rates();
    if (!options.quick) {
        planner.other_paths();
        planner.disturbed();
    }
    auto& steps = planner.steps;
    if (!options.axes.paths.empty()) {
        const auto& paths = options.axes.paths;
        std::erase_if(steps, [&](const Step& step) {
            const auto* config = std::get_if<StoreConfig>(&step.work);
            return config != nullptr &&
                   std::find(paths.begin(), paths.end(), config->path) == paths.end();
        });
    }
    // One phase after the other, in the order of their first steps.
    std::map<std::string, std::size_t> order;
    for (const Step& step : steps) order.emplace(step.phase, order.size());
    std::stable_sort(steps.begin(), steps.end(), [&](const Step& a, const Step& b) {
        return order.at(a.phase) < order.at(b.phase);
    });
    return std::move(steps);
}

std::string fence_name(LitmusFence fence) {
    switch (fence) {
        case LitmusFence::kNothing:
            return "nothing";
        case LitmusFence::kWaitRead:
            return "wait_group.read";
        case LitmusFence::kWaitAll:
            return "wait_group";
        case LitmusFence::kFenceGpu:
            return "fence.gpu";
        case LitmusFence::kReleaseSys:
            return "release.sys";
        case LitmusFence::kNextKernel:
            return "next_kernel";
        case LitmusFence::kNextKernelPdl:
            return "next_kernel.programmatic_wait";
        case LitmusFence::kNextKernelEarly:
            return "next_kernel.programmatic_early";
    }
    return "?";
}

bool formally_sufficient(const std::string&, LitmusFence fence) {
    // Another GPU observes: only a release at system scope after the writes are performed will do.
    // The test issues wait_group before its release for bulk copies; the end of a kernel, and a
    // griddepcontrol.wait on it, perform all of its writes.
    return fence == LitmusFence::kReleaseSys || fence == LitmusFence::kNextKernel ||
           fence == LitmusFence::kNextKernelPdl;
}

std::string describe(const Step& step) {
    struct Describe {
        std::string operator()(const StoreConfig& c) const {
            return fmt::format("{} {} {} {} SMs x {} warps x {} B, gap {}",
                               trace::enum_name(c.mode), c.path, trace::enum_name(c.target),
                               c.producers, c.warps, c.bytes, c.gap_cycles);
        }
        std::string operator()(const VisibleConfig& c) const {
            return fmt::format("visible {} {} SMs x {} B", c.path, c.producers, c.bytes);
        }
        std::string operator()(const SmCase& c) const { return "per SM, " + c.name; }
        std::string operator()(const RateConfig& c) const {
            return fmt::format("rate of {} ({})", c.engine, c.direction);
        }
        std::string operator()(const LitmusConfig& c) const {
            return fmt::format("ordering {} {} {}", c.path, fence_name(c.fence),
                               c.loaded ? "loaded" : "idle");
        }
    };
    return std::visit(Describe{}, step.work);
}

}  // namespace xstage::probe
