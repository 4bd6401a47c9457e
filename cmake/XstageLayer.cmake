# xstage_layer(NAME SOURCES ... [DEPS ...] [PRIVATE_DEPS ...]): one static library per layer, with
# public headers in include/ and private ones beside the sources ("core/json.hpp").
function(xstage_layer name)
    cmake_parse_arguments(arg "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
    add_library(xstage_${name} STATIC ${arg_SOURCES})
    add_library(xstage::${name} ALIAS xstage_${name})
    set_target_properties(xstage_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
    target_compile_features(xstage_${name} PUBLIC cxx_std_20)
    target_include_directories(xstage_${name}
        PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
        PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/src)
    target_link_libraries(xstage_${name} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
    xstage_warnings(xstage_${name})
    set_property(GLOBAL APPEND PROPERTY XSTAGE_LAYERS xstage_${name})
endfunction()

# Warnings are errors on our own code only, and only in our own build.
function(xstage_warnings target)
    if(PROJECT_IS_TOP_LEVEL)
        target_compile_options(${target} PRIVATE
            $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror>
            "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=-Wall,-Wextra,-Werror -Werror all-warnings>")
    endif()
endfunction()
