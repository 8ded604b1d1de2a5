# find_package(opforge) defines opforge_add_op, which builds an op ahead of time into a package:
#
#   opforge_add_op(relu PACKAGE my_package SOURCES my_package/relu.cpp [ABI torch-stable] [DEVICES cpu cuda]
#                  [TARGETS cpu:x86-64-v3 ...] [DIRECTORY src/my_package])
#   opforge_add_op(relu PACKAGE my_package BUILDER my_package.ops:ReluBuilder [TARGETS ...] [DIRECTORY ...])
#
# It runs each time that the project is built, and finds in opforge's cache what is built already. The sources may be
# made by CMake. PACKAGE may be a package in another one, as acme.ops. DIRECTORY is the package's folder, by default the
# one of its name here or in src.

if(NOT Python_EXECUTABLE)
  find_package(Python COMPONENTS Interpreter QUIET)
endif()
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import opforge; print(opforge.__version__)"
  RESULT_VARIABLE _opforge_status
  OUTPUT_VARIABLE opforge_VERSION
  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(_opforge_status)
  set(opforge_FOUND FALSE)
  set(opforge_NOT_FOUND_MESSAGE
      "the Python '${Python_EXECUTABLE}' has no opforge: install it there, or set Python_EXECUTABLE to the one that has it")
  return()
endif()

function(opforge_add_op NAME)
  cmake_parse_arguments(PARSE_ARGV 1 OP "" "PACKAGE;BUILDER;ABI;DIRECTORY" "SOURCES;DEVICES;TARGETS")
  if(OP_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "opforge_add_op(${NAME}): unknown: ${OP_UNPARSED_ARGUMENTS}. Expected PACKAGE, SOURCES or "
                        "BUILDER, ABI, DEVICES, TARGETS, DIRECTORY")
  endif()
  if(NOT OP_PACKAGE)
    message(FATAL_ERROR "opforge_add_op(${NAME}): there is no PACKAGE, the name of the package that gets the op")
  endif()
  if((OP_SOURCES AND OP_BUILDER) OR NOT (OP_SOURCES OR OP_BUILDER))
    message(FATAL_ERROR "opforge_add_op(${NAME}): expected either SOURCES or BUILDER")
  endif()
  if(CMAKE_CROSSCOMPILING)
    message(FATAL_ERROR "opforge_add_op(${NAME}): this project is cross-compiled for ${CMAKE_SYSTEM_PROCESSOR}, and "
                        "opforge builds ops for a CPU on such a CPU: build the wheel there")
  endif()
  if(OP_BUILDER AND SKBUILD_STATE STREQUAL "editable") # its builder looks beside the sources, not where this installs
    message(STATUS "opforge_add_op(${NAME}): an editable install builds the op when it is loaded")
    return()
  endif()
  if(NOT OP_DIRECTORY)
    string(REPLACE "." "/" OP_DIRECTORY "${OP_PACKAGE}")
    if(NOT IS_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/${OP_DIRECTORY}")
      set(OP_DIRECTORY "src/${OP_DIRECTORY}")
    endif()
  endif()
  get_filename_component(directory "${OP_DIRECTORY}" ABSOLUTE)
  if(NOT IS_DIRECTORY "${directory}")
    message(FATAL_ERROR "opforge_add_op(${NAME}): there is no folder ${directory}: set DIRECTORY to the package's")
  endif()
  set(stage "${CMAKE_CURRENT_BINARY_DIR}/opforge/${NAME}")
  set(command --name "${NAME}" --package "${OP_PACKAGE}" --directory "${directory}" --stage "${stage}")
  set(made "")
  foreach(source IN LISTS OP_SOURCES)
    get_filename_component(path "${source}" ABSOLUTE)
    get_source_file_property(is_generated "${source}" GENERATED)
    if(NOT EXISTS "${path}" OR is_generated) # CMake makes it, below the build's folder
      get_filename_component(path "${source}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
      list(APPEND made "${path}")
    endif()
    list(APPEND command --source "${path}")
  endforeach()
  foreach(device IN LISTS OP_DEVICES)
    list(APPEND command --device "${device}")
  endforeach()
  foreach(target IN LISTS OP_TARGETS)
    list(APPEND command --target "${target}")
  endforeach()
  if(SKBUILD_STATE STREQUAL "editable")
    list(APPEND command --editable)
  endif()
  if(OP_BUILDER)
    list(APPEND command --builder "${OP_BUILDER}")
  endif()
  if(OP_ABI)
    list(APPEND command --abi "${OP_ABI}")
  endif()
  add_custom_target(
    opforge_${NAME} ALL
    COMMAND "${Python_EXECUTABLE}" -m opforge.cmake.op ${command}
    DEPENDS ${made}
    COMMENT "op ${NAME}"
    VERBATIM)
  install(DIRECTORY "${stage}/install/" DESTINATION ".")
endfunction()
