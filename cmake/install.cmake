# Install rules: headers, both libraries, CMake package, pkg-config file, stand-in driver, licence.
include(CMakePackageConfigHelpers)

install(TARGETS gvmm gvmm_static EXPORT gvmm-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/gvmm.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/gvmm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN __pycache__ EXCLUDE)
install(FILES bench/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)
install(DIRECTORY bench/results DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench
    FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
set(standin_dir ${CMAKE_INSTALL_LIBDIR}/gvmm)
if(TARGET gvmm_standin)
    install(TARGETS gvmm_standin EXPORT gvmm-targets LIBRARY DESTINATION ${standin_dir})
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gvmm)
install(EXPORT gvmm-targets NAMESPACE gvmm:: DESTINATION ${package_dir})
configure_package_config_file(cmake/gvmm-config.cmake.in gvmm-config.cmake
    INSTALL_DESTINATION ${package_dir} PATH_VARS standin_dir)
write_basic_package_version_file(gvmm-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gvmm-config.cmake ${PROJECT_BINARY_DIR}/gvmm-config-version.cmake
    DESTINATION ${package_dir})

# Paths in gvmm.pc start at the file itself, so that an installed tree can be moved.
file(RELATIVE_PATH GVMM_PC_TO_PREFIX
    ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH GVMM_PC_LIBDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH GVMM_PC_INCLUDEDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/gvmm.pc.in gvmm.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gvmm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
