#include "xstage/version.hpp"

#include "xstage/xstage.h"

const char* xstage_version(void) {
    return xstage::kVersion;
}
