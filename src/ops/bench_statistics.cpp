#include "ops/bench_statistics.hpp"

#include <algorithm>
#include <ctime>
#include <random>

namespace xstage::bench {

double quantile(std::vector<double> values, double q) {
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

nlohmann::ordered_json ratio(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) ratios.push_back(a[i] / b[i]);
    std::mt19937 random(1);
    std::vector<double> medians;
    for (int round = 0; round < 500; ++round) {
        std::vector<double> drawn;
        for (std::size_t i = 0; i < ratios.size(); ++i)
            drawn.push_back(ratios[random() % ratios.size()]);
        medians.push_back(quantile(std::move(drawn), 0.5));
    }
    return {{"median", quantile(ratios, 0.5)},
            {"interval95", {quantile(medians, 0.025), quantile(medians, 0.975)}}};
}

std::string now() {
    char text[32];
    const std::time_t t = std::time(nullptr);
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&t));
    return text;
}

}  // namespace xstage::bench
