# find_package(pleat): the target pleat::pleat. It carries no dependency beyond the C library.
include(${CMAKE_CURRENT_LIST_DIR}/pleatTargets.cmake)
