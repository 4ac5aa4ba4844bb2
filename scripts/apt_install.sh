#!/usr/bin/env bash
# Installs Debian packages. Waits while another program, such as an automatic update, holds the package database.
# Usage: scripts/apt_install.sh PACKAGE...
# APT_WAIT: the longest time to wait, in seconds (default 1800).
set -euo pipefail
limit=${APT_WAIT:-1800}
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT

# apt-get can wait for dpkg's lock (DPkg::Lock::Timeout), but not for the lock of the package lists.
locked() {
  grep -Em1 'Could not get lock|Unable to lock|Unable to acquire the dpkg' "$messages"
}

when_free() {
  local shown='' reason started=$SECONDS
  until LC_ALL=C "${sudo[@]}" "$@" >/dev/null 2>"$messages"; do
    if ! reason=$(locked); then
      cat "$messages" >&2
      return 1
    fi
    if [ $((SECONDS - started)) -ge "$limit" ]; then
      echo "setup: gave up after ${limit} s: ${reason#E: }" >&2
      return 1
    fi
    if [ "$reason" != "$shown" ]; then
      echo "setup: waiting for another program that uses the package database: ${reason#E: }" >&2
      shown=$reason
    fi
    sleep 1
  done
  cat "$messages" >&2
}

when_free apt-get update -qq -o Acquire::Retries=3
when_free env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Acquire::Retries=3 --no-install-recommends "$@"
