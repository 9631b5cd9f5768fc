# find_package(pleat): the target pleat::pleat. It carries no dependency beyond the C library, and has no components.
foreach(_component IN LISTS ${CMAKE_FIND_PACKAGE_NAME}_FIND_COMPONENTS)
  if(${CMAKE_FIND_PACKAGE_NAME}_FIND_REQUIRED_${_component})
    set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
    set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE "pleat has no components: '${_component}' is none")
    return()
  endif()
endforeach()
include(${CMAKE_CURRENT_LIST_DIR}/pleatTargets.cmake)
