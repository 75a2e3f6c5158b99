#!/bin/sh
# What the tests with real parts need: a container engine, an SSH server, network namespaces, a C compiler.
# As root on Debian or Ubuntu this installs what is missing; otherwise it says which tests will be skipped.
set -eu

missing=
need() { # $1: program, $2: Debian package, $3: what is skipped without it
    PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 && return
    missing="$missing $2"
    echo "  $1 is missing ($2): $3 will be skipped"
}

can_install=false
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1 && can_install=true

look() {
    missing=
    need dockerd docker.io "tests with a real container engine"
    need sshd openssh-server "tests of hosts over SSH"
    need ip iproute2 "tests with several hosts in network namespaces"
    need nft nftables "tests that cut the network between hosts"
    need gcc gcc "tests with the NVML stand-in"
    need busybox busybox-static "tests with a real container image"
    need make make "tests of the set-up itself"
    need faketime faketime "tests with a wrong clock"
    need chromium chromium "tests in a real browser"
}

if $can_install; then
    look >/dev/null
    if [ -n "$missing" ]; then
        echo "Installing for the tests:$missing"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        # No service of these packages may start by itself: the tests start their own.
        policy=/usr/sbin/policy-rc.d
        made_policy=false
        if [ ! -e $policy ]; then
            printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && made_policy=true
        fi
        # shellcheck disable=SC2086
        apt-get install -y -qq --no-install-recommends $missing iptables ca-certificates >/dev/null || echo "apt-get could not install all of it"
        $made_policy && rm -f $policy
    fi
fi
look
[ "$(id -u)" -eq 0 ] || echo "  not root: tests marked 'root' (privileges, namespaces, SSH hosts) will be skipped"
[ -n "$missing" ] || echo "All parts for the tests are here."
exit 0
