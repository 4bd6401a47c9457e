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

# What the wheel holds (pyproject.toml asks for this component alone).
install(TARGETS xstage_shared LIBRARY DESTINATION xstage/lib COMPONENT python EXCLUDE_FROM_ALL)
install(TARGETS xstage_cli RUNTIME DESTINATION xstage/bin COMPONENT python EXCLUDE_FROM_ALL)
install(FILES data/nodes/h200x2/profile.json DESTINATION xstage/share/xstage/nodes/h200x2 COMPONENT python EXCLUDE_FROM_ALL)
