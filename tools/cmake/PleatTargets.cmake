# Flags that every target shares, and helpers for layers and tests.

include(CheckLinkerFlag)
check_linker_flag(C -Wl,--exclude-libs,libnone.a PLEAT_EXCLUDES_LIBRARIES)

# What a shared object of whole static libraries is built "from": CMake wants a source.
set(PLEAT_NO_SOURCE ${PROJECT_BINARY_DIR}/no_source.c)
file(CONFIGURE OUTPUT ${PLEAT_NO_SOURCE} CONTENT "typedef int pleat_no_source;\n") # as it was: nothing is linked anew

# Warnings are errors where PLEAT_WERROR is on: a newer compiler has others. Symbols are hidden unless PLEAT_API says otherwise.
function(pleat_configure target)
  set_target_properties(${target} PROPERTIES
    C_STANDARD 17 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra $<$<BOOL:${PLEAT_WERROR}>:-Werror> -Wshadow -Wundef -Wstrict-prototypes -Wmissing-prototypes
    -Wpointer-arith -Wvla -Wwrite-strings -fno-common)
  # Texts of bounded length are cut on purpose. That a failing call never returns PLEAT_OK, and so
  # never leaves its result unset where it is used, GCC does not see across calls (at -O3 alone).
  target_compile_options(${target} PRIVATE
    $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation -Wno-maybe-uninitialized>)
  if(PLEAT_AUDITS)
    target_compile_definitions(${target} PRIVATE PLEAT_AUDITS)
  endif()
  if(PLEAT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${PLEAT_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${PLEAT_SANITIZE})
  endif()
  if(PLEAT_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# pleat_layer(NAME vmm SOURCES a.c b.c USES pleat_base): the static library pleat_NAME. Its public
# include folder is include/, its own is its source folder, which only layers that use it see. A
# shared object of the layer and what it uses, linked with no undefined symbol allowed, proves that
# it uses nothing else.
function(pleat_layer)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;USES" ${ARGN})
  add_library(pleat_${ARG_NAME} STATIC ${ARG_SOURCES})
  pleat_configure(pleat_${ARG_NAME})
  target_include_directories(pleat_${ARG_NAME} PUBLIC ${PROJECT_SOURCE_DIR}/include)
  target_include_directories(pleat_${ARG_NAME} INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/..)
  target_include_directories(pleat_${ARG_NAME} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
                             ${CMAKE_CURRENT_SOURCE_DIR}/..)
  target_link_libraries(pleat_${ARG_NAME} PUBLIC ${ARG_USES} Threads::Threads)
  add_library(pleat_${ARG_NAME}_alone SHARED ${PLEAT_NO_SOURCE})
  pleat_configure(pleat_${ARG_NAME}_alone)
  set_target_properties(pleat_${ARG_NAME}_alone PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/layers)
  pleat_link_whole(pleat_${ARG_NAME}_alone pleat_${ARG_NAME})
  target_link_libraries(pleat_${ARG_NAME}_alone PRIVATE ${ARG_USES})
endfunction()

# Links static libraries whole, and refuses undefined symbols (the sanitizers' own are exempt).
function(pleat_link_whole target)
  target_link_libraries(${target} PRIVATE -Wl,--whole-archive ${ARGN} -Wl,--no-whole-archive)
  # The dependencies' symbols stay inside. Where the linker cannot see to it (zig's), those that
  # tools/wheel built have none to show.
  if(PLEAT_EXCLUDES_LIBRARIES)
    target_link_options(${target} PRIVATE
      -Wl,--exclude-libs,libjemalloc_pic.a:libmsgpackc.a:libmsgpack-c.a)
  endif()
  if(NOT PLEAT_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
endfunction()

# pleat_test(NAME vmm_host SOURCES host.c USES pleat_vmm [THREADS] [LABELS long] [TIMEOUT 60]
# [ENVIRONMENT NAME=value]): one cmocka program. THREADS says that it starts some: the thread sanitizer
# runs no others. What takes more than 20 s on a quiet core is `long`: only tools/check --long runs it.
# Tests of memory get pleat_testing (tests/CMakeLists.txt) with it.
function(pleat_test)
  cmake_parse_arguments(ARG "THREADS" "NAME;TIMEOUT" "SOURCES;USES;LABELS;ENVIRONMENT" ${ARGN})
  add_executable(test_${ARG_NAME} ${ARG_SOURCES})
  pleat_configure(test_${ARG_NAME})
  target_include_directories(test_${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  if(ARG_USES MATCHES "pleat_(vmm|runtime)")
    list(APPEND ARG_USES pleat_testing)
  endif()
  target_link_libraries(test_${ARG_NAME} PRIVATE ${ARG_USES} Pleat::cmocka)
  set_target_properties(test_${ARG_NAME} PROPERTIES
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  set(_threads)
  if(ARG_THREADS)
    set(_threads THREADS)
  endif()
  if((PLEAT_SANITIZE MATCHES thread AND NOT ARG_THREADS) OR ARG_NAME IN_LIST PLEAT_TESTED_ELSEWHERE)
    set_target_properties(test_${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  pleat_program_test(NAME ${ARG_NAME} COMMAND test_${ARG_NAME} ${_threads}
                     TIMEOUT "${ARG_TIMEOUT}" LABELS ${ARG_LABELS} ENVIRONMENT ${ARG_ENVIRONMENT})
endfunction()

# pleat_program_test(NAME ctypes COMMAND python3 x.py, the rest as above): a test by any program. Use
# it instead of add_test: PLEAT_TEST_PREFIX tells builds apart where one run tests several
# (tools/check), and ctest needs them told apart.
function(pleat_program_test)
  cmake_parse_arguments(ARG "THREADS" "NAME;TIMEOUT" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  set(_test ${PLEAT_TEST_PREFIX}${ARG_NAME})
  if((PLEAT_SANITIZE MATCHES thread AND NOT ARG_THREADS) OR ARG_NAME IN_LIST PLEAT_TESTED_ELSEWHERE)
    return()
  endif()
  add_test(NAME ${_test} COMMAND ${ARG_COMMAND})
  if(ARG_COMMAND MATCHES "^Python3::")
    set_tests_properties(${_test} PROPERTIES SKIP_RETURN_CODE 77) # as tests/suite.py ends
  endif()
  if(ARG_LABELS)
    set_tests_properties(${_test} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
  if(ARG_TIMEOUT)
    set_tests_properties(${_test} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  endif()
  if(ARG_ENVIRONMENT)
    set_tests_properties(${_test} PROPERTIES ENVIRONMENT "${ARG_ENVIRONMENT}")
  endif()
endfunction()
