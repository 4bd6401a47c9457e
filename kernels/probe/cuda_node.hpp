#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda_memory.hpp"
#include "launch.hpp"
#include "nvml.hpp"
#include "probe/node.hpp"

namespace xstage::probe {

/// One direction of stores between two GPUs of this process, or within one GPU in loopback.
class CudaNode final : public Node {
  public:
    explicit CudaNode(const NodeOptions& options);

    NodeInfo info() const override;
    std::vector<PairCheck> self_test() override;
    void use_pair(int from, int to) override;
    void warm_up(double milliseconds) override;
    ThrottleState throttle() override;
    bool supports(const StoreConfig& config, std::string& why_not) const override;
    std::vector<StoreSample> store(const StoreConfig& config, int samples) override;
    std::vector<VisibleSample> visible(const VisibleConfig& config, int samples) override;
    RateSample rate(const RateConfig& config) override;
    LitmusCount litmus(const LitmusConfig& config) override;
    std::vector<std::vector<int>> sm_groups() override;

  private:
    static constexpr std::uint64_t kWindowBytes = std::uint64_t{4} << 30;
    static constexpr std::uint64_t kBackBytes = std::uint64_t{1} << 30;
    static constexpr std::uint64_t kWaitBudgetNs = 2'000'000'000;

    /// Waits for the stream's work, but not for ever; then looks at the reports of bounded waits.
    void finish(int device, cudaStream_t stream, const char* what);
    void throw_if_waited_out(const char* what);
    void enable_peer(int device, int peer);
    void prepare_kernels(int device);
    PairCheck check_pair(int from, int to);
    void check_arrival(const StoreConfig& config, const StoreParams& params, int device);
    const TensorMaps& tensor_maps(Target target);
    LineMemory fresh_lines(std::size_t lines);
    std::uint32_t next_seed() { return seed_ += 64; }

    class Background;

    NodeOptions options_;
    Nvml nvml_;
    int device_count_ = 0;
    std::set<std::pair<int, int>> enabled_;  ///< peer access, by (device, peer)
    int from_ = 0;
    int to_ = 0;
    std::string uuid_;  ///< of from_
    int sms_ = 0;
    int exclusive_shared_ = 0;
    double clock_ghz_ = 0;  ///< the sender's maximum SM clock, to turn a gap into nanoseconds
    std::uint32_t seed_ = 1;
    std::uint64_t cursor_ =
        0;  ///< bytes of the windows used so far; fresh addresses go on from here

    Stream stream_;                           ///< on from_
    Stream reader_stream_;                    ///< on to_
    Stream control_;                          ///< on to_, for stopping the background
    std::vector<DeviceArray<char>> windows_;  ///< remote: on to_ first, then on the other peers
    std::vector<int> window_device_;
    DeviceArray<char> local_window_;
    DeviceArray<char> back_window_;  ///< on from_: what the peer stores to in both directions
    DeviceArray<std::uint8_t> beside_;
    DeviceArray<std::uint32_t> line_count_, line_arrived_;
    DeviceArray<std::uint64_t> line_start_;
    DeviceArray<CtaRound> rounds_;
    DeviceArray<std::uint32_t> issue_, posted_;
    DeviceArray<unsigned long long> wrong_;  ///< on to_ and, for the control, on from_
    DeviceArray<unsigned long long> wrong_local_;
    DeviceArray<device::WaitReport> report_, reader_report_;
    std::unique_ptr<TensorMaps> remote_maps_, local_maps_;
};

}  // namespace xstage::probe
