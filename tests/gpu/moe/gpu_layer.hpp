#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "moe_case.hpp"
#include "xstage/moe.hpp"

namespace xstage::moe::suite {

/// Why there is no GPU to run on; empty when there is one.
std::string missing_gpu();

/// A case on one GPU, all its ranks virtual.
class GpuLayer {
  public:
    GpuLayer(const Case& c, const Options& options = {});
    ~GpuLayer();

    MegaMoe& moe();
    fabric::Fabric& group();
    /// Spoils y, runs, and gives y back as [rank][token * hidden].
    std::vector<std::vector<double>> run();
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
