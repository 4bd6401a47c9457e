// Visibility and ordering: the two measurements with a kernel at either end.

#include <fmt/format.h>

#include <algorithm>

#include "cuda_node.hpp"
#include "xstage/device/wait_report.hpp"

namespace xstage::probe {
namespace {

constexpr std::uint32_t kWarmFirst = 200'000;
constexpr std::uint32_t kWarm = 10'000;

template <class Member>
double median_cta(const CtaRound* round, int ctas, Member member) {
    std::vector<double> values;
    for (int cta = 0; cta < ctas; ++cta) values.push_back(static_cast<double>(member(round[cta])));
    std::nth_element(values.begin(), values.begin() + ctas / 2, values.end());
    return values[static_cast<std::size_t>(ctas / 2)];
}

}  // namespace

std::vector<VisibleSample> CudaNode::visible(const VisibleConfig& config, int samples) {
    const bool bulk = config.path == "bulk";
    if ((config.path != "st16" && !bulk) || config.producers < 1 || config.producers > sms_ ||
        config.warps < 1 || config.warps > kMaxWorkers || config.bytes < 0 ||
        config.bytes % 512 != 0) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("no visibility test of {} x {} warps x {} bytes by {}",
                                config.producers, config.warps, config.bytes, config.path));
    }
    const auto rounds = static_cast<std::size_t>(samples + 1);
    const auto ctas = static_cast<std::size_t>(config.producers);
    rounds_.reserve(from_, rounds * ctas);
    const OnDevice on(from_);
    // flag, reader_done and stale lie at the reader; echo, checked and arrivals at the sender.
    DeviceArray<std::uint32_t> at_reader(to_, 32 + 2 * rounds);
    DeviceArray<std::uint32_t> at_sender(from_, 64 + rounds);
    DeviceArray<std::uint64_t> echo(from_, 2 * rounds);

    VisibleParams params{};
    params.destination = windows_.front().get();
    const std::uint64_t span =
        std::max<std::uint64_t>(static_cast<std::uint64_t>(config.bytes), 512);
    params.slots = static_cast<std::uint32_t>(kWindowBytes / span);
    params.first_slot = static_cast<std::uint32_t>((cursor_ + span - 1) / span);
    params.rewrite = config.addresses == Addresses::kRewritten;
    params.bytes = static_cast<std::uint32_t>(config.bytes);
    params.warps = static_cast<std::uint32_t>(config.warps);
    params.producers = static_cast<std::uint32_t>(config.producers);
    params.all_fence = config.fence == Fence::kAllThreads;
    params.rounds = static_cast<std::uint32_t>(rounds);
    params.seed = next_seed();
    params.warm_cycles_first = kWarmFirst;
    params.warm_cycles = kWarm;
    params.wait_budget_ns = kWaitBudgetNs;
    params.flag = at_reader.get();
    params.reader_done = at_reader.get() + 32;
    params.stale_out = at_reader.get() + 32 + rounds;
    params.echo = at_sender.get();
    params.checked = at_sender.get() + 32;
    params.arrivals = at_sender.get() + 64;
    params.lines = fresh_lines(rounds);
    params.report = report_.get();
    params.reader_report = reader_report_.get();
    params.rounds_out = rounds_.get();
    params.echo_out = echo.get();
    cursor_ = (std::uint64_t{params.first_slot} + (params.rewrite ? ctas : rounds * ctas)) * span %
              kWindowBytes;

    {
        const OnDevice at(to_);
        XSTAGE_CUDA_CHECK(launch_visible_reader(params, sms_, reader_stream_.get()));
    }
    XSTAGE_CUDA_CHECK(launch_visible_sender(bulk, params, exclusive_shared_, stream_.get()));
    finish(from_, stream_.get(), "visibility, sender");
    finish(to_, reader_stream_.get(), "visibility, reader");
    throw_if_waited_out("visibility");

    std::vector<CtaRound> accounts(rounds * ctas);
    std::vector<std::uint64_t> answers(2 * rounds);
    std::vector<std::uint32_t> stale(rounds);
    XSTAGE_CUDA_CHECK(cudaMemcpy(accounts.data(), rounds_.get(), accounts.size() * sizeof(CtaRound),
                                 cudaMemcpyDeviceToHost));
    XSTAGE_CUDA_CHECK(
        cudaMemcpy(answers.data(), echo.get(), answers.size() * 8, cudaMemcpyDeviceToHost));
    XSTAGE_CUDA_CHECK(
        cudaMemcpy(stale.data(), params.stale_out, rounds * 4, cudaMemcpyDeviceToHost));
    std::vector<VisibleSample> out;
    for (std::size_t round = 1; round < rounds; ++round) {
        const CtaRound* account = accounts.data() + round * ctas;
        const int n = config.producers;
        out.push_back(
            {.issue = median_cta(account, n, [](const CtaRound& c) { return c.total_cycles[0]; }),
             .fenced = median_cta(account, n, [](const CtaRound& c) { return c.fence_cycles; }),
             .echo = static_cast<double>(answers[2 * round]),
             .echo_ns = static_cast<double>(answers[2 * round + 1]),
             .window_cycles =
                 median_cta(account, n, [](const CtaRound& c) { return c.window_cycles; }),
             .window_ns = median_cta(account, n, [](const CtaRound& c) { return c.window_ns; }),
             .stale_words = stale[round]});
    }
    return out;
}

LitmusCount CudaNode::litmus(const LitmusConfig& config) {
    const int path = config.path == "st16" ? 0 : config.path == "bulk" ? 1 : 2;
    if (path == 2 && config.path != "red") {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("no ordering test of path '{}'", config.path));
    }
    const bool later = config.fence >= LitmusFence::kNextKernel;
    LitmusParams params{};
    params.message_ctas =
        static_cast<std::uint32_t>(std::max(1, config.loaded ? sms_ / 2 : sms_ / 8));
    params.load_ctas = config.loaded ? static_cast<std::uint32_t>(sms_ / 2) : 0;
    params.channels = params.message_ctas * static_cast<std::uint32_t>(litmus_channels_per_cta());
    params.slots = later ? 16 : 4;
    const std::int64_t per_channel = (config.trials + params.channels - 1) / params.channels;
    const std::int64_t launches = later ? (per_channel + params.slots - 1) / params.slots : 1;
    params.messages_per_channel = later ? params.slots : static_cast<std::uint32_t>(per_channel);
    params.reader_messages = static_cast<std::uint32_t>(launches) * params.messages_per_channel;
    params.fence = static_cast<std::uint32_t>(config.fence);
    params.wait_budget_ns = kWaitBudgetNs;
    params.first = 1;

    const OnDevice on(from_);
    const std::size_t message_bytes = std::size_t{params.channels} * params.slots * kMessageBytes;
    DeviceArray<char> messages(to_, message_bytes);
    DeviceArray<std::uint32_t> flags(to_, params.channels * kFlagStride);
    DeviceArray<std::uint32_t> credits(from_, params.channels * kFlagStride);
    DeviceArray<std::uint32_t> load_stop(from_, 1);
    DeviceArray<unsigned long long> counts(to_, 3);
    params.messages = messages.get();
    params.flags = flags.get();
    params.credits = credits.get();
    params.load = windows_.front().get();
    params.load_bytes = kBackBytes;
    params.load_stop = load_stop.get();
    params.trials = counts.get();
    params.stale_messages = counts.get() + 1;
    params.stale_words = counts.get() + 2;
    params.report = report_.get();
    params.reader_report = reader_report_.get();

    {
        const OnDevice at(to_);
        XSTAGE_CUDA_CHECK(launch_litmus_reader(path, params, reader_stream_.get()));
    }
    for (std::int64_t launch = 0; launch < launches; ++launch) {
        params.first = 1 + static_cast<std::uint32_t>(launch) * params.messages_per_channel;
        params.load_stop_at = static_cast<std::uint32_t>(launch + 1) * params.message_ctas;
        XSTAGE_CUDA_CHECK(launch_litmus_sender(path, params, stream_.get()));
        if (later) {
            const bool programmatic = config.fence != LitmusFence::kNextKernel;
            XSTAGE_CUDA_CHECK(launch_litmus_release(params, programmatic, stream_.get()));
        }
    }
    finish(from_, stream_.get(), "ordering test, sender");
    finish(to_, reader_stream_.get(), "ordering test, reader");
    throw_if_waited_out("ordering test");
    unsigned long long found[3] = {};
    XSTAGE_CUDA_CHECK(cudaMemcpy(found, counts.get(), sizeof found, cudaMemcpyDeviceToHost));
    return {.trials = static_cast<std::int64_t>(found[0]),
            .stale_messages = static_cast<std::int64_t>(found[1]),
            .stale_words = static_cast<std::int64_t>(found[2])};
}

}  // namespace xstage::probe
