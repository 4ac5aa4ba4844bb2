#!/usr/bin/env bash
# Installs the listed Debian packages that are missing.
# Usage: scripts/install_missing.sh PACKAGE...
set -euo pipefail
missing=()
for package in "$@"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${missing[*]}"
  "$(dirname "$0")/apt_install.sh" "${missing[@]}"
fi
