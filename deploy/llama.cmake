# What build.sh changes in the build of llama-cpp-python. CMake reads it after project(llama_cpp).

# srb uses nothing of llama-common, which takes more than half of the time.
set(LLAMA_BUILD_COMMON OFF)

# All libraries go into the package, once: a wheel has no links, so each versioned name would be another copy.
set(CMAKE_PLATFORM_NO_VERSIONED_SONAME ON)
set(CMAKE_INSTALL_BINDIR llama_cpp/lib)
set(CMAKE_INSTALL_LIBDIR llama_cpp/lib)
set(CMAKE_INSTALL_INCLUDEDIR llama_cpp/include)
if(APPLE)
    set(CMAKE_INSTALL_RPATH "@loader_path")
else()
    set(CMAKE_INSTALL_RPATH "$ORIGIN")
endif()

# GCC miscompiles AMX code, see without_amx in build.sh. In a portable build, only this variant has it.
function(without_amx)
    if(TARGET ggml-cpu-sapphirerapids AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        target_compile_options(ggml-cpu-sapphirerapids PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
    endif()
endfunction()
cmake_language(DEFER CALL without_amx)
