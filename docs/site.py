"""For the rendered documentation (`mkdocs build`): files that pages link to outside of this folder
come along."""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"(\]\(|^\[[^\]]+\]: )\.\./([^)#\s]+)", re.MULTILINE)


def on_files(files: Files, config) -> Files:
    """Every file of the repository that a page names."""
    for page in Path(config.docs_dir).glob("*.md"):
        for _, path in OUTSIDE.findall(page.read_text(encoding="utf-8")):
            if (ROOT / path).is_file() and files.get_file_from_path(path) is None:
                files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Links out of the folder lead to where those files are now; links within those files stay
    text."""
    if page.file.src_dir == str(ROOT):
        return re.sub(r"\[([^\]]+)\]\((?!http)[^)]+\)", r"\1", markdown)
    return OUTSIDE.sub(r"\1\2", markdown)
