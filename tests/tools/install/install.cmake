# Installs a build into an empty folder, looks at what is there, and builds and runs a program
# against it, by find_package and by pkg-config.
# What is built by pkg-config is the example in README.md.
#   cmake -D BUILD=... -D VERSION=... -D LIBDIR=... -D COMPILER=... -P install.cmake
cmake_minimum_required(VERSION 3.22)

set(work ${BUILD}/tests/install)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect what actual expected)
  if(NOT "${actual}" STREQUAL "${expected}")
    message(FATAL_ERROR "${what}: '${actual}', not '${expected}'")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})

# Nothing of the inside is left there: no layer, no internal header, nothing else's.
file(GLOB libraries RELATIVE ${prefix}/${LIBDIR} ${prefix}/${LIBDIR}/*.*)
expect("libraries" "${libraries}" "libpleat.so;libpleat.so.0;libpleat.so.${VERSION}")
file(GLOB headers RELATIVE ${prefix}/include ${prefix}/include/*/*)
expect("headers" "${headers}"
       "pleat/base.h;pleat/plan.h;pleat/runtime.h;pleat/trace.h;pleat/vmm.h")
run(${prefix}/bin/pleat version)
expect("the command's version" "${output}" "pleat ${VERSION}\n")

# Moved, it still works.
file(RENAME ${prefix} ${work}/moved)
set(prefix ${work}/moved)

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${COMPILER})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/use)
expect("the program's output" "${output}" "${VERSION} 0\n")

file(READ ${CMAKE_CURRENT_LIST_DIR}/../../../README.md readme)
string(REGEX MATCH "\n```c\n([^`]*)```" block "${readme}")
file(WRITE ${work}/example.c "${CMAKE_MATCH_1}")

find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
  run(${PKG_CONFIG} --cflags --libs pleat)
  separate_arguments(flags UNIX_COMMAND "${output}")
  run(${COMPILER} -std=c11 -Wall -Wextra -Wpedantic -Werror ${work}/example.c ${flags}
      -Wl,-rpath,${prefix}/${LIBDIR} -o ${work}/example)
  run(${work}/example)
  expect("the example's output" "${output}" "67108864 bytes live\n")
else()
  message(STATUS "no pkg-config: its file is not tried")
endif()
