# Installs a build into an empty folder, looks at what is there, and builds and runs a program
# against it, by find_package and by pkg-config.
# What is built by pkg-config is the example in README.md.
#   cmake -D BUILD=... -D VERSION=... -D LIBDIR=... -D COMPILER=... -P install.cmake
cmake_minimum_required(VERSION 3.22)

set(work ${BUILD}/tests/install)
set(examples ${CMAKE_CURRENT_LIST_DIR}/../../../examples)
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
       "pleat/base.h;pleat/plan.h;pleat/ranges.h;pleat/runtime.h;pleat/torch.h;pleat/trace.h;pleat/vmm.h")
foreach(header IN LISTS headers)
  file(READ ${prefix}/include/${header} text)
  if(text MATCHES "[a-z]/[a-z_/]+[.](c|md|py)[^a-z]")
    message(FATAL_ERROR "${header} names what is not installed: '${CMAKE_MATCH_0}'")
  endif()
endforeach()
file(READ ${prefix}/share/doc/pleat/copyright license)
if(NOT license MATCHES "Apache License")
  message(FATAL_ERROR "the license is not installed")
endif()
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

execute_process(COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/components "-DCOMPONENTS=COMPONENTS;nonsense"
                -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${COMPILER}
                RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE said)
if(code EQUAL 0 OR NOT said MATCHES "'nonsense' is none")
  message(FATAL_ERROR "a component that there is not: ${code} '${said}'")
endif()

# So does the source tree within another project. A compiler with other warnings is no matter there.
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/within -B ${work}/within -G Ninja -DCMAKE_C_COMPILER=${COMPILER}
    -DPLEAT=${CMAKE_CURRENT_LIST_DIR}/../../.. -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
if(NOT output MATCHES "tests: ON\n")
  message(FATAL_ERROR "Pleat switched the tests of the project that it is within off: ${output}")
endif()
file(GLOB made RELATIVE ${work}/within ${work}/within/*)
list(FILTER made EXCLUDE REGEX "^(CMake.*|CPack.*|CTest.*|Dart.*|Testing|build[.]ninja|cmake_install[.]cmake|compile_commands[.]json|pleat|[.]ninja_log)$")
expect("what Pleat wrote into the other project's folder" "${made}" "")
file(STRINGS ${work}/within/CPackConfig.cmake named REGEX "^set\\(CPACK_PACKAGE_NAME ")
expect("whose package it is" "${named}" "set(CPACK_PACKAGE_NAME \"within\")")
run(${CMAKE_COMMAND} --build ${work}/within --target within)
file(READ ${work}/within/compile_commands.json commands)
if(commands MATCHES "-Werror")
  message(FATAL_ERROR "warnings are errors to whoever builds Pleat with another compiler")
endif()

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
  run(${COMPILER} -std=c11 -Wall -Wextra -Wpedantic -Werror ${examples}/plan.c ${flags}
      -Wl,-rpath,${prefix}/${LIBDIR} -o ${work}/plan)
  run(${prefix}/bin/pleat import ${JOB} -o ${work}/job.trace)
  run(${CMAKE_COMMAND} -E chdir ${work} ${work}/plan job.trace a.plan)
  expect("the planning example's output" "${output}" "wrote a.plan: 11369 requests an iteration\n")
  execute_process(COMMAND ${work}/plan ${JOB} ${work}/none.plan RESULT_VARIABLE code ERROR_VARIABLE said)
  if(NOT code EQUAL 1 OR NOT said MATCHES "`pleat import RECORDING -o TRACE` writes one")
    message(FATAL_ERROR "the planning example's refusal: ${code} '${said}'")
  endif()
  run(${prefix}/bin/pleat verify ${work}/a.plan --trace ${work}/job.trace)
else()
  message(STATUS "no pkg-config: its file is not tried")
endif()

# What is of Python's making, where there is one.
find_program(PYTHON python3)
if(PYTHON)
  set(ENV{PLEAT_COMMAND} ${prefix}/bin/pleat)
  run(${PYTHON} -B ${examples}/counters.py ${JOB})
  if(NOT output MATCHES "^native +[0-9.]+ GiB for 9.420 GiB live\npleat +[0-9.]+ GiB for 9.420 GiB live\n$")
    message(FATAL_ERROR "the Python example's output: '${output}'")
  endif()
  run(${PYTHON} -B ${examples}/counters.py ${CMAKE_CURRENT_LIST_DIR}/../../snapshots/torch-2.14.1.pickle.gz)
  if(NOT output MATCHES "^native [^\n]* on GPU 0\nnative [^\n]* on GPU 1\npleat [^\n]* on GPU 0\npleat [^\n]* on GPU 1\n$")
    message(FATAL_ERROR "the Python example's output of two GPUs: '${output}'")
  endif()
  execute_process(COMMAND ${PYTHON} -B ${examples}/counters.py ${work}/nosuch RESULT_VARIABLE code ERROR_VARIABLE said)
  expect("the Python example's exit status" "${code}" "3")
  if(NOT said MATCHES "^pleat replay: [^\n]*nosuch[^\n]*\n$")
    message(FATAL_ERROR "the Python example's refusal: '${said}'")
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PLEAT_COMMAND=${work}/nosuch ${PYTHON} -B ${examples}/counters.py ${JOB}
                  RESULT_VARIABLE code ERROR_VARIABLE said)
  expect("the Python example's exit status without the command" "${code}" "127")
  if(NOT said MATCHES "^counters.py: '[^\n]*nosuch' cannot be run: No such file or directory; [$]PLEAT_COMMAND may name the command pleat\n$")
    message(FATAL_ERROR "the Python example's refusal without the command: '${said}'")
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PLEAT_COMMAND=${work} ${PYTHON} -B ${examples}/counters.py ${JOB}
                  RESULT_VARIABLE code ERROR_VARIABLE said)
  expect("the Python example's exit status with a folder in the command's place" "${code}" "126")
  foreach(page pleat pleat-replay pleat-bench-vmm pleat-run pleat-estimate)
    if(NOT EXISTS ${prefix}/share/man/man1/${page}.1)
      message(FATAL_ERROR "there is no man page ${page}")
    endif()
  endforeach()
  file(READ ${prefix}/share/bash-completion/completions/pleat completion)
  if(NOT completion MATCHES "replay\\) words='--policy")
    message(FATAL_ERROR "the completion of replay: '${completion}'")
  endif()
  run(bash -n ${prefix}/share/bash-completion/completions/pleat)
endif()

# What cpack makes stays out of the source tree.
file(STRINGS ${BUILD}/CPackConfig.cmake packages REGEX "^set\\(CPACK_PACKAGE_DIRECTORY ")
expect("where packages go" "${packages}" "set(CPACK_PACKAGE_DIRECTORY \"${BUILD}/packages\")")

# A component alone has what its name says.
run(${CMAKE_COMMAND} --install ${BUILD} --component library --prefix ${work}/library)
file(GLOB_RECURSE libraries RELATIVE ${work}/library ${work}/library/*)
expect("the component library" "${libraries}"
       "${LIBDIR}/libpleat.so.0;${LIBDIR}/libpleat.so.${VERSION};share/doc/pleat/copyright")
