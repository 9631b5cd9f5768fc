# What `cmake --install` leaves: the command, libpleat, its headers, and what CMake and pkg-config
# need to find them. Every path is relative, so the tree may be moved.
include(CMakePackageConfigHelpers)

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/pleat)
install(TARGETS pleat EXPORT pleatTargets)
install(TARGETS pleat_command)
install(DIRECTORY include/pleat DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# `pleat run`: a program beside the command, and the Python package it needs. The build tree has the
# same layout.
install(PROGRAMS adapters/pytorch/pleat-run DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY adapters/pytorch/pleat DESTINATION ${CMAKE_INSTALL_DATADIR}/pleat/python
        PATTERN __pycache__ EXCLUDE)
configure_file(adapters/pytorch/pleat-run ${CMAKE_BINARY_DIR}/bin/pleat-run COPYONLY)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/pleat)
file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/adapters/pytorch ${CMAKE_BINARY_DIR}/share/pleat/python
     SYMBOLIC)
install(EXPORT pleatTargets NAMESPACE pleat:: DESTINATION ${_package})

write_basic_package_version_file(${CMAKE_BINARY_DIR}/pleatConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES tools/cmake/pleatConfig.cmake ${CMAKE_BINARY_DIR}/pleatConfigVersion.cmake
        DESTINATION ${_package})

file(RELATIVE_PATH PLEAT_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(tools/cmake/pleat.pc.in ${CMAKE_BINARY_DIR}/pleat.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/pleat.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
