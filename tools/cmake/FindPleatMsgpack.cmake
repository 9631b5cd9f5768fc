# Pleat::msgpack: msgpack-c's C library, the static one where there is one, so that libpleat and the
# command run on machines that have none.
find_path(PLEAT_MSGPACK_INCLUDE msgpack.h)
find_library(PLEAT_MSGPACK_LIBRARY NAMES libmsgpackc.a libmsgpack-c.a msgpackc msgpack-c)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PleatMsgpack
  REQUIRED_VARS PLEAT_MSGPACK_LIBRARY PLEAT_MSGPACK_INCLUDE
  REASON_FAILURE_MESSAGE "run tools/setup, which installs it")
if(PleatMsgpack_FOUND AND NOT TARGET Pleat::msgpack)
  add_library(Pleat::msgpack UNKNOWN IMPORTED)
  set_target_properties(Pleat::msgpack PROPERTIES
    IMPORTED_LOCATION ${PLEAT_MSGPACK_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PLEAT_MSGPACK_INCLUDE})
endif()
