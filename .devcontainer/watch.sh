#!/usr/bin/env bash
# Bring lab 02 up and open its live page in the reader's browser. It runs until Ctrl-C; the stack stays up.
# In a Codespace the page's port is reached under another name, which the page is told. $BROWSER is set by VS Code: it
# opens an address of this machine on the reader's.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(--port 7861)
if [ -n "${CODESPACE_NAME:-}" ]; then
    options+=(--forwarded-host "$CODESPACE_NAME-7861.${GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN:-app.github.dev}")
fi
.venv/bin/labctl up iterative --runtime local
printf '\nA verdict, in a second terminal:\n  source .venv/bin/activate && labctl down iterative && labctl run iterative --quick\n\n'
.venv/bin/labctl watch iterative "${options[@]}" | while read -r line; do
    printf '%s\n' "$line"
    address=$(grep -o 'http://127\.0\.0\.1:[^ ]*' <<<"$line") || continue
    [ -z "${BROWSER:-}" ] || "$BROWSER" "$address" || true
done
