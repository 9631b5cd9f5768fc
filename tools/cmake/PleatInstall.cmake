# What `cmake --install` leaves: the command, libpleat, its headers, and what CMake and pkg-config
# need to find them. Every path is relative, so the tree may be moved.
include(CMakePackageConfigHelpers)

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/pleat)
install(TARGETS pleat EXPORT pleatTargets)
install(TARGETS pleat_command)
install(DIRECTORY include/pleat DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT pleatTargets NAMESPACE pleat:: DESTINATION ${_package})

write_basic_package_version_file(${CMAKE_BINARY_DIR}/pleatConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES tools/cmake/pleatConfig.cmake ${CMAKE_BINARY_DIR}/pleatConfigVersion.cmake
        DESTINATION ${_package})

file(RELATIVE_PATH PLEAT_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(tools/cmake/pleat.pc.in ${CMAKE_BINARY_DIR}/pleat.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/pleat.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
