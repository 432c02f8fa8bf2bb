#!/usr/bin/env bash
# Stream the alternatives of a prompt as events. Start the server first: ./build.sh serve
# usage: examples/curl.sh [PROMPT]
set -euo pipefail
url=http://${SRB_HOST:-127.0.0.1}:${SRB_PORT:-9090}
prompt=${1:-Once upon a time,}

# -N: show events as they arrive; --fail-with-body: exit with an error, and show it.
curl -N --silent --show-error --fail-with-body "$url/v1/completions" -H 'Content-type: application/json' -d @- <<END
{
  "prompt": $(printf '%s' "$prompt" | python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))'),
  "max_tokens": 24,
  "branches": [
    {"label": "sure", "temperature": 0},
    {"label": "usual"},
    {"label": "wild", "temperature": 1.5}
  ]
}
END
