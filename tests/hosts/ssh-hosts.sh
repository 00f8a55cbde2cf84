#!/usr/bin/env bash
# ssh-hosts.sh - OpenSSH between the hosts of hosts.sh, by key, on port 2222.
#
# Each host th1..thN that hosts.sh has made gets an sshd of its own, with keys and
# settings in DIR; neither ~/.ssh nor the machine's sshd is read or touched. The
# servers end with the hosts (hosts.sh down).
#
#   ssh-hosts.sh up N DIR       an sshd on th1..thN; DIR/bin/ssh is a client that
#                               reaches them: put DIR/bin first in PATH
#   ssh-hosts.sh start I DIR    start host I's sshd again
#   ssh-hosts.sh stop I DIR     end host I's sshd, not what runs in its sessions
#
# Environment: TH_ID as in hosts.sh. Needs root; Debian packages openssh-server,
# openssh-client, and those of hosts.sh.
set -euo pipefail

die() { echo "ssh-hosts.sh: $*" >&2; exit 1; }

hosts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/hosts.sh

write_config() {
    local n=$1 dir=$2 i
    mkdir -p "$dir/bin"
    ssh-keygen -q -t ed25519 -N '' -C th -f "$dir/id"
    ssh-keygen -q -t ed25519 -N '' -C th -f "$dir/hostkey"
    cp "$dir/id.pub" "$dir/authorized_keys"
    for ((i = 1; i <= n; i++)); do
        echo "[th$i]:2222,[th$i-v6]:2222 $(cut -d' ' -f1,2 "$dir/hostkey.pub")" >>"$dir/known_hosts"
    done
    # SHLVL 2 keeps Debian's bash from reading ~/.bashrc for each command.
    cat >"$dir/sshd_config" <<-CONF
	Port 2222
	HostKey $dir/hostkey
	AuthorizedKeysFile $dir/authorized_keys
	StrictModes no
	PidFile none
	UsePAM no
	UseDNS no
	PasswordAuthentication no
	KbdInteractiveAuthentication no
	PermitRootLogin prohibit-password
	MaxStartups 200
	MaxSessions 200
	SetEnv SHLVL=2
	KexAlgorithms curve25519-sha256
	CONF
    # Aliases of ssh alone: the hosts themselves have no such names.
    cat >"$dir/config" <<-CONF
	Host alias1
	    HostName th1
	Host alias2
	    HostName th2
	Match host th*
	    Port 2222
	    User root
	    IdentityFile $dir/id
	    IdentitiesOnly yes
	    IdentityAgent none
	    UserKnownHostsFile $dir/known_hosts
	    GlobalKnownHostsFile none
	    LogLevel ERROR
	CONF
    printf '#!/bin/sh\nexec /usr/bin/ssh -F %s "$@"\n' "$dir/config" >"$dir/bin/ssh"
    chmod 755 "$dir/bin/ssh"
}

start() {
    ("$hosts" exec "$1" setsid /usr/sbin/sshd -D -e -f "$2/sshd_config") >>"$2/sshd-th$1.log" 2>&1 </dev/null &
    echo $! >"$2/sshd-th$1.pid"
}

listening() { (exec 3<>/dev/tcp/127.0.0.1/2222) 2>/dev/null; }

wait_listening() {
    "$hosts" exec "$1" bash -c "$(declare -f listening)
        for ((k = 0; k < 400; k++)); do if listening; then exit 0; fi; sleep 0.05; done; exit 1" ||
        die "sshd on th$1 did not come up: see $2/sshd-th$1.log"
}

up() {
    local i
    [[ -x /usr/sbin/sshd ]] || die "apt-get install openssh-server openssh-client"
    # Debian's sshd wants it for its separation of privileges.
    mkdir -p /run/sshd
    write_config "$1" "$2"
    for ((i = 1; i <= $1; i++)); do start "$i" "$2"; done
    for ((i = 1; i <= $1; i++)); do wait_listening "$i" "$2"; done
}

# setsid has become sshd, with the pid of the subshell, unless it led its process group already.
stop() { kill "$(cat "$2/sshd-th$1.pid")"; }

case ${1:-help} in
up)    up "${2:?up N DIR}" "${3:?up N DIR}" ;;
start) start "${2:?start I DIR}" "${3:?start I DIR}"; wait_listening "$2" "$3" ;;
stop)  stop "${2:?stop I DIR}" "${3:?stop I DIR}" ;;
*)     sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; [[ ${1:-help} == help ]] ;;
esac
