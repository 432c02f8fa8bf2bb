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

# Some variants of a portable build have what GCC can't compile: AMX (without_amx in build.sh says why), and SME before
# GCC 14, which only KleidiAI uses. They get the instructions of the next best variant.
function(leave_out_what_gcc_lacks)
    if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        return()
    endif()
    if(TARGET ggml-cpu-sapphirerapids)
        target_compile_options(ggml-cpu-sapphirerapids PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
    endif()
    foreach(variant ggml-cpu-armv9.2_1 ggml-cpu-armv9.2_2)
        if(TARGET ${variant} AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
            get_target_property(options ${variant} COMPILE_OPTIONS)
            string(REPLACE "armv9.2-a" "armv8.6-a" options "${options}")
            string(REPLACE "+sme" "" options "${options}")
            set_target_properties(${variant} PROPERTIES COMPILE_OPTIONS "${options}")
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL leave_out_what_gcc_lacks)

# The loops over tokens, cells and the vocabulary are hot; models, files and chat templates aren't, and compile in two
# thirds of the time with -O1.
function(optimize_only_what_is_hot)
    get_target_property(llama llama SOURCE_DIR)
    get_target_property(ggml ggml-base SOURCE_DIR)
    target_compile_options(llama PRIVATE -O1)
    foreach(part batch context graph kv-cache memory-recurrent sampler vocab)
        list(APPEND hot ${llama}/llama-${part}.cpp)
    endforeach()
    set_source_files_properties(${hot} ${llama}/unicode.cpp TARGET_DIRECTORY llama PROPERTIES COMPILE_OPTIONS -O3)
    set_source_files_properties(
        ${ggml}/gguf.cpp ${ggml}/ggml-backend-meta.cpp TARGET_DIRECTORY ggml-base PROPERTIES COMPILE_OPTIONS -O1)
endfunction()
if(NOT MSVC)
    cmake_language(DEFER CALL optimize_only_what_is_hot)
endif()
