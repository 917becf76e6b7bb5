"""The README's and the docs' promises, run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

from fedmes import config

ROOT = Path(__file__).parents[1]


def test_every_snippet_of_the_readme_runs(tmp_path):
    """Each Python block is saved under the name in its first line; then the commands that use them are run."""
    text = (ROOT / "README.md").read_text()
    snippets = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL))
    assert set(snippets) == {"make_data.py", "my_model.py", "my_method.py", "from_python.py"}
    for name, code in snippets.items():
        (tmp_path / name).write_text(code)
    commands = [c for c in re.findall(r"```bash\n(.*?)\n```", text) if c.startswith("fedmes run --")]
    assert len(commands) == 3
    small = " --rounds 1 --epochs 1 -q"
    lines = ["python make_data.py", *(c + small for c in commands), "python from_python.py"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in lines:
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PATH": path}, timeout=300
        )
        assert (done.returncode, done.stderr) == (0, ""), line


def test_every_option_is_documented():
    documented = set(re.findall(r"^\| `([a-z0-9_.]+)` \|", (ROOT / "docs/options.md").read_text(), re.MULTILINE))
    assert documented == set(config._keys())
