// The store loop's host side: parameters, addresses, launch, and the samples read back.

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

#include "cuda_background.hpp"
#include "cuda_node.hpp"
#include "tensor_map.hpp"
#include "xstage/device/wait_report.hpp"

namespace xstage::probe {
namespace {

constexpr std::uint32_t kTensorBlock = 131072;
// About 100 us before a launch's first round, 5 us before the others: the SMs are never idle for
// long enough to lose their clock.
constexpr std::uint32_t kWarmFirst = 200'000;
constexpr std::uint32_t kWarm = 10'000;

std::uint32_t burst_span(const StoreConfig& config, const StoreShape& shape) {
    const auto bytes = static_cast<std::uint64_t>(config.bytes) * shape.span;
    const std::uint64_t grain = config.path == "tensor" ? kTensorBlock : 512;
    return static_cast<std::uint32_t>((bytes + grain - 1) / grain * grain);
}

/// So that the burst is expected to take 8 to 16 of the 32 intervals, stalled by the link or not.
std::uint32_t beside_shift(const StoreConfig& config, double clock_ghz) {
    const double gbps = config.target == Target::kRemote ? 370 : 4000;
    const double link = static_cast<double>(config.bytes) * config.producers / gbps * clock_ghz;
    const double issue = static_cast<double>(config.bytes) / 40;  // an SM stores about 40 B a cycle
    std::uint32_t shift = 6;  // below 64 cycles no step of the work ends
    while (shift < 20 && std::max(link, issue) > 16 << shift) ++shift;
    return shift;
}

double median_of(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

bool CudaNode::supports(const StoreConfig& config, std::string& why_not) const {
    const StoreShape shape = store_shape(config.path.c_str(), static_cast<int>(config.beside));
    if (!shape.known) {
        why_not = fmt::format("path '{}' has no kernel with this work beside it", config.path);
    } else if (config.producers < 1 || config.producers > sms_) {
        why_not = fmt::format("{} producers on {} SMs", config.producers, sms_);
    } else if (config.warps < 1 || config.warps > kMaxWorkers) {
        why_not = fmt::format("{} warps; 1 to {} can store", config.warps, kMaxWorkers);
    } else if (config.bursts < 1 || config.bursts > kMaxBursts) {
        why_not = fmt::format("{} bursts; 1 to {} are recorded", config.bursts, kMaxBursts);
    } else if (config.bytes < 512 || config.bytes % 512 != 0 || config.bytes > (1 << 24)) {
        why_not = fmt::format("{} bytes per producer; multiples of 512 up to 16 MiB", config.bytes);
    } else if (config.path == "tensor" && config.bytes % 4096 != 0) {
        why_not = "a tensor-map burst consists of boxes of 4096 bytes";
    } else if (config.both_directions && from_ == to_) {
        why_not = "both directions need two GPUs";
    } else if (config.destinations > static_cast<int>(windows_.size())) {
        why_not = fmt::format("{} destinations; this GPU has {} peer(s)", config.destinations,
                              options_.loopback ? 0 : windows_.size());
    } else if (config.gap_from == GapFrom::kAll && !config.sm_mask.empty()) {
        why_not = "a gap counted from all producers needs all of them to store";
    } else {
        return true;
    }
    return false;
}

LineMemory CudaNode::fresh_lines(std::size_t lines) {
    line_count_.reserve(from_, std::max<std::size_t>(lines, 4096));
    line_start_.reserve(from_, std::max<std::size_t>(lines, 4096));
    line_arrived_.reserve(from_, kMaxSms);
    const cudaStream_t stream = stream_.get();
    XSTAGE_CUDA_CHECK(cudaMemsetAsync(line_count_.get(), 0, lines * 4, stream));
    XSTAGE_CUDA_CHECK(cudaMemsetAsync(line_start_.get(), 0, lines * 8, stream));
    XSTAGE_CUDA_CHECK(cudaMemsetAsync(line_arrived_.get(), 0, kMaxSms * 4, stream));
    return {line_count_.get(), line_start_.get(), line_arrived_.get()};
}

const TensorMaps& CudaNode::tensor_maps(Target target) {
    auto& maps = target == Target::kRemote ? remote_maps_ : local_maps_;
    if (maps == nullptr) {
        maps = std::make_unique<TensorMaps>();
        if (target == Target::kLocal) {
            maps->map[0] = window_tensor_map(local_window_.get(), kWindowBytes);
        } else {
            for (std::size_t i = 0; i < windows_.size(); ++i) {
                maps->map[i] = window_tensor_map(windows_[i].get(), kWindowBytes);
            }
        }
    }
    return *maps;
}

void CudaNode::check_arrival(const StoreConfig& config, const StoreParams& params, int device) {
    if (config.destinations != 1 || !config.sm_mask.empty()) return;
    if (config.path != "st16" && config.path != "st4" && config.path != "bulk") return;
    // Of the last burst of the last round, which nothing has overwritten.
    const std::uint64_t producers = static_cast<std::uint64_t>(config.producers);
    const std::uint64_t sequence =
        params.rewrite ? 0 : (std::uint64_t{params.rounds} * params.bursts - 1) * producers;
    const std::uint64_t first = (params.first_slot + sequence) % params.slots;
    const std::uint64_t before_wrap = std::min(producers, params.slots - first);
    const std::uint32_t seed = params.seed + params.rounds - 1;
    const bool local = config.target == Target::kLocal;
    unsigned long long* wrong = local ? wrong_local_.get() : wrong_.get();
    const OnDevice on(device);
    const cudaStream_t stream = local ? stream_.get() : reader_stream_.get();
    XSTAGE_CUDA_CHECK(cudaMemsetAsync(wrong, 0, sizeof *wrong, stream));
    XSTAGE_CUDA_CHECK(launch_check(params.destination[0] + first * params.span,
                                   before_wrap * params.span, params.span, seed, wrong, stream));
    if (before_wrap < producers) {
        XSTAGE_CUDA_CHECK(launch_check(params.destination[0],
                                       (producers - before_wrap) * params.span, params.span, seed,
                                       wrong, stream));
    }
    finish(device, stream, "check of the stored bytes");
    unsigned long long count = 0;
    XSTAGE_CUDA_CHECK(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost));
    if (count != 0) {
        throw Error(ErrorKind::kCheckFailed,
                    fmt::format("{} words of {} bursts of {} bytes did not arrive ({})", count,
                                producers, config.bytes, config.path));
    }
}

std::vector<StoreSample> CudaNode::store(const StoreConfig& config, int samples) {
    const int beside = static_cast<int>(config.beside);
    const StoreShape shape = store_shape(config.path.c_str(), beside);
    const OnDevice on(from_);
    const auto ctas = static_cast<std::size_t>(config.sm_mask.empty() ? config.producers : sms_);
    const auto rounds = static_cast<std::size_t>(samples + 1);
    const auto bursts = static_cast<std::size_t>(config.bursts);
    const std::size_t workers = shape.bulk ? 1 : static_cast<std::size_t>(config.warps);
    const std::size_t times = rounds * bursts * ctas * workers;
    rounds_.reserve(from_, rounds * ctas);
    issue_.reserve(from_, times);
    posted_.reserve(from_, times);

    StoreParams params{};
    const bool remote = config.target == Target::kRemote;
    for (std::size_t i = 0; i < windows_.size(); ++i) params.destination[i] = windows_[i].get();
    if (!remote) params.destination[0] = local_window_.get();
    params.destinations = static_cast<std::uint32_t>(remote ? config.destinations : 1);
    params.span = burst_span(config, shape);
    params.slots = static_cast<std::uint32_t>(kWindowBytes / params.span);
    params.first_slot = static_cast<std::uint32_t>((cursor_ + params.span - 1) / params.span);
    params.rewrite = config.addresses == Addresses::kRewritten;
    params.bytes = static_cast<std::uint32_t>(config.bytes);
    params.bursts = static_cast<std::uint32_t>(config.bursts);
    params.gap_cycles = static_cast<std::uint32_t>(config.gap_cycles);
    params.gap_ns = static_cast<std::uint32_t>(static_cast<double>(config.gap_cycles) / clock_ghz_);
    params.gap_all = config.gap_from == GapFrom::kAll;
    params.warps = static_cast<std::uint32_t>(config.warps);
    params.rounds = static_cast<std::uint32_t>(rounds);
    params.seed = next_seed();
    params.warm_cycles_first = kWarmFirst;
    params.warm_cycles = kWarm;
    for (int sm = 0; sm < kMaxSms; ++sm) {
        const auto at = static_cast<std::size_t>(sm);
        const bool stores =
            config.sm_mask.empty() || (at < config.sm_mask.size() && config.sm_mask[at]);
        if (stores) params.sm_mask[sm / 64] |= std::uint64_t{1} << (sm % 64);
    }
    params.wait_budget_ns = kWaitBudgetNs;
    params.beside_memory = beside_.get();
    params.beside_shift = beside_shift(config, clock_ghz_);
    params.lines = fresh_lines(rounds * bursts);
    params.report = report_.get();
    params.rounds_out = rounds_.get();
    params.issue_out = issue_.get();
    params.posted_out = posted_.get();
    const std::uint64_t used = params.rewrite ? ctas : rounds * bursts * ctas;
    cursor_ = (std::uint64_t{params.first_slot} + used) * params.span % kWindowBytes;

    static const TensorMaps kNoMaps{};
    const TensorMaps& maps = config.path == "tensor" ? tensor_maps(config.target) : kNoMaps;
    {
        std::unique_ptr<Background> background;
        if (config.both_directions) {
            background = std::make_unique<Background>(to_, back_window_, reader_stream_, control_,
                                                      reader_report_.get());
        }
        XSTAGE_CUDA_CHECK(launch_store(config.path.c_str(), beside, params, maps,
                                       static_cast<int>(ctas), exclusive_shared_, stream_.get()));
        finish(from_, stream_.get(), "store loop");
        if (background != nullptr) background->stop();
    }
    if (config.both_directions) finish(to_, reader_stream_.get(), "stores of the other direction");
    throw_if_waited_out("store loop");
    check_arrival(config, params, remote ? to_ : from_);

    std::vector<CtaRound> accounts(rounds * ctas);
    std::vector<std::uint32_t> issue(times), posted(shape.bulk ? times : 0);
    XSTAGE_CUDA_CHECK(cudaMemcpy(accounts.data(), rounds_.get(), accounts.size() * sizeof(CtaRound),
                                 cudaMemcpyDeviceToHost));
    XSTAGE_CUDA_CHECK(cudaMemcpy(issue.data(), issue_.get(), times * 4, cudaMemcpyDeviceToHost));
    if (shape.bulk) {
        XSTAGE_CUDA_CHECK(
            cudaMemcpy(posted.data(), posted_.get(), times * 4, cudaMemcpyDeviceToHost));
    }

    std::vector<StoreSample> out;
    for (std::size_t round = 1; round < rounds; ++round) {
        StoreSample sample;
        sample.issue.resize(bursts);
        if (shape.bulk) sample.posted.resize(bursts);
        std::vector<double> elapsed, cycles, ns;
        double quiet_n = 0, quiet_cycles = 0, storing_n = 0, storing_cycles = 0;
        for (std::size_t cta = 0; cta < ctas; ++cta) {
            const CtaRound& account = accounts[round * ctas + cta];
            if (account.stored == 0) continue;
            elapsed.push_back(static_cast<double>(account.end_ns - account.start_ns));
            cycles.push_back(static_cast<double>(account.window_cycles));
            ns.push_back(static_cast<double>(account.window_ns));
            quiet_n += account.quiet_steps;
            quiet_cycles += account.quiet_cycles;
            storing_n += account.storing_steps;
            storing_cycles += account.storing_cycles;
            for (std::size_t worker = 0; worker < workers; ++worker) {
                sample.total.push_back(account.total_cycles[worker]);
                sample.fence.push_back(account.fence_cycles);
                sample.sm.push_back(static_cast<int>(account.sm));
                for (std::size_t burst = 0; burst < bursts; ++burst) {
                    const std::size_t at =
                        ((round * bursts + burst) * ctas + cta) * workers + worker;
                    sample.issue[burst].push_back(issue[at]);
                    if (shape.bulk) sample.posted[burst].push_back(posted[at]);
                }
            }
        }
        if (elapsed.empty()) {
            throw Error(ErrorKind::kBadInput, "no SM of the mask exists: nothing was stored");
        }
        sample.elapsed_ns = median_of(elapsed);
        sample.window_cycles = median_of(cycles);
        sample.window_ns = median_of(ns);
        if (quiet_cycles > 0) sample.beside_quiet = 1000 * quiet_n / quiet_cycles;
        if (storing_cycles > 0) sample.beside_storing = 1000 * storing_n / storing_cycles;
        out.push_back(std::move(sample));
    }
    return out;
}

}  // namespace xstage::probe
