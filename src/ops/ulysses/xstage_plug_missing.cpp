#include "xstage/error.hpp"
#include "xstage/ulysses/xstage_plug.hpp"

namespace xstage::ulysses {

std::string xstage_plug_missing() {
    return "this xstage was built without its attention kernel, which needs CUDA and the CUTLASS "
           "headers";
}

Plug xstage_plug(const std::string&) {
    throw Error(ErrorKind::kUnsupported, xstage_plug_missing());
}

}  // namespace xstage::ulysses
