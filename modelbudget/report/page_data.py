"""What the page names and shows, from `configs/page.yaml`."""

from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS

PAGE = load_yaml(CONFIGS / "page.yaml")
