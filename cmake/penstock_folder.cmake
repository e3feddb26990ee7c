# penstock_folder(NAME deps...): one static library per source folder, one test executable beside it.
#
# Sources are the folder's *.cc; files ending in _test.cc go to the test executable
# `NAME_test` (doctest, registered with ctest), files ending in _fuzz.cc become libFuzzer
# executables when PENSTOCK_FUZZERS is on. The test executable links the library, the test
# support and nothing else; extra libraries for it come after the word TEST. COMPUTES: its tests
# wait for its arithmetic, so it is optimised under sanitizers too. OPTIMISED_TESTS: its tests
# compute so much themselves that they are compiled as the library is.

set(PENSTOCK_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror)

add_library(penstock_options INTERFACE)
target_compile_options(penstock_options INTERFACE ${PENSTOCK_WARNINGS} -fno-omit-frame-pointer)
# Bit-exact arithmetic is a promise (law 3): the compiler never fuses or reorders on its own.
target_compile_options(penstock_options INTERFACE -ffp-contract=off)
target_include_directories(penstock_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(penstock_options INTERFACE
  BOOST_ASIO_NO_DEPRECATED BOOST_ASIO_DISABLE_BOOST_COROUTINE)
target_link_options(penstock_options INTERFACE -fuse-ld=lld)
if(PENSTOCK_SANITIZE)
  target_compile_options(penstock_options INTERFACE -fsanitize=${PENSTOCK_SANITIZE}
    -fno-sanitize-recover=all)
  target_link_options(penstock_options INTERFACE -fsanitize=${PENSTOCK_SANITIZE})
endif()
if(PENSTOCK_FUZZERS)
  target_compile_options(penstock_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# The standard headers, fmt and Boost.JSON are parsed once a build and not once a file (a third of a
# build's time; tools/build.sh turns it on). Off by default for those who build often: a compiler
# cache can't share what was built with precompiled headers between folders.
option(PENSTOCK_PRECOMPILED "Use precompiled headers" OFF)

# doctest and its main, compiled once for all test executables.
add_library(test_main OBJECT ${CMAKE_SOURCE_DIR}/tests/support/test_main.cc)
target_link_libraries(test_main PRIVATE penstock_options)

# Optimising the checks of tests takes a compiler twice as long as the tests take to run,
# instrumenting them three times; the code under test is optimised and instrumented.
set(PENSTOCK_TEST_OPTIONS -O0)
if(PENSTOCK_FUZZERS)
  list(APPEND PENSTOCK_TEST_OPTIONS -fno-sanitize=fuzzer-no-link)
endif()

# Under sanitizers an optimised source takes a compiler twice as long as a plain one, and most of
# the tests wait for threads and sockets.
set(PENSTOCK_SOURCE_OPTIONS "")
if(PENSTOCK_SANITIZE)
  set(PENSTOCK_SOURCE_OPTIONS -O0)
endif()

if(PENSTOCK_PRECOMPILED)
  foreach(headers source_headers optimised_headers)
    add_library(${headers} OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/precompiled.cc)
    target_link_libraries(${headers} PRIVATE penstock_options fmt::fmt Boost::json)
    target_precompile_headers(${headers} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/source_headers.h)
  endforeach()
  target_compile_options(source_headers PRIVATE ${PENSTOCK_SOURCE_OPTIONS})
  add_executable(test_headers EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/precompiled.cc)
  target_link_libraries(test_headers PRIVATE test_main penstock_options fmt::fmt Boost::json)
  target_compile_options(test_headers PRIVATE ${PENSTOCK_TEST_OPTIONS})
  target_precompile_headers(test_headers PRIVATE ${CMAKE_SOURCE_DIR}/cmake/test_headers.h)
endif()

# penstock_precompiled(TARGET HEADERS): TARGET's sources begin with the precompiled HEADERS:
# source_headers, optimised_headers or test_headers.
function(penstock_precompiled TARGET HEADERS)
  if(PENSTOCK_PRECOMPILED)
    target_precompile_headers(${TARGET} REUSE_FROM ${HEADERS})
  endif()
endfunction()

# What the sanitizer presets and `make fuzz` build: tests and fuzzers, without the service binary.
add_custom_target(unit_tests)
add_custom_target(fuzzers)

function(penstock_folder NAME)
  cmake_parse_arguments(ARG "COMPUTES;OPTIMISED_TESTS" "" "DEPS;TEST" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")

  if(sources)
    add_library(${NAME} STATIC ${sources})
    target_link_libraries(${NAME} PUBLIC penstock_options ${ARG_DEPS})
    if(ARG_COMPUTES)
      penstock_precompiled(${NAME} optimised_headers)
    else()
      target_compile_options(${NAME} PRIVATE ${PENSTOCK_SOURCE_OPTIONS})
      penstock_precompiled(${NAME} source_headers)
    endif()
  else()
    add_library(${NAME} INTERFACE)
    target_link_libraries(${NAME} INTERFACE penstock_options ${ARG_DEPS})
  endif()

  if(PENSTOCK_TESTS AND tests)
    add_executable(${NAME}_test ${tests})
    target_include_directories(${NAME}_test PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${NAME}_test PRIVATE ${NAME} ${ARG_TEST} test_main)
    if(NOT ARG_OPTIMISED_TESTS)
      target_compile_options(${NAME}_test PRIVATE ${PENSTOCK_TEST_OPTIONS})
      penstock_precompiled(${NAME}_test test_headers)
    endif()
    add_test(NAME ${NAME} COMMAND ${NAME}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${NAME} PROPERTIES TIMEOUT 900 LABELS unit)
    # What waits for real time or threads of others has the machine to itself.
    if(NAME MATCHES "^(io_|app$|bench$)")
      set_tests_properties(${NAME} PROPERTIES RUN_SERIAL ON)
    endif()
    add_dependencies(unit_tests ${NAME}_test)
  endif()

  if(PENSTOCK_FUZZERS)
    foreach(fuzzer ${fuzzers})
      get_filename_component(stem ${fuzzer} NAME_WE)
      add_executable(${stem} ${fuzzer})
      target_link_libraries(${stem} PRIVATE ${NAME} ${ARG_TEST})
      target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${stem})
    endforeach()
  endif()
endfunction()
