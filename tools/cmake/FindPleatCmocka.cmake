# Pleat::cmocka: the static build that tools/setup leaves in the user's cache, so that test programs
# run on machines without cmocka; else the system's.
include(PleatCache)
find_path(PLEAT_CMOCKA_INCLUDE cmocka.h HINTS ${PLEAT_CACHE}/cmocka/include)
find_library(PLEAT_CMOCKA_LIBRARY NAMES libcmocka.a cmocka HINTS ${PLEAT_CACHE}/cmocka/lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PleatCmocka
  REQUIRED_VARS PLEAT_CMOCKA_LIBRARY PLEAT_CMOCKA_INCLUDE
  REASON_FAILURE_MESSAGE "run tools/setup, which builds it, or pass -DBUILD_TESTING=OFF")
if(PleatCmocka_FOUND AND NOT TARGET Pleat::cmocka)
  add_library(Pleat::cmocka UNKNOWN IMPORTED)
  set_target_properties(Pleat::cmocka PROPERTIES
    IMPORTED_LOCATION ${PLEAT_CMOCKA_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PLEAT_CMOCKA_INCLUDE})
endif()
