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
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}
