# find_package(xstage) and add_subdirectory both give the targets xstage::<layer>.
include(CMakePackageConfigHelpers)
get_property(layers GLOBAL PROPERTY XSTAGE_LAYERS)
install(TARGETS ${layers} EXPORT xstage-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS xstage_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY data/nodes DESTINATION ${CMAKE_INSTALL_DATADIR}/xstage)
install(EXPORT xstage-targets NAMESPACE xstage:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/xstage)
configure_package_config_file(cmake/xstage-config.cmake.in ${PROJECT_BINARY_DIR}/xstage-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/xstage)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/xstage-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/xstage-config.cmake ${PROJECT_BINARY_DIR}/xstage-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/xstage)
