// Plain rates, timed with events over transfers that are long beside a launch.

#include <fmt/format.h>

#include <algorithm>

#include "cuda_node.hpp"

namespace xstage::probe {
namespace {

constexpr int kReadThreads = 512;
constexpr int kStoreThreads = 128;  // four warps per SM, the shape of the store loop

struct Lane {
    int device;  ///< that issues
    cudaStream_t stream;
    char* to;
    const char* from;
    int to_device;
    int from_device;
};

}  // namespace

RateSample CudaNode::rate(const RateConfig& config) {
    const bool remote = config.target == Target::kRemote && !options_.loopback;
    const bool both = config.direction == "both";
    if (both && !remote) throw Error(ErrorKind::kUnsupported, "both directions need two GPUs");
    const std::uint64_t limit = both ? kBackBytes : kWindowBytes;
    const std::uint64_t bytes =
        std::min<std::uint64_t>(static_cast<std::uint64_t>(config.bytes), limit);

    // The window at the target is written (or, by a remote read, read); the other end is from_'s.
    std::vector<Lane> lanes;
    char* target = config.target == Target::kRemote ? windows_.front().get() : local_window_.get();
    char* other = config.target == Target::kRemote ? local_window_.get() : windows_.front().get();
    lanes.push_back({from_, stream_.get(), target, other, remote ? to_ : from_, from_});
    if (both) {
        lanes.push_back(
            {to_, reader_stream_.get(), back_window_.get(), windows_.front().get(), from_, to_});
    }
    DeviceArray<std::uint32_t> sink(from_, 1), other_sink(to_, 1);
    const bool reads = config.engine == "remote_read";
    auto counter = [&] {
        const std::int64_t sent = nvml_.link_bytes_sent(uuid_);
        const std::int64_t received = nvml_.link_bytes_received(uuid_);
        if (both) return sent < 0 || received < 0 ? -1 : sent + received;
        return reads ? received : sent;
    };
    const std::int64_t before = remote ? counter() : -1;

    std::vector<Event> begin, end;
    for (const Lane& lane : lanes) {
        begin.emplace_back(lane.device);
        end.emplace_back(lane.device);
    }
    const int warm = config.engine == "copy_engine" ? 0 : 50;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        const Lane& lane = lanes[i];
        const OnDevice on(lane.device);
        if (warm != 0) XSTAGE_CUDA_CHECK(launch_spin(200'000, sms_, lane.stream));
        XSTAGE_CUDA_CHECK(cudaEventRecord(begin[i].get(), lane.stream));
        if (config.engine == "copy_engine") {
            XSTAGE_CUDA_CHECK(cudaMemcpyPeerAsync(lane.to, lane.to_device, lane.from,
                                                  lane.from_device, bytes, lane.stream));
        } else if (reads) {
            XSTAGE_CUDA_CHECK(launch_read(lane.to, bytes, 2 * sms_, kReadThreads, 1,
                                          lane.device == from_ ? sink.get() : other_sink.get(),
                                          lane.stream));
        } else if (config.engine == "fill_kernel" || config.engine == "store_kernel") {
            XSTAGE_CUDA_CHECK(
                launch_fill(lane.to, bytes, next_seed(), sms_, kStoreThreads, 1, lane.stream));
        } else {
            throw Error(ErrorKind::kBadInput, fmt::format("no rate of engine '{}'", config.engine));
        }
        XSTAGE_CUDA_CHECK(cudaEventRecord(end[i].get(), lane.stream));
    }
    RateSample sample;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        finish(lanes[i].device, lanes[i].stream, "rate");
        float ms = 0;
        XSTAGE_CUDA_CHECK(cudaEventElapsedTime(&ms, begin[i].get(), end[i].get()));
        sample.ns = std::max(sample.ns, 1e6 * static_cast<double>(ms));
        sample.bytes += static_cast<std::int64_t>(bytes);
    }
    if (before >= 0) {
        const std::int64_t after = counter();
        if (after > before) sample.counted_bytes = after - before;
    }
    return sample;
}

}  // namespace xstage::probe
