# What `cmake --install` leaves: the command, libpleat, its headers, and what CMake and pkg-config
# need to find them. Every path is relative, so the tree may be moved.
include(CMakePackageConfigHelpers)

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/pleat)
# Components: library, development (what programs are built with), command (all that people run).
install(TARGETS pleat EXPORT pleatTargets LIBRARY COMPONENT library NAMELINK_COMPONENT development)
install(TARGETS pleat_command RUNTIME COMPONENT command)
# Whatever is given to others has the license with it.
foreach(_component library development command)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/pleat RENAME copyright COMPONENT ${_component})
endforeach()
install(DIRECTORY include/pleat DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
# Subcommands that are Python: a program each beside the command, and the Python package that they need.
# The build tree has the same layout.
foreach(_name run estimate libtorch)
  install(PROGRAMS adapters/pytorch/pleat-run DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME pleat-${_name}
          COMPONENT command)
  configure_file(adapters/pytorch/pleat-run ${PROJECT_BINARY_DIR}/bin/pleat-${_name} COPYONLY)
endforeach()
install(DIRECTORY adapters/pytorch/pleat DESTINATION ${CMAKE_INSTALL_DATADIR}/pleat/python COMPONENT command
        PATTERN __pycache__ EXCLUDE)
# The CUDA runtime without a GPU. Its functions are declared in headers of CUDA's, which need not be here,
# and it is found by whatever asks for the driver.
if(NOT PLEAT_SANITIZE)
  add_library(pleat_no_gpu SHARED adapters/pytorch/pleat/no_gpu.c)
  pleat_configure(pleat_no_gpu)
  target_compile_options(pleat_no_gpu PRIVATE -Wno-missing-prototypes)
  set_target_properties(pleat_no_gpu PROPERTIES NO_SONAME ON LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/pleat)
  target_link_options(pleat_no_gpu PRIVATE -Wl,-soname,libcuda.so.1)
  install(TARGETS pleat_no_gpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/pleat COMPONENT command)
endif()
# What stands before NCCL's functions, whose headers need not be here.
if(NOT PLEAT_SANITIZE)
  add_library(pleat_nccl SHARED adapters/pytorch/pleat/nccl.c)
  pleat_configure(pleat_nccl)
  target_compile_options(pleat_nccl PRIVATE -Wno-missing-prototypes)
  target_link_libraries(pleat_nccl PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(pleat_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/pleat)
  install(TARGETS pleat_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/pleat COMPONENT command)
endif()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/pleat)
file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/adapters/pytorch ${PROJECT_BINARY_DIR}/share/pleat/python
     SYMBOLIC)
install(EXPORT pleatTargets NAMESPACE pleat:: DESTINATION ${_package} COMPONENT development)

write_basic_package_version_file(${PROJECT_BINARY_DIR}/pleatConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES tools/cmake/pleatConfig.cmake ${PROJECT_BINARY_DIR}/pleatConfigVersion.cmake
        DESTINATION ${_package} COMPONENT development)

file(RELATIVE_PATH PLEAT_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(tools/cmake/pleat.pc.in ${PROJECT_BINARY_DIR}/pleat.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/pleat.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# Man pages and completions, of the command's own help. A program for another machine cannot be asked.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT PLEAT_SANITIZE)
  set(_documents ${PROJECT_BINARY_DIR}/share/documents)
  add_custom_command(OUTPUT ${_documents}/man1/pleat.1
                     COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_SOURCE_DIR}/tools/documents
                             $<TARGET_FILE:pleat_command> ${_documents}
                     DEPENDS pleat_command tools/documents adapters/pytorch/pleat/run.py
                             adapters/pytorch/pleat/estimate.py adapters/pytorch/pleat/libtorch.py)
  add_custom_target(pleat_documents ALL DEPENDS ${_documents}/man1/pleat.1)
  install(DIRECTORY ${_documents}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT command)
  foreach(_shell bash-completion zsh fish)
    install(DIRECTORY ${_documents}/${_shell} DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT command)
  endforeach()
endif()

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

# A Debian package: cpack -G DEB --config build/release/CPackConfig.cmake
set(CPACK_GENERATOR DEB)
# Wherever cpack is called, nothing of it lies in the source tree.
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_NAME pleat)
set(CPACK_PACKAGE_CONTACT "Pleat <pleat@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "folds a training job's GPU memory")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS python3)
include(CPack)
