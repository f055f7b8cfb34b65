# Checks of the tree rather than of behaviour: the driver's ABI, headers, include direction, exported names, the package.

# ---- gvmm/cuda_abi.h and driver_calls.h against NVIDIA's headers, at build time, where there are any ----

find_path(GVMM_CUDA_INCLUDE cuda.h
    HINTS ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda /opt/cuda
    PATH_SUFFIXES include targets/x86_64-linux/include targets/sbsa-linux/include
    DOC "Directory of cuda.h; only for checking the ABI that gvmm states by hand")

if(GVMM_CUDA_INCLUDE AND NOT CMAKE_CROSSCOMPILING)
    message(STATUS "ABI check against ${GVMM_CUDA_INCLUDE}/cuda.h")
    add_executable(abi_ours abi_facts.c)
    add_executable(abi_theirs abi_facts.c)
    target_compile_definitions(abi_theirs PRIVATE GVMM_ABI_REFERENCE)
    target_include_directories(abi_theirs SYSTEM PRIVATE ${GVMM_CUDA_INCLUDE})
    foreach(program abi_ours abi_theirs)
        target_link_libraries(${program} PRIVATE gvmm_compile)
    endforeach()
    add_custom_command(OUTPUT abi_checked
        COMMAND sh ${PROJECT_SOURCE_DIR}/tools/check_abi.sh $<TARGET_FILE:abi_ours> $<TARGET_FILE:abi_theirs>
        COMMAND ${CMAKE_COMMAND} -E touch abi_checked
        DEPENDS abi_ours abi_theirs ${PROJECT_SOURCE_DIR}/tools/check_abi.sh
        VERBATIM)
    add_custom_target(abi ALL DEPENDS abi_checked)
    if(EXISTS ${GVMM_CUDA_INCLUDE}/cudaTypedefs.h)
        add_library(abi_signatures OBJECT abi_signatures.c)
        target_include_directories(abi_signatures SYSTEM PRIVATE ${GVMM_CUDA_INCLUDE})
        target_link_libraries(abi_signatures PRIVATE gvmm_compile)
    endif()
else()
    message(STATUS "ABI check left out: no cuda.h here (none is needed to build or to test)")
endif()

# ---- each public header alone, as C11, C17 and C++17, at build time ----

include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER)
    enable_language(CXX)
endif()
set(headers gvmm.h gvmm/cuda_abi.h gvmm/driver.h gvmm/driver_calls.h gvmm/sim.h)
foreach(dialect c11 c17 c++17)
    if(dialect MATCHES "\\+\\+")
        set(suffix cpp)
        if(NOT CMAKE_CXX_COMPILER)
            message(STATUS "no C++ compiler: the headers are not checked as C++")
            continue()
        endif()
    else()
        set(suffix c)
    endif()
    set(sources)
    foreach(header ${headers})
        string(MAKE_C_IDENTIFIER "${header}_${dialect}" name)
        set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.${suffix})
        file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n#include \"${header}\"\nextern int nothing;\n")
        list(APPEND sources ${source})
    endforeach()
    string(MAKE_C_IDENTIFIER headers_${dialect} name)
    add_library(${name} OBJECT ${sources})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
    target_compile_options(${name} PRIVATE -std=${dialect} -pedantic ${GVMM_WARNINGS})
endforeach()

# ---- include direction, and the names that the libraries show ----

add_test(NAME includes COMMAND sh ${PROJECT_SOURCE_DIR}/tools/check_includes.sh
    $<TARGET_OBJECTS:gvmm_src> $<TARGET_OBJECTS:gvmm_sim> COMMAND_EXPAND_LISTS)
set(libraries $<TARGET_FILE:gvmm> "^gvmm_[^_]")
if(TARGET gvmm_standin)
    list(APPEND libraries $<TARGET_FILE:gvmm_standin> "^cu[A-Z]")
endif()
add_test(NAME exports COMMAND sh ${PROJECT_SOURCE_DIR}/tools/check_exports.sh ${libraries})
set_tests_properties(includes exports PROPERTIES TIMEOUT 60 ENVIRONMENT "NM=${CMAKE_NM}")

# ---- the installed package, through CMake, pkg-config and as a subdirectory ----

if(GVMM_INSTALL AND NOT GVMM_SANITIZE)
    set(prefix ${CMAKE_CURRENT_BINARY_DIR}/installed)
    add_test(NAME install COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${prefix})
    set_tests_properties(install PROPERTIES FIXTURES_SETUP installed TIMEOUT 60)
    foreach(way cmake pkgconfig readme subdirectory)
        add_test(NAME consume_${way} COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/consume/run.sh ${way} ${prefix})
        set_tests_properties(consume_${way} PROPERTIES TIMEOUT 300
            ENVIRONMENT "CC=${CMAKE_C_COMPILER};CMAKE=${CMAKE_COMMAND};GVMM_DRIVER=sim;WORK=${CMAKE_CURRENT_BINARY_DIR}/consume_${way}")
        if(NOT way STREQUAL subdirectory)
            set_tests_properties(consume_${way} PROPERTIES FIXTURES_REQUIRED installed)
        endif()
    endforeach()
endif()
