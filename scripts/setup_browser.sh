#!/usr/bin/env bash
# Installs Debian's Chromium, and playwright, which controls Chromium, for the tests of the dashboard's page.
# Usage: scripts/setup_browser.sh [VENV]     (default .venv)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

if ! command -v chromium >/dev/null; then
  if ! command -v apt-get >/dev/null; then
    echo "setup: this is not a Debian system; please install chromium" >&2
    exit 1
  fi
  echo "setup: installing chromium"
  scripts/apt_install.sh chromium
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check 'playwright>=1.40'
