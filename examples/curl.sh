#!/usr/bin/env bash
# The alternatives of one prompt, as events. First: ./build.sh serve
# usage: examples/curl.sh [PROMPT]
set -euo pipefail
url=http://${SRB_HOST:-127.0.0.1}:${SRB_PORT:-9090}
prompt=${1:-Once upon a time,}

# -N: show what comes at once; --fail-with-body: an error in the exit code and in words.
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
