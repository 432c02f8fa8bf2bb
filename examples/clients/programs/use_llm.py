# needs: llm
import os
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(
        f"- model_id: srb\n  model_name: {os.environ['MODEL']}\n  api_base: {os.environ['HOST']}/openai/v1\n"
    )
    command = [sys.executable, "-m", "llm", "-m", "srb", "-o", "max_tokens", "8", "Say hello"]
    environment = os.environ | {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
