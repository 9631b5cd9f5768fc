# PLEAT_CACHE: the folder where tools/setup leaves the libraries that it builds.
if(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(PLEAT_CACHE $ENV{XDG_CACHE_HOME}/pleat)
else()
  set(PLEAT_CACHE $ENV{HOME}/.cache/pleat)
endif()
