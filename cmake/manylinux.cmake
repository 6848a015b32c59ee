# Modules that ask for no newer glibc than 2.28, and for libstdc++.so.6 of GCC 7.

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR
   NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  message(FATAL_ERROR
    "JAX_CONVBATCH_MANYLINUX=ON is for Linux on x86-64, not for "
    "${CMAKE_SYSTEM_NAME} on ${CMAKE_SYSTEM_PROCESSOR}.")
endif()
set(OLD_LIBRARIES "${PROJECT_BINARY_DIR}/old_libraries")
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/old_libraries.py"
          "${OLD_LIBRARIES}" "${CMAKE_CXX_COMPILER}"
  ERROR_VARIABLE error RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR
    "The libraries to link against for manylinux_2_28 cannot be made:\n${error}")
endif()

function(link_for_manylinux name)
  # glibc 2.28 has threads and dlopen in libraries of their own.
  target_link_options(${name} PRIVATE "-L${OLD_LIBRARIES}"
    LINKER:--push-state,--no-as-needed -lpthread -ldl LINKER:--pop-state)
endfunction()
