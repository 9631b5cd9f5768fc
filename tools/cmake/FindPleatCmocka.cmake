# Pleat::cmocka, the static library where there is one, so that test programs run on machines without.
find_path(PLEAT_CMOCKA_INCLUDE cmocka.h)
find_library(PLEAT_CMOCKA_LIBRARY NAMES libcmocka.a libcmocka-static.a cmocka)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PleatCmocka
  REQUIRED_VARS PLEAT_CMOCKA_LIBRARY PLEAT_CMOCKA_INCLUDE
  REASON_FAILURE_MESSAGE "run tools/setup, which installs it, or pass -DBUILD_TESTING=OFF")
if(PleatCmocka_FOUND AND NOT TARGET Pleat::cmocka)
  add_library(Pleat::cmocka UNKNOWN IMPORTED)
  set_target_properties(Pleat::cmocka PROPERTIES
    IMPORTED_LOCATION ${PLEAT_CMOCKA_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PLEAT_CMOCKA_INCLUDE})
endif()
