# xstage_self_contained(TARGET): runs where there is no C++ runtime and no fmt of ours, as a wheel must.
# Debian has no static fmt, so its two library files are compiled here from the headers that it installs.
set(XSTAGE_SOURCE_OF_SELF_CONTAINED ${CMAKE_CURRENT_LIST_DIR})
function(xstage_self_contained target)
    if(XSTAGE_SANITIZE)
        return()
    endif()
    target_sources(${target} PRIVATE ${XSTAGE_SOURCE_OF_SELF_CONTAINED}/fmt_static.cpp)
    # With the definitions inside, the shared fmt that the layers name is not needed.
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc
        LINKER:--as-needed LINKER:--gc-sections)
endfunction()
