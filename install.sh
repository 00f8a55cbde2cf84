#!/bin/sh
# Installs the program rankrun, its man page and its completions, from an archive whose checksum is right.
#
#   sh install.sh [--from FOLDER|URL] [--prefix FOLDER]
#
# --from    where the archives and SHA256SUMS are; a release's install.sh knows its own
# --prefix  where bin/ and share/ are made: ~/.local, or /usr/local as root
set -eu

# A release writes its address here.
from='@FROM@'

fail() {
    printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

usage='sh install.sh [--from FOLDER|URL] [--prefix FOLDER]'
prefix=${HOME:+$HOME/.local}
[ "$(id -u)" != 0 ] || prefix=/usr/local
while [ $# -gt 0 ]; do
    case $1 in
        --from | --prefix) [ $# -gt 1 ] || fail "\`$1\` has no value" "$usage" ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit ;;
        *) fail "unknown argument \`$1\`" "$usage" ;;
    esac
    [ -n "$2" ] || fail "\`$1\` is empty" "$usage"
    case $1 in
        --from) from=${2%/} ;;
        --prefix) prefix=${2%/} ;;
    esac
    shift 2
done

[ -n "$prefix" ] || fail 'HOME is not set' 'name a place: --prefix FOLDER'
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
system=$(uname -s) machine=$(uname -m)
[ "$machine" != arm64 ] || machine=aarch64
case $system-$machine in
    Linux-x86_64 | Linux-aarch64) ;;
    Linux-*) fail "there is no rankrun for $machine: its archives are for x86_64 and aarch64" \
        'build it from a checkout: `cargo install --locked --path launcher`' ;;
    *) fail "rankrun runs on Linux, and this system is $system" \
        'run it in a Linux container or virtual machine; its `install.sh` and wheel go there' ;;
esac
if ldd --version 2>&1 | grep -qi musl; then
    fail 'this system has the C library musl, and rankrun needs glibc 2.17 or later' \
        'a container image of Debian, Ubuntu, Fedora or PyTorch has glibc'
fi
case $from in
    @*) fail 'this install.sh is not from a release, so it knows no address' \
        'in a checkout: launcher/archive "$(launcher/wheel)", then sh install.sh --from target/archives' ;;
    https://* | /* | ./* | ../* | .) ;;
    *://*) fail "\`--from\` is \`$from\`: only https is safe to install from" "$usage" ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# NAME: from the release into the folder.
fetch() {
    case $from in
        https://*)
            if command -v curl >/dev/null; then
                said=$(curl --proto '=https' -fsSL --retry 2 --connect-timeout 20 -o "$folder/$1" "$from/$1" 2>&1) && return
            elif command -v wget >/dev/null; then
                said=$(wget --https-only --tries=2 --timeout=20 -q -O "$folder/$1" "$from/$1" 2>&1) && return
            else
                fail 'neither `curl` nor `wget` is installed' "install one, or copy the release's files and use --from FOLDER"
            fi
            fail "cannot download $from/$1: ${said:-no answer}" \
                'without a network, copy the files of the release and use --from FOLDER; a proxy is named by https_proxy'
            ;;
        *)
            [ -f "$from/$1" ] || fail "there is no $from/$1" "--from names the folder with the release's files"
            cp "$from/$1" "$folder/$1"
            ;;
    esac
}

fetch SHA256SUMS
line=$(grep -E "^[0-9a-f]{64}  rankrun-[0-9A-Za-z.+]+-$machine-linux\.tar\.gz\$" "$folder/SHA256SUMS" || true)
[ "$(printf '%s' "$line" | grep -c .)" = 1 ] ||
    fail "$from/SHA256SUMS does not name one archive for $machine" 'it is not from a release of rankrun'
wanted=${line%% *} archive=${line##* }
fetch "$archive"
found=$(sha256sum "$folder/$archive")
found=${found%% *}
[ "$found" = "$wanted" ] || fail "the checksum of $archive is $found, and SHA256SUMS says $wanted: nothing is installed" \
    'download it again; if it stays wrong, do not use it'

tar -xzf "$folder/$archive" -C "$folder"
unpacked="$folder/${archive%.tar.gz}"
version=$("$unpacked/bin/rankrun" --version) || fail "the program of $archive does not run here" \
    'rankrun needs glibc 2.17 or later, as `ldd --version` names it'
(cd "$unpacked" && find . -type f) | while read -r file; do
    mkdir -p "$prefix/${file%/*}" && cp "$unpacked/$file" "$prefix/$file.new" && mv -f "$prefix/$file.new" "$prefix/$file" ||
        fail "$prefix/$file cannot be written" 'name another place: --prefix FOLDER'
done
printf '%s is in %s\n' "$version" "$prefix/bin"
case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) printf 'it is not in PATH yet: export PATH="%s:$PATH"\n' "$prefix/bin" ;;
esac
