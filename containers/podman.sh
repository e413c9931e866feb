#!/bin/bash
# `podman` on a machine that has no Docker daemon, no registry within reach, and not all of cgroups,
# such as a container in which tests run. Needs root and Debian's podman, crun and debootstrap.
# Everything is kept in $PODMAN_ROOT. The base image is made by debootstrap of what the registry's
# is made of. Builds use this machine's pip configuration, whose files are mounted, not copied.
set -euo pipefail
root=${PODMAN_ROOT:-/var/tmp/enginebay-podman}
base=docker.io/library/debian:bookworm-slim
mkdir -p "$root"
export CONTAINERS_CONF=$root/containers.conf
printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n' >"$CONTAINERS_CONF"

# crun wants one hierarchy of cgroups; the one seen here is this process's alone.
if [ -z "${IN_OWN_MOUNTS:-}" ]; then
  IN_OWN_MOUNTS=1 exec unshare --mount "$0" "$@"
fi
umount --lazy /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup

podman=(podman --root "$root/storage" --runroot "$root/run" --storage-driver vfs
  --cgroup-manager cgroupfs --events-backend file)

make_base() {
  "${podman[@]}" image exists "$base" && return
  debootstrap --variant=minbase bookworm "$root/debian" http://deb.debian.org/debian
  tar -C "$root/debian" -c . | "${podman[@]}" import - "$base"
  rm -rf "$root/debian"
} >&2

# Options that give a build this machine's pip configuration.
pip_options() {
  local conf=$root/pip.conf place
  python3 -m pip config list |
    sed -n "s/^[^=]*\.\([a-z-]*\)='\(.*\)'$/\1 = \2/p" |
    awk 'BEGIN { print "[global]" } !seen[$1]++' >"$conf"
  for place in $(sed -n 's/.* = //p' "$conf"); do
    case $place in
    file://*) place=$(dirname "${place#file://}") ;; # an index: its files lie beside it
    /etc/*) continue ;;
    esac
    [[ $place == /* && -e $place ]] && echo "--volume=$place:$place:ro"
  done | sort -u
  # Under a name of its own, since the image's certificates are installed meanwhile.
  place=$(sed -n 's/^cert = //p' "$conf")
  [ -z "$place" ] || echo "--volume=$place:/host-certificates.crt:ro"
  sed -i 's#^cert = .*#cert = /host-certificates.crt#' "$conf"
  echo "--volume=$conf:/etc/pip.conf:ro"
}

command=$1
shift
case $command in
build)
  make_base
  mapfile -t options < <(pip_options)
  # In docker's format, since OCI's has no health checks.
  exec "${podman[@]}" build --format=docker --pull=never --layers --isolation=chroot --network=host \
    "${options[@]}" "$@"
  ;;
run) exec "${podman[@]}" run --network=host --cgroups=disabled "$@" ;;
*) exec "${podman[@]}" "$command" "$@" ;;
esac
