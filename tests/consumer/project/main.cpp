#include <cstdio>

#include "xstage/documents.hpp"

// Reads a measurement document named on the command line, as a user's own tool would.
int main(int argc, char** argv) {
    if (argc != 2) return 2;
    try {
        const xstage::Measurements measurements = xstage::read_measurements(argv[1]);
        std::printf("%zu burst rows\n", measurements.bursts.size());
        return measurements.bursts.empty();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
