#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "moe_case.hpp"
#include "xstage/moe.hpp"

namespace xstage::moe::suite {

/// Why there is no GPU to run on; empty when there is one.
std::string missing_gpu();

/// Virtual ranks on one GPU.
fabric::FabricOptions virtual_ranks(int world);

/// The ranks of a case that are this process's: all of them virtual, if nothing else is asked for.
class GpuLayer {
  public:
    explicit GpuLayer(const Case& c, const Options& options = {});
    GpuLayer(const Case& c, const Options& options, const fabric::FabricOptions& group);
    ~GpuLayer();

    MegaMoe& moe();
    fabric::Fabric& group();
    /// Spoils y, runs, and gives y back as [rank][token * hidden].
    std::vector<std::vector<double>> run();
    /// From now on the kernel reads the number of tokens from memory, where this puts it; in stream
    /// order.
    void set_tokens(const std::vector<std::int32_t>& tokens);
    /// y as it stands, whatever became of the group.
    std::vector<std::vector<double>> read() const;
    /// Runs once with stamps and gives those of each rank back, empty slots left out.
    std::vector<std::vector<Stamp>> stamps();
    /// Runs without looking.
    void launch();
    /// Copies a case's inputs (same shapes) to where the calls read them; in stream order.
    void load(const Case& c);
    std::vector<std::vector<double>> results();
    /// Captures launch() and replays it; `before` runs before each replay, `after` after it.
    void replay(int replays, const std::function<void(int)>& before,
                const std::function<void(int)>& after);
    /// Runs a kernel that holds an SM for some microseconds on another stream.
    void occupy();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace xstage::moe::suite
