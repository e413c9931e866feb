#!/bin/sh
# What a container runs: `enginebay` with the container's arguments. If the data folder has no
# config yet, it begins with one that serves the demo model.
set -eu
if [ "${1-}" = serve ] && [ -z "${ENGINEBAY_CONFIG-}" ] && [ ! -e config.yml ] &&
  ! cp /usr/share/enginebay/config.yml config.yml; then
  echo "The data folder must be writable for user $(id -u): on the host run" >&2
  echo "  sudo chown -R $(id -u):$(id -g) FOLDER" >&2
  echo "or start the container as the folder's owner, with --user UID:GID." >&2
  exit 1
fi
exec enginebay "$@"
