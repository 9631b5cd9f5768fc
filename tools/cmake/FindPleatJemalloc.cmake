# Pleat::jemalloc. PLEAT_JEMALLOC says which: "private" is the prefixed static build that tools/setup
# leaves in the user's cache, or the distribution's where that found no source package to build; "system"
# the distribution's, anything else the prefix of an install.
include(PleatCache)
set(_choice ${PLEAT_JEMALLOC})
if(_choice STREQUAL "private" AND EXISTS ${PLEAT_CACHE}/jemalloc/packaged)
  set(_choice system)
endif()
if(NOT _choice STREQUAL "${PLEAT_JEMALLOC_FOUND_AS}") # another choice: look again
  unset(PLEAT_JEMALLOC_INCLUDE CACHE)
  unset(PLEAT_JEMALLOC_LIBRARY CACHE)
  set(PLEAT_JEMALLOC_FOUND_AS ${_choice} CACHE INTERNAL "")
endif()
if(_choice STREQUAL "system")
  find_path(PLEAT_JEMALLOC_INCLUDE jemalloc/jemalloc.h)
  find_library(PLEAT_JEMALLOC_LIBRARY jemalloc)
  set(_prefixed OFF)
else()
  if(_choice STREQUAL "private")
    set(_root ${PLEAT_CACHE}/jemalloc)
  else()
    set(_root ${_choice})
  endif()
  find_path(PLEAT_JEMALLOC_INCLUDE jemalloc/jemalloc.h PATHS ${_root}/include NO_DEFAULT_PATH)
  find_library(PLEAT_JEMALLOC_LIBRARY NAMES libjemalloc_pic.a PATHS ${_root}/lib NO_DEFAULT_PATH)
  set(_prefixed ON)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PleatJemalloc
  REQUIRED_VARS PLEAT_JEMALLOC_LIBRARY PLEAT_JEMALLOC_INCLUDE
  REASON_FAILURE_MESSAGE "run tools/setup, which builds it, or name another in PLEAT_JEMALLOC, as CONTRIBUTING.md says")
if(PleatJemalloc_FOUND AND NOT TARGET Pleat::jemalloc)
  add_library(Pleat::jemalloc UNKNOWN IMPORTED)
  set_target_properties(Pleat::jemalloc PROPERTIES
    IMPORTED_LOCATION ${PLEAT_JEMALLOC_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PLEAT_JEMALLOC_INCLUDE})
  if(_prefixed)
    set_property(TARGET Pleat::jemalloc PROPERTY
                 INTERFACE_COMPILE_DEFINITIONS PLEAT_JEMALLOC_PREFIXED)
  endif()
endif()
